package registry

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// Where the API server is another one, Secrets are left alone, and the MD5 of an entry is that of its content, whatever its
// status says.
func TestConfigsOfAnotherServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.All()...)
		client.Seed(&meshv1alpha1.RegistryConfig{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"},
			Spec:       meshv1alpha1.RegistryConfigSpec{DataID: "orders.yaml", Content: "a: 2"},
			Status:     meshv1alpha1.RegistryConfigStatus{MD5: kind.ContentMD5("a: 1")},
		})
		client.Intercept(func(c resourcetest.Call) error {
			if c.Kind == kind.Secret.GVK {
				t.Errorf("%s of Secrets", c.Verb)
			}
			return nil
		})
		tables := catalog.New(catalog.Config{Client: client, Descriptors: kind.All()})
		configs := NewConfigs(client, tables, slog.New(slog.DiscardHandler)).WithoutSecrets()
		ctx, cancel := context.WithCancel(t.Context())
		for _, run := range []func(context.Context) error{tables.Run, configs.Run} {
			go func() { _ = run(ctx) }()
		}
		<-configs.Ready()
		if got, want := configs.MD5(ConfigKey{"shop", meshv1alpha1.DefaultRegistryGroup, "orders.yaml"}), kind.ContentMD5("a: 2"); got != want {
			t.Errorf("MD5 %s, not %s", got, want)
		}
		err := configs.Put(t.Context(), User{}, ConfigKey{"shop", meshv1alpha1.DefaultRegistryGroup, "cipher-orders"}, func(*meshv1alpha1.RegistryConfigSpec, bool) error { return nil })
		if !errors.As(err, new(*ForbiddenError)) {
			t.Errorf("an entry that is a Secret: %v", err)
		}
		cancel()
		synctest.Wait()
	})
}

// Nothing is registered in reserved namespaces, not even by an administrator.
func TestReservedNamespaces(t *testing.T) {
	r := NewRegistrar(RegistrarConfig{Client: resourcetest.New(kind.All()...), Catalog: catalog.New(catalog.Config{}), Reserved: []string{corev1.NamespaceNodeLease}})
	in := &Instance{Service: Service{Namespace: corev1.NamespaceNodeLease, Name: "orders"}, Address: netip.MustParseAddr("10.1.0.7"), Port: 8080}
	if err := r.Put(t.Context(), in, User{Name: "admin", Admin: true}); !errors.As(err, new(*ForbiddenError)) {
		t.Errorf("%v", err)
	}
}
