package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Status is how a lab is. Its JSON is stable.
type Status struct {
	Name         string `json:"name"`
	ControlPlane string `json:"controlPlane"` // running or dead
	API          string `json:"api"`
	Kubeconfig   string `json:"kubeconfig"`
	// IPv6Only: every address is of IPv6, and what is of both families has it in the first
	// place.
	IPv6Only bool `json:"ipv6Only,omitempty"`
	// VIP (address:port) of the sample service, and the one of IPv6; empty: the lab is of one
	// family.
	VIP   string       `json:"vip,omitempty"`
	VIP6  string       `json:"vip6,omitempty"`
	Zones []ZoneStatus `json:"zones"`
	// Global: every zone has a control plane, and ControlPlane is the global one.
	Global bool `json:"global,omitempty"`
	// Cuts are the paths that are cut where an end is a machine of a zone.
	Cuts [][2]string `json:"cuts,omitempty"`
	// Links are the paths with a delay or a loss.
	Links []LinkStatus `json:"links,omitempty"`
}

// ZoneStatus is a zone: its cable to the others, its nodes, and who serves it.
type ZoneStatus struct {
	Name string `json:"name"`
	// Link is up or cut.
	Link string `json:"link"`
	// CutFrom are the zones, and global, to which the path alone is cut.
	CutFrom []string `json:"cutFrom,omitempty"`
	// Site is what the zone has of its own; nil: nothing.
	Site  *SiteStatus  `json:"site,omitempty"`
	Nodes []NodeStatus `json:"nodes"`
	// Served by the first family, and by IPv6; nil: the lab is of one family.
	Served
	IPv6 *Served `json:"ipv6,omitempty"`
	// Shop is how the zone's client with a sidecar is served, by the first family; nil: the lab
	// has no sidecars.
	Shop *Served `json:"shop,omitempty"`
}

// SiteStatus is what a zone with a control plane of its own has.
type SiteStatus struct {
	// ControlPlane and Ingress are running or dead, and Egress is, where the lab has any.
	ControlPlane string `json:"controlPlane"`
	Ingress      string `json:"ingress"`
	Egress       string `json:"egress,omitempty"`
	API          string `json:"api"`
	Kubeconfig   string `json:"kubeconfig"`
	// VIP (address:port) of the sample service of all zones, and the one of IPv6.
	VIP  string `json:"vip"`
	VIP6 string `json:"vip6,omitempty"`
}

// Served is the result of requests of a zone's client to the sample service.
type Served struct {
	// Asked is the number of requests, Answered the number of answers by endpoint.
	Asked    int            `json:"asked"`
	Answered map[string]int `json:"answered"`
	// Failed is the number of failed requests, Error that of the last one.
	Failed int    `json:"failed"`
	Error  string `json:"error,omitempty"`
}

// NodeStatus is a node.
type NodeStatus struct {
	Name     string `json:"name"`
	Address  string `json:"address"`
	Address6 string `json:"address6,omitempty"`
	// Names are the addresses that the node's agent gives for the sample service's
	// name (A and AAAA), IPv4 first; none while it does not answer.
	Names []string `json:"names"`
	// Link is up or cut; Agent and WorkloadProcess running or dead.
	Link  string `json:"link"`
	Agent string `json:"agent"`
	// Mode of the agent, or of the one that died: with auto, the chosen one.
	// Empty: it did not get that far.
	Mode            string `json:"mode"`
	Workload        string `json:"workload"`
	WorkloadProcess string `json:"workloadProcess"`
	// Sidecar of the workload: "ready", or why it is not. Empty: the lab has no sidecars.
	Sidecar string `json:"sidecar,omitempty"`
	// Ready is the Node's condition as the control plane has it: True, False,
	// Unknown, or "?" if it can't be read.
	Ready string `json:"ready"`
}

// questions is the number of requests that Status sends from each zone, in each family.
const questions = 12

// Status reads the state of the whole lab and calls the sample service from every
// zone. Errors are part of the result.
func (l *Lab) Status(ctx context.Context) *Status {
	s := &Status{
		Name: l.spec.Name, API: "https://" + l.spec.central().api(), Kubeconfig: l.Kubeconfig(), VIP: l.VIP(), VIP6: l.VIP6(),
		ControlPlane: l.running("control-plane", l.ns.open[control]), Global: l.spec.Global, Cuts: l.kept.cuts(), Links: l.linkStatus(), IPv6Only: l.spec.IPv6Only,
	}
	ready := l.readiness(ctx)
	for _, z := range l.spec.zones() {
		zs := ZoneStatus{Name: z.name(), Link: l.link(z, "uplink"), CutFrom: l.cutFrom(target{zone: z}), Site: l.site(z)}
		for _, n := range l.spec.nodes() {
			if n.zone != z {
				continue
			}
			ns := l.ns.open[n.name()]
			node := NodeStatus{
				Name: n.name(), Address: l.spec.primary(n.addr()).String(), Link: l.link(z, n.name()),
				Agent: l.running(n.name()+"-agent", ns), Workload: l.spec.workloadOf(n), WorkloadProcess: l.running(n.name()+"-workload", ns),
				Mode: l.modeOf(n), Ready: "?", Names: []string{},
			}
			if all := l.spec.addrs(n.addr()); len(all) > 1 {
				node.Address6 = all[1].Addr().String()
			}
			if r, ok := ready[n.name()]; ok {
				node.Ready = r
			}
			zs.Nodes = append(zs.Nodes, node)
		}
		s.Zones = append(s.Zones, zs)
	}
	var asking sync.WaitGroup
	for i := range s.Zones {
		z := &s.Zones[i]
		asking.Go(func() { collect(&z.Served, func() (Answer, error) { return l.ask(ctx, zone(i), l.vip(zone(i), 0)) }) })
		if vip6 := l.vip(zone(i), 1); vip6 != "" {
			z.IPv6 = &Served{}
			asking.Go(func() { collect(z.IPv6, func() (Answer, error) { return l.ask(ctx, zone(i), vip6) }) })
		}
		if l.spec.Sidecars {
			z.Shop = &Served{}
			asking.Go(func() {
				collect(z.Shop, func() (Answer, error) { return l.askAsShop(ctx, zone(i), l.vip(zone(i), 0)) })
			})
		}
		for j := range z.Nodes {
			if n := &z.Nodes[j]; l.spec.Sidecars {
				asking.Go(func() { n.Sidecar = l.sidecarOf(ctx, n.Name, n.Workload) })
			}
			if n := &z.Nodes[j]; n.Agent == "running" {
				asking.Go(func() { n.Names = l.lookup(ctx, n.Name) })
			}
		}
	}
	asking.Wait()
	return s
}

func (l *Lab) running(what string, in *netns.NS) string {
	if in != nil && in.Holds(l.kept.process(what)) {
		return "running"
	}
	return "dead"
}

// modeOf a node's agent, by the line that it printed when it served.
func (l *Lab) modeOf(n node) string {
	output, _ := os.ReadFile(l.outOf(n.name() + "-agent")) // nothing yet
	for _, word := range strings.Fields(string(output)) {
		if mode, ok := strings.CutPrefix(word, "mode="); ok {
			return mode
		}
	}
	return ""
}

func (l *Lab) link(z zone, port string) string {
	if hub := l.ns.open[z.name()]; hub != nil {
		if up, err := hub.LinkUp(port); err == nil && up {
			return "up"
		}
	}
	return "cut"
}

// readiness of the nodes, as far as the APIs have it.
func (l *Lab) readiness(ctx context.Context) map[string]string {
	out := map[string]string{}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var mu sync.Mutex
	var reading sync.WaitGroup
	for _, p := range l.spec.planes() {
		reading.Go(func() {
			client, err := l.clientOf(p)
			if err != nil {
				return
			}
			if nodes, _, err := client.List(ctx, kind.Node, resource.ListOptions{}); err == nil {
				mu.Lock()
				defer mu.Unlock()
				addReadiness(out, nodes)
			}
		})
	}
	reading.Wait()
	return out
}

func addReadiness(out map[string]string, nodes []resource.Object) {
	for _, o := range nodes {
		n, ok := o.(*corev1.Node)
		if !ok {
			continue
		}
		out[n.Name] = string(corev1.ConditionUnknown)
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				out[n.Name] = string(c.Status)
			}
		}
	}
}

// serviceName is the name of the sample service: where zones have control planes, that of all zones.
func (s Spec) serviceName() string {
	if s.Global {
		return serviceName + ".default.svc.clusterset.local."
	}
	return serviceName + ".default.svc.cluster.local."
}

// lookup queries a node's agent for the addresses of the sample service's name.
func (l *Lab) lookup(ctx context.Context, node string) []string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	ns := l.ns.open[node]
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return ns.DialContext(ctx, network, "127.0.0.1:53")
	}}
	out := []string{}
	for _, family := range []string{"ip4", "ip6"} {
		addrs, _ := resolver.LookupNetIP(ctx, family, l.spec.serviceName()) // no answer is one, too
		for _, a := range addrs {
			out = append(out, a.Unmap().String())
		}
	}
	return out
}

// unanswered: the request took so long that another one would be no news.
const unanswered = time.Second

// collect the answers to some requests. A second one that failed that late is enough.
func collect(s *Served, ask func() (Answer, error)) {
	s.Answered = map[string]int{}
	for long := 0; s.Asked < questions && long < 2; {
		begin := time.Now()
		who, err := ask()
		s.Asked++
		if err != nil {
			if time.Since(begin) > unanswered {
				long++
			}
			s.Failed++
			s.Error = err.Error()
			continue
		}
		s.Answered[who.Name]++
	}
}

// Ask the sample service from a zone's client, by a connection of its own, and
// return the workload that answered.
func (l *Lab) Ask(ctx context.Context, zoneName string) (string, error) {
	a, err := l.Answer(ctx, zoneName)
	return a.Name, err
}

// Answer is the answer of the sample service.
type Answer struct {
	// Name and Zone of the workload, and the number of its process.
	Name string `json:"name"`
	Zone string `json:"zone"`
	PID  int    `json:"pid"`
}

// Answer is Ask with the whole answer of the workload.
func (l *Lab) Answer(ctx context.Context, zoneName string) (Answer, error) {
	p, err := l.spec.find(zoneName)
	if err != nil {
		return Answer{}, err
	}
	return l.ask(ctx, p.zone, l.vip(p.zone, 0))
}

// VIP (address:port) of the sample service; empty: each zone has one of its own.
func (l *Lab) VIP() string { return nth(l.kept.vips(""), 0) }

// VIPOf is the one by which a zone's client reaches the sample service; empty: there is no
// such zone.
func (l *Lab) VIPOf(zoneName string) string {
	p, err := l.spec.find(zoneName)
	if err != nil {
		return ""
	}
	return l.vip(p.zone, 0)
}

// VIP6 is that of IPv6; empty: the lab has none.
func (l *Lab) VIP6() string { return nth(l.kept.vips(""), 1) }

// vip by which a zone's client reaches the sample service: 0 is that of IPv4, 1 of IPv6.
func (l *Lab) vip(z zone, i int) string { return nth(l.kept.vips(z.name()), i) }

func nth(all []string, i int) string {
	if i >= len(all) {
		return ""
	}
	return all[i]
}

// site is what a zone has of its own; nil: nothing.
func (l *Lab) site(z zone) *SiteStatus {
	if !l.spec.Global {
		return nil
	}
	p := l.spec.planeOf(z)
	egress := ""
	if l.spec.Egress {
		egress = l.running(z.egress(), l.ns.open[z.egress()])
	}
	return &SiteStatus{
		Egress:       egress,
		ControlPlane: l.running(p.process(), l.ns.open[p.place]), Ingress: l.running(z.gateway(), l.ns.open[z.gateway()]),
		API: "https://" + p.api(), Kubeconfig: l.kubeconfig(p), VIP: l.vip(z, 0), VIP6: l.vip(z, 1),
	}
}

func (l *Lab) ask(ctx context.Context, z zone, vip string) (answer Answer, err error) {
	client := l.ns.open[z.client()]
	if client == nil {
		return answer, fmt.Errorf("the client of %s is gone", z.name())
	}
	return get(ctx, vip, client.DialContext)
}

// get the answer of the sample service at an address, by a connection of its own.
func get(ctx context.Context, vip string, dial func(context.Context, string, string) (net.Conn, error)) (answer Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+vip+"/", nil)
	if err != nil {
		return answer, err
	}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return answer, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // the status is the news
		return answer, fmt.Errorf("%s answered %s: %s", vip, resp.Status, strings.TrimSpace(string(text)))
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 4096)).Decode(&answer); err != nil {
		return answer, fmt.Errorf("answer of %s: %w", vip, err)
	}
	return answer, nil
}

// awaitAnswers sends requests from a zone's client to each address until one is answered:
// then its agents are programmed.
func (l *Lab) awaitAnswers(ctx context.Context, z zone, vips []string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for _, vip := range vips {
		for {
			_, err := l.ask(ctx, z, vip)
			if err == nil {
				break
			}
			select {
			case <-again.C:
			case <-ctx.Done():
				return fmt.Errorf("%s from %s: %w; see the agents' logs in %s", vip, z.name(), err, dirOf(l.spec.Name))
			}
		}
	}
	return nil
}
