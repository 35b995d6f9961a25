package ipam

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

const (
	v4 = corev1.IPv4Protocol
	v6 = corev1.IPv6Protocol

	single  = corev1.IPFamilyPolicySingleStack
	prefer  = corev1.IPFamilyPolicyPreferDualStack
	require = corev1.IPFamilyPolicyRequireDualStack
)

func service(edit func(s *corev1.ServiceSpec)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
	if edit != nil {
		edit(&svc.Spec)
	}
	return svc
}

func families(f ...corev1.IPFamily) []corev1.IPFamily { return f }

func with(policy corev1.IPFamilyPolicy, fams []corev1.IPFamily, ips ...string) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) {
		if policy != "" {
			s.IPFamilyPolicy = &policy
		}
		s.IPFamilies, s.ClusterIPs = fams, ips
		if len(ips) > 0 {
			s.ClusterIP = ips[0]
		}
	}
}

func headless(selector bool, then func(*corev1.ServiceSpec)) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) {
		if then != nil {
			then(s)
		}
		s.ClusterIP, s.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		if !selector {
			s.Selector = nil
		}
	}
}

func ofType(typ corev1.ServiceType, then func(*corev1.ServiceSpec)) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) {
		if then != nil {
			then(s)
		}
		s.Type = typ
	}
}

// outcome of a plan, as far as addresses go.
type outcome struct {
	Policy   corev1.IPFamilyPolicy
	Families []corev1.IPFamily
	IPs      []string
	Take     []string // family, or the address asked for
	Release  []string
	Errors   []string
}

func outcomeOf(p Plan, errs []string) outcome {
	o := outcome{Families: p.Families, IPs: p.ClusterIPs, Errors: errs}
	if p.Policy != nil {
		o.Policy = *p.Policy
	}
	for _, r := range p.Addresses {
		if r.Address.IsValid() {
			o.Take = append(o.Take, r.Address.String())
		} else {
			o.Take = append(o.Take, string(r.Family))
		}
	}
	for _, a := range p.ReleaseAddresses {
		o.Release = append(o.Release, a.String())
	}
	return o
}

func TestPlanAddresses(t *testing.T) {
	dual, four, six := families(v4, v6), families(v4), families(v6)
	external := ofType(corev1.ServiceTypeExternalName, func(s *corev1.ServiceSpec) { s.ExternalName = "x.example"; s.Ports = nil })
	for _, tc := range []struct {
		name     string
		old, new func(*corev1.ServiceSpec)
		cluster  []corev1.IPFamily
		want     outcome
	}{
		{"create, nothing said", nil, with("", nil), dual, outcome{single, four, []string{""}, []string{"IPv4"}, nil, nil}},
		{"create, IPv6 first", nil, with("", nil), families(v6, v4), outcome{single, six, []string{""}, []string{"IPv6"}, nil, nil}},
		{"create, single, family asked", nil, with(single, six), dual, outcome{single, six, []string{""}, []string{"IPv6"}, nil, nil}},
		{"create, family not there", nil, with("", six), four, outcome{Errors: []string{"spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster"}}},
		{"create, address asked", nil, with("", nil, "fd00::5"), dual, outcome{single, six, []string{"fd00::5"}, []string{"fd00::5"}, nil, nil}},
		{"create, address spelled otherwise", nil, with("", nil, "FD00:0::5"), dual, outcome{single, six, []string{"FD00:0::5"}, []string{"fd00::5"}, nil, nil}},
		{"create, address of a family not there", nil, with("", nil, "fd00::5"), four, outcome{Errors: []string{"IPv6 is not configured on this cluster"}}},
		{"create, prefer on dual", nil, with(prefer, nil), dual, outcome{prefer, dual, []string{"", ""}, []string{"IPv4", "IPv6"}, nil, nil}},
		{"create, prefer, IPv6 first", nil, with(prefer, six), dual, outcome{prefer, families(v6, v4), []string{"", ""}, []string{"IPv6", "IPv4"}, nil, nil}},
		{"create, prefer on single", nil, with(prefer, nil), four, outcome{prefer, four, []string{""}, []string{"IPv4"}, nil, nil}},
		{"create, require on dual, one address asked", nil, with(require, nil, "fd00::5"), dual, outcome{require, families(v6, v4), []string{"fd00::5", ""}, []string{"fd00::5", "IPv4"}, nil, nil}},
		{"create, require on single", nil, with(require, nil), four, outcome{Errors: []string{"this cluster is not configured for dual-stack services"}}},
		{"create, single with two families", nil, with(single, dual), dual, outcome{Errors: []string{"when multiple IP families are specified"}}},
		{"create, no policy with two addresses", nil, with("", nil, "10.0.0.5", "fd00::5"), dual, outcome{Errors: []string{"when multiple cluster IPs are specified"}}},
		{"create, families and addresses disagree", nil, with("", six, "10.0.0.5"), dual, outcome{Errors: []string{"expected an IPv6 value as indicated by `ipFamilies[0]`"}}},
		{"create, two of a family", nil, with(require, nil, "10.0.0.5", "10.0.0.6"), dual, outcome{Errors: []string{"no more than one IP for each IP family"}}},
		{"create, no address", nil, with("", nil, "ten"), dual, outcome{Errors: []string{"must be a valid IP address"}}},
		{"create, None and more", nil, with("", nil, "None", "10.0.0.5"), dual, outcome{Errors: []string{"'None' must be the first and only value"}}},
		{"create, unknown policy", nil, with("Both", nil), dual, outcome{Errors: []string{"Unsupported value: \"Both\""}}},
		{"create, no ranges", nil, with("", nil), nil, outcome{single, four, []string{""}, []string{"IPv4"}, nil, nil}},

		{"headless with selector", nil, headless(true, nil), dual, outcome{single, four, []string{"None"}, nil, nil, nil}},
		{"headless with selector, prefer", nil, headless(true, with(prefer, nil)), dual, outcome{prefer, dual, []string{"None"}, nil, nil, nil}},
		{"headless without selector", nil, headless(false, nil), dual, outcome{require, dual, []string{"None"}, nil, nil, nil}},
		{"headless without selector, one family there", nil, headless(false, nil), six, outcome{require, families(v6, v4), []string{"None"}, nil, nil, nil}},
		{"headless without selector, single", nil, headless(false, with(single, nil)), dual, outcome{single, four, []string{"None"}, nil, nil, nil}},
		{"external name", nil, external, dual, outcome{}},

		{"update, manifest without addresses", with(single, four, "10.0.0.5"), with("", nil), dual, outcome{single, four, []string{"10.0.0.5"}, nil, nil, nil}},
		{"update, PreferDualStack stays when the cluster becomes dual", with(prefer, four, "10.0.0.5"), with(prefer, nil), dual, outcome{prefer, four, []string{"10.0.0.5"}, nil, nil, nil}},
		{"update, PreferDualStack stays when the cluster becomes single", with(prefer, dual, "10.0.0.5", "fd00::5"), with(prefer, nil), four, outcome{prefer, dual, []string{"10.0.0.5", "fd00::5"}, nil, nil, nil}},
		{"update, single to prefer", with(single, four, "10.0.0.5"), with(prefer, nil), dual, outcome{prefer, dual, []string{"10.0.0.5", ""}, []string{"IPv6"}, nil, nil}},
		{"update, single to require, second asked", with(single, four, "10.0.0.5"), with(require, nil, "10.0.0.5", "fd00::9"), dual, outcome{require, dual, []string{"10.0.0.5", "fd00::9"}, []string{"fd00::9"}, nil, nil}},
		{"update, dual to single", with(require, dual, "10.0.0.5", "fd00::5"), with(single, nil), dual, outcome{single, four, []string{"10.0.0.5"}, nil, []string{"fd00::5"}, nil}},
		{"update, second removed without policy", with(require, dual, "10.0.0.5", "fd00::5"), with("", four, "10.0.0.5"), dual, outcome{Errors: []string{"to release the secondary cluster IP", "to release the secondary IP family"}}},
		{"update, second removed with policy", with(require, dual, "10.0.0.5", "fd00::5"), with(single, four, "10.0.0.5"), dual, outcome{single, four, []string{"10.0.0.5"}, nil, []string{"fd00::5"}, nil}},
		{"update, to external name", with(require, dual, "10.0.0.5", "fd00::5"), external, dual, outcome{Release: []string{"10.0.0.5", "fd00::5"}}},
		{"update, to external name, fields left in", with(require, dual, "10.0.0.5", "fd00::5"), ofType(corev1.ServiceTypeExternalName, with(require, dual, "10.0.0.5", "fd00::5")), dual, outcome{Release: []string{"10.0.0.5", "fd00::5"}}},
		{"update, from external name", external, with(prefer, nil), dual, outcome{prefer, dual, []string{"", ""}, []string{"IPv4", "IPv6"}, nil, nil}},
		{"update, headless", headless(true, with(single, four)), headless(true, nil), dual, outcome{single, four, []string{"None"}, nil, nil, nil}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var old *corev1.Service
			if tc.old != nil {
				old = service(tc.old)
			}
			svc := service(tc.new)
			before := svc.DeepCopy()
			plan, list := NewPlan(old, svc, tc.cluster)
			var errs []string
			for i, e := range list {
				if i >= len(tc.want.Errors) || !strings.Contains(e.Error(), tc.want.Errors[i]) {
					errs = append(errs, e.Error())
				} else {
					errs = append(errs, tc.want.Errors[i])
				}
			}
			if diff := cmp.Diff(tc.want, outcomeOf(plan, errs), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(before, svc); diff != "" {
				t.Errorf("the Service was changed:\n%s", diff)
			}
		})
	}
}

func ports(numbers ...int32) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) {
		s.Ports = nil
		for i, n := range numbers {
			s.Ports = append(s.Ports, corev1.ServicePort{Name: string(rune('a' + i)), Port: int32(80 + i), NodePort: n})
		}
	}
}

func local(s *corev1.ServiceSpec) { s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }

func TestPlanPorts(t *testing.T) {
	nodePort, balancer := corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer
	no := false
	both := func(edits ...func(*corev1.ServiceSpec)) func(*corev1.ServiceSpec) {
		return func(s *corev1.ServiceSpec) {
			for _, e := range edits {
				e(s)
			}
		}
	}
	dns := func(tcp, udp int32) func(*corev1.ServiceSpec) {
		return func(s *corev1.ServiceSpec) {
			s.Ports = []corev1.ServicePort{{Name: "tcp", Port: 53, Protocol: "TCP", NodePort: tcp},
				{Name: "udp", Port: 53, Protocol: "UDP", NodePort: udp}}
		}
	}
	decline := func(s *corev1.ServiceSpec) { s.AllocateLoadBalancerNodePorts = &no }
	health := func(n int32) func(*corev1.ServiceSpec) {
		return func(s *corev1.ServiceSpec) { s.HealthCheckNodePort = n }
	}
	type want struct {
		NodePorts []int32
		Health    int32
		Take      []PortRequest
		Release   []int32
	}
	for _, tc := range []struct {
		name     string
		old, new func(*corev1.ServiceSpec)
		want     want
	}{
		{"cluster IP", nil, ports(0), want{NodePorts: []int32{0}}},
		{"node port", nil, ofType(nodePort, ports(0, 30001)), want{NodePorts: []int32{0, 30001}, Take: []PortRequest{{[]int{0}, 0}, {[]int{1}, 30001}}}},
		{"protocols share a number", nil, ofType(nodePort, dns(0, 0)), want{NodePorts: []int32{0, 0}, Take: []PortRequest{{[]int{0, 1}, 0}}}},
		{"protocols share the number asked for", nil, ofType(nodePort, dns(0, 30053)), want{NodePorts: []int32{30053, 30053}, Take: []PortRequest{{[]int{0, 1}, 30053}}}},
		{"protocols with two numbers", nil, ofType(nodePort, dns(30054, 30053)), want{NodePorts: []int32{30054, 30053}, Take: []PortRequest{{[]int{0}, 30054}, {[]int{1}, 30053}}}},
		{"load balancer that declines", nil, ofType(balancer, both(ports(0, 30001), decline)), want{NodePorts: []int32{0, 30001}, Take: []PortRequest{{[]int{1}, 30001}}}},
		{"health check", nil, ofType(balancer, both(ports(30001), local)), want{NodePorts: []int32{30001}, Take: []PortRequest{{[]int{0}, 30001}, {nil, 0}}}},
		{"health check asked for", nil, ofType(balancer, both(ports(30001), local, health(30002))), want{NodePorts: []int32{30001}, Health: 30002, Take: []PortRequest{{[]int{0}, 30001}, {nil, 30002}}}},
		{"update, manifest without numbers", ofType(nodePort, ports(30001, 30002)), ofType(nodePort, ports(0, 0)), want{NodePorts: []int32{30001, 30002}}},
		{"update, a number moves to another port", ofType(nodePort, ports(30001)), ofType(nodePort, ports(0, 30001)), want{NodePorts: []int32{0, 30001}, Take: []PortRequest{{[]int{0}, 0}}}},
		{"update, another number", ofType(nodePort, ports(30001)), ofType(nodePort, ports(30009)), want{NodePorts: []int32{30009}, Take: []PortRequest{{[]int{0}, 30009}}, Release: []int32{30001}}},
		{"update, to cluster IP", ofType(nodePort, ports(30001)), ports(30001), want{NodePorts: []int32{0}, Release: []int32{30001}}},
		{"update, load balancer to node port", ofType(balancer, both(ports(30001), local, health(30002))), ofType(nodePort, both(ports(30001), health(30002))), want{NodePorts: []int32{30001}, Release: []int32{30002}}},
		{"update, health check kept", ofType(balancer, both(ports(30001), local, health(30002))), ofType(balancer, both(ports(0), local)), want{NodePorts: []int32{30001}, Health: 30002}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var old *corev1.Service
			if tc.old != nil {
				old = service(both(with(single, families(v4), "10.0.0.5"), tc.old))
			}
			plan, errs := NewPlan(old, service(tc.new), families(v4))
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			got := want{plan.NodePorts, plan.HealthCheckNodePort, plan.Ports, plan.ReleasePorts}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	a := newTestAddresses(t, AddressOptions{}, "10.0.0.0/29", "fd00::/125")
	p, err := NewPorts(PortOptions{Range: PortRange{30000, 30003}})
	if err != nil {
		t.Fatal(err)
	}
	svc := service(ofType(corev1.ServiceTypeLoadBalancer, func(s *corev1.ServiceSpec) {
		with(require, nil)(s)
		ports(0, 30001)(s)
		local(s)
	}))
	plan, errs := NewPlan(nil, svc, a.Families())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	choice, err := Choose(plan, a, p)
	if err != nil {
		t.Fatal(err)
	}
	choice.Apply(svc)
	first := choice.Addresses()
	if err := choice.Retry(first[1]); err != nil {
		t.Fatal(err)
	}
	if now := choice.Addresses(); now[0] != first[0] || now[1] == first[1] {
		t.Errorf("after a conflict on %s: %v became %v", first[1], first, now)
	}
	choice.Apply(svc)
	s := svc.Spec
	if s.ClusterIP != s.ClusterIPs[0] || len(s.ClusterIPs) != 2 || s.Ports[1].NodePort != 30001 ||
		s.Ports[0].NodePort == 0 || s.HealthCheckNodePort == 0 || s.HealthCheckNodePort == s.Ports[0].NodePort {
		t.Errorf("spec %+v", s)
	}
	// A second plan finds nothing to do.
	again, errs := NewPlan(svc, svc, a.Families())
	if len(errs) > 0 || len(again.Addresses)+len(again.Ports)+len(again.ReleaseAddresses)+len(again.ReleasePorts) > 0 {
		t.Errorf("planned again: %+v %v", again, errs)
	}
	gone := NewRelease(svc)
	if len(gone.ReleaseAddresses) != 2 || len(gone.ReleasePorts) != 3 {
		t.Errorf("release %+v", gone)
	}
}

func TestChooseErrors(t *testing.T) {
	a := newTestAddresses(t, AddressOptions{}, "10.0.0.0/30")
	p, err := NewPorts(PortOptions{Range: PortRange{30000, 30000}})
	if err != nil {
		t.Fatal(err)
	}
	a.SetUnusable([]string{"extra is being deleted"})
	none := NewAddresses(AddressOptions{})
	none.SetUnusable([]string{"kubernetes is being deleted", "extra is not ready"})
	plan, errs := NewPlan(nil, &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{{Port: 80}}}}, none.Families())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	const want = "failed to allocate a serviceIP: no ServiceCIDR with IPv4 addresses is usable (kubernetes is being deleted, extra is not ready); create one"
	if _, err := Choose(plan, none, p); err == nil || err.Error() != want || !errors.Is(err, ErrFull) {
		t.Errorf("without a range: %v", err)
	}
	a.MarkTaken(netip.MustParseAddr("10.0.0.1"))
	a.MarkTaken(netip.MustParseAddr("10.0.0.2"))
	p.MarkTaken(30000)
	for _, tc := range []struct {
		edit func(*corev1.ServiceSpec)
		want string
	}{
		{with("", nil), "failed to allocate a serviceIP: range is full"},
		{with("", nil, "10.0.0.1"), `spec.clusterIPs: Invalid value: ["10.0.0.1"]: failed to allocate IP 10.0.0.1: provided IP is already allocated`},
		{with("", nil, "10.0.0.9"), `spec.clusterIPs: Invalid value: ["10.0.0.9"]: failed to allocate IP 10.0.0.9: the provided network does not match the current range: valid IPs are those of 10.0.0.0/30`},
		{ofType(corev1.ServiceTypeNodePort, headless(true, ports(0))), "failed to allocate a nodePort for ports [0]: range is full"},
		{ofType(corev1.ServiceTypeNodePort, headless(true, ports(30000))), "spec.ports[0].nodePort: Invalid value: 30000: provided port is already allocated"},
		{ofType(corev1.ServiceTypeNodePort, headless(true, ports(80))), "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-30000"},
	} {
		plan, errs := NewPlan(nil, service(tc.edit), families(v4))
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		if _, err := Choose(plan, a, p); err == nil || err.Error() != tc.want {
			t.Errorf("got %v\nwant %s", err, tc.want)
		}
	}
}

func TestPortBand(t *testing.T) {
	for r, want := range map[PortRange]int{
		{30000, 32767}: 86, {30000, 30015}: 0, {30000, 30016}: 16, {1, 65535}: 128, {7, 7}: 0,
	} {
		if got := r.StaticBand(); got != want {
			t.Errorf("%s: band %d, want %d", r, got, want)
		}
	}
	p, err := NewPorts(PortOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var order []int32
	for c := p.Cursor(); ; {
		n, ok := c.Next()
		if !ok {
			break
		}
		order = append(order, n)
	}
	slices.Sort(order[:len(order)-86])
	if len(order) != 2768 || order[0] != 30086 {
		t.Errorf("%d ports, lowest dynamic %d", len(order), order[0])
	}
}

// Whatever chain of updates a Service goes through, what it holds is what was
// taken and not released, and nothing panics.
func TestPlanProperties(t *testing.T) {
	pick := func(t *rapid.T, name string, of ...string) string { return rapid.SampledFrom(of).Draw(t, name) }
	draw := func(t *rapid.T) *corev1.Service {
		return service(func(s *corev1.ServiceSpec) {
			s.Type = corev1.ServiceType(pick(t, "type", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"))
			if p := corev1.IPFamilyPolicy(pick(t, "policy", "", "SingleStack", "PreferDualStack", "RequireDualStack", "x")); p != "" {
				s.IPFamilyPolicy = &p
			}
			for range rapid.IntRange(0, 3).Draw(t, "families") {
				s.IPFamilies = append(s.IPFamilies, corev1.IPFamily(pick(t, "family", "IPv4", "IPv6", "IPv5")))
			}
			s.ClusterIP = pick(t, "ip", "", "", "None", "10.0.0.9", "fd00::9", "x", "10.0.0.8")
			for range rapid.IntRange(0, 3).Draw(t, "ips") {
				s.ClusterIPs = append(s.ClusterIPs, pick(t, "ips", "None", "10.0.0.9", "fd00::9", "", "FD00::8"))
			}
			ports(rapid.SliceOfN(rapid.Int32Range(29999, 30012), 0, 3).Draw(t, "ports")...)(s)
			if rapid.Bool().Draw(t, "local") {
				local(s)
			}
			s.HealthCheckNodePort = rapid.SampledFrom([]int32{0, 0, 30005}).Draw(t, "health")
			if rapid.Bool().Draw(t, "selector") {
				s.Selector = nil
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		a := NewAddresses(AddressOptions{})
		if err := a.SetRanges(prefixes("10.0.0.0/27", "fd00::/123")); err != nil {
			t.Fatal(err)
		}
		p, _ := NewPorts(PortOptions{Range: PortRange{30000, 30010}})
		heldAddrs, heldPorts := map[netip.Addr]bool{}, map[int32]bool{}
		var old *corev1.Service
		for range rapid.IntRange(1, 5).Draw(t, "steps") {
			fams := a.Families()[:rapid.IntRange(0, 2).Draw(t, "known")]
			svc := draw(t)
			plan, errs := NewPlan(old, svc, fams)
			if len(errs) > 0 {
				continue
			}
			choice, err := Choose(plan, a, p)
			if err != nil {
				continue
			}
			choice.Apply(svc)
			for _, x := range plan.ReleaseAddresses {
				delete(heldAddrs, x)
				a.MarkFree(x)
			}
			for _, x := range plan.ReleasePorts {
				delete(heldPorts, x)
				p.MarkFree(x)
			}
			for _, x := range choice.Addresses() {
				if heldAddrs[x] {
					t.Fatalf("%s taken twice", x)
				}
				heldAddrs[x] = true
				a.MarkTaken(x)
			}
			for _, x := range choice.Ports() {
				if heldPorts[x] {
					t.Fatalf("port %d taken twice", x)
				}
				heldPorts[x] = true
				p.MarkTaken(x)
			}
			if have := addressesOf(svc); len(have) != len(heldAddrs) || slices.ContainsFunc(have, func(x netip.Addr) bool { return !heldAddrs[x] }) {
				t.Fatalf("the Service has %v, taken are %v", have, heldAddrs)
			}
			if have := portsOf(svc); len(have) != len(heldPorts) || slices.ContainsFunc(have, func(x int32) bool { return !heldPorts[x] }) {
				t.Fatalf("the Service has ports %v, taken are %v", have, heldPorts)
			}
			old = svc
		}
	})
}

func TestIPAddressFor(t *testing.T) {
	got := IPAddressFor(netip.MustParseAddr("FD00:0:0::9"), service(nil))
	if got.Name != "fd00::9" || got.Labels["ipaddress.kubernetes.io/ip-family"] != "IPv6" ||
		got.Labels["ipaddress.kubernetes.io/managed-by"] != "ipallocator.k8s.io" || got.Spec.ParentRef.Resource != "services" ||
		got.Spec.ParentRef.Namespace != "shop" || got.Spec.ParentRef.Name != "web" || got.Spec.ParentRef.Group != "" {
		t.Errorf("%+v", got)
	}
}

// TestClusterIPsAlone: as in Kubernetes, clusterIPs is no way to ask for an address without clusterIP.
func TestClusterIPsAlone(t *testing.T) {
	svc := service(func(s *corev1.ServiceSpec) { s.ClusterIPs = []string{"10.0.0.5"} })
	_, errs := NewPlan(nil, svc, families(v4))
	if len(errs) != 1 || errs[0].Error() != "spec.clusterIPs: Invalid value: [\"10.0.0.5\"]: must be empty when `clusterIP` is not specified" {
		t.Errorf("accepted, or for another reason: %v", errs)
	}
}
