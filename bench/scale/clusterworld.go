package main

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// clusterWorld are the objects of a cluster, by their numbers: nodes in three zones, Services with
// a slice and a pod for each endpoint, and one more Service of many endpoints.
type clusterWorld struct {
	nodes, services, perService, large int
}

const (
	clusterNamespace = "shop"
	clusterZones     = 3
	// perSlice is the number of endpoints in a slice of the large Service, Kubernetes' default
	// (--max-endpoints-per-slice of kube-controller-manager).
	perSlice = 100
	// managedField is about what kube-controller-manager and kubelet leave in managedFields of an
	// object, in bytes.
	managedField = 800
)

func (c *clusterWorld) endpoints() int { return c.services*c.perService + c.large }

// slices of the Services, and of the large one.
func (c *clusterWorld) slices() int { return c.services + (c.large+perSlice-1)/perSlice }

// objectMeta as an API server gives it.
func objectMeta(namespace, name string, kind, i int) metav1.ObjectMeta {
	fields := make([]byte, managedField)
	for k := range fields {
		fields[k] = 'f'
	}
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name + "-" + strconv.Itoa(i), ResourceVersion: "1000",
		UID: types.UID(fmt.Sprintf("00000000-0000-0000-%04d-%012d", kind+2, i)),
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"` + string(fields) + `":{}}`),
		}},
	}
}

func zoneOfNode(i int) string { return "zone-" + string(rune('a'+i%clusterZones)) }

func nodeName(i int) string { return "node-" + strconv.Itoa(i) }

func (c *clusterWorld) node(i int) runtime.Object {
	n := &corev1.Node{ObjectMeta: objectMeta("", "node", 0, i)}
	n.Labels = map[string]string{
		corev1.LabelTopologyZone: zoneOfNode(i), corev1.LabelTopologyRegion: "r", corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux",
		corev1.LabelArchStable: "amd64", corev1.LabelInstanceTypeStable: "large",
	}
	n.Status = corev1.NodeStatus{
		Allocatable: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("16"), corev1.ResourceMemory: apiresource.MustParse("64Gi")},
		Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
		Addresses:   []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.16.%d.%d", i>>8, i&255)}},
	}
	return n
}

// service of a number; the last one is the large one.
func (c *clusterWorld) service(i int) runtime.Object {
	s := &corev1.Service{ObjectMeta: objectMeta(clusterNamespace, "svc", 1, i)}
	s.Annotations = map[string]string{"service.kubernetes.io/topology-mode": "proxima.dev/Adaptive"}
	address := fmt.Sprintf("10.96.%d.%d", i>>8, i&255)
	s.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: address, ClusterIPs: []string{address},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Selector: map[string]string{"app": s.Name},
		Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
	}
	return s
}

func podAddress(generation, i int) string {
	return fmt.Sprintf("%d.%d.%d.%d", 10+generation, 100+i>>16, i>>8&255, i&255)
}

// hostOf an endpoint: endpoints are spread over nodes, unevenly over zones.
func (c *clusterWorld) hostOf(i int) int { return (i*7919 + i/7%3) % c.nodes }

func (c *clusterWorld) endpoint(generation, i int) discoveryv1.Endpoint {
	at := c.hostOf(i)
	return discoveryv1.Endpoint{
		Addresses: []string{podAddress(generation, i)}, NodeName: new(nodeName(at)), Zone: new(zoneOfNode(at)),
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		TargetRef: &corev1.ObjectReference{
			Kind: "Pod", Namespace: clusterNamespace, Name: "pod-" + strconv.Itoa(i),
			UID: types.UID(fmt.Sprintf("00000000-0000-0000-0005-%012d", i)),
		},
	}
}

// slice of a number: the one of a Service, or, after these, one of the large Service. Of another
// generation its endpoints have other addresses.
func (c *clusterWorld) slice(generation, i int) *discoveryv1.EndpointSlice {
	first, last, service := i*c.perService, (i+1)*c.perService, i
	if i >= c.services {
		first = c.services*c.perService + (i-c.services)*perSlice
		last, service = min(first+perSlice, c.endpoints()), c.services
	}
	s := &discoveryv1.EndpointSlice{ObjectMeta: objectMeta(clusterNamespace, "slice", 2, i), AddressType: discoveryv1.AddressTypeIPv4}
	s.Labels = map[string]string{
		discoveryv1.LabelServiceName: "svc-" + strconv.Itoa(service), discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
	}
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "svc-" + strconv.Itoa(service), UID: "1"}}
	s.Ports = []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}}
	for e := first; e < last; e++ {
		s.Endpoints = append(s.Endpoints, c.endpoint(generation, e))
	}
	return s
}

func (c *clusterWorld) pod(i int) runtime.Object {
	at := c.hostOf(i)
	p := &corev1.Pod{ObjectMeta: objectMeta(clusterNamespace, "pod", 3, i)}
	service := "svc-" + strconv.Itoa(min(i/c.perService, c.services))
	p.Labels = map[string]string{"app": service, "pod-template-hash": "5d9c7b8f6d"}
	p.Annotations = map[string]string{"prometheus.io/scrape": "true", "checksum/config": "0123456789abcdef0123456789abcdef"}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: service + "-5d9c7b8f6d", UID: "1"}}
	p.Spec = corev1.PodSpec{
		NodeName: nodeName(at), ServiceAccountName: service,
		Containers: []corev1.Container{{
			Name: "main", Image: "registry.example/" + service + ":1", Ports: []corev1.ContainerPort{{ContainerPort: 8080}},
			Env:          []corev1.EnvVar{{Name: "CONFIG", Value: "/etc/config"}, {Name: "LEVEL", Value: "info"}},
			VolumeMounts: []corev1.VolumeMount{{Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}},
		}},
		Tolerations: []corev1.Toleration{{
			Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
		}},
	}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: podAddress(0, i), PodIPs: []corev1.PodIP{{IP: podAddress(0, i)}},
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(1_700_000_000, 0)},
		},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", Ready: true, Image: "registry.example/" + service + ":1", ContainerID: "containerd://0123456789abcdef",
		}},
	}
	return p
}

// fill an API with the world.
func (c *clusterWorld) fill(a *clusterAPI) error {
	for resource, of := range map[string]struct {
		n    int
		make func(int) runtime.Object
	}{
		"nodes": {c.nodes, c.node}, "services": {c.services + 1, c.service}, "pods": {c.endpoints(), c.pod},
		"endpointslices": {c.slices(), func(i int) runtime.Object { return c.slice(0, i) }},
	} {
		a.resources[resource].made, a.resources[resource].make = of.n, of.make
	}
	for _, name := range []string{"kube-system", clusterNamespace, "proxima-system", "default"} {
		if err := a.put("namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	return nil
}
