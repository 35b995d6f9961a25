package ipam

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// world is a Repair that runs against an in-memory API.
type world struct {
	t      *testing.T
	client *resourcetest.Client
	config RepairConfig
}

func newWorld(t *testing.T, objects ...resource.Object) *world {
	w := &world{t: t, config: RepairConfig{Services: kind.Service, IPAddresses: kind.IPAddress, ServiceCIDRs: kind.ServiceCIDR}}
	w.client = resourcetest.New(w.config.Services, w.config.IPAddresses, w.config.ServiceCIDRs, kind.Event)
	w.config.Client = w.client
	w.client.Seed(settledRange("kubernetes", "10.0.0.0/24"))
	w.client.Seed(objects...)
	return w
}

// run starts the controller and settles; it ends with the test.
func (w *world) run() {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error)
	go func() { done <- NewRepair(w.config).Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	w.settle(0)
}

func (w *world) settle(d time.Duration) {
	time.Sleep(d + time.Nanosecond)
	synctest.Wait()
}

func (w *world) parent(addr string) string {
	w.t.Helper()
	obj, err := w.client.Get(w.t.Context(), w.config.IPAddresses, resource.Key{Name: addr})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		w.t.Fatal(err)
	}
	ref := obj.(*networkingv1.IPAddress).Spec.ParentRef
	return ref.Resource + "/" + ref.Namespace + "/" + ref.Name
}

// events as "name reason", sorted.
func (w *world) events() []string {
	w.t.Helper()
	list, _, err := w.client.List(w.t.Context(), kind.Event, resource.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	out := []string{}
	for _, obj := range list {
		e := obj.(*corev1.Event)
		out = append(out, e.InvolvedObject.Name+" "+e.Reason)
	}
	slices.Sort(out)
	return out
}

func (w *world) expectEvents(want ...string) {
	w.t.Helper()
	if want == nil {
		want = []string{}
	}
	if diff := cmp.Diff(want, w.events()); diff != "" {
		w.t.Error(diff)
	}
}

func claiming(name, addr string, age time.Duration) *corev1.Service {
	svc := service(with(single, families(v4), addr))
	svc.Name, svc.CreationTimestamp = name, metav1.NewTime(time.Now().Add(-age))
	return svc
}

func object(addr, parent string) *networkingv1.IPAddress {
	svc := service(nil)
	svc.Name = parent
	return IPAddressFor(netip.MustParseAddr(addr), svc)
}

func TestRepairNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, claiming("web", "10.0.0.5", 0), object("10.0.0.5", "web"))
		w.client.Intercept(func(c resourcetest.Call) error {
			if c.Verb == resourcetest.Create || c.Verb == resourcetest.Delete || c.Verb == resourcetest.Update {
				t.Errorf("%s %s %s", c.Verb, c.Kind.Kind, c.Key)
			}
			return nil
		})
		w.run()
		w.settle(10 * time.Minute)
	})
}

func TestRepairMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, claiming("web", "10.0.0.5", 0), object("10.0.0.5", "web"))
		w.run()
		if err := w.client.Delete(t.Context(), w.config.IPAddresses, resource.Key{Name: "10.0.0.5"}, resource.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		w.settle(0) // at once
		if got := w.parent("10.0.0.5"); got != "services/shop/web" {
			t.Errorf("parent %q", got)
		}
		w.expectEvents("web ClusterIPNotAllocated")
	})
}

func TestRepairWrongParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, claiming("web", "10.0.0.5", 0), object("10.0.0.5", "gone"))
		w.run()
		if got := w.parent("10.0.0.5"); got != "services/shop/web" {
			t.Errorf("parent %q", got)
		}
		w.settle(10 * time.Minute)
		if got := w.events(); len(got) != 1 || got[0] != "web ClusterIPNotAllocated" {
			t.Errorf("events %v", got)
		}
	})
}

func TestRepairDuplicate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, claiming("old", "10.0.0.5", time.Hour), claiming("new", "10.0.0.5", 0), claiming("third", "10.0.0.6", 0))
		gateway := object("10.0.0.6", "x")
		gateway.Labels, gateway.Spec.ParentRef = nil, &networkingv1.ParentReference{
			Group:     "gateway.networking.k8s.io",
			Resource:  "gateways",
			Namespace: "shop",
			Name:      "gw",
		}
		w.client.Seed(gateway)
		w.run()
		w.settle(10 * time.Minute)
		if got := w.parent("10.0.0.5"); got != "services/shop/old" {
			t.Errorf("parent %q", got)
		}
		if got := w.parent("10.0.0.6"); got != "gateways/shop/gw" {
			t.Errorf("a gateway's address was touched: %q", got)
		}
		w.expectEvents("new ClusterIPAlreadyAllocated", "old ClusterIPNotAllocated", "third ClusterIPAlreadyAllocated")
	})
}

func TestRepairOutOfRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, claiming("web", "10.9.0.5", 0))
		w.run()
		w.settle(10 * time.Minute)
		if got := w.parent("10.9.0.5"); got != "" {
			t.Errorf("parent %q", got)
		}
		w.expectEvents("web ClusterIPOutOfRange")
		// A range that is added heals it.
		if _, err := w.client.Create(t.Context(), kind.ServiceCIDR, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.9.0.0/24"}}}); err != nil {
			t.Fatal(err)
		}
		w.settle(0)
		if got := w.parent("10.9.0.5"); got != "services/shop/web" {
			t.Errorf("parent %q", got)
		}
	})
}

func TestRepairOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		foreign := object("10.0.0.7", "gone")
		foreign.Labels[networkingv1.LabelManagedBy] = "somebody.example"
		w := newWorld(t, claiming("web", "10.0.0.5", 0), object("10.0.0.5", "web"), object("10.0.0.6", "gone"), foreign)
		w.run()
		w.settle(59 * time.Second)
		if w.parent("10.0.0.6") == "" {
			t.Fatal("deleted before its time")
		}
		// One that is claimed within the grace stays.
		if _, err := w.client.Create(t.Context(), kind.IPAddress, object("10.0.0.8", "late")); err != nil {
			t.Fatal(err)
		}
		w.settle(time.Second)
		if w.parent("10.0.0.6") != "" {
			t.Error("an orphan is left after 60 s")
		}
		w.client.Seed(claiming("late", "10.0.0.8", 0))
		w.settle(5 * time.Minute)
		if w.parent("10.0.0.8") == "" || w.parent("10.0.0.7") == "" || w.parent("10.0.0.5") == "" {
			t.Error("deleted what is claimed or another owner's")
		}
		w.expectEvents()
	})
}

// Writes fail at first, watches break: it gets there all the same.
func TestRepairFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, claiming("web", "10.0.0.5", 0), object("10.0.0.6", "gone"))
		var fail atomic.Bool
		fail.Store(true)
		w.client.Intercept(func(c resourcetest.Call) error {
			if fail.Load() && (c.Verb == resourcetest.Create || c.Verb == resourcetest.Delete) {
				return errors.New("store is away")
			}
			return nil
		})
		w.run()
		w.settle(2 * time.Minute)
		if w.parent("10.0.0.5") != "" || w.parent("10.0.0.6") == "" {
			t.Fatal("written although writes fail")
		}
		fail.Store(false)
		w.client.Disconnect()
		w.settle(time.Minute)
		if got := w.parent("10.0.0.5"); got != "services/shop/web" {
			t.Errorf("parent %q", got)
		}
		if w.parent("10.0.0.6") != "" {
			t.Error("the orphan is left")
		}
		if got := w.events(); len(got) != 1 || !strings.Contains(got[0], ReasonNotAllocated) {
			t.Errorf("events %v", got)
		}
	})
}

// The watches are behind: the store knows better than the controller, which must
// then neither write nor complain.
func TestRepairReadsNewest(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.5")
	web, gone := claiming("web", "10.0.0.5", 0), object("10.0.0.5", "gone")
	gone.ResourceVersion = "1"
	for name, tc := range map[string]struct {
		store  []resource.Object
		events []resource.Object // what has come by
	}{
		"object exists":          {[]resource.Object{web, object("10.0.0.5", "web")}, []resource.Object{web}},
		"service is gone":        {nil, []resource.Object{web}},
		"service gave it up":     {[]resource.Object{claiming("web", "10.0.0.6", 0)}, []resource.Object{web}},
		"object was replaced":    {[]resource.Object{web, object("10.0.0.5", "web")}, []resource.Object{web, gone}},
		"object is gone":         {[]resource.Object{web}, []resource.Object{web, gone}},
		"orphan has its service": {[]resource.Object{web, object("10.0.0.5", "web")}, []resource.Object{object("10.0.0.5", "web")}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.store...)
			w.client.Intercept(func(c resourcetest.Call) error {
				if c.Verb != resourcetest.Get {
					t.Errorf("%s %s %s", c.Verb, c.Kind.Kind, c.Key)
				}
				return nil
			})
			r := NewRepair(w.config)
			r.note(reflector.Event{Type: reflector.Replace, Kind: w.config.Services, Objects: tc.events})
			r.orphaned[addr] = time.Now().Add(-orphanGrace)
			if err := r.processAddress(t.Context(), addr, time.Now()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRepairOfEveryDamage: whatever came between Services and their addresses is
// mended, or reported, within a second, by the event of the damage itself.
func TestRepairOfEveryDamage(t *testing.T) {
	const address = "10.0.0.5"
	for _, tc := range []struct {
		name   string
		damage func(w *world)
		parent string // who owns the address a second later
		events []string
	}{
		{"the object was deleted", func(w *world) {
			w.mustDelete(w.config.IPAddresses, resource.Key{Name: address})
		}, "services/shop/web", []string{"web ClusterIPNotAllocated"}},
		{"the object names another parent", func(w *world) { w.client.Seed(object(address, "other")) },
			"services/shop/web", []string{"web ClusterIPNotAllocated"}},
		{"a second Service claims it", func(w *world) { w.client.Seed(claiming("late", address, 0)) },
			"services/shop/web", []string{"late ClusterIPAlreadyAllocated"}},
		{"the Service got an address outside of all ranges", func(w *world) { w.client.Seed(claiming("web", "192.0.2.1", time.Hour)) },
			"services/shop/web", []string{"web ClusterIPOutOfRange"}},
		{"both at once: deleted, and claimed twice", func(w *world) {
			w.client.Seed(claiming("late", address, 0))
			w.mustDelete(w.config.IPAddresses, resource.Key{Name: address})
		}, "services/shop/web", []string{"late ClusterIPAlreadyAllocated", "web ClusterIPNotAllocated"}},
		{"history was lost meanwhile", func(w *world) {
			w.client.Expire()
			w.mustDelete(w.config.IPAddresses, resource.Key{Name: address})
		}, "services/shop/web", []string{"web ClusterIPNotAllocated"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, claiming("web", address, time.Hour), object(address, "web"))
				w.run()
				w.expectEvents()
				tc.damage(w)
				w.settle(time.Second)
				if got := w.parent(address); got != tc.parent {
					t.Errorf("the address is %q's, want %q's", got, tc.parent)
				}
				w.expectEvents(tc.events...)
			})
		})
	}
}
