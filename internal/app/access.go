package app

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/machine"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// machineID is the given one, else this machine's.
func machineID(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	return machine.ID()
}

// writePolicy decides about writes over HTTP.
func (cp *controlPlane) writePolicy() apiserver.WritePolicy {
	return writes{&access.WritePolicy{Cluster: nodesOf{cp}, MachineID: cp.cfg.MachineID, Local: new(interfaces).has}, cp.holders}
}

// writes are judged by what a credential may write, and by which machine has the
// name of a node.
type writes struct {
	*access.WritePolicy
	holders *access.Holders
}

// Allow implements apiserver.WritePolicy.
func (w writes) Allow(ctx context.Context, write access.Write) error {
	if err := w.WritePolicy.Allow(ctx, write); err != nil {
		return err
	}
	return w.holders.AllowWrite(write.Kind, write.Object, write.Old)
}

// nodesOf a control plane, as an access.Cluster.
type nodesOf struct{ cp *controlPlane }

// Node implements access.Cluster.
func (n nodesOf) Node(ctx context.Context, name string) (*corev1.Node, error) {
	obj, err := n.cp.api.Client("system:apiserver").Get(ctx, kind.Node, resource.Key{Name: name})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Node), nil
}

// Holder implements access.Cluster.
func (n nodesOf) Holder(addr netip.Addr, other string) (string, error) {
	now := n.cp.running.Load()
	if now == nil || !now.catalog.Synced() {
		return "", apierrors.NewServiceUnavailable("the control plane is still reading its store; try again in a moment")
	}
	for key, node := range now.catalog.Snapshot().Nodes.All() {
		if key.Name != other && access.HoldsAddress(node, addr) {
			return key.Name, nil
		}
	}
	return "", nil
}

// interfaces knows the addresses of this machine. The zero value is ready.
type interfaces struct {
	mu    sync.Mutex
	known map[netip.Addr]struct{}
	read  time.Time
}

// interfacesFresh is for how long the addresses are believed.
const interfacesFresh = 5 * time.Second

// has reports whether an address is one of an interface of this machine. If the
// system does not answer, what it said before holds.
func (i *interfaces) has(a netip.Addr) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if now := time.Now(); i.known == nil || now.Sub(i.read) >= interfacesFresh {
		i.read = now
		if all, err := net.InterfaceAddrs(); err == nil {
			i.known = make(map[netip.Addr]struct{}, len(all))
			for _, one := range all {
				if p, err := netip.ParsePrefix(one.String()); err == nil {
					i.known[p.Addr().Unmap()] = struct{}{}
				}
			}
		}
	}
	_, ok := i.known[a.Unmap().WithZone("")]
	return ok
}

// Addresses for documentation stand for "anywhere else": the kernel is asked for
// the way there, and nothing is sent (RFC 5737, RFC 3849).
var elsewhere = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:9"), netip.MustParseAddrPort("[2001:db8::1]:9")}

// machineAddresses are the addresses of this machine by which others reach it, at
// most one per family: the one on the way to the server (HOST:PORT), else the one
// on the default route. Loopback and link-local addresses are left out.
func machineAddresses(server string) []netip.Addr {
	targets := elsewhere
	if at, err := netip.ParseAddrPort(server); err == nil {
		targets = append([]netip.AddrPort{at}, elsewhere...)
	}
	var out []netip.Addr
	for _, to := range targets {
		a := towards(to)
		has := slices.ContainsFunc(out, func(b netip.Addr) bool { return a.Is4() == b.Is4() })
		if !has && a.IsGlobalUnicast() {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// nodesEverywhere are the nodes that have a token which registers workloads in
// every namespace, as long as its record is kept: certificates may descend from it
// after it has expired. Nil also if the store can't be read, which status says.
func (cp *controlPlane) nodesEverywhere(ctx context.Context) []string {
	tokens, err := cp.tokens.List(ctx)
	if err != nil {
		return nil
	}
	var out []string
	for _, t := range tokens {
		if t.Kind == identity.Node && t.Everywhere() && t.Revoked.IsZero() {
			out = append(out, t.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// inServiceRanges are the first Dataplanes with an address in a service range: the
// range may be younger than they are.
func (cp *controlPlane) inServiceRanges(s *catalog.Snapshot) []string {
	const most = 5
	var out []string
	for key, d := range s.Dataplanes.All() {
		if slices.ContainsFunc(d.Spec.Addresses, func(text string) bool {
			a, err := netip.ParseAddr(text)
			return err == nil && cp.api.InServiceRange(a)
		}) {
			out = append(out, key.String())
		}
		if len(out) == most {
			break
		}
	}
	return out
}
