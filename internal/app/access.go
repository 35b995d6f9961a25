package app

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/proxima-mesh/proxima/internal/apiserver"
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
	obj, err := n.cp.api.Client("system:apiserver").Get(ctx, kind.Node(), resource.Key{Name: name})
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
