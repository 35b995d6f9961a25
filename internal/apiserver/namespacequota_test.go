package apiserver_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

func withConfig(t *testing.T, change func(*apiserver.Config)) *server {
	t.Helper()
	st := memory.New(memory.Options{})
	h, err := start(st, change)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.stop(); err != nil {
			t.Error(err)
		}
		st.Close()
	})
	return h
}

// TestNamespaceQuota: each namespace has its own limits, also for controllers, and an object
// that goes makes room.
func TestNamespaceQuota(t *testing.T) {
	quota, err := apiserver.ParseQuota([]string{"services=2", "services.nodeports=2", "count/dataplanes.mesh.proxima.dev=1"}, kind.All())
	if err != nil {
		t.Fatal(err)
	}
	h := withConfig(t, func(c *apiserver.Config) { c.Quota = quota })
	cs, ctx := h.clientset(t, ""), t.Context()
	for _, name := range []string{"a", "ab"} { // the second's keys begin as the first's do
		if _, err := cs.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create := func(namespace, name string, ports ...int32) error {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}}
		for _, p := range ports {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Port: p})
		}
		_, err := cs.CoreV1().Services(namespace).Create(ctx, svc, metav1.CreateOptions{})
		return err
	}
	exceeds := func(err error, quota string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") || !strings.Contains(err.Error(), quota) ||
			!strings.Contains(err.Error(), "--namespace-quota") {
			t.Errorf("%v, want one beyond %s", err, quota)
		}
	}
	exceeds(create("a", "many", 1, 2, 3), "requested: services.nodeports=3, used: services.nodeports=0, limited: services.nodeports=2")
	for _, namespace := range []string{"a", "ab"} {
		if err := create(namespace, "one", 1, 2); err != nil {
			t.Fatal(err)
		}
	}
	exceeds(create("a", "two", 1), "requested: services.nodeports=1, used: services.nodeports=2")
	patch := `{"spec":{"type":"ClusterIP"}}`
	if _, err := cs.CoreV1().Services("a").Patch(ctx, "one", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create("a", "two", 1); err != nil {
		t.Fatal(err)
	}
	exceeds(create("a", "three", 1), "used: count/services=2, limited: count/services=2")
	if err := cs.CoreV1().Services("a").Delete(ctx, "two", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create("a", "three", 1); err != nil {
		t.Error(err)
	}
	k := descriptor(t, "Dataplane")
	for i, want := range []bool{true, false} {
		obj := object(t, k, fmt.Sprint("d", i))
		obj.SetNamespace("a")
		_, err := h.Client("system:test").Create(ctx, kind.Dataplane, obj)
		if want && err != nil {
			t.Fatal(err)
		} else if !want {
			exceeds(err, "count/dataplanes.mesh.proxima.dev=1")
		}
	}
	for entry, want := range map[string]string{
		"services": "write NAME=LIMIT", "services=-1": "write NAME=LIMIT", "nodes=1": `no quota "nodes"`, "count/events=1": "no quota",
	} {
		if _, err := apiserver.ParseQuota([]string{entry}, kind.All()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", entry, err, want)
		}
	}
}

// TestNamespaceQuotaAtOnce: creations at the same moment do not exceed a quota, also at two instances
// on one store, and use all of it.
func TestNamespaceQuotaAtOnce(t *testing.T) {
	const limit, creations = 10, 60
	quota, err := apiserver.ParseQuota([]string{"count/configmaps=10", "services.nodeports=10"}, kind.All())
	if err != nil {
		t.Fatal(err)
	}
	s := memory.New(memory.Options{})
	defer s.Close()
	held := &late{Store: s}
	var servers []*server
	for _, of := range []store.Store{held, s} {
		srv, err := start(of, func(c *apiserver.Config) { c.Quota = quota })
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := srv.stop(); err != nil {
				t.Error(err)
			}
		}()
		servers = append(servers, srv)
	}
	// The second instance creates between a count of the first and its commit.
	held.holdUp("/registry/configmaps/default/at-once-0", func() {
		for i := range limit {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("between-", i)}}
			if _, err := servers[1].Client("system:test").Create(t.Context(), kind.ConfigMap, cm); err != nil {
				t.Error(err)
			}
		}
	})
	first := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "at-once-0"}}
	if _, err := servers[0].Client("system:test").Create(t.Context(), kind.ConfigMap, first); !apierrors.IsForbidden(err) {
		t.Errorf("one that was overtaken: %v", err)
	}
	for i := range limit {
		key := resource.Key{Namespace: "default", Name: fmt.Sprint("between-", i)}
		if err := servers[1].Client("system:test").Delete(t.Context(), kind.ConfigMap, key, resource.Preconditions{}); err != nil {
			t.Fatal(err)
		}
	}
	for what, create := range map[string]func(client *apiserver.Client, name string) error{
		"configmaps": func(client *apiserver.Client, name string) error {
			_, err := client.Create(t.Context(), kind.ConfigMap, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}})
			return err
		},
		"node ports": func(client *apiserver.Client, name string) error {
			_, err := client.Create(t.Context(), kind.Service, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
			})
			return err
		},
	} {
		var created atomic.Int64
		var running sync.WaitGroup
		for i := range creations {
			client := servers[i%len(servers)].Client("system:test")
			running.Go(func() {
				switch err := create(client, fmt.Sprint("at-once-", i)); {
				case err == nil:
					created.Add(1)
				case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota"):
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		running.Wait()
		if n := created.Load(); n != limit {
			t.Errorf("%d %s were created at once, the quota is %d", n, what, limit)
		}
	}
}

// TestEventRate: a user that writes Events without end is told to write fewer, others go on.
func TestEventRate(t *testing.T) {
	h := withConfig(t, func(c *apiserver.Config) { c.Limits.EventsPerSecond = 1 })
	put := func(token, name string) int {
		code, _ := h.do(t, http.MethodPost, "/api/v1/namespaces/default/events", token, map[string][]string{"Content-Type": {"application/json"}},
			fmt.Sprintf(`{"metadata":{"name":%q},"involvedObject":{"namespace":"default"}}`, name))
		return code
	}
	refused := false
	for i := 0; i < 200 && !refused; i++ {
		refused = put("node", fmt.Sprint("e", i)) == http.StatusTooManyRequests
		if refused && i < 30 {
			t.Errorf("refused after %d Events, within the burst", i)
		}
	}
	if !refused {
		t.Error("200 Events at once were taken, at 1 a second")
	}
	if code := put("admin", "of-admin"); code != http.StatusCreated {
		t.Errorf("an Event of an administrator: %d", code)
	}
}

// TestApplyManagers: an object has a bounded number of managers that apply.
func TestApplyManagers(t *testing.T) {
	const path = "/api/v1/namespaces/default/configmaps/managers?force=true&fieldManager="
	apply := func(manager string, data int) (int, string) {
		body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "managers"},
			"data": map[string]string{fmt.Sprint("k", data): "v"}})
		if err != nil {
			t.Fatal(err)
		}
		return shared.do(t, http.MethodPatch, path+manager, "admin", map[string][]string{"Content-Type": {"application/apply-patch+yaml"}}, string(body))
	}
	for i := range 100 {
		if code, body := apply(fmt.Sprint("m", i), i); code > 201 {
			t.Fatalf("manager %d: %d %s", i, code, body)
		}
	}
	code, body := apply("beyond", 100)
	if code != 422 || !strings.Contains(body, "metadata.managedFields: Too many: 101: must have at most 100 items of operation Apply") {
		t.Errorf("one beyond: %d %s", code, body)
	}
	if code, body := apply("m7", 7); code != 200 {
		t.Errorf("a manager that is there: %d %s", code, body)
	}
}
