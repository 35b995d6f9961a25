package resource_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/faulty"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/metered"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func fake() *resourcetest.Client { return resourcetest.New(kind.ConfigMap, kind.Node) }

func options() resourcetest.ContractOptions {
	return resourcetest.ContractOptions{Plain: kind.ConfigMap, WithStatus: kind.Node, Namespace: "default"}
}

// TestContract: the fake, and what is put around a client, are clients.
func TestContract(t *testing.T) {
	router := func(t *testing.T) resource.Client {
		m, err := resource.NewRouter(fake(), resource.Override{Kind: kind.Node, Client: fake()})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for name, open := range map[string]func(*testing.T) resource.Client{
		"fake":   func(*testing.T) resource.Client { return fake() },
		"router": router,
		"wrapped": func(t *testing.T) resource.Client {
			return resource.Wrap(router(t), metered.New(metered.Config{}).Wrap, faulty.New(1, faulty.Probabilities{}).Wrap)
		},
	} {
		t.Run(name, func(t *testing.T) { resourcetest.Contract(t, open, options()) })
	}
}

func configMap(namespace, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// TestRouter: each kind goes to its own client, whichever descriptor names it.
func TestRouter(t *testing.T) {
	nodes, others := fake(), fake()
	m, err := resource.NewRouter(others, resource.Override{Kind: kind.Node, Client: nodes})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(t.Context(), kind.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(t.Context(), kind.ConfigMap, configMap("default", "c")); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.Get(t.Context(), kind.Node, resource.Key{Name: "n"}); err != nil {
		t.Errorf("the node is not where it should be: %v", err)
	}
	if _, err := others.Get(t.Context(), kind.ConfigMap, resource.Key{Namespace: "default", Name: "c"}); err != nil {
		t.Errorf("the other is not where it should be: %v", err)
	}
	if got, err := m.Get(t.Context(), kind.Node, resource.Key{Name: "n"}); err != nil || got.GetName() != "n" {
		t.Errorf("get: %v, %v", got, err)
	}
	for what, overrides := range map[string][]resource.Override{
		"no client": {{Kind: kind.Node}},
		"no kind":   {{Client: nodes}},
		"twice":     {{Kind: kind.Node, Client: nodes}, {Kind: kind.Node, Client: others}},
	} {
		if _, err := resource.NewRouter(others, overrides...); err == nil {
			t.Errorf("%s: it was made", what)
		}
	}
}

func TestFaultsAndMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	faults, meter := faulty.New(1, faulty.Probabilities{Calls: 1}), metered.New(metered.Config{Registerer: registry})
	c := resource.Wrap(fake(), meter.Wrap, faults.Wrap)
	if _, err := c.Create(t.Context(), kind.ConfigMap, configMap("default", "c")); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("create: %v", err)
	}
	if _, err := c.Watch(t.Context(), kind.ConfigMap, resource.WatchOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("watch: %v", err)
	}
	faults.Set(faulty.Probabilities{})
	if _, err := c.Create(t.Context(), kind.ConfigMap, configMap("default", "c")); err != nil {
		t.Error(err)
	}
	if faults.Injected() != 2 {
		t.Errorf("%d faults", faults.Injected())
	}
	if n, err := testutil.GatherAndCount(registry, "proxima_resource_calls_total"); err != nil || n != 9 {
		t.Errorf("%d series of calls, want one for each verb that goes well and 2 that did not", n)
	}
}

// Example: what a tenant may do, as a wrapper of its own. It sees one namespace,
// and writes no more than so many objects.
func ExampleIntercept() {
	errForeign := errors.New("not yours")
	left := 2
	tenant := resource.Intercept(func(ctx context.Context, call resource.Call, next func(context.Context) error) error {
		if call.Key.Namespace != "mine" {
			return errForeign
		}
		if call.Verb == resource.VerbCreate {
			if left == 0 {
				return apierrors.NewTooManyRequests("quota", 0)
			}
			left--
		}
		return next(ctx)
	})
	c := resource.Wrap(fake(), tenant)
	for _, key := range []resource.Key{{Namespace: "mine", Name: "a"}, {Namespace: "yours", Name: "a"}, {Namespace: "mine", Name: "b"},
		{Namespace: "mine", Name: "c"}} {
		_, err := c.Create(context.Background(), kind.ConfigMap, configMap(key.Namespace, key.Name))
		fmt.Println(key, err)
	}
	// Output:
	// mine/a <nil>
	// yours/a not yours
	// mine/b <nil>
	// mine/c quota
}
