package endpointslice

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// model is one workload in the terms of the test: enough to build it and to say
// what endpoint it must become, without the code under test.
type model struct {
	vm                 bool
	four, six          bool
	ready, terminating bool
	node               string
	port               int32 // that the name "http" resolves to; 0: none
}

func drawModel(t *rapid.T) model {
	return model{
		vm:   rapid.Bool().Draw(t, "vm"),
		four: rapid.IntRange(0, 9).Draw(t, "four") > 0, six: rapid.Bool().Draw(t, "six"),
		ready: rapid.Bool().Draw(t, "ready"), terminating: rapid.IntRange(0, 4).Draw(t, "terminating") == 0,
		node: rapid.SampledFrom([]string{"n1", "n2", "missing"}).Draw(t, "node"),
		port: rapid.SampledFrom([]int32{0, 8080, 8080, 9090}).Draw(t, "port"),
	}
}

func (m model) ips(id int) (ips []string) {
	if m.four {
		ips = append(ips, fmt.Sprintf("10.0.0.%d", id))
	}
	if m.six {
		ips = append(ips, fmt.Sprintf("fd00::%x", id))
	}
	return ips
}

func (m model) addTo(in *Input, id int) {
	name := fmt.Sprintf("w%02d", id)
	if m.vm {
		d := vm(name, "", func(d *meshv1alpha1.Dataplane) {
			d.Spec.NodeName, d.Spec.Addresses = m.node, m.ips(id)
			d.Spec.Ports[0].Port = m.port
			if m.port == 0 {
				d.Spec.Ports = nil
			}
			if !m.ready {
				d.Status.Conditions = nil
			}
			if m.terminating {
				d.DeletionTimestamp = &d.CreationTimestamp
			}
		})
		in.Dataplanes = append(in.Dataplanes, d)
		return
	}
	p := webPod(name, "", func(p *corev1.Pod) {
		p.Spec.NodeName = m.node
		p.Status.PodIPs = nil
		for _, ip := range m.ips(id) {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		p.Spec.Containers[0].Ports[0].ContainerPort = m.port
		if m.port == 0 {
			p.Spec.Containers = nil
		}
		if !m.ready {
			unready(p)
		}
		if m.terminating {
			terminating(p)
		}
	})
	if len(p.Status.PodIPs) == 0 {
		p.Status.PodIP = ""
	}
	in.Pods = append(in.Pods, p)
}

// expect is what readers must find of the workload in one family.
func (m model) expect(id int, family discoveryv1.AddressType, service *corev1.Service) (string, bool) {
	publish := service.Spec.PublishNotReadyAddresses
	if m.node == "missing" && !publish {
		return "", false
	}
	address := fmt.Sprintf("10.0.0.%d", id)
	has := m.four
	if family == discoveryv1.AddressTypeIPv6 {
		address, has = fmt.Sprintf("fd00::%x", id), m.six
	}
	if !has {
		return "", false
	}
	line := string(family)
	switch {
	case service.Spec.Ports[0].TargetPort.Type == intstr.Int:
		line += " http:8080/TCP"
	case m.port != 0:
		line += fmt.Sprintf(" http:%d/TCP", m.port)
	}
	kind := "Pod"
	if m.vm {
		kind = "Dataplane"
	}
	flags := ""
	if publish || m.ready && !m.terminating {
		flags += "r"
	}
	if m.ready {
		flags += "s"
	}
	if m.terminating {
		flags += "t"
	}
	line += fmt.Sprintf(" %s %s/w%02d [%s] node=%s", address, kind, id, flags, m.node)
	if zone := map[string]string{"n1": "z1", "n2": "z2"}[m.node]; zone != "" {
		line += " zone=" + zone
	}
	return line, true
}

// After any history of workloads, Service edits and foreign edits of slices: the
// slices together hold exactly the expected endpoints, each once per family, no
// slice is too large, and a second reconcile finds nothing to do.
func TestReconcileHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(webService())
		w.in.Options.MaxEndpoints = rapid.IntRange(1, 4).Draw(t, "max")
		models := map[int]model{}
		for range rapid.IntRange(1, 12).Draw(t, "rounds") {
			for range rapid.IntRange(0, 6).Draw(t, "workloads") {
				id := rapid.IntRange(1, 20).Draw(t, "id")
				if rapid.IntRange(0, 2).Draw(t, "gone") == 0 {
					delete(models, id)
				} else {
					models[id] = drawModel(t)
				}
			}
			editService(t, w.in.Service)
			for range rapid.IntRange(0, 2).Draw(t, "damages") {
				damage(t, w)
			}
			w.in.Pods, w.in.Dataplanes = nil, nil
			for _, id := range slices.Sorted(maps.Keys(models)) {
				models[id].addTo(&w.in, id)
			}
			w.sync()
			check(t, w, models)
		}
	})
}

func editService(t *rapid.T, s *corev1.Service) {
	switch rapid.IntRange(0, 7).Draw(t, "service edit") {
	case 0:
		s.Labels = map[string]string{"v": rapid.SampledFrom([]string{"1", "2"}).Draw(t, "label")}
	case 1:
		s.Spec.Ports[0].TargetPort = intstr.FromString("http")
	case 2:
		s.Spec.Ports[0].TargetPort = intstr.FromInt32(8080)
	case 3:
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	case 4:
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	case 5:
		s.Spec.PublishNotReadyAddresses = !s.Spec.PublishNotReadyAddresses
	}
}

// damage edits a slice as a client that should not.
func damage(t *rapid.T, w *world) {
	all := w.list()
	if len(all) == 0 {
		return
	}
	s := all[rapid.IntRange(0, len(all)-1).Draw(t, "damaged")].DeepCopy()
	w.slices[s.Name] = s
	switch rapid.IntRange(0, 5).Draw(t, "damage") {
	case 0:
		delete(w.slices, s.Name)
	case 1:
		s.Labels["x"] = "y"
	case 2:
		s.OwnerReferences[0].UID = "other"
	case 3:
		s.Ports = nil
	case 4:
		for _, other := range all {
			s.Endpoints = append(s.Endpoints, other.DeepCopy().Endpoints...)
		}
	case 5:
		for i := range s.Endpoints {
			s.Endpoints[i].Conditions.Ready = ptr.To(!ptr.Deref(s.Endpoints[i].Conditions.Ready, true))
		}
	}
}

func check(t *rapid.T, w *world, models map[int]model) {
	var want []string
	for _, family := range w.in.Service.Spec.IPFamilies {
		found := false
		for id, m := range models {
			if line, ok := m.expect(id, discoveryv1.AddressType(family), w.in.Service); ok {
				want, found = append(want, line), true
			}
		}
		if !found {
			want = append(want, string(family)+" empty")
		}
	}
	slices.Sort(want)
	// An empty slice next to others says nothing; as in Kubernetes, no write is
	// spent on it.
	got := slices.DeleteFunc(show(w.list()), func(line string) bool {
		return strings.HasSuffix(line, " empty") && !slices.Contains(want, line)
	})
	if !slices.Equal(got, want) {
		t.Fatalf("slices hold\n%q\nwant\n%q", got, want)
	}
	for _, s := range w.slices {
		if len(s.Endpoints) > w.in.Options.MaxEndpoints {
			t.Fatalf("%s has %d endpoints, at most %d are allowed", s.Name, len(s.Endpoints), w.in.Options.MaxEndpoints)
		}
		if !maps.Equal(s.Labels, sliceLabels(w.in.Service, ManagedBy)) || !ownedBy(s, w.in.Service) {
			t.Fatalf("metadata of %s: %v %v", s.Name, s.Labels, s.OwnerReferences)
		}
	}
	if again := w.plan(); !again.Empty() {
		t.Fatalf("a second plan is not empty: %+v", again)
	}
}
