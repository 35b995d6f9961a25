package servicetag

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

func dataplane(labels map[string]string, ports ...meshv1alpha1.DataplanePort) *meshv1alpha1.Dataplane {
	return &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "w", Labels: labels}, Spec: meshv1alpha1.DataplaneSpec{Ports: ports},
	}
}

func tagged(port int32, tag string) meshv1alpha1.DataplanePort {
	p := meshv1alpha1.DataplanePort{Port: port}
	if tag != "" {
		p.Tags = map[string]string{meshv1alpha1.LabelKumaService: tag}
	}
	return p
}

// TestDataplanes: the tag of a port goes before the label, and ours before Kuma's.
func TestDataplanes(t *testing.T) {
	label := map[string]string{meshv1alpha1.LabelKumaService: "backend"}
	for name, tc := range map[string]struct {
		dataplane *meshv1alpha1.Dataplane
		want      string // HOST:PORTS …
	}{
		"no tag":        {dataplane(nil, tagged(80, "")), ""},
		"no port":       {dataplane(label), ""},
		"a label":       {dataplane(label, tagged(8080, ""), tagged(9090, "")), "backend:8080,9090"},
		"ours first":    {dataplane(map[string]string{meshv1alpha1.LabelService: "web", meshv1alpha1.LabelKumaService: "x"}, tagged(80, "")), "web:80"},
		"tags of ports": {dataplane(label, tagged(8080, ""), tagged(9090, "admin"), tagged(9091, "admin")), "backend:8080 admin:9090,9091"},
		"no hostname":   {dataplane(map[string]string{meshv1alpha1.LabelService: "Web"}, tagged(80, "")), ""},
	} {
		var got []string
		for _, host := range OfDataplane(tc.dataplane) {
			var numbers []string
			for _, in := range DataplaneInbounds(tc.dataplane, host) {
				numbers = append(numbers, fmt.Sprint(in.Number))
			}
			got = append(got, host+":"+strings.Join(numbers, ","))
		}
		if text := strings.Join(got, " "); text != tc.want {
			t.Errorf("%s: %q, want %q", name, text, tc.want)
		}
	}
}

// TestPods: a pod without a tag has a generated one, after what created it.
func TestPods(t *testing.T) {
	pod := func(name, owner, kind string, labels map[string]string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: labels}}
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}}
		if owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner, Controller: new(true)}}
		}
		return p
	}
	for _, tc := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{pod("web", "", "", nil), "web_shop_svc"},
		{pod("web-5d4f-x", "web-5d4f", "ReplicaSet", map[string]string{"pod-template-hash": "5d4f"}), "web_shop_svc"},
		{pod("db-0", "db", "StatefulSet", nil), "db_shop_svc"},
		{pod("web", "", "", map[string]string{meshv1alpha1.LabelService: "backend"}), "backend"},
	} {
		if got := OfPod(tc.pod); len(got) != 1 || got[0] != tc.want {
			t.Errorf("%s: %q, want %q", tc.pod.Name, got, tc.want)
		}
		if in := PodInbounds(tc.pod, tc.want); len(in) != 1 || in[0].Number != 8080 {
			t.Errorf("%s: ports %v", tc.pod.Name, in)
		}
	}
	long := OfPod(pod(strings.Repeat("a", 200), "", "", nil))
	if len(long) != 1 || len(long[0]) > 63 || !strings.HasPrefix(long[0], "aaa") {
		t.Errorf("a generated tag that is too long: %q", long)
	}
	bare := pod("web", "", "", nil)
	bare.Spec.Containers = nil
	if got := OfPod(bare); len(got) > 0 {
		t.Errorf("without ports: %q", got)
	}
}

func inbounds(numbers ...int32) []Inbound {
	out := make([]Inbound, 0, len(numbers))
	for _, n := range numbers {
		in := Inbound{Number: max(n, -n), Protocol: corev1.ProtocolTCP}
		if n < 0 {
			in.Protocol = corev1.ProtocolUDP
		}
		out = append(out, in)
	}
	return out
}

// TestPorts: which ports there are, and where each leads at each workload. A negative number is
// one of UDP.
func TestPorts(t *testing.T) {
	var many [][]Inbound
	for i := range int32(20) {
		many = append(many, inbounds(8000+i))
	}
	for name, tc := range map[string]struct {
		workloads [][]Inbound
		want      string // PORT>TARGET,… of each workload
	}{
		"none":               {nil, ""},
		"one":                {[][]Inbound{inbounds(8080)}, "80>8080 8080>8080"},
		"port 80":            {[][]Inbound{inbounds(80)}, "80>80"},
		"two numbers":        {[][]Inbound{inbounds(8080), inbounds(8081)}, "80>8080,8081 8080>8080,8081 8081>8080,8081"},
		"a second port":      {[][]Inbound{inbounds(8080, 9090), inbounds(8080)}, "80>8080,8080 8080>8080,8080 9090>9090,-"},
		"main of one, other": {[][]Inbound{inbounds(8080, 9090), inbounds(9090)}, "80>8080,9090 8080>8080,9090 9090>9090,9090"},
		"UDP alone":          {[][]Inbound{inbounds(-53)}, "53>53"},
		"both":               {[][]Inbound{inbounds(-53, 53)}, "53>53 80>53 53>53"},
		"many":               {many[:9], "80>* 8000>* 8001>* 8002>* 8003>* 8004>* 8005>* 8006>* 8007>*"},
	} {
		var got []string
		for _, p := range Ports(tc.workloads) {
			var targets []string
			for _, w := range tc.workloads {
				text := "-"
				if n, ok := Target(&p, w); ok {
					text = fmt.Sprint(n)
				}
				targets = append(targets, text)
			}
			text := strings.Join(targets, ",")
			if len(targets) > 3 && !slices.Contains(targets, "-") {
				text = "*"
			}
			got = append(got, fmt.Sprintf("%d>%s", p.Port, text))
			if bad := validation.IsValidPortName(p.TargetPort.StrVal); p.TargetPort.StrVal != "" && len(bad) > 0 {
				t.Errorf("target port %s: %v", p.TargetPort.StrVal, bad)
			}
		}
		slices.SortStableFunc(got, func(a, b string) int { return len(strings.Split(a, ">")[0]) - len(strings.Split(b, ">")[0]) })
		want := tc.want
		if name == "both" {
			want = "80>53 53>53 53>53"
			slices.Sort(got)
			slices.Reverse(got)
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %q, want %q", name, text, want)
		}
	}
}

// TestPortsAreValid: names and numbers of the ports of a Service are unique, whatever its
// workloads have, and every workload is reached on port 80.
func TestPortsAreValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Int32Range(1, 12)
		workloads := rapid.SliceOfN(rapid.SliceOfN(number, 1, 4), 1, 12).Draw(t, "workloads")
		var all [][]Inbound
		for i, numbers := range workloads {
			if i%3 == 2 {
				numbers[0] = -numbers[0]
			}
			all = append(all, inbounds(numbers...))
		}
		ports := Ports(all)
		names, numbers := map[string]bool{}, map[string]bool{}
		for _, p := range ports {
			number := fmt.Sprint(p.Protocol, p.Port)
			if names[p.Name] || numbers[number] || len(validation.IsDNS1123Label(p.Name)) > 0 {
				t.Fatalf("ports %v", ports)
			}
			names[p.Name], numbers[number] = true, true
			for _, w := range all {
				n, ok := Target(&p, w)
				has := slices.ContainsFunc(w, func(in Inbound) bool { return in.Protocol == p.Protocol })
				if p.Port == 80 && p.Protocol == corev1.ProtocolTCP && has != ok {
					t.Fatalf("port 80 of %v: %d, %v", w, n, ok)
				}
				if ok && !slices.Contains(w, Inbound{Number: n, Protocol: p.Protocol}) {
					t.Fatalf("port %d leads to %d, which is none of %v", p.Port, n, w)
				}
			}
		}
		if slices.Reverse(all); fmt.Sprint(Ports(all)) != fmt.Sprint(ports) {
			t.Fatalf("the order of workloads matters: %v and %v", ports, Ports(all))
		}
	})
}

// TestNames: names of Services and namespaces are valid, and differ.
func TestNames(t *testing.T) {
	names := map[string]string{}
	for _, host := range []string{
		"backend", "web_shop_svc_80", "web.shop.svc.80", "web-shop-svc-80", "1st", "a.b", "tag-a-b", "x-aaaaaaaaaaaaa", strings.Repeat("t", 63),
	} {
		name := ServiceName(host)
		if len(validation.IsDNS1035Label(name)) > 0 || names[name] != "" {
			t.Errorf("%s: name %s, as %s", host, name, names[name])
		}
		names[name] = host
	}
	if ServiceName("backend") != "backend" {
		t.Error("a plain tag has another name than itself")
	}
	for _, mesh := range []string{"default", strings.Repeat("m", 63)} {
		if n := Namespace(mesh); len(validation.IsDNS1123Label(n)) > 0 || !InNamespace(n) {
			t.Errorf("namespace %s", n)
		}
	}
	ours := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace("default")}, Spec: corev1.ServiceSpec{Selector: Selector("backend")}}
	if host, ok := HostOf(ours); !ok || host != "backend" {
		t.Errorf("tag of a Service: %q %v", host, ok)
	}
	ours.Namespace = "shop"
	if _, ok := HostOf(ours); ok {
		t.Error("a user's Service that selects by the label is one of a tag")
	}
}
