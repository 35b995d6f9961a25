package load

import (
	"net/netip"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// vipPrefix is what the names of clusters begin with that a proxy asked for by the address
// that a client connected to.
const vipPrefix = "vip|"

// externalPrefix is what the names of clusters begin with that are outside every mesh.
const externalPrefix = "ext|"

// Port is a port of a Service.
type Port struct {
	Name proxy.PortName
	// HTTP by its appProtocol, so that a proxy counts its requests.
	HTTP bool
}

// Ports says which service ports there are. Its methods must not block.
type Ports interface {
	// Named is the port of a Service with this number.
	Named(service proxy.ServiceName, port int32) (Port, bool)
	// At is the port of the Service with this virtual IP and port number.
	At(address netip.AddrPort) (Port, bool)
}

// portOf a cluster: ok is false for those that are of no Service: the proxy's own ports,
// the control plane, what is outside the mesh, and single workloads that a client addressed
// itself. edsName is the name of the cluster's endpoints; empty: that of the cluster.
func portOf(ports Ports, cluster, edsName string) (p Port, ok bool) {
	text, byAddress := strings.CutPrefix(cluster, vipPrefix)
	if edsName != "" {
		p, ok = byName(ports, edsName)
	}
	switch {
	case ok:
	case byAddress:
		address, err := netip.ParseAddrPort(text)
		if err != nil {
			return p, false
		}
		p, ok = ports.At(netip.AddrPortFrom(address.Addr().Unmap(), address.Port()))
	default:
		p, ok = byName(ports, strings.TrimPrefix(cluster, externalPrefix))
	}
	// By address a proxy connects, whatever the protocol is.
	p.HTTP = p.HTTP && !byAddress
	return p, ok
}

// byName is the port of a name NAMESPACE/SERVICE:PORT.
func byName(ports Ports, text string) (p Port, ok bool) {
	service, number, ok := strings.Cut(text, ":")
	if !ok {
		return p, false
	}
	namespace, service, ok := strings.Cut(service, "/")
	if at := strings.IndexAny(number, "@?"); at >= 0 { // endpoints of some clients (xds/build)
		number = number[:at]
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if !ok || err != nil || namespace == "" || service == "" {
		return p, false
	}
	return ports.Named(proxy.ServiceName{Namespace: namespace, Name: service}, int32(port))
}

// FromCatalog are the ports of the Services in a catalog.
func FromCatalog(c *catalog.Catalog) Ports { return &catalogPorts{catalog: c} }

type catalogPorts struct {
	catalog *catalog.Catalog

	mu sync.Mutex
	// at of the revision of the Services; clusters that name their Service need none.
	at       map[netip.Addr]catalog.Key
	revision uint64
}

// Named implements Ports.
func (p *catalogPorts) Named(service proxy.ServiceName, port int32) (Port, bool) {
	s, ok := p.catalog.Snapshot().Services.Get(catalog.Key(service))
	if !ok {
		return Port{}, false
	}
	return portNumbered(s, port)
}

func portNumbered(s *corev1.Service, port int32) (Port, bool) {
	for i := range s.Spec.Ports {
		// A sidecar carries no UDP.
		if p := &s.Spec.Ports[i]; p.Port == port && (p.Protocol == corev1.ProtocolTCP || p.Protocol == "") {
			name := proxy.PortName{ServiceName: proxy.ServiceName{Namespace: s.Namespace, Name: s.Name}, Port: p.Name}
			return Port{Name: name, HTTP: p.AppProtocol != nil && overHTTP(*p.AppProtocol)}, true
		}
	}
	return Port{}, false
}

// overHTTP: an appProtocol of a Service's port (KEP-3726, and those of IANA) is HTTP or runs
// over it.
func overHTTP(appProtocol string) bool {
	switch strings.ToLower(appProtocol) {
	case "http", "http2", "grpc", "h2c", "kubernetes.io/h2c", "ws", "kubernetes.io/ws":
		return true
	}
	return false
}

// At implements Ports.
func (p *catalogPorts) At(address netip.AddrPort) (Port, bool) {
	services := p.catalog.Snapshot().Services
	p.mu.Lock()
	if p.at == nil || p.revision != services.Revision() {
		p.at, p.revision = map[netip.Addr]catalog.Key{}, services.Revision()
		for key, s := range services.All() {
			for _, text := range s.Spec.ClusterIPs {
				if ip, err := netip.ParseAddr(text); err == nil { // headless Services have "None"
					p.at[ip] = key
				}
			}
		}
	}
	key, ok := p.at[address.Addr()]
	p.mu.Unlock()
	if !ok {
		return Port{}, false
	}
	return p.Named(proxy.ServiceName(key), int32(address.Port()))
}
