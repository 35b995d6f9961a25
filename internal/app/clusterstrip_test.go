package app

import (
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// fullPod is number i of a Deployment of 50 Pods, as a cluster with a network plugin and sidecars has it.
func fullPod(i int) *corev1.Pod {
	at, of := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), i/50
	ip := fmt.Sprintf("10.%d.%d.%d", i>>16&0xff, i>>8&0xff, i&0xff)
	container := func(name string) corev1.Container {
		return corev1.Container{
			Name: name, Image: "registry.example/" + name + ":v1.2.3", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: "TCP"}},
			Env:          []corev1.EnvVar{{Name: "A", Value: "a"}, {Name: "B", Value: "b"}},
			Resources:    corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")}},
			VolumeMounts: []corev1.VolumeMount{{Name: "kube-api-access", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}},
		}
	}
	condition := func(kind corev1.PodConditionType) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: at, Reason: "ContainersReady", Message: "all containers are ready"}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("team-%03d", of%100), Name: fmt.Sprintf("service-%04d-6c5d8f7b9-%05d", of, i), GenerateName: fmt.Sprintf("service-%04d-6c5d8f7b9-", of),
			UID: types.UID(fmt.Sprintf("0f6c8b1e-3a52-4c7e-9a10-%012d", i)), ResourceVersion: fmt.Sprint(1000000 + i), CreationTimestamp: at,
			Labels: map[string]string{
				"app.kubernetes.io/name": fmt.Sprintf("service-%04d", of), "app.kubernetes.io/instance": "prod", "app.kubernetes.io/version": "1.2.3",
				"app.kubernetes.io/part-of": "shop", "pod-template-hash": "6c5d8f7b9",
			},
			Annotations: map[string]string{
				"cni.projectcalico.org/containerID": strings.Repeat("a", 64), "cni.projectcalico.org/podIP": ip + "/32", "cni.projectcalico.org/podIPs": ip + "/32",
				"checksum/config": strings.Repeat("b", 64), "prometheus.io/scrape": "true", "prometheus.io/port": "8080",
				meshv1alpha1.AnnotationSidecar: `{"mesh":"default","ports":[{"name":"http","port":8080}]}`, meshv1alpha1.AnnotationServerCA: strings.Repeat("c", 700),
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: fmt.Sprintf("service-%04d-6c5d8f7b9", of), UID: "8f6c8b1e-3a52-4c7e-9a10-000000000000"}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(strings.Repeat("f", 2000))}},
		},
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprintf("node-%04d", i%5000), ServiceAccountName: "default", Containers: []corev1.Container{container("main"), container("log")},
			InitContainers: []corev1.Container{container("install"), container("sidecar")},
			Volumes:        []corev1.Volume{{Name: "kube-api-access", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			Tolerations:    []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute"}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, HostIP: "192.0.2.1", StartTime: &at,
			Conditions: []corev1.PodCondition{condition("PodScheduled"), condition("Initialized"), condition("ContainersReady"), condition(corev1.PodReady)},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "main", Ready: true, Image: "registry.example/main:v1.2.3", ImageID: "registry.example/main@sha256:" + strings.Repeat("d", 64), ContainerID: "containerd://" + strings.Repeat("e", 64)},
			},
		},
	}
}

// TestStripPod: a Pod is the same workload after what nobody reads was taken.
func TestStripPod(t *testing.T) {
	full, p := fullPod(7), fullPod(7)
	p.Labels["statefulset.kubernetes.io/pod-name"] = p.Name
	full.Labels["statefulset.kubernetes.io/pod-name"] = full.Name
	p.Annotations["kuma.io/mesh"], p.Annotations["traffic.kuma.io/exclude-inbound-ports"], p.Annotations["notkuma.io/mesh"] = "red", "1", "blue"
	p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::7"})
	s := newStripper()
	s.pod(p)
	if p.Namespace != full.Namespace || p.Name != full.Name || p.UID != full.UID || p.ResourceVersion != full.ResourceVersion || !maps.Equal(p.Labels, full.Labels) ||
		p.Spec.NodeName != full.Spec.NodeName || p.Spec.ServiceAccountName != "default" || p.Status.Phase != corev1.PodRunning {
		t.Errorf("%+v", p)
	}
	want := []string{"kuma.io/mesh", meshv1alpha1.AnnotationSidecar, "traffic.kuma.io/exclude-inbound-ports"}
	if got := slices.Sorted(maps.Keys(p.Annotations)); !slices.Equal(got, want) {
		t.Errorf("annotations %q, want %q", got, want)
	}
	if c := p.Status.Conditions; len(c) != 1 || c[0].Type != corev1.PodReady || c[0].Status != corev1.ConditionTrue || c[0].LastTransitionTime.IsZero() {
		t.Errorf("conditions %+v", c)
	}
	if d := podDataplane(p, nil); d == nil || !slices.Equal(d.Spec.Addresses, []string{full.Status.PodIP, "fd00::7"}) {
		t.Errorf("addresses %+v", d)
	}
	again := p.DeepCopy()
	if s.pod(again); again.Status.PodIPs[1].IP != "fd00::7" || len(again.Annotations) != len(want) {
		t.Errorf("a Pod that is stripped twice: %+v", again)
	}
}

// TestTexts: equal maps become one, and what is not met any more is forgotten.
func TestTexts(t *testing.T) {
	of := func(i int) map[string]string { return map[string]string{"app": fmt.Sprint(i), "tier": "web"} }
	same := func(a, b map[string]string) bool { return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() }
	s := newTexts()
	first := s.share(of(0))
	if other := s.share(map[string]string{"app": "1"}); len(other) != 1 || !same(first, s.share(of(0))) || !maps.Equal(first, of(0)) {
		t.Errorf("%v, %v", first, other)
	}
	if s.share(nil) != nil {
		t.Error("a map of nothing")
	}
	for i := range 3 * maxTexts {
		s.share(of(i))
		if i%100 == 0 && !same(first, s.share(of(0))) {
			t.Fatalf("what is met again is forgotten, after %d", i)
		}
	}
	if n := len(s.now) + len(s.before); n > 2*maxTexts {
		t.Errorf("%d maps are remembered", n)
	}
}

// maxPodBytes is what a Pod may take in memory, of which corev1.Pod itself is the most: at 250,000 Pods
// each 100 bytes are 25 MB.
const maxPodBytes = 1700

// TestPodMemory prints what a Pod takes in memory after it came from the cluster, and bounds it.
func TestPodMemory(t *testing.T) {
	full := podBytes(t, func(p *corev1.Pod) { p.SetManagedFields(nil) })
	kept := podBytes(t, newStripper().pod)
	t.Logf("bytes of a Pod: %d as the API has it, without managed fields; %d kept", full, kept)
	if kept > maxPodBytes {
		t.Errorf("%d bytes of a Pod are kept, want at most %d", kept, maxPodBytes)
	}
}

// podBytes of a Pod that is decoded and stripped, as the client of a control plane does it. Of three attempts
// the least counts: other tests may have left something that runs.
func podBytes(t *testing.T, strip func(*corev1.Pod)) (least int64) {
	t.Helper()
	for i := range 3 {
		if b := podBytesOnce(t, strip); i == 0 || b < least {
			least = b
		}
	}
	return least
}

func podBytesOnce(t *testing.T, strip func(*corev1.Pod)) int64 {
	t.Helper()
	const n = 2000
	held := make([]*corev1.Pod, 0, n)
	before := heap()
	for i := range n {
		text, err := fullPod(i).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		p := &corev1.Pod{}
		if err := p.Unmarshal(text); err != nil {
			t.Fatal(err)
		}
		strip(p)
		held = append(held, p)
	}
	after := heap()
	runtime.KeepAlive(held)
	return (after - before) / n
}

// heap in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
