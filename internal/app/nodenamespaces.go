package app

import (
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// clientNamespaces are the namespaces of clients of this node, by their addresses. An address that workloads of
// several namespaces have is of none. The zero value is ready; it is for one goroutine at a time.
type clientNamespaces struct {
	known map[proxy.ServiceName]*proxy.Workload
}

// apply an update. It returns nil if it changes nothing.
func (c *clientNamespaces) apply(name string, u node.Update) map[netip.Addr]string {
	if u.Workloads == nil {
		return nil
	}
	changed := u.Reset
	if u.Reset || c.known == nil {
		c.known = map[proxy.ServiceName]*proxy.Workload{}
	}
	for key, w := range u.Workloads {
		_, was := c.known[key]
		if delete(c.known, key); w != nil && w.Node == name {
			c.known[key] = w
			was = true
		}
		changed = changed || was
	}
	if !changed {
		return nil
	}
	out, several := map[netip.Addr]string{}, map[netip.Addr]bool{}
	for key, w := range c.known {
		for _, addr := range w.Addrs {
			if other, there := out[addr]; there && other != key.Namespace {
				several[addr] = true
			}
			out[addr] = key.Namespace
		}
	}
	for addr := range several {
		delete(out, addr)
	}
	return out
}

// nameClients tells the mode the namespaces of clients, if it has use for them.
func (a *agent) nameClients(u node.Update) {
	mode, ok := a.mode.(proxy.Namespaced)
	if !ok || a.gateway != nil {
		return
	}
	if of := a.clients.apply(a.cfg.Name, u); of != nil {
		mode.SetNamespaces(of)
	}
}
