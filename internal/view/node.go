package view

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// storeNodes stores what views depend on of nodes, and ends the streams of nodes that changed
// zone. It returns the resources that may have changed. That a node is about to be removed is for
// its own agent, so only the view of the node's zone has it; views of all zones do if it has none.
func (b *Builder) storeNodes(nodes []catalog.Change[*corev1.Node]) (out []change) {
	for _, c := range nodes {
		name := c.Key.Name
		if b.storeLeaving(name, c.New) || b.leaving[name] != nil {
			out = append(out, change{wire.LeavingType, name}) // its zone may be another one
		}
		b.storeZone(name, c.New)
	}
	return out
}

// storeLeaving reports whether it has changed that a node is about to be removed.
func (b *Builder) storeLeaving(name string, n *corev1.Node) (changed bool) {
	was := b.leaving[name] != nil
	is := n != nil && kube.Leaving(n)
	if is == was {
		return false
	}
	delete(b.leaving, name)
	if is {
		body, err := wire.EncodeLeaving(name)
		if err != nil {
			b.config.Logger.Error("a node that is about to be removed is not in the views", "node", name, "error", err)
			return was
		}
		b.leaving[name] = body
	}
	return true
}

func (b *Builder) storeZone(name string, n *corev1.Node) {
	zone := locality.Zone("")
	if n != nil {
		zone = locality.ZoneOf(n.Labels)
	}
	if zone == "" {
		delete(b.nodes, name)
		return
	}
	b.nodes[name] = zone
	if a := b.streams[name]; a != nil && a.zone != zone {
		close(a.end)
		delete(b.streams, name)
	}
}
