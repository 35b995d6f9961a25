package wire

import (
	"net/netip"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Names is the type of the resources with the names of a mesh, for supervisors that answer questions
// of DNS. There is one for each Service, NAMESPACE/NAME, and one for each name below "mesh".
// NamesDomain is the name of another one, which a supervisor asks for by name, so that a control
// plane keeps names only while somebody follows them. Its body is that of a HostName whose only name is
// the cluster domain.
const (
	Names       = "type.googleapis.com/proxima.sidecar.v1.Name"
	NamesDomain = "@"
)

// HostName is the body of a resource of type Names: what some names, and those below them, stand for.
// Its fields: 1 a name, 2 an address, 3 alias, 4 a host, 5 a port, 6 headless.
type HostName struct {
	// Names in lower case. One that ends in a dot is whole; others are below the cluster domain.
	Names     []string
	Addresses []netip.Addr
	// Alias is the name that the names are others for; "": they are not.
	Alias string
	// Headless: the addresses are those of endpoints. Without any the names do not exist.
	Headless bool
	Hosts    []HostBelow
	Ports    []PortBelow
}

// HostBelow is a name below others. Fields: 1 its labels, 2 an address.
type HostBelow struct {
	Name      string
	Addresses []netip.Addr
}

// PortBelow is where a named port is served. Fields: 1 label, 2 number, 3 host.
type PortBelow struct {
	// Label is _NAME._PROTOCOL.
	Label  string
	Number uint16
	// Host below the name; "": the name itself.
	Host string
}

// Append the message to b.
func (h *HostName) Append(b []byte) []byte {
	for _, n := range h.Names {
		b = appendString(b, 1, n)
	}
	b = appendAddresses(b, 2, h.Addresses)
	b = appendString(b, 3, h.Alias)
	for _, host := range h.Hosts {
		b = appendBytes(b, 4, appendAddresses(appendString(nil, 1, host.Name), 2, host.Addresses))
	}
	for _, p := range h.Ports {
		b = appendBytes(b, 5, appendString(appendNumber(appendString(nil, 1, p.Label), 2, uint64(p.Number)), 3, p.Host))
	}
	if h.Headless {
		b = appendNumber(b, 6, 1)
	}
	return b
}

func appendAddresses(b []byte, num protowire.Number, all []netip.Addr) []byte {
	for _, a := range all {
		b = appendBytes(b, num, a.AsSlice())
	}
	return b
}

// ParseHostName reads the body of a resource of type Names. It keeps nothing of data.
func ParseHostName(data []byte) (HostName, error) {
	var h HostName
	err := EachField(data, func(num protowire.Number, value []byte, number uint64) (err error) {
		switch num {
		case 1:
			h.Names = append(h.Names, strings.ToLower(string(value)))
		case 2:
			h.Addresses, err = addAddress(h.Addresses, value)
		case 3:
			h.Alias = strings.ToLower(string(value))
		case 4:
			var host HostBelow
			host, err = parseHostBelow(value)
			h.Hosts = append(h.Hosts, host)
		case 5:
			var p PortBelow
			p, err = parsePortBelow(value)
			h.Ports = append(h.Ports, p)
		case 6:
			h.Headless = number != 0
		}
		return err
	})
	return h, err
}

func addAddress(to []netip.Addr, value []byte) ([]netip.Addr, error) {
	a, ok := netip.AddrFromSlice(value)
	if !ok {
		return nil, errDamaged
	}
	return append(to, a), nil
}

func parseHostBelow(data []byte) (HostBelow, error) {
	var h HostBelow
	err := EachField(data, func(num protowire.Number, value []byte, _ uint64) (err error) {
		switch num {
		case 1:
			h.Name = strings.ToLower(string(value))
		case 2:
			h.Addresses, err = addAddress(h.Addresses, value)
		}
		return err
	})
	return h, err
}

func parsePortBelow(data []byte) (PortBelow, error) {
	var p PortBelow
	err := EachField(data, func(num protowire.Number, value []byte, number uint64) (err error) {
		switch num {
		case 1:
			p.Label = strings.ToLower(string(value))
		case 2:
			p.Number, err = port(number)
		case 3:
			p.Host = strings.ToLower(string(value))
		}
		return err
	})
	return p, err
}
