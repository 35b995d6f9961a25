package build

import (
	"net"
	"net/netip"
	"strconv"
	"strings"

	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

// parseTarget reads what a gRPC program dials behind "xds:///": NAME:PORT, where NAME is a
// Service of the program's namespace, or NAME.NAMESPACE with what DNS has behind it.
func (b *Builder) parseTarget(target, namespace string) (ServicePort, bool) {
	host, port, err := net.SplitHostPort(target)
	number, err2 := strconv.ParseUint(port, 10, 16)
	if err != nil || err2 != nil || number == 0 || host == "" {
		return ServicePort{}, false
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return b.portAt(netip.AddrPortFrom(a.Unmap(), uint16(number)))
	}
	labels := strings.Split(strings.ToLower(strings.TrimSuffix(host, ".")), ".")
	switch {
	case len(labels) == 1:
		labels = append(labels, namespace)
	case len(labels) > 2 && labels[2] != "svc":
		return ServicePort{}, false
	}
	return ServicePort{catalog.Key{Namespace: labels[1], Name: labels[0]}, uint16(number)}, true
}

// makeAPIListener makes what a gRPC program asks for first.
func (b *Builder) makeAPIListener(c *class, name string, to ServicePort) *made {
	u := b.upstreamOf(c, to)
	if u == nil {
		return nil
	}
	manager := connectionManager(to.RouteName(), statOut)
	manager.UpgradeConfigs = nil
	if u.settings != nil {
		manager.HttpFilters = append(translate.GRPCClientFilters(u.routes, u.settings), manager.HttpFilters...)
	}
	return unlisted(&listener.Listener{Name: name, ApiListener: &listener.ApiListener{ApiListener: packed(manager)}})
}

func podIPs(p *corev1.Pod) []netip.Addr {
	var out []netip.Addr
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}
