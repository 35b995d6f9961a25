package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// apart is a client that writes a status by a request of its own, as a cluster's API does.
type apart struct {
	resource.Client
	// fail returns the error of a request; nil: none.
	fail func(verb string) error
	log  []string
}

func (c *apart) note(verb string) error {
	c.log = append(c.log, verb)
	if c.fail != nil {
		return c.fail(verb)
	}
	return nil
}

func (c *apart) Create(ctx context.Context, d *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	if d.Status && resource.StatusIncluded(ctx) {
		return nil, resource.ErrStatusApart
	}
	if err := c.note("create"); err != nil {
		return nil, err
	}
	return c.Client.Create(ctx, d, obj)
}

func (c *apart) Update(ctx context.Context, d *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	if d.Status && resource.StatusIncluded(ctx) {
		return nil, resource.ErrStatusApart
	}
	if err := c.note("update"); err != nil {
		return nil, err
	}
	return c.Client.Update(ctx, d, obj)
}

func (c *apart) UpdateStatus(ctx context.Context, d *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	if err := c.note("status"); err != nil {
		return nil, err
	}
	return c.Client.UpdateStatus(ctx, d, obj)
}

// putService is a copy with a status.
func putService(before, version, address string) federation.Put {
	return federation.Put{
		Copy:   federation.Copy{Resource: "shop/web", Version: version, Key: federation.Key{Namespace: "shop", Name: "web"}, Owner: federation.Owner{Zone: "west"}},
		Before: before,
		Object: &federation.Object{
			Labels:      map[string]string{federation.LabelOrigin: federation.OriginZone, federation.LabelZone: "west"},
			Annotations: map[string]string{federation.AnnotationSyncName: "shop/web", federation.AnnotationSyncVersion: version},
			Payload:     []byte(fmt.Sprintf(`{"spec":{"type":"LoadBalancer"},"status":{"loadBalancer":{"ingress":[{"ip":%q,"ipMode":"VIP"}]}}}`, address)),
		},
	}
}

// TestStatusApart: a copy has a version only when its status is there, too, wherever the program
// ends in between.
func TestStatusApart(t *testing.T) {
	d := newDescriptors()
	k := d.kinds(t)[slices.IndexFunc(d.kinds(t), func(k Kind) bool { return k.Descriptor == d.ingress })]
	for _, cut := range []string{"", "status", "update"} {
		t.Run("cut before "+cut, func(t *testing.T) {
			s := &site{t: t, name: "east", side: federation.AtZone, kinds: d}
			s.client = resourcetest.New(d.ingress, d.config)
			in := s.inlet("east")
			c := &apart{Client: s.client}
			in.config.Client = c
			broken := errors.New("the program ends")
			c.fail = func(verb string) error {
				if verb == cut {
					return broken
				}
				return nil
			}
			if err := in.put(t.Context(), k, putService("", "v1", "192.0.2.1")); (err != nil) != (cut != "") {
				t.Fatal(err)
			}
			if cut != "" {
				if got := stored(t, s.client, d.ingress); got.Annotations[federation.AnnotationSyncVersion] != "" {
					t.Errorf("an incomplete copy has version %q", got.Annotations[federation.AnnotationSyncVersion])
				}
				c.fail = nil
				if err := in.put(t.Context(), k, putService("", "v1", "192.0.2.1")); err != nil {
					t.Fatal(err)
				}
			}
			wantCopy(t, s.client, d.ingress, "v1", "192.0.2.1")
			// The same of a change.
			c.fail = func(verb string) error {
				if verb == cut {
					return broken
				}
				return nil
			}
			_ = in.put(t.Context(), k, putService("v1", "v2", "192.0.2.2"))
			if cut != "" {
				if got := stored(t, s.client, d.ingress); got.Annotations[federation.AnnotationSyncVersion] != "v1" {
					t.Errorf("an incomplete copy has version %q", got.Annotations[federation.AnnotationSyncVersion])
				}
				c.fail = nil
				if err := in.put(t.Context(), k, putService("v1", "v2", "192.0.2.2")); err != nil {
					t.Fatal(err)
				}
			}
			wantCopy(t, s.client, d.ingress, "v2", "192.0.2.2")
		})
	}
}

func stored(t *testing.T, client resource.Client, d *resource.Descriptor) *corev1.Service {
	t.Helper()
	obj, err := client.Get(t.Context(), d, resource.Key{Namespace: "shop", Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	return obj.(*corev1.Service)
}

func wantCopy(t *testing.T, client resource.Client, d *resource.Descriptor, version, address string) {
	t.Helper()
	got := stored(t, client, d)
	if got.Annotations[federation.AnnotationSyncVersion] != version || len(got.Status.LoadBalancer.Ingress) != 1 || got.Status.LoadBalancer.Ingress[0].IP != address {
		t.Errorf("version %q, status %v; want %s, %s", got.Annotations[federation.AnnotationSyncVersion], got.Status, version, address)
	}
}

// TestStatusApartRefused: nothing stays of a copy whose status is refused.
func TestStatusApartRefused(t *testing.T) {
	d := newDescriptors()
	k := d.kinds(t)[slices.IndexFunc(d.kinds(t), func(k Kind) bool { return k.Descriptor == d.ingress })]
	s := &site{t: t, name: "east", side: federation.AtZone, kinds: d}
	s.client = resourcetest.New(d.ingress, d.config)
	in := s.inlet("east")
	in.config.Client = &apart{Client: s.client, fail: func(verb string) error {
		if verb == "status" {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, "web", nil)
		}
		return nil
	}}
	if err := in.put(t.Context(), k, putService("", "v1", "192.0.2.1")); !refuses(err) {
		t.Errorf("refused: %v", err)
	}
	if _, err := s.client.Get(t.Context(), d.ingress, resource.Key{Namespace: "shop", Name: "web"}); !apierrors.IsNotFound(err) {
		t.Errorf("what was refused is there: %v", err)
	}
}

// TestRestoredUnderneath: the store of a zone is set back without another epoch, as etcd below a
// cluster may be, and goes on to the revision that it had. What global has is what the zone has.
func TestRestoredUnderneath(t *testing.T) {
	for protocol := 1; protocol <= 2; protocol++ {
		t.Run(fmt.Sprintf("protocol %d", protocol), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testRestored(t, protocol) })
		})
	}
}

func testRestored(t *testing.T, protocol int) {
	d := newDescriptors()
	global := &site{t: t, name: "global", side: federation.AtGlobal, kinds: d}
	global.client = resourcetest.New(d.mesh, d.costs, d.dataplane, d.ingress, d.namespace, d.config)
	in := global.inlet("east")
	// run is a life of the zone's control plane, on a store that has these objects.
	run := func(name string, names ...string) {
		zone := &site{t: t, name: "east", side: federation.AtZone, kinds: d}
		zone.client = resourcetest.New(d.mesh, d.costs, d.dataplane, d.ingress, d.namespace, d.config)
		out, err := NewOutlet(OutletConfig{
			Client: zone.client, Kinds: d.kinds(t), Side: federation.AtZone, Zone: "east", StoreEpoch: "a cluster", Run: name,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			zone.create(d.dataplane, newDataplane(name))
		}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = out.Run(ctx) })
		running.Go(func() { link(ctx, t, out, "", in, protocol) })
		time.Sleep(2 * time.Second)
		cancel()
		running.Wait()
	}
	run("first", "a", "lost")
	run("second", "a", "other") // the backup is from before "lost"
	objects, _, err := global.client.List(context.Background(), d.dataplane, resource.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, obj := range objects {
		got = append(got, obj.GetLabels()[federation.LabelDisplayName])
	}
	slices.Sort(got)
	if fmt.Sprint(got) != "[a other]" {
		t.Errorf("global has %v", got)
	}
}
