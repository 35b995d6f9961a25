package apiserver_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
}

// owner is the holder of an address; "" if it is free.
func owner(t *testing.T, cs kubernetes.Interface, ip string) string {
	t.Helper()
	got, err := cs.NetworkingV1().IPAddresses().Get(t.Context(), ip, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	if got.UID == "" || got.CreationTimestamp.IsZero() {
		t.Errorf("IPAddress %s lacks system fields", ip)
	}
	return got.Spec.ParentRef.Namespace + "/" + got.Spec.ParentRef.Name
}

func TestServiceAddressLife(t *testing.T) {
	cs := shared.clientset(t, "")
	services := cs.CoreV1().Services("default")
	svc, err := services.Create(t.Context(), service("addressed"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ip := svc.Spec.ClusterIP
	if a, err := netip.ParseAddr(ip); err != nil || !netip.MustParsePrefix("10.96.0.0/24").Contains(a) {
		t.Fatalf("ClusterIP %q", ip)
	}
	if len(svc.Spec.ClusterIPs) != 1 || svc.Spec.ClusterIPs[0] != ip || svc.Spec.IPFamilies[0] != corev1.IPv4Protocol {
		t.Errorf("spec %+v", svc.Spec)
	}
	if got := owner(t, cs, ip); got != "default/addressed" {
		t.Errorf("owner %q", got)
	}

	// The same address again is refused in Kubernetes' words.
	other := service("same-address")
	other.Spec.ClusterIP = ip
	_, err = services.Create(t.Context(), other, metav1.CreateOptions{})
	want := fmt.Sprintf(`Service "same-address" is invalid: spec.clusterIPs: Invalid value: ["%s"]: `+
		`failed to allocate IP %s: provided IP is already allocated`, ip, ip)
	if !apierrors.IsInvalid(err) || err.Error() != want {
		t.Errorf("taken address: %v\nwant %s", err, want)
	}
	if _, err := services.Get(t.Context(), "same-address", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the refused service exists: %v", err)
	}

	// Another type gives the address back; and back again takes one.
	patch := func(body string) *corev1.Service {
		t.Helper()
		out, err := services.Patch(t.Context(), "addressed", types.MergePatchType, []byte(body), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	svc = patch(`{"spec":{"type":"ExternalName","externalName":"example.com","clusterIP":null,"clusterIPs":null}}`)
	if svc.Spec.ClusterIP != "" || owner(t, cs, ip) != "" {
		t.Errorf("ExternalName keeps %q, owner %q", svc.Spec.ClusterIP, owner(t, cs, ip))
	}
	svc = patch(`{"spec":{"type":"NodePort","externalName":null}}`)
	ip, port := svc.Spec.ClusterIP, svc.Spec.Ports[0].NodePort
	if owner(t, cs, ip) != "default/addressed" || port < 30000 {
		t.Errorf("as NodePort: %q of %q, port %d", ip, owner(t, cs, ip), port)
	}
	other = service("same-port")
	other.Spec.Type, other.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, port
	if _, err := services.Create(t.Context(), other, metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "spec.ports[0].nodePort: Invalid value") ||
		!strings.Contains(err.Error(), "provided port is already allocated") {
		t.Errorf("taken port: %v", err)
	}
	if err := services.Delete(t.Context(), "addressed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := owner(t, cs, ip); got != "" {
		t.Errorf("after the deletion %s belongs to %q", ip, got)
	}
	eventually(t, "the port is free again", func() bool {
		_, err := services.Create(t.Context(), other, metav1.CreateOptions{})
		return err == nil
	})
	if err := services.Delete(t.Context(), "same-port", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestDeletedServiceIsAnswered: clients with types decode the answer as a Service; that of other
// kinds is a Status.
func TestDeletedServiceIsAnswered(t *testing.T) {
	cs := shared.clientset(t, "")
	if _, err := cs.CoreV1().Services("default").Create(t.Context(), service("answered"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var gone corev1.Service
	err := cs.CoreV1().RESTClient().Delete().Namespace("default").Resource("services").Name("answered").Do(t.Context()).Into(&gone)
	if err != nil || gone.Kind == "Status" || gone.Name != "answered" || gone.Spec.ClusterIP == "" {
		t.Errorf("answer %+v, %v", gone, err)
	}
}

func TestServiceDryRunTakesNothing(t *testing.T) {
	cs := shared.clientset(t, "")
	svc, err := cs.CoreV1().Services("default").Create(t.Context(), service("dry"), metav1.CreateOptions{DryRun: []string{"All"}})
	if err != nil {
		t.Fatal(err)
	}
	if svc.Spec.ClusterIP == "" || owner(t, cs, svc.Spec.ClusterIP) != "" {
		t.Errorf("dry run: address %q of %q", svc.Spec.ClusterIP, owner(t, cs, svc.Spec.ClusterIP))
	}
}

func TestServiceFinalizerReleasesAtTheEnd(t *testing.T) {
	cs := shared.clientset(t, "")
	services := cs.CoreV1().Services("default")
	held := service("held")
	held.Finalizers = []string{"example.com/hold"}
	svc, err := services.Create(t.Context(), held, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := services.Delete(t.Context(), "held", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if owner(t, cs, svc.Spec.ClusterIP) == "" {
		t.Error("the address was released before the service went")
	}
	if _, err := services.Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Get(t.Context(), "held", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v", err)
	}
	if got := owner(t, cs, svc.Spec.ClusterIP); got != "" {
		t.Errorf("address left with %q", got)
	}
}

// TestConcurrentAddressesAreUnique fills a small range from many sides at once.
func TestConcurrentAddressesAreUnique(t *testing.T) {
	s := memory.New(memory.Options{})
	defer s.Close()
	srv, err := start(s, func(cfg *apiserver.Config) {
		cfg.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.97.0.0/27")} // 30 usable, one for the API
	})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.stop()
	cs := srv.clientset(t, "")
	const writers = 40
	var mu sync.Mutex
	var wg sync.WaitGroup
	taken := map[string]string{}
	full := 0
	for i := range writers {
		wg.Go(func() {
			svc, err := cs.CoreV1().Services("default").Create(t.Context(), service(fmt.Sprintf("c%d", i)), metav1.CreateOptions{})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if !strings.Contains(err.Error(), "range is full") {
					t.Errorf("create: %v", err)
				}
				full++
				return
			}
			if other, ok := taken[svc.Spec.ClusterIP]; ok {
				t.Errorf("%s and %s share %s", other, svc.Name, svc.Spec.ClusterIP)
			}
			taken[svc.Spec.ClusterIP] = svc.Name
		})
	}
	wg.Wait()
	if len(taken) != 29 || full != writers-29 {
		t.Errorf("%d addresses given out and %d refused, want 29 and %d", len(taken), full, writers-29)
	}
	for ip, name := range taken {
		if got := owner(t, cs, ip); got != "default/"+name {
			t.Errorf("%s belongs to %q, want %s", ip, got, name)
		}
	}
	// All go in one request, and everything is free again.
	if err := cs.CoreV1().RESTClient().Delete().Namespace("default").Resource("services").
		Param("fieldSelector", "metadata.name!=kubernetes").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	list, err := cs.NetworkingV1().IPAddresses().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].Name != "10.97.0.1" {
		t.Errorf("left over: %+v", list.Items)
	}
}
