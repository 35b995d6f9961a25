package app

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestRegistriesInACluster: what a client registers at one replica is told of at the other, has a Service with a
// virtual IP and endpoints, and stays when the leader ends: nobody is told of an empty list, or of an older one.
func TestRegistriesInACluster(t *testing.T) {
	c := startCluster(t)
	var replicas []*replica
	var servers []string
	for _, name := range []string{"a", "b"} {
		cfg := ControlPlaneConfig{Preset: PresetKubeProxyReplacement, Registries: RegistriesConfig{
			NacosPort: nacosPort(t), TLS: registry.TLSOff, Anonymous: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		}}
		replicas = append(replicas, c.startReplicaOf(name, cfg))
		servers = append(servers, fmt.Sprintf("127.0.0.1:%d", cfg.Registries.NacosPort+nacosGRPCOffset))
	}
	first, second := 0, 1
	eventually(t, "a leader", func() bool { return replicas[0].leads() || replicas[1].leads() })
	if replicas[1].leads() {
		first, second = 1, 0
	}

	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	const at = "10.9.0.7:8080"
	provider := &nacosClient{t: t, servers: []string{servers[first], servers[second]}, address: "10.9.0.7", register: 8080}
	moves := &nacosClient{t: t, servers: []string{servers[first], servers[second]}}
	stays := &nacosClient{t: t, servers: []string{servers[second], servers[first]}}
	clients := []*nacosClient{provider, moves, stays}
	for _, client := range clients {
		running.Go(func() { client.run(ctx) })
	}
	told := func(of string) {
		t.Helper()
		for i, client := range clients {
			eventually(t, fmt.Sprintf("%s: client %d", of, i), func() bool {
				_, hosts := client.state()
				return len(hosts) == 1 && hosts[0] == at
			})
		}
	}
	told("the instance")

	// A client that goes from one replica to the other, and back, is told of nothing older than what it has.
	visitor := &nacosClient{t: t}
	for _, server := range []string{servers[second], servers[first], servers[second], servers[first]} {
		visitor.servers = []string{server}
		visit, leave := context.WithCancel(t.Context())
		var visiting sync.WaitGroup
		visiting.Go(func() { visitor.run(visit) })
		eventually(t, "a visit of "+server, func() bool { at, _ := visitor.state(); return at == server })
		leave()
		visiting.Wait()
	}
	if visitor.backwards != 0 || visitor.empty != 0 {
		t.Errorf("a client that moved was told of an older list %d times, of an empty one %d times", visitor.backwards, visitor.empty)
	}

	dataplane := func() *meshv1alpha1.Dataplane {
		list, _, err := c.client.List(t.Context(), kind.Dataplane, resource.ListOptions{})
		if err != nil || len(list) != 1 {
			t.Fatalf("dataplanes: %v, %v", list, err)
		}
		return list[0].(*meshv1alpha1.Dataplane)
	}
	before := dataplane()
	endpoints := func() (service *corev1.Service, all []discoveryv1.Endpoint) {
		obj, err := c.client.Get(t.Context(), kind.Service, resource.Key{Namespace: "default", Name: "orders"})
		if err != nil {
			return nil, nil
		}
		list, _, err := c.client.List(t.Context(), kind.EndpointSlice, resource.ListOptions{Namespace: "default"})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			if s := o.(*discoveryv1.EndpointSlice); s.Labels[discoveryv1.LabelServiceName] == "orders" {
				if s.Labels[discoveryv1.LabelManagedBy] != registry.SlicesManagedBy {
					t.Errorf("slice %s is managed by %q", s.Name, s.Labels[discoveryv1.LabelManagedBy])
				}
				all = append(all, s.Endpoints...)
			}
		}
		return obj.(*corev1.Service), all
	}
	ready := func() bool {
		_, all := endpoints()
		return len(all) == 1 && all[0].Addresses[0] == "10.9.0.7" && *all[0].Conditions.Ready
	}
	eventually(t, "the endpoint of the Service", ready)
	if s, _ := endpoints(); s.Spec.ClusterIP == "" || len(s.Spec.Selector) != 0 || s.Spec.Ports[0].Port != 8080 {
		t.Errorf("service: %+v", s.Spec)
	}

	replicas[first].stop()
	for i, client := range clients {
		eventually(t, fmt.Sprintf("client %d is at the other replica", i), func() bool { at, _ := client.state(); return at == servers[second] })
	}
	eventually(t, "the other replica owns what was registered", func() bool {
		return dataplane().Annotations[registry.AnnotationOwner] == instanceName(replicas[second].p.api.address)
	})
	told("after the leader has ended")
	eventually(t, "another leader", replicas[second].leads)
	if after := dataplane(); after.UID != before.UID || !ready() {
		t.Error("what was registered was made again, or has no endpoint any more")
	}
	for i, client := range clients {
		client.mu.Lock()
		if client.empty != 0 || client.backwards != 0 {
			t.Errorf("client %d was told of an empty list %d times, of an older one %d times", i, client.empty, client.backwards)
		}
		client.mu.Unlock()
	}
	// The new leader does what the first one did: an instance that goes has no endpoint any more.
	if err := c.client.Delete(t.Context(), kind.Dataplane, resource.KeyOf(before), resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the endpoint is gone", func() bool { _, all := endpoints(); return len(all) == 0 })
}

// TestRegistriesOfAClusterRefused: what cannot be served there is refused before anything is opened.
func TestRegistriesOfAClusterRefused(t *testing.T) {
	for want, cfg := range map[string]ControlPlaneConfig{
		"planner-only": {Store: StoreKubernetes, Preset: PresetPlannerOnly, Registries: RegistriesConfig{NacosPort: 8848}},
		"ZooKeeper":    {Store: StoreKubernetes, Preset: PresetZone, Registries: RegistriesConfig{NacosPort: 8848, ZooKeeperPort: 2181}},
	} {
		if err := checkRegistries(&cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := checkRegistries(&ControlPlaneConfig{Store: StoreKubernetes, Preset: PresetZone, Registries: RegistriesConfig{NacosPort: 8848, EurekaPort: 8761}}); err != nil {
		t.Error(err)
	}
}

// accountReviews knows one token of a service account.
type accountReviews struct {
	asked    int
	audience string
}

func (r *accountReviews) ReviewToken(_ context.Context, token string, audiences []string) (s authenticationv1.TokenReviewStatus, err error) {
	r.asked++
	if token == "a.b.c" {
		s.Authenticated, s.Audiences, s.User.Username = true, audiences, "system:serviceaccount:shop:orders"
	}
	if r.audience != "" {
		s.Audiences = []string{r.audience}
	}
	return s, nil
}

// TestRegistryAccounts: a token of a service account registers in its namespace; it is reviewed once a minute, and one
// for another audience is refused.
func TestRegistryAccounts(t *testing.T) {
	reviews := &accountReviews{}
	a := &registryAccounts{Reviewer: reviews, Next: func(_ context.Context, token string) (registry.User, error) {
		return registry.User{Name: "other " + token}, nil
	}}
	for range 2 {
		user, err := a.user(t.Context(), "a.b.c")
		if err != nil || user.Name != "system:serviceaccount:shop:orders" || !user.May("shop") || user.May("default") || user.Admin || user.ServiceAccount != "orders" {
			t.Fatalf("%+v, %v", user, err)
		}
	}
	if reviews.asked != 1 {
		t.Errorf("the token was reviewed %d times", reviews.asked)
	}
	if _, err := a.user(t.Context(), "x.y.z"); err == nil {
		t.Error("a token that the cluster refuses is taken")
	}
	if user, err := a.user(t.Context(), "ours"); err != nil || user.Name != "other ours" {
		t.Errorf("%+v, %v", user, err)
	}
	reviews.audience = "proxima"
	if _, err := (&registryAccounts{Reviewer: reviews}).user(t.Context(), "a.b.c"); err == nil {
		t.Error("a token for agents is taken")
	}
}

// TestPodAddresses: an address is that of the Pod that has it now; Pods in the network of their node have none.
func TestPodAddresses(t *testing.T) {
	pod := func(name, ip string, host bool) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.PodSpec{HostNetwork: host}, Status: corev1.PodStatus{PodIP: ip}}
	}
	p := newPodAddresses(nil)
	change := func(old, is *corev1.Pod, name string) catalog.Change[*corev1.Pod] {
		return catalog.Change[*corev1.Pod]{Key: resource.Key{Namespace: "shop", Name: name}, Old: old, New: is}
	}
	address := netip.MustParseAddr("10.9.0.7")
	p.apply(&catalog.Delta{Pods: []catalog.Change[*corev1.Pod]{change(nil, pod("one", "10.9.0.7", false), "one"), change(nil, pod("host", "192.0.2.1", true), "host")}})
	if got := p.of[address]; got.Name != "one" || len(p.of) != 1 {
		t.Errorf("%v", p.of)
	}
	// The next Pod has the address before the first one is gone.
	p.apply(&catalog.Delta{Pods: []catalog.Change[*corev1.Pod]{change(nil, pod("two", "10.9.0.7", false), "two")}})
	p.apply(&catalog.Delta{Pods: []catalog.Change[*corev1.Pod]{change(pod("one", "10.9.0.7", false), nil, "one")}})
	if got := p.of[address]; got.Name != "two" {
		t.Errorf("%v", p.of)
	}
	p.apply(&catalog.Delta{Pods: []catalog.Change[*corev1.Pod]{change(pod("two", "10.9.0.7", false), nil, "two")}})
	if len(p.of) != 0 {
		t.Errorf("%v", p.of)
	}
}
