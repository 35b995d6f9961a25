package proxy

import (
	"net/netip"
	"strings"
)

// VirtualIP is a name below the domain "mesh": addresses that lead to the endpoints of one
// port of a Service, or of all its ports. Immutable once handed over.
type VirtualIP struct {
	// Name has the mesh as its namespace, and the name as DNS has it. It ends with ".mesh",
	// so it is never that of a Service.
	Name ServiceName
	// Addresses, at most one per family.
	Addresses []netip.Addr
	// Service whose endpoints answer, and the number of its port; 0: all ports, as the service
	// of a tag has port 80 itself.
	Service ServiceName
	Port    uint16
}

// CommonPort is the port at which every name below "mesh" answers by TCP, in addition to the
// Service's own.
const CommonPort = 80

// commonSuffix distinguishes the port 80 of a name; names of ports have no '@'.
const commonSuffix = "@80"

// Frontend is what a mode carries for the addresses: a Service with the policies of the one
// whose endpoints answer, of. common: port 80 can be answered. Nil: of has no such port.
func (v *VirtualIP) Frontend(of *Service, common bool) *Service {
	f := &Service{
		Name: v.Name, Of: v.Service, Scope: Scope{Mesh: v.Name.Namespace}, ClusterIPs: v.Addresses,
		InternalLocal: of.InternalLocal, AffinityTimeout: of.AffinityTimeout, WarmUp: of.WarmUp,
	}
	for _, p := range of.Ports {
		if v.Port != 0 && p.Port != v.Port || v.Port == 0 && p.Port == CommonPort && !common && len(of.Ports) > 1 {
			continue
		}
		p.NodePort = 0
		f.Ports = append(f.Ports, p)
		if common && v.Port != 0 && p.Port != CommonPort && p.Protocol == TCP {
			p.Name, p.Port = p.Name+commonSuffix, CommonPort
			f.Ports = append(f.Ports, p)
		}
	}
	if len(f.Ports) == 0 || len(f.ClusterIPs) == 0 {
		return nil
	}
	return f
}

// SourcePort is the name of the Service's port behind the port of a frontend.
func SourcePort(name string) string { return strings.TrimSuffix(name, commonSuffix) }
