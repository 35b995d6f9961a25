package diag

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// Peer is a workload that calls, or is called.
type Peer struct {
	// Ref of it in the index of policies, and Mesh that it is in.
	Ref  policy.Ref
	Mesh string
	// Dataplane of the workload; of a Pod with a sidecar the one that is made of it.
	Dataplane *mesh.Dataplane
	// Proxied: it has a proxy of its own, which has connected.
	Proxied bool
	// Identity is the SPIFFE ID that its proxy shows; empty: the mesh has no mutual TLS.
	Identity string
	// Services that select the workload: ports may have their protocol from there.
	Services []*corev1.Service
	// Node of the workload, which sees to permissions if there is no proxy.
	Node PeerNode
}

// PeerNode is the node of a workload.
type PeerNode struct {
	Name string
	// Mode of its agent; empty: there is none, or it is not known.
	Mode string
	// ByAddress: the mode enforces permissions by the addresses of clients.
	ByAddress bool
	// Addresses of the node itself.
	Addresses []string
}

func (n *PeerNode) String() string {
	switch {
	case n.Name == "":
		return "its node (not known)"
	case n.Mode == "":
		return fmt.Sprintf("its node %s, whose agent does not say its mode", n.Name)
	}
	return fmt.Sprintf("its node %s (mode %s)", n.Name, n.Mode)
}

func (p *Peer) services(yield func(catalog.Key, *corev1.Service) bool) {
	for _, s := range p.Services {
		if !yield(catalog.Key{Namespace: s.Namespace, Name: s.Name}, s) {
			return
		}
	}
}

func (p *Peer) String() string { return p.Ref.Key.String() }

// Access says whether one workload may call another, and why not.
type Access struct {
	Client string `json:"client"`
	Target string `json:"target"`
	// Identity that the client shows; empty: none, as it has no proxy, or the mesh no mutual TLS.
	Identity string `json:"identity,omitempty"`
	// Address that the client calls from; empty: not known.
	Address string       `json:"address,omitempty"`
	Ports   []AccessPort `json:"ports"`
	// Notes on what this does not decide.
	Notes []string `json:"notes,omitempty"`
}

// AccessPort is a port of the target.
type AccessPort struct {
	Port int32  `json:"port"`
	Name string `json:"name,omitempty"`
	// Mode of mutual TLS: Strict, Permissive, or empty, if there is none.
	Mode    string `json:"mode,omitempty"`
	Allowed bool   `json:"allowed"`
	Why     string `json:"why"`
	// Policies that decide, as KIND NAMESPACE/NAME.
	Policies []string `json:"policies,omitempty"`
	// Fix is what to change if the call should be allowed; empty: it is.
	Fix string `json:"fix,omitempty"`
}

// ExplainAccess says of each TCP port of a target, or of the one that is not 0, whether its proxy, or
// without one its node, lets a client in. x has the policies, and of is the Mesh of the target; nil: there is none.
func ExplainAccess(x *policy.Index, of *mesh.Mesh, client, target *Peer, port int32) Access {
	out := Access{Client: client.String(), Target: target.String(), Ports: []AccessPort{}}
	call := policy.Call{}
	if client.Dataplane != nil && len(client.Dataplane.Spec.Addresses) > 0 {
		out.Address = client.Dataplane.Spec.Addresses[0]
		call.Address, _ = netip.ParseAddr(out.Address)
	}
	if client.Proxied {
		call.Identity = client.Identity
	}
	out.Identity = call.Identity
	if client.Mesh != target.Mesh {
		out.Notes = append(out.Notes, fmt.Sprintf("%s is in mesh %s and %s in mesh %s: it gets in only by a Service that is exported to its mesh",
			client, client.Mesh, target, target.Mesh))
	}
	settings, _ := x.Workload(target.Ref)
	for i := range target.Dataplane.Spec.Ports {
		p := &target.Dataplane.Spec.Ports[i]
		if port != 0 && p.Port != port || p.Protocol != "" && p.Protocol != mesh.ProtocolTCP {
			continue
		}
		one := AccessPort{Port: p.Port, Name: p.Name}
		if !target.Proxied {
			guard, _ := x.GuardPort(target.Ref, p.Port)
			one.judgeAtNode(x, &guard, client, target, call.Address)
			out.Ports = append(out.Ports, one)
			continue
		}
		by, source := modeOf(of, settings.Ports[p.Port])
		one.Mode = by
		c := call
		app := build.AppProtocol(p, target.services)
		c.HTTP = build.ReadsRequests(app)
		if strings.EqualFold(one.Mode, mesh.MTLSPermissive) && build.ServerFirst(app) {
			c.Identity = ""
		}
		permission, _ := x.Permission(target.Ref, p.Port)
		one.judge(permission.Judge(c), client, target, source, c.Identity != "")
		out.Ports = append(out.Ports, one)
	}
	return out
}

// judgeAtNode a port of a workload without a proxy.
func (p *AccessPort) judgeAtNode(x *policy.Index, g *policy.GuardedPort, client, target *Peer, from netip.Addr) {
	node := &target.Node
	v := x.JudgeAddress(g, client.Ref, from)
	who := "from " + from.String()
	switch {
	case !g.Guards() && len(g.Left) == 0:
		p.Allowed, p.Why = true, "the target has no proxy, and no TrafficPermission is for the port, nor does the mesh deny by default"
	case !node.ByAddress:
		p.Allowed = true
		p.Why = fmt.Sprintf("the target has no proxy, and %s does not enforce permissions by address: nothing refuses", node)
	case node.Name == client.Node.Name && from.IsValid() && slices.Contains(node.Addresses, from.String()):
		p.Allowed, p.Why = true, fmt.Sprintf("the client has an address of the target's node %s, and connections from the node itself are let through", node.Name)
	case v.Denied:
		p.Policies = []string{sourceText(v.By)}
		p.Why = fmt.Sprintf("the target has no proxy; at %s a rule of deny of %s describes the client, %s", node, p.Policies[0], who)
		p.Fix = "take the client out of that rule: no rule of allow outweighs it"
	case !v.Allowed && len(v.Allowing) == 0:
		p.Policies = []string{"Mesh " + target.Mesh}
		p.Why = fmt.Sprintf("the target has no proxy; no TrafficPermission allows anything on the port, and Mesh %s has defaultAccess: Deny, which %s enforces", target.Mesh, node)
		p.Fix = fmt.Sprintf("write a TrafficPermission for %s that allows the client by namespace, labels or address", target)
	case !v.Allowed:
		p.Policies = sourceTexts(v.Allowing)
		p.Why = fmt.Sprintf("the target has no proxy; at %s no rule of allow of %s describes the client, %s", node, strings.Join(p.Policies, ", "), who)
		p.Fix = "add a rule of allow that describes it by namespace, labels or address"
	case v.By != policy.Source{}:
		p.Policies = []string{sourceText(v.By)}
		p.Allowed, p.Why = true, fmt.Sprintf("the target has no proxy; at %s a rule of allow of %s describes the client, %s", node, p.Policies[0], who)
	default:
		p.Allowed, p.Why = true, fmt.Sprintf("the target has no proxy; at %s no rule refuses the client, %s", node, who)
	}
	for _, s := range slices.SortedFunc(maps.Keys(g.Left), func(a, b policy.Source) int { return strings.Compare(sourceText(a), sourceText(b)) }) {
		p.Why += fmt.Sprintf("; %s has no effect, as nodes do not know %s of a client", sourceText(s), g.Left[s])
	}
}

// modeOf a port, and what says so; empty: there is no mutual TLS.
func modeOf(of *mesh.Mesh, settings policy.WorkloadPort) (mode, source string) {
	if of == nil || of.Spec.MTLS == nil || of.Spec.MTLS.EnabledBackend == "" {
		return "", ""
	}
	if settings.TLS.Mode != "" {
		return settings.TLS.Mode, sourceText(settings.From["tls.mode"])
	}
	for i := range of.Spec.MTLS.Backends {
		if b := &of.Spec.MTLS.Backends[i]; b.Name == of.Spec.MTLS.EnabledBackend && strings.EqualFold(b.Mode, mesh.MTLSPermissive) {
			return mesh.MTLSPermissive, "Mesh " + of.Name
		}
	}
	return mesh.MTLSStrict, "Mesh " + of.Name
}

// judge a port by its verdict. source says in which mode it is, and named whether the client shows a certificate.
func (p *AccessPort) judge(v policy.Verdict, client, target *Peer, source string, named bool) {
	who := "its proxy shows " + client.Identity
	if !named {
		who = "the client shows no certificate, as it has no proxy"
		switch {
		case client.Proxied && p.Mode == "":
			who = "the client shows no certificate, as the mesh has no mutual TLS"
		case client.Proxied:
			who = "the client shows no certificate, as the server of such a port speaks first, and it is plain in mode Permissive"
		}
	}
	switch {
	case strings.EqualFold(p.Mode, mesh.MTLSStrict) && !named:
		p.Policies = []string{source}
		p.Why = fmt.Sprintf("the port is in mode Strict, by %s, and %s: its connections in plain text are refused", source, who)
		p.Fix = fmt.Sprintf("give %s a proxy (proxima run --sidecar), or set tls.mode: Permissive for the port in a WorkloadPolicy of %s", client, target)
	case v.Denied:
		p.Policies = []string{sourceText(v.By)}
		p.Why = fmt.Sprintf("a rule of deny of %s describes the client (%s)", p.Policies[0], who)
		p.Fix = "take the client out of that rule: no rule of allow outweighs it"
	case !v.Allowed && v.Default():
		p.Policies = []string{"Mesh " + target.Mesh}
		p.Why = fmt.Sprintf("no TrafficPermission is for the port, and Mesh %s has defaultAccess: Deny", target.Mesh)
		p.Fix = fmt.Sprintf("write a TrafficPermission for %s with a rule of allow that describes the client (%s)", target, who)
	case !v.Allowed:
		p.Policies = sourceTexts(v.Allowing)
		p.Why = fmt.Sprintf("no rule of allow of %s describes the client (%s)", strings.Join(p.Policies, ", "), who)
		if len(v.Allowing) == 0 {
			p.Policies = []string{"Mesh " + target.Mesh}
		}
		p.Fix = "add a rule of allow that describes it"
		if !named {
			p.Fix = "rules with namespaces, accounts, labels or SPIFFE names describe clients with a certificate alone: give the client a proxy, or allow its address"
		}
		p.some(v.Requests, "; some requests are allowed, by %s")
	default:
		p.Allowed, p.Why = true, "no TrafficPermission is for the port, and the mesh allows what none refuses"
		if v.By != (policy.Source{}) {
			p.Policies = []string{sourceText(v.By)}
			p.Why = fmt.Sprintf("a rule of allow of %s describes the client (%s)", p.Policies[0], who)
		}
		p.some(v.Requests, "; some requests are refused, by %s")
	}
}

// some adds the policies that decide about requests.
func (p *AccessPort) some(rules []policy.Rule, format string) {
	var all []policy.Source
	for _, r := range rules {
		all = append(all, r.Source)
	}
	if texts := sourceTexts(all); len(texts) > 0 {
		p.Why += fmt.Sprintf(format, strings.Join(texts, ", "))
		for _, t := range texts {
			if !slices.Contains(p.Policies, t) {
				p.Policies = append(p.Policies, t)
			}
		}
	}
}

func sourceText(s policy.Source) string { return s.Kind + " " + s.Key.String() }

// sourceTexts in their order, each once.
func sourceTexts(all []policy.Source) []string {
	var out []string
	for _, s := range all {
		if text := sourceText(s); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}
