package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Plan is what a write of a Service has to allocate and to release. It holds
// the Service's allocated fields as they will be, with holes for what Choose
// fills in.
type Plan struct {
	Policy     *corev1.IPFamilyPolicy
	Families   []corev1.IPFamily
	ClusterIPs []string // "" where an address is to be chosen
	NodePorts  []int32  // one for each of spec.ports; 0: none, or to be chosen
	// HealthCheckNodePort is 0 for none, or if it is to be chosen.
	HealthCheckNodePort int32

	// Addresses and Ports to take.
	Addresses []AddressRequest
	Ports     []PortRequest
	// ReleaseAddresses and ReleasePorts belong to the old Service and no longer
	// to the new; to be freed in the same transaction.
	ReleaseAddresses []netip.Addr
	ReleasePorts     []int32
}

// AddressRequest asks for one address.
type AddressRequest struct {
	// Index in Plan.ClusterIPs.
	Index  int
	Family corev1.IPFamily
	// Address asked for by the user; invalid: any.
	Address netip.Addr
}

// PortRequest asks for one port number.
type PortRequest struct {
	// Indexes in spec.ports that get the number: those of one port number share
	// it over their protocols. Empty: it is the health check port.
	Indexes []int
	// Port asked for by the user; 0: any.
	Port int32
}

// NewPlan decides what a create (old is nil) or an update takes and gives back,
// by Kubernetes' rules of defaulting. families are those that the ranges offer,
// the default one first. The Services are not changed. Mistakes are returned
// with their fields; then the plan is empty.
//
// A PreferDualStack Service whose addresses and families the user leaves alone
// is never up- or downgraded because the ranges changed.
func NewPlan(old, svc *corev1.Service, families []corev1.IPFamily) (Plan, field.ErrorList) {
	svc = svc.DeepCopy()
	if old != nil {
		old = old.DeepCopy()
		normalize(old, nil)
		adopt(svc, old)
		dropUnneeded(svc, old)
	}
	if old == nil && svc.Spec.ClusterIP == "" && len(svc.Spec.ClusterIPs) > 0 {
		return Plan{}, field.ErrorList{field.Invalid(clusterIPsPath, svc.Spec.ClusterIPs, "must be empty when `clusterIP` is not specified")}
	}
	normalize(svc, old)
	if svc.Spec.Type != corev1.ServiceTypeExternalName && !keepsPreferDualStack(svc, old) {
		if errs := settleFamilies(svc, old, families); len(errs) > 0 {
			return Plan{}, errs
		}
	}
	p := Plan{
		Policy:              svc.Spec.IPFamilyPolicy,
		Families:            svc.Spec.IPFamilies,
		ClusterIPs:          svc.Spec.ClusterIPs,
		HealthCheckNodePort: svc.Spec.HealthCheckNodePort,
	}
	p.planAddresses(svc, old)
	if errs := p.planPorts(svc, old); len(errs) > 0 {
		return Plan{}, errs
	}
	return p, nil
}

// NewRelease is the plan for the deletion of a Service: everything goes.
func NewRelease(old *corev1.Service) Plan {
	old = old.DeepCopy()
	normalize(old, nil)
	return Plan{ReleaseAddresses: addressesOf(old), ReleasePorts: portsOf(old)}
}

func needsClusterIP(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName
}

func needsNodePort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

func needsHealthCheckPort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// allocatesNodePorts: a LoadBalancer may decline node ports that it did not ask for.
func allocatesNodePorts(s *corev1.Service) bool {
	declined := s.Spec.AllocateLoadBalancerNodePorts != nil && !*s.Spec.AllocateLoadBalancerNodePorts
	return s.Spec.Type != corev1.ServiceTypeLoadBalancer || !declined
}

func isHeadless(s *corev1.Service) bool {
	return s.Spec.ClusterIP == corev1.ClusterIPNone ||
		len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

// adopt fills what an update left out with what the Service already has, so
// that a client may send back a manifest without allocated fields.
func adopt(svc, old *corev1.Service) {
	if needsClusterIP(old) && needsClusterIP(svc) {
		switch {
		case svc.Spec.ClusterIP == "" && len(svc.Spec.ClusterIPs) == 0:
			svc.Spec.ClusterIP = old.Spec.ClusterIP
			svc.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		case svc.Spec.ClusterIP == "":
			svc.Spec.ClusterIP = old.Spec.ClusterIP
		case len(svc.Spec.ClusterIPs) == 0 && svc.Spec.ClusterIP == old.Spec.ClusterIP:
			svc.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		}
		if len(svc.Spec.IPFamilies) == 0 && slices.Equal(svc.Spec.ClusterIPs, old.Spec.ClusterIPs) {
			svc.Spec.IPFamilies = slices.Clone(old.Spec.IPFamilies)
		}
	}
	if needsNodePort(old) && needsNodePort(svc) {
		adoptNodePorts(svc, old)
	}
	if needsHealthCheckPort(old) && needsHealthCheckPort(svc) && svc.Spec.HealthCheckNodePort == 0 {
		svc.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

// adoptNodePorts goes by port name; a number that the user moved to another
// port is not given back to the first.
func adoptNodePorts(svc, old *corev1.Service) {
	moved := map[int32]bool{}
	for _, p := range svc.Spec.Ports {
		moved[p.NodePort] = true
	}
	had := map[string]int32{}
	for _, p := range old.Spec.Ports {
		had[p.Name] = p.NodePort
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if number := had[p.Name]; p.NodePort == 0 && !moved[number] {
			p.NodePort = number
		}
	}
}

// dropUnneeded clears allocated fields that the new type has no use for, where
// the user only forgot to. What the user changed stays, for validation to refuse.
func dropUnneeded(svc, old *corev1.Service) {
	if needsClusterIP(old) && !needsClusterIP(svc) {
		if slices.Equal(svc.Spec.ClusterIPs, old.Spec.ClusterIPs) || svc.Spec.ClusterIP == "" && len(svc.Spec.ClusterIPs) == 0 {
			svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "", nil
		}
		if slices.Equal(svc.Spec.IPFamilies, old.Spec.IPFamilies) {
			svc.Spec.IPFamilies = nil
		}
		if policyOf(svc) == policyOf(old) {
			svc.Spec.IPFamilyPolicy = nil
		}
	}
	if needsNodePort(old) && !needsNodePort(svc) && slices.EqualFunc(svc.Spec.Ports, old.Spec.Ports,
		func(a, b corev1.ServicePort) bool { return a.NodePort == b.NodePort }) {
		for i := range svc.Spec.Ports {
			svc.Spec.Ports[i].NodePort = 0
		}
	}
	if needsHealthCheckPort(old) && !needsHealthCheckPort(svc) && svc.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
		svc.Spec.HealthCheckNodePort = 0
	}
}

// normalize brings clusterIP and clusterIPs into agreement where the user wrote
// only one of them.
func normalize(svc, old *corev1.Service) {
	s := &svc.Spec
	switch {
	case len(s.ClusterIPs) == 0:
		if s.ClusterIP != "" {
			s.ClusterIPs = []string{s.ClusterIP}
		}
	case s.ClusterIP == "" && (old == nil || !slices.Equal(s.ClusterIPs, old.Spec.ClusterIPs)):
		s.ClusterIP = s.ClusterIPs[0]
	case s.ClusterIP == "": // cleared, and clusterIPs left over
		s.ClusterIPs = nil
	case old != nil && s.ClusterIP != old.Spec.ClusterIP && slices.Equal(s.ClusterIPs, old.Spec.ClusterIPs):
		s.ClusterIPs = []string{s.ClusterIP}
	}
}

func policyOf(s *corev1.Service) corev1.IPFamilyPolicy {
	if s.Spec.IPFamilyPolicy == nil {
		return ""
	}
	return *s.Spec.IPFamilyPolicy
}

func keepsPreferDualStack(svc, old *corev1.Service) bool {
	return old != nil && needsClusterIP(old) &&
		policyOf(svc) == corev1.IPFamilyPolicyPreferDualStack &&
		policyOf(old) == corev1.IPFamilyPolicyPreferDualStack &&
		slices.Equal(svc.Spec.ClusterIPs, old.Spec.ClusterIPs) &&
		slices.Equal(svc.Spec.IPFamilies, old.Spec.IPFamilies)
}

// planAddresses compares what the Service had with what it will have.
func (p *Plan) planAddresses(svc, old *corev1.Service) {
	var had, keep []netip.Addr
	if old != nil {
		had = addressesOf(old)
	}
	if needsClusterIP(svc) && !isHeadless(svc) {
		for len(p.ClusterIPs) < len(p.Families) {
			p.ClusterIPs = append(p.ClusterIPs, "")
		}
		for i, family := range p.Families {
			addr, _ := netip.ParseAddr(p.ClusterIPs[i]) // "" is any; others were validated
			if !addr.IsValid() || !slices.Contains(had, addr) {
				p.Addresses = append(p.Addresses, AddressRequest{Index: i, Family: family, Address: addr})
			}
			keep = append(keep, addr)
		}
	}
	for _, addr := range had {
		if !slices.Contains(keep, addr) {
			p.ReleaseAddresses = append(p.ReleaseAddresses, addr)
		}
	}
}

func addressesOf(s *corev1.Service) []netip.Addr {
	var out []netip.Addr
	if !needsClusterIP(s) {
		return nil
	}
	for _, text := range s.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(text); err == nil {
			out = append(out, addr)
		}
	}
	return out
}

// planPorts works out the numbers to take, each once.
func (p *Plan) planPorts(svc, old *corev1.Service) field.ErrorList {
	var had []int32
	if old != nil {
		had = portsOf(old)
	}
	p.NodePorts = make([]int32, len(svc.Spec.Ports))
	for i, port := range svc.Spec.Ports {
		p.NodePorts[i] = port.NodePort // also where validation will refuse it
	}
	if needsNodePort(svc) {
		p.planNodePorts(svc, had)
	}
	if needsHealthCheckPort(svc) {
		number := p.HealthCheckNodePort
		if number != 0 && slices.Contains(p.NodePorts, number) {
			return field.ErrorList{field.Invalid(field.NewPath("spec", "healthCheckNodePort"), number,
				"must differ from every nodePort of the Service")}
		}
		if number == 0 || !slices.Contains(had, number) {
			p.Ports = append(p.Ports, PortRequest{Port: number})
		}
	}
	for _, number := range had {
		if !(needsNodePort(svc) && slices.Contains(p.NodePorts, number)) && !(needsHealthCheckPort(svc) && number == p.HealthCheckNodePort) {
			p.ReleasePorts = append(p.ReleasePorts, number)
		}
	}
	return nil
}

func (p *Plan) planNodePorts(svc *corev1.Service, had []int32) {
	wanted := map[int32]int32{} // number asked for, by service port
	for _, port := range svc.Spec.Ports {
		if port.NodePort != 0 && wanted[port.Port] == 0 {
			wanted[port.Port] = port.NodePort
		}
	}
	type sharing struct {
		number int32
		port   int32 // only where the number is open
	}
	request := map[sharing]int{}
	for i, port := range svc.Spec.Ports {
		number := port.NodePort
		if number == 0 {
			if !allocatesNodePorts(svc) {
				continue
			}
			number = wanted[port.Port]
		}
		p.NodePorts[i] = number
		if number != 0 && slices.Contains(had, number) {
			continue
		}
		key := sharing{number: number}
		if number == 0 {
			key.port = port.Port
		}
		if at, known := request[key]; known {
			p.Ports[at].Indexes = append(p.Ports[at].Indexes, i)
			continue
		}
		request[key] = len(p.Ports)
		p.Ports = append(p.Ports, PortRequest{Indexes: []int{i}, Port: number})
	}
}

// portsOf lists the numbers that a Service owns, each once.
func portsOf(s *corev1.Service) []int32 {
	var out []int32
	if needsNodePort(s) {
		for _, p := range s.Spec.Ports {
			if p.NodePort != 0 && !slices.Contains(out, p.NodePort) {
				out = append(out, p.NodePort)
			}
		}
	}
	if n := s.Spec.HealthCheckNodePort; needsHealthCheckPort(s) && n != 0 && !slices.Contains(out, n) {
		out = append(out, n)
	}
	return out
}

// Apply writes the allocated fields into a Service: the one that the plan was
// made of. Holes stay empty.
func (p *Plan) Apply(svc *corev1.Service) {
	s := &svc.Spec
	s.IPFamilyPolicy = p.Policy
	s.IPFamilies = slices.Clone(p.Families)
	s.ClusterIPs = slices.Clone(p.ClusterIPs)
	s.ClusterIP = ""
	if len(p.ClusterIPs) > 0 {
		s.ClusterIP = p.ClusterIPs[0]
	}
	for i := range s.Ports {
		s.Ports[i].NodePort = p.NodePorts[i]
	}
	s.HealthCheckNodePort = p.HealthCheckNodePort
}

func (r PortRequest) path() *field.Path {
	if len(r.Indexes) == 0 {
		return field.NewPath("spec", "healthCheckNodePort")
	}
	return field.NewPath("spec", "ports").Index(r.Indexes[0]).Child("nodePort")
}

func (r PortRequest) String() string {
	if len(r.Indexes) == 0 {
		return "a HealthCheck NodePort"
	}
	return fmt.Sprintf("a nodePort for ports %v", r.Indexes)
}
