package kube_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	kernelnetns "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// prober compares what two nodes serve: ours has our agent, theirs the real kube-proxy. A third one is outside of both.
type prober struct {
	// mode of kube-proxy and of our agent.
	mode string
	// detect is how kube-proxy and our agent are told what is local: a part of
	// KubeProxyConfiguration; empty: by addresses, in arguments.
	detect string
	// six: addresses of probes are those of IPv6.
	six bool
	// places are the nodes, by their names.
	places map[string]place
}

// place is a node, and the pod there that asks.
type place struct {
	node *kernelnetns.NS
	addr string
	// pod is nil where none asks.
	pod     *kernelnetns.NS
	podAddr string
}

// vantage is where connections are made from, to reach what a node serves.
type vantage struct {
	node string // the node that is tried
	from string // pod, host, outside
	// protocol that is spoken: tcp, or udp.
	protocol string
}

func (p *prober) namespace(v vantage) (ns *kernelnetns.NS, own string) {
	at := p.places[v.node]
	switch v.from {
	case "pod":
		return at.pod, at.podAddr
	case "host":
		return at.node, at.addr
	}
	return p.places["third"].node, p.places["third"].addr
}

var (
	clusterIPs  = regexp.MustCompile(`\b10\.96\.(\d+)\.(\d+)`)
	externalIPs = regexp.MustCompile(`\b203\.0\.113\.(\d+)`)
)

// address of a probe or a Service, which those of IPv6 follow from.
func (p *prober) address(text string) string {
	if !p.six {
		return text
	}
	text = clusterIPs.ReplaceAllString(text, "fd00:10:96::$1:$2")
	return externalIPs.ReplaceAllString(text, "2001:db8:203::$1")
}

// endpoint is HOST:PORT of a probe of a node, which is called NODE.
func (p *prober) endpoint(node, text string) string {
	host, port, _ := strings.Cut(text, ":")
	if host == "NODE" {
		return net.JoinHostPort(p.places[node].addr, port)
	}
	return net.JoinHostPort(p.address(host), port)
}

// services are those that are probed.
func (p *prober) services() string {
	if !p.six {
		return probedServices
	}
	text := strings.NewReplacer("clusterIP: ", "ipFamilyPolicy: SingleStack, ipFamilies: [IPv6], clusterIP: ", cluster.PodCIDR, cluster.PodCIDR6).Replace(probedServices)
	return p.address(text)
}

// Connections of a probe: three endpoints, one of which is missed by chance once in 10⁷.
const connections = 40

// The same where endpoints take turns, as by IPVS' scheduler rr.
const turns = 9

// dropAfter is how long nobody answers where packets are dropped.
const dropAfter = 500 * time.Millisecond

// The same of IPv6. kube-proxy refuses by ICMPv6, which comes back over a veth link while connect still holds the
// socket: Linux takes it for an error that may pass (tcp_v6_err, sk_err_soft), and the connection is refused when
// the SYN is sent again, a second later. So few refusals have to do.
const (
	dropAfter6 = 2500 * time.Millisecond
	refusals6  = 3
)

// slower is a time on a machine that takes PROXIMA_TEST_SLOWER times as long, such as an emulated one.
func slower(d time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv("PROXIMA_TEST_SLOWER")); err == nil && n > 0 {
		return d * time.Duration(n)
	}
	return d
}

// outcome of a probe: who answers and what address they see, or how it fails. Names are those
// of the node's view, so that two nodes can be compared.
func (p *prober) outcome(v vantage, address string) string {
	ns, own := p.namespace(v)
	address = p.endpoint(v.node, address)
	seen := map[string]bool{}
	refused := 0
	n := connections
	if p.mode == "ipvs" {
		n = turns
	}
	for range n {
		result := p.connect(ns, v, own, address)
		seen[result] = true
		if result == "refused" {
			refused++
		}
		if result == "dropped" || p.six && refused == refusals6 {
			break
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), ", ")
}

func (p *prober) connect(ns *kernelnetns.NS, v vantage, own, address string) string {
	patience := dropAfter
	if p.six {
		patience = dropAfter6
	}
	ctx, cancel := context.WithTimeout(context.Background(), slower(patience))
	defer cancel()
	c, err := ns.DialContext(ctx, cmp.Or(v.protocol, "tcp"), address)
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "dropped"
	case err != nil:
		return err.Error()
	}
	defer c.Close()
	text, failed := answer(c, v.protocol == "udp")
	if failed != "" {
		return failed
	}
	name, from, _ := strings.Cut(text, " ")
	return p.role(v.node, name) + " sees " + p.who(v.node, from, own)
}

// answer of a pod, or how there is none.
func answer(c net.Conn, packets bool) (text, failed string) {
	if !packets {
		_ = c.SetDeadline(time.Now().Add(commandTimeout))
		all, err := io.ReadAll(c)
		if err != nil {
			return "", err.Error()
		}
		return string(all), ""
	}
	_ = c.SetDeadline(time.Now().Add(slower(dropAfter)))
	buffer := make([]byte, 1500)
	_, err := c.Write([]byte("who"))
	n := 0
	if err == nil {
		n, err = c.Read(buffer)
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "", "refused"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "", "dropped"
	case errors.Is(err, syscall.EPERM): // refused or dropped as it leaves this machine
		return "", "not permitted"
	case err != nil:
		return "", err.Error()
	}
	return string(buffer[:n]), ""
}

// role of a pod, seen from a node.
func (p *prober) role(node, pod string) string {
	other := map[string]string{"ours": "theirs", "theirs": "ours"}[node]
	pod = strings.ReplaceAll(pod, other, "PEER")
	return strings.ReplaceAll(strings.ReplaceAll(pod, node, "own"), "PEER", "peer")
}

// who has an address, seen from a node.
func (p *prober) who(node, address, own string) string {
	at, prefix := p.places[node], ""
	if at.pod != nil {
		prefix = at.podAddr[:strings.LastIndex(at.podAddr, ".")+1]
		if p.six { // fd00:10:244:NODE:POD::2
			prefix = strings.Join(strings.Split(at.podAddr, ":")[:4], ":") + ":"
		}
	}
	switch {
	case address == own:
		return "the client"
	case address == at.addr, strings.HasPrefix(address, prefix):
		return "the node"
	}
	return address
}

// probes are addresses by a name; NODE is the address of the node that is tried.
var probes = map[string]struct {
	address string
	from    []string
}{
	"cluster IP":                             {"10.96.1.1:80", []string{"pod", "host"}},
	"no endpoints":                           {"10.96.1.3:80", []string{"pod", "host"}},
	"a port that the Service does not have":  {"10.96.1.1:81", []string{"pod"}},
	"internal policy Local":                  {"10.96.1.4:80", []string{"pod", "host"}},
	"internal policy Local, none here":       {"10.96.1.5:80", []string{"pod", "host"}},
	"node port":                              {"NODE:30080", []string{"pod", "host", "outside"}},
	"node port, external policy Local":       {"NODE:30081", []string{"pod", "host", "outside"}},
	"node port, external policy Local, none": {"NODE:30082", []string{"pod", "host", "outside"}},
	"external IP":                            {"203.0.113.9:80", []string{"pod", "host"}},
	"load balancer, within its ranges":       {"203.0.113.10:80", []string{"pod"}},
	"load balancer, outside its ranges":      {"203.0.113.10:80", []string{"host"}},
}

// difference is a probe whose outcome is not kube-proxy's.
type difference struct {
	// probe, from and protocol say which; empty: any.
	probe, from, protocol string
	// ours and theirs are the outcomes; theirs is empty where it depends on what is around the node.
	ours, theirs string
}

// differences by mode.
var differences = map[string][]difference{
	"iptables": {
		// kube-proxy has no rule for ports that a Service does not have, so that such packets leave the node by the
		// default route. Ours refuses them at once, as kube-proxy's nftables mode does.
		{probe: "a port that the Service does not have", ours: "refused"},
	},
	"ipvs": {
		// kube-proxy makes a virtual service without destinations, which refuses. Ours drops, as both do in other modes: there
		// are endpoints, which may be used from other nodes.
		{probe: "internal policy Local, none here", from: "pod", ours: "dropped", theirs: "refused"},
		{probe: "internal policy Local, none here", from: "host", protocol: "tcp", ours: "dropped", theirs: "refused"},
	},
}

// differs finds what is known of a probe; nil: the nodes are to be alike.
func (p *prober) differs(probe, from, protocol string) *difference {
	for _, d := range differences[p.mode] {
		if d.probe == probe && (d.from == "" || d.from == from) && (d.protocol == "" || d.protocol == protocol) {
			return &d
		}
	}
	return nil
}

// check two outcomes.
func (d *difference) check(t *testing.T, ours, theirs string) {
	t.Helper()
	switch {
	case d == nil && ours != theirs:
		t.Errorf("ours: %s\nkube-proxy: %s", ours, theirs)
	case d == nil:
	case ours != d.ours:
		t.Errorf("ours: %s, want %s", ours, d.ours)
	case d.theirs != "" && theirs != d.theirs:
		t.Errorf("kube-proxy: %s, and the known difference is %s", theirs, d.theirs)
	}
	t.Log(theirs)
}

// compare the node with our agent with that of kube-proxy.
func (p *prober) compare(t *testing.T, until func(what string, done func() bool)) (compared int) {
	t.Helper()
	for _, node := range []string{"ours", "theirs"} {
		seen, peer := "", "10.96.2.2:80"
		if node == "theirs" {
			peer = "10.96.2.1:80"
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s at last: %s", node, seen)
			}
		})
		until(node+" serves all Services", func() bool {
			seen = ""
			for _, want := range [][2]string{{"10.96.1.1:80", "web-third"}, {peer, "sees"}, {"203.0.113.10:80", "sees"}, {"10.96.1.3:80", "refused"}} {
				got := p.outcome(vantage{node: node, from: "pod"}, want[0])
				if seen += want[0] + ": " + got + "; "; !strings.Contains(got, want[1]) {
					return false
				}
			}
			return true
		})
	}
	for _, name := range slices.Sorted(maps.Keys(probes)) {
		probe := probes[name]
		for _, from := range probe.from {
			for _, protocol := range []string{"tcp", "udp"} {
				compared++
				t.Run(name+" from "+from+" "+protocol, func(t *testing.T) {
					p.differs(name, from, protocol).check(t,
						p.outcome(vantage{"ours", from, protocol}, probe.address), p.outcome(vantage{"theirs", from, protocol}, probe.address))
				})
			}
		}
	}
	const itself = "a pod reaches itself"
	compared++
	t.Run(itself, func(t *testing.T) {
		p.differs(itself, "pod", "tcp").check(t,
			p.outcome(vantage{node: "ours", from: "pod"}, "10.96.2.1:80"), p.outcome(vantage{node: "theirs", from: "pod"}, "10.96.2.2:80"))
	})
	t.Run("affinity", func(t *testing.T) {
		seen := map[string]string{}
		for _, node := range []string{"ours", "theirs"} {
			got := p.outcome(vantage{node: node, from: "pod"}, "10.96.1.2:80")
			if _, seen[node], _ = strings.Cut(got, " sees "); strings.Contains(got, ",") || seen[node] == "" {
				t.Errorf("%s: %s", node, got)
			}
		}
		if diff := gocmp.Diff(seen["theirs"], seen["ours"]); diff != "" && p.detect == "" {
			t.Errorf("what an endpoint sees (-kube-proxy +ours):\n%s", diff)
		}
	})
	return compared
}
