package demand

import (
	"iter"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// World is what an Aggregator must know of the cluster. Its methods are called with
// the aggregator's lock held, so they may not block.
type World interface {
	// Synced: the other answers are complete.
	Synced() bool
	// Zone of a node; empty: it has none. ok is false if there is no such node.
	Zone(node string) (zone locality.Zone, ok bool)
	// Nodes and their zones.
	Nodes() iter.Seq2[string, locality.Zone]
	// Proxy of a workload, NAMESPACE/NAME of its Dataplane or pod: its zone, and whether there
	// is such a workload.
	Proxy(name string) (zone locality.Zone, ok bool)
	// Has a Service such a port?
	Has(port proxy.PortName) bool
	// Family that comes first of the addresses of the port's Service, and whether it has both.
	Family(port proxy.PortName) (first proxy.Family, both bool)
}

// FromCatalog is the world as a catalog has it.
func FromCatalog(c *catalog.Catalog) World { return world{c} }

type world struct{ catalog *catalog.Catalog }

func (w world) Synced() bool { return w.catalog.Listed() }

func (w world) Zone(node string) (locality.Zone, bool) {
	n, ok := w.catalog.Snapshot().Nodes.Get(catalog.Key{Name: node})
	if !ok {
		return "", false
	}
	return locality.ZoneOf(n.Labels), true
}

func (w world) Nodes() iter.Seq2[string, locality.Zone] {
	return func(yield func(string, locality.Zone) bool) {
		for key, n := range w.catalog.Snapshot().Nodes.All() {
			if !yield(key.Name, locality.ZoneOf(n.Labels)) {
				return
			}
		}
	}
}

func (w world) Proxy(name string) (locality.Zone, bool) {
	namespace, name, _ := strings.Cut(name, "/")
	key, snapshot := catalog.Key{Namespace: namespace, Name: name}, w.catalog.Snapshot()
	node, labels := "", map[string]string(nil)
	if d, ok := snapshot.Dataplanes.Get(key); ok {
		node, labels = d.Spec.NodeName, d.Labels
	} else if p, ok := snapshot.Pods.Get(key); ok {
		node = p.Spec.NodeName
	} else {
		return "", false
	}
	if n, ok := snapshot.Nodes.Get(catalog.Key{Name: node}); ok {
		if zone := locality.ZoneOf(n.Labels); zone != "" {
			return zone, true
		}
	}
	return locality.ZoneOf(labels), true
}

func (w world) Has(port proxy.PortName) bool {
	service, ok := w.catalog.Snapshot().Services.Get(catalog.Key(port.ServiceName))
	if !ok {
		return false
	}
	for i := range service.Spec.Ports {
		if service.Spec.Ports[i].Name == port.Port {
			return true
		}
	}
	return false
}

func (w world) Family(port proxy.PortName) (first proxy.Family, both bool) {
	service, ok := w.catalog.Snapshot().Services.Get(catalog.Key(port.ServiceName))
	if ok && len(service.Spec.IPFamilies) > 0 && service.Spec.IPFamilies[0] == corev1.IPv6Protocol {
		first = proxy.IPv6
	} else {
		first = proxy.IPv4
	}
	return first, ok && len(service.Spec.IPFamilies) > 1
}
