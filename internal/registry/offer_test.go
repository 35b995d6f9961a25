package registry

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
)

func dubboInstance(port uint16, revision, version string) *Instance {
	in := orders(port)
	in.Metadata = map[string]string{
		KeyRevision: revision, KeyStorage: StorageLocal, keyEndpoints: `[{"port":8080,"protocol":"tri"},{"port":8081,"protocol":"dubbo"}]`,
		"version": version, "team": "shop", keyZone: "a",
	}
	return in
}

func TestOffer(t *testing.T) {
	stored := []string{"r1", "r2", "r3"}
	config := func(k ConfigKey) *meshv1alpha1.RegistryConfig {
		if k.Namespace != "shop" || k.DataID != "orders" || !slices.Contains(stored, k.Group) {
			return nil
		}
		return &meshv1alpha1.RegistryConfig{Spec: meshv1alpha1.RegistryConfigSpec{Content: `{"app":"orders","services":{"a:tri":{"name":"a"}}}`}}
	}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"}}
	two := []*Instance{dubboInstance(8080, "r1", "1"), dubboInstance(8081, "r2", "2"), dubboInstance(8081, "r2", "2")}
	got := Offer(s, two, config, nil)
	if got == nil || got.Service != "" || got.Dubbo == nil || got.Dubbo.Revision != "r2" || got.Dubbo.Protocol != "dubbo" {
		t.Fatalf("offer %+v", got)
	}
	if diff := cmp.Diff(map[string]string{"team": "shop"}, got.Metadata); diff != "" {
		t.Error(diff)
	}
	if content, m, err := OfferedMetadata("orders", got.Dubbo); err != nil || content != `{"app":"orders","services":{"a:tri":{"name":"a"}}}` || m.Interfaces()[0] != "a" {
		t.Errorf("content %q, %v", content, err)
	}
	if _, _, err := OfferedMetadata("pay", got.Dubbo); err == nil {
		t.Error("metadata of another application are taken")
	}
	// A revision that is offered stays while an instance has it, and its metadata are there.
	one := Offer(s, two, config, &mcs.AvailableRegistry{Dubbo: &mcs.AvailableDubbo{Revision: "r1"}})
	if one.Dubbo.Revision != "r1" || one.Dubbo.Protocol != "tri" {
		t.Errorf("revision %s", one.Dubbo.Revision)
	}
	stored = []string{"r2"}
	if one = Offer(s, two, config, one); one.Dubbo.Revision != "r2" {
		t.Errorf("revision %s without its metadata", one.Dubbo.Revision)
	}
	stored = nil
	if one = Offer(s, two, config, one); one.Dubbo != nil || one.Metadata["team"] != "shop" {
		t.Errorf("offer %+v without metadata of a revision", one)
	}
	if got := Offer(s, nil, config, nil); got != nil {
		t.Errorf("offer %+v of a plain Service", got)
	}
	s.Annotations = map[string]string{AnnotationService: "blue@@com.example.Orders"}
	if got := Offer(s, nil, config, nil); got == nil || got.Service != "blue@@com.example.Orders" {
		t.Errorf("offer %+v of a Service of another name", got)
	}
}

// export of the orders of a site, as another one has it.
func exportOf(site string, instances int32, r *mcs.AvailableRegistry) *mcs.ServiceExport {
	return &mcs.ServiceExport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders-of-" + site, Labels: map[string]string{
			meshv1alpha1.LabelZone: site, meshv1alpha1.LabelDisplayName: "orders", meshv1alpha1.LabelSourceNamespace: "shop",
		}},
		Status: mcs.ServiceExportStatus{Available: &mcs.AvailableService{
			Mesh: meshv1alpha1.DefaultMesh, Zone: site, Type: mcs.ClusterSetIP, Ports: []mcs.ServicePort{{Port: 80}}, Instances: instances, Registry: r,
		}},
	}
}

// Other sites are one instance, with what they have in common, where they are, and metadata of Dubbo that are
// entries here.
func TestIndexOtherSites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		ingress := func(site string) *meshv1alpha1.ZoneIngress {
			return &meshv1alpha1.ZoneIngress{
				ObjectMeta: metav1.ObjectMeta{Name: "i-" + site, Labels: map[string]string{meshv1alpha1.LabelZone: site}},
				Spec:       meshv1alpha1.ZoneGatewaySpec{Address: "192.0.2.1", Port: 10001},
			}
		}
		derived := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "derived-1", Labels: map[string]string{mcs.LabelServiceName: "orders"}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.20", Ports: []corev1.ServicePort{{Port: 80}}},
		}
		b := &mcs.AvailableRegistry{Metadata: map[string]string{"team": "shop", "version": "1"}, Dubbo: &mcs.AvailableDubbo{Revision: "r1", Protocol: "tri"}}
		c := &mcs.AvailableRegistry{Metadata: map[string]string{"team": "shop", "version": "2"}, Dubbo: &mcs.AvailableDubbo{Revision: "r2", Protocol: "tri"}}
		r.client.Seed(derived, ingress("b"), ingress("c"), exportOf("b", 1, b), exportOf("c", 3, c))
		synctest.Wait()
		seen := func() map[string]string {
			l := r.index.Listing(Service{Namespace: "shop", Name: "orders"}, "a")
			if len(l.Instances) != 1 || !l.Instances[0].Remote || string(l.Instances[0].Zone) != l.Instances[0].Metadata[keyZone] {
				t.Fatalf("listing %s", shown(l))
			}
			return l.Instances[0].Metadata
		}
		r.shows("a", "10.96.0.20:80=4.00")
		if diff := cmp.Diff(map[string]string{"team": "shop", "zone": "b,c"}, seen()); diff != "" {
			t.Error(diff)
		}
		key := ConfigKey{"shop", "r1", "orders"}
		r.client.Seed(&meshv1alpha1.RegistryConfig{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: key.objectName()}, Spec: meshv1alpha1.RegistryConfigSpec{Group: "r1", DataID: "orders"},
		})
		synctest.Wait()
		want := map[string]string{"team": "shop", "zone": "b,c", KeyRevision: "r1", KeyStorage: StorageRemote, keyEndpoints: `[{"port":80,"protocol":"tri"}]`}
		if diff := cmp.Diff(want, seen()); diff != "" {
			t.Error(diff)
		}
		// Instances of this site go before.
		s := r.open(Nacos, User{}, 0)
		in := orders(8080)
		r.register(s, in)
		r.shows("a", "10.1.0.7:8080=1.00")
	})
}

// Whatever another zone offers as metadata is refused, or is a JSON document of the application.
func FuzzOfferedMetadata(f *testing.F) {
	f.Add(pack(`{"app":"orders","revision":"r1","services":{}}`))
	f.Add(pack(`{"app":"pay"}`))
	f.Add([]byte("\x1f\x8b\x08\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		content, m, err := OfferedMetadata("orders", &mcs.AvailableDubbo{Revision: "r1", Content: b})
		if err == nil && (m.Application != "orders" || len(content) > maxContent) {
			t.Errorf("%d bytes of application %q", len(content), m.Application)
		}
	})
}
