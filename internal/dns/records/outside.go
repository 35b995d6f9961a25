package records

import (
	"net/netip"
	"slices"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Outside are the names of a service outside every mesh.
type Outside struct {
	// Mesh whose workloads resolve them to the virtual IPs of the Service.
	Mesh string
	// Hosts are DNS names in lower case, without a dot at the end.
	Hosts []string
}

// setHosts takes over the names of services outside every mesh.
func (z *Zone) setHosts(u Update) {
	if u.Reset {
		clear(z.outside)
		clear(z.hosts)
	}
	for service, now := range u.Hosts {
		if was := z.outside[service]; was != nil {
			for _, host := range was.Hosts {
				left := slices.DeleteFunc(slices.Clone(z.hosts[host]), func(s proxy.ServiceName) bool { return s == service })
				if len(left) == 0 {
					delete(z.hosts, host)
				} else {
					z.hosts[host] = left
				}
			}
		}
		set(z.outside, service, now)
		if now == nil {
			continue
		}
		for _, host := range now.Hosts {
			z.hosts[host] = append(slices.Clone(z.hosts[host]), service)
		}
	}
}

// Outside is what a name of a service outside every mesh stands for in a mesh: the addresses
// of its Service. Nil: the mesh has no such name. The name is in lower case, without a dot at
// its end; mesh is called only if some mesh has it.
func (z *Zone) Outside(host string, mesh func() string) *Host {
	z.mu.RLock()
	services := z.hosts[host]
	z.mu.RUnlock()
	if len(services) == 0 {
		return nil
	}
	of := mesh()
	z.mu.RLock()
	defer z.mu.RUnlock()
	for _, service := range services {
		o, s := z.outside[service], z.services[service]
		if o == nil || s == nil || o.Mesh != of {
			continue
		}
		h := &Host{}
		for _, ip := range s.ClusterIPs {
			h.add(ip)
		}
		return h
	}
	return nil
}

// IsOutside reports whether an address is a virtual IP that a name of a service outside every
// mesh stands for.
func (z *Zone) IsOutside(a netip.Addr) bool {
	z.mu.RLock()
	defer z.mu.RUnlock()
	return slices.ContainsFunc(z.reverse[a], func(p pointer) bool { return z.outside[p.service] != nil })
}
