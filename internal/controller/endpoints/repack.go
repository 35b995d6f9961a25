package endpoints

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Repack brings subsets into the one form in which equal content is equal:
// every port stands in one subset, together with the ports that exactly the same
// addresses serve in the same state. Where one address is given as ready and as
// not ready for a port, it is not ready. The outcome is ordered, has no empty
// subset, and shares the targets of the addresses with the input.
func Repack(subsets []corev1.EndpointSubset) []corev1.EndpointSubset {
	ports := portTable{index: make(map[portKey]*servedPort)}
	for i := range subsets {
		s := &subsets[i]
		if len(s.Ports) == 0 { // a headless Service needs no ports
			ports.add(s, nil)
		}
		for j := range s.Ports {
			ports.add(s, &s.Ports[j])
		}
	}
	var out []corev1.EndpointSubset
	bySignature := make(map[string]int)
	for _, p := range ports.sorted() {
		signature := p.signature()
		at, known := bySignature[signature]
		if !known {
			at = len(out)
			bySignature[signature] = at
			out = append(out, p.subset())
		}
		if p.port != nil {
			out[at].Ports = append(out[at].Ports, *p.port)
		}
	}
	return out
}

// portKey distinguishes ports; none marks the absence of any.
type portKey struct {
	none              bool
	name, application string
	number            int32
	protocol          corev1.Protocol
}

// addressKey distinguishes addresses: several workloads can share one IP.
type addressKey struct {
	ip  string
	uid types.UID
}

// servedPort is a port with all that serve it.
type servedPort struct {
	key       portKey
	port      *corev1.EndpointPort // nil: none
	addresses []*servedAddress
	index     map[addressKey]*servedAddress
}

type servedAddress struct {
	key     addressKey
	address *corev1.EndpointAddress
	ready   bool
}

type portTable struct {
	index map[portKey]*servedPort
	// first is how an address was written where it was seen first; it is taken
	// everywhere, so that it cannot split a subset.
	first map[addressKey]*corev1.EndpointAddress
}

func (t *portTable) add(s *corev1.EndpointSubset, port *corev1.EndpointPort) {
	key := portKey{none: true}
	if port != nil {
		key = portKey{name: port.Name, application: ptr.Deref(port.AppProtocol, ""), number: port.Port, protocol: port.Protocol}
	}
	p := t.index[key]
	if p == nil {
		p = &servedPort{key: key, port: port, index: make(map[addressKey]*servedAddress)}
		t.index[key] = p
	}
	for i := range s.Addresses {
		t.serve(p, &s.Addresses[i], true)
	}
	for i := range s.NotReadyAddresses {
		t.serve(p, &s.NotReadyAddresses[i], false)
	}
}

func (t *portTable) serve(p *servedPort, a *corev1.EndpointAddress, ready bool) {
	key := addressKey{ip: a.IP}
	if a.TargetRef != nil {
		key.uid = a.TargetRef.UID
	}
	if have := p.index[key]; have != nil {
		have.ready = have.ready && ready
		return
	}
	if t.first == nil {
		t.first = make(map[addressKey]*corev1.EndpointAddress)
	}
	if t.first[key] == nil {
		t.first[key] = a
	}
	served := &servedAddress{key: key, address: t.first[key], ready: ready}
	p.index[key] = served
	p.addresses = append(p.addresses, served)
}

// sorted are the ports that anybody serves, in order.
func (t *portTable) sorted() []*servedPort {
	var out []*servedPort
	for _, p := range t.index {
		if len(p.addresses) > 0 {
			slices.SortFunc(p.addresses, func(a, b *servedAddress) int {
				return cmp.Or(strings.Compare(a.key.ip, b.key.ip), cmp.Compare(a.key.uid, b.key.uid))
			})
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *servedPort) int {
		return cmp.Or(
			strings.Compare(a.key.name, b.key.name), cmp.Compare(a.key.number, b.key.number),
			cmp.Compare(a.key.protocol, b.key.protocol), strings.Compare(a.key.application, b.key.application),
		)
	})
	return out
}

// signature is equal for the same addresses in the same state.
func (p *servedPort) signature() string {
	var b strings.Builder
	for _, a := range p.addresses {
		fmt.Fprintf(&b, "%s/%s/%t ", a.key.ip, a.key.uid, a.ready)
	}
	if p.port == nil {
		b.WriteString("no port")
	}
	return b.String()
}

func (p *servedPort) subset() corev1.EndpointSubset {
	var s corev1.EndpointSubset
	for _, a := range p.addresses {
		if a.ready {
			s.Addresses = append(s.Addresses, *a.address)
		} else {
			s.NotReadyAddresses = append(s.NotReadyAddresses, *a.address)
		}
	}
	return s
}
