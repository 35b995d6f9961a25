package build

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/proxima-mesh/proxima/internal/catalog"
)

// Types of resources (xDS protocol, "Resource types").
const (
	ClusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	SecretType   = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	ListenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
)

// Order in which types are set; Gated are those of them that wait for the others.
var (
	order = [...]string{ClusterType, EndpointType, SecretType, ListenerType, RouteType}
	gated = [...]string{ListenerType, RouteType}
)

// Names of resources that every proxy has.
const (
	Passthrough   = "passthrough"
	InPassthrough = "in-passthrough"
	Blackhole     = "blackhole"
	OutVirtual    = "out-virtual"
	InVirtual     = "in-virtual"
	// Identity is the secret with the proxy's own certificate and key.
	Identity = "identity"

	vipPrefix = "vip|"
	// of workloads of the mesh, for those who may connect to nothing else.
	memberPrefix = "member|"
	localPrefix  = "local|"
	outPrefix    = "out|"
	inPrefix     = "in|"
	rootsPrefix  = "roots|"
)

// Ports of redirected connections.
const (
	outVirtualPort = 15001
	inVirtualPort  = 15006
)

// ServicePort is a TCP port of a Service, by its number. Comparable.
type ServicePort struct {
	Service catalog.Key
	Port    uint16
}

// String is the name of its cluster and of its endpoints: NAMESPACE/NAME:PORT.
func (p ServicePort) String() string {
	return p.Service.Namespace + "/" + p.Service.Name + ":" + strconv.Itoa(int(p.Port))
}

// RouteName of a service port.
func (p ServicePort) RouteName() string { return outPrefix + p.String() }

// ParseServicePort reads what String wrote, and nothing else.
func ParseServicePort(s string) (ServicePort, error) {
	name, port, ok := strings.Cut(s, ":")
	namespace, name, named := strings.Cut(name, "/")
	number, err := strconv.ParseUint(port, 10, 16)
	if !ok || !named || err != nil || namespace == "" || name == "" || number == 0 {
		return ServicePort{}, fmt.Errorf("parse service port %.80q: want NAMESPACE/NAME:PORT", s)
	}
	p := ServicePort{catalog.Key{Namespace: namespace, Name: name}, uint16(number)}
	if p.String() != s {
		return ServicePort{}, fmt.Errorf("parse service port %.80q: not in canonical form", s)
	}
	return p, nil
}

// VIPName is the name of the cluster of a virtual address, as Envoy asks for it.
func VIPName(a netip.AddrPort) string { return vipPrefix + a.String() }

// parseVIP reads the name of the cluster of an address.
func parseVIP(name string) (netip.AddrPort, bool) { return parseAddress(vipPrefix, name) }

// parseMember reads the name of the cluster of the address of a workload that has to have a proxy.
func parseMember(name string) (netip.AddrPort, bool) { return parseAddress(memberPrefix, name) }

// parseAddress behind a prefix. An IPv4 address in an IPv6 one is itself: that is how a listener of both
// families sees it.
func parseAddress(prefix, name string) (netip.AddrPort, bool) {
	text, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return netip.AddrPort{}, false
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Port() == 0 {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port()), true
}

func outName(a netip.AddrPort) string { return outPrefix + a.String() }

func localName(port int32) string { return localPrefix + strconv.Itoa(int(port)) }

func inName(port int32) string { return inPrefix + strconv.Itoa(int(port)) }

// RootsName is the secret with what servers and clients of a trust domain trust.
func RootsName(domain string) string { return rootsPrefix + domain }

// Protocol is what a proxy knows of the protocol of a port.
type Protocol uint8

// The protocols. TCP is what nothing is known of.
const (
	TCP Protocol = iota
	HTTP1
	HTTP2
)

// protocolOf an appProtocol (KEP-3726 for those with a prefix).
func protocolOf(appProtocol string) Protocol {
	switch strings.ToLower(appProtocol) {
	case "http", "ws", "kubernetes.io/ws":
		return HTTP1
	case "h2c", "kubernetes.io/h2c", "grpc", "http2":
		return HTTP2
	}
	return TCP
}

// ReadsRequests reports whether a proxy reads the requests of a port with this appProtocol.
func ReadsRequests(appProtocol string) bool { return protocolOf(appProtocol) != TCP }

// ServerFirst reports whether the server of a port with this appProtocol speaks first: such a port is plain
// while its mode is Permissive.
func ServerFirst(appProtocol string) bool { return serverFirst(appProtocol) }

// serverFirst are protocols whose server speaks first, so that nothing can be learned from a
// client's first bytes.
func serverFirst(appProtocol string) bool {
	switch strings.ToLower(appProtocol) {
	case "smtp", "ftp", "imap", "pop3", "ssh", "mysql":
		return true
	}
	return false
}
