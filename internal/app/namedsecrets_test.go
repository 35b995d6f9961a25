package app

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/memory"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// TestNamedSecretsOfProxies: what proxies of a cluster get out of Secrets follows the Secrets that ExternalServices name, once a
// Role allows to read them.
func TestNamedSecretsOfProxies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var allowed atomic.Bool
		cluster := memory.New(kind.Secret)
		refusing := resource.Wrap(cluster, resource.Intercept(func(ctx context.Context, _ resource.Call, next func(context.Context) error) error {
			if !allowed.Load() {
				return apierrors.NewForbidden(kind.Secret.GroupResource(), "", nil)
			}
			return next(ctx)
		}))
		objects := memory.New(kind.ExternalService, kind.Mesh, kind.GlobalSecret)
		named := newNamedSecrets(refusing, memory.New(kind.Secret), slog.New(slog.DiscardHandler))
		client, err := resource.NewRouter(objects, resource.Override{Kind: kind.Secret, Client: named})
		if err != nil {
			t.Fatal(err)
		}
		tables := catalog.New(catalog.Config{Client: objects, Descriptors: []*resource.Descriptor{kind.ExternalService}})
		external := newExternalTLS(ControlPlaneConfig{}, client, tables)
		var latest atomic.Pointer[map[catalog.Key]*build.Credentials]
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for _, run := range []func(context.Context) error{
			tables.Run, external.source.Run,
			func(ctx context.Context) error { return named.follow(ctx, tables) },
			func(ctx context.Context) error { return external.needs.follow(ctx) },
			func(ctx context.Context) error {
				return external.supply(ctx, func(all map[catalog.Key]*build.Credentials) { latest.Store(&all) })
			},
		} {
			running.Go(func() { _ = run(ctx) })
		}
		defer running.Wait()
		defer cancel()
		want := func(when, authorities string) {
			t.Helper()
			time.Sleep(time.Minute) // of the bubble's clock
			synctest.Wait()
			got := ""
			if c := (*latest.Load())[catalog.Key{Namespace: "shop", Name: "bank"}]; c != nil {
				got = string(c.Authorities)
			}
			if got != authorities {
				t.Errorf("%s: the authorities are %.60q, want %.60q", when, got, authorities)
			}
		}
		put := func(c *memory.Client, obj resource.Object) {
			t.Helper()
			if err := c.Put(obj); err != nil {
				t.Fatal(err)
			}
		}
		secret := func(ca []byte) *corev1.Secret {
			return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bank"}, Data: map[string][]byte{"ca": ca}}
		}
		one, two := catest.PEM(catest.New(t, "one", nil, nil)), catest.PEM(catest.New(t, "two", nil, nil))
		put(cluster, secret(one))
		put(objects, &meshv1alpha1.ExternalService{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bank", UID: "u", Generation: 1},
			Spec: meshv1alpha1.ExternalServiceSpec{TLS: &meshv1alpha1.ExternalServiceTLS{
				CACertificates: &meshv1alpha1.DataSource{SecretRef: &meshv1alpha1.SecretKeyReference{Name: "bank", Key: "ca"}},
			}},
		})
		want("without a Role", "")
		allowed.Store(true)
		want("with a Role", string(one))
		put(cluster, secret(two))
		want("after a change", string(two))
		put(cluster, secret([]byte("junk")))
		want("that cannot be used", "")
	})
}

// TestNamedSecrets: a Secret is read once an ExternalService names it and a Role allows it, and no other one is.
func TestNamedSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var allowed atomic.Bool // by a Role in namespace shop
		var asked atomic.Int32
		cluster := memory.New(kind.Secret)
		client := resource.Wrap(cluster, resource.Intercept(func(ctx context.Context, call resource.Call, next func(context.Context) error) error {
			if call.Kind == kind.Secret {
				asked.Add(1)
				if !allowed.Load() {
					return apierrors.NewForbidden(kind.Secret.GroupResource(), "", nil)
				}
			}
			return next(ctx)
		}))
		objects := memory.New(kind.ExternalService)
		tables := catalog.New(catalog.Config{Client: objects, Descriptors: []*resource.Descriptor{kind.ExternalService}})
		named := newNamedSecrets(client, memory.New(kind.Secret), slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 2)
		go func() { done <- tables.Run(ctx) }()
		go func() { done <- named.follow(ctx, tables) }()
		defer func() {
			cancel()
			<-done
			<-done
		}()
		key := resource.Key{Namespace: "shop", Name: "bank"}
		get := func() (value string, problem string) {
			time.Sleep(time.Minute) // of the bubble's clock
			synctest.Wait()
			obj, err := named.Get(t.Context(), kind.Secret, key)
			if err != nil {
				return "", err.Error()
			}
			return string(obj.(*corev1.Secret).Data["ca"]), ""
		}
		put := func(c *memory.Client, obj resource.Object) {
			t.Helper()
			if err := c.Put(obj); err != nil {
				t.Fatal(err)
			}
		}
		secret := func(value string) *corev1.Secret {
			return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bank"}, Data: map[string][]byte{"ca": []byte(value)}}
		}
		service := &meshv1alpha1.ExternalService{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bank"},
			Spec: meshv1alpha1.ExternalServiceSpec{TLS: &meshv1alpha1.ExternalServiceTLS{
				CACertificates: &meshv1alpha1.DataSource{SecretRef: &meshv1alpha1.SecretKeyReference{Name: "bank", Key: "ca"}},
			}},
		}
		other := secret("other")
		other.Name = "other"
		put(cluster, other)
		if _, problem := get(); !strings.Contains(problem, "not found") || asked.Load() > 0 {
			t.Errorf("before it is named: %s; asked %d times", problem, asked.Load())
		}
		put(objects, service)
		if _, problem := get(); !strings.Contains(problem, "policySecrets: {shop: [bank]}") {
			t.Errorf("without a Role: %q", problem)
		}
		allowed.Store(true)
		if _, problem := get(); !strings.Contains(problem, "not found") {
			t.Errorf("with a Role, and no Secret: %q", problem)
		}
		put(cluster, secret("one"))
		if value, problem := get(); value != "one" {
			t.Errorf("with a Secret: %q, %s", value, problem)
		}
		put(cluster, secret("two"))
		if value, problem := get(); value != "two" {
			t.Errorf("after a change: %q, %s", value, problem)
		}
		if _, err := named.Get(t.Context(), kind.Secret, resource.KeyOf(other)); !apierrors.IsNotFound(err) {
			t.Errorf("a Secret that nobody names: %v", err)
		}
		if err := objects.Delete(t.Context(), kind.ExternalService, key, resource.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		if value, problem := get(); !strings.Contains(problem, "not found") {
			t.Errorf("when it is not named any more: %q, %s", value, problem)
		}
		put(objects, service)
		if value, problem := get(); value != "two" {
			t.Errorf("when it is named again: %q, %s", value, problem)
		}
	})
}
