package ipam

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// settledRange is a ServiceCIDR that needs nothing done.
func settledRange(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{RangeFinalizer}},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Message: messageRangeReady,
		}}},
	}
}

// rangeState is what a range says of itself: "gone" once nothing holds it back.
func (w *world) rangeState(name string) string {
	w.t.Helper()
	obj, err := w.client.Get(w.t.Context(), w.config.ServiceCIDRs, resource.Key{Name: name})
	if apierrors.IsNotFound(err) {
		return "gone"
	}
	if err != nil {
		w.t.Fatal(err)
	}
	cidr := obj.(*networkingv1.ServiceCIDR)
	if !cidr.DeletionTimestamp.IsZero() && len(cidr.Finalizers) == 0 {
		return "gone"
	}
	state := "unprotected"
	if len(cidr.Finalizers) == 1 && cidr.Finalizers[0] == RangeFinalizer {
		state = "kept"
	}
	c := meta.FindStatusCondition(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	if c == nil {
		return state
	}
	return state + " Ready=" + string(c.Status) + " " + c.Reason + ": " + c.Message
}

func (w *world) expectRange(name, want string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.rangeState(name)); diff != "" {
		w.t.Errorf("range %s: %s", name, diff)
	}
}

// deleteRange does what the API does where a finalizer waits. The fake's own
// Delete would take the object away at once.
func (w *world) deleteRange(name string) {
	w.t.Helper()
	key := resource.Key{Name: name}
	obj, err := w.client.Get(w.t.Context(), w.config.ServiceCIDRs, key)
	if err != nil {
		w.t.Fatal(err)
	}
	marked := obj.DeepCopyObject().(*networkingv1.ServiceCIDR)
	marked.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	w.client.Seed(marked)
}

const (
	rangeIsReady   = "kept Ready=True : Kubernetes Service CIDR is ready"
	rangeIsBlocked = "kept Ready=False Terminating: There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
)

func (w *world) mustCreate(obj *networkingv1.ServiceCIDR) {
	w.t.Helper()
	if _, err := w.client.Create(w.t.Context(), kind.ServiceCIDR, obj); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) mustDelete(d *resource.Descriptor, key resource.Key) {
	w.t.Helper()
	if err := w.client.Delete(w.t.Context(), d, key, resource.Preconditions{}); err != nil {
		w.t.Fatal(err)
	}
}

func TestRangeIsKeptAndReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.client.Seed(
			&networkingv1.ServiceCIDR{
				ObjectMeta: metav1.ObjectMeta{Name: "from-before"},
				Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.9.0.0/24"}},
			},
		)
		w.run()
		w.expectRange("from-before", rangeIsReady)
		w.mustCreate(
			&networkingv1.ServiceCIDR{
				ObjectMeta: metav1.ObjectMeta{Name: "more"},
				Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.1.0.0/24"}},
			},
		)
		w.settle(0)
		w.expectRange("more", rangeIsReady)
	})
}

// A deletion waits for the addresses that nothing else covers, says so, and
// comes true by the event that frees the last one.
func TestRangeDeletionWaits(t *testing.T) {
	for _, tc := range []struct {
		name string
		free func(*world)
	}{
		{"until the Service is gone", func(w *world) {
			w.mustDelete(w.config.Services, resource.KeyOf(claiming("web", "10.1.0.5", 0)))
			w.mustDelete(w.config.IPAddresses, resource.Key{Name: "10.1.0.5"})
		}},
		{"until another range covers it", func(w *world) {
			w.mustCreate(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "wider"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.1.0.0/16"}}})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, settledRange("more", "10.1.0.0/24"), claiming("web", "10.1.0.5", 0), object("10.1.0.5", "web"))
				w.run()
				w.deleteRange("more")
				w.settle(0)
				w.expectRange("more", rangeIsBlocked)
				w.settle(time.Hour)
				w.expectRange("more", rangeIsBlocked)
				w.expectEvents()
				tc.free(w)
				w.settle(0)
				w.expectRange("more", "gone")
			})
		})
	}
}

func TestRangeDeletionCases(t *testing.T) {
	foreign := object("10.1.0.7", "gateway")
	foreign.Labels = nil
	for _, tc := range []struct {
		name    string
		objects []resource.Object
		delete  []string
		want    map[string]string
	}{
		{"nothing in it: gone after the grace", nil, []string{"more"}, map[string]string{"more": "gone"}},
		{"an address elsewhere does not matter", []resource.Object{claiming("web", "10.0.0.5", 0), object("10.0.0.5", "web")},
			[]string{"more"}, map[string]string{"more": "gone"}},
		{"another owner's object does not matter", []resource.Object{foreign}, []string{"more"}, map[string]string{"more": "gone"}},
		{"a wider range covers it", []resource.Object{settledRange("wider", "10.1.0.0/16"), claiming("web", "10.1.0.5", 0), object("10.1.0.5", "web")},
			[]string{"more"}, map[string]string{"more": "gone", "wider": rangeIsReady}},
		{"of two that overlap and go, both stay", []resource.Object{settledRange("wider", "10.1.0.0/16"), claiming("web", "10.1.0.5", 0), object("10.1.0.5", "web")},
			[]string{"more", "wider"}, map[string]string{"more": rangeIsBlocked, "wider": rangeIsBlocked}},
		{"the second family holds it too", []resource.Object{settledRange("both", "10.2.0.0/24", "fd00:2::/112"), claiming("web", "fd00:2::5", 0), object("fd00:2::5", "web")},
			[]string{"both"}, map[string]string{"both": rangeIsBlocked}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, append(tc.objects, settledRange("more", "10.1.0.0/24"))...)
				w.run()
				for _, name := range tc.delete {
					w.deleteRange(name)
				}
				w.settle(rangeGrace)
				for name, want := range tc.want {
					w.expectRange(name, want)
				}
			})
		})
	}
}

// An allocator that heard of the deletion late has given out an address: the
// range waits for it, whatever the watch of addresses has delivered so far.
func TestRangeDeletionReadsNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settledRange("more", "10.1.0.0/24"))
		w.run()
		w.deleteRange("more")
		w.settle(rangeGrace / 2)
		w.client.Intercept(func(c resourcetest.Call) error {
			if c.Verb == resourcetest.List && c.Kind.Kind == "IPAddress" {
				w.client.Intercept(nil)
				w.client.Seed(object("10.1.0.5", "web"))
			}
			return nil
		})
		w.settle(rangeGrace)
		w.expectRange("more", rangeIsBlocked)
	})
}

// Every write fails once; the range is kept and let go all the same.
func TestRangeFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var mu sync.Mutex // the watches of all kinds begin at the same time
		failed := map[string]bool{}
		w.client.Intercept(func(c resourcetest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			name := string(c.Verb) + c.Kind.Kind
			if (c.Verb == resourcetest.Update || c.Verb == resourcetest.UpdateStatus || c.Verb == resourcetest.List) && !failed[name] {
				failed[name] = true
				return errors.New("injected")
			}
			return nil
		})
		w.run()
		w.mustCreate(
			&networkingv1.ServiceCIDR{
				ObjectMeta: metav1.ObjectMeta{Name: "more"},
				Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.1.0.0/24"}},
			},
		)
		w.settle(3 * repairRetry)
		w.expectRange("more", rangeIsReady)
		clear(failed)
		w.deleteRange("more")
		w.settle(3 * repairRetry)
		w.expectRange("more", "gone")
		if len(failed) != 2 {
			t.Errorf("faults were injected into %v, want a list and an update", failed)
		}
	})
}

// While a range goes, the address of a Service is not out of range.
func TestLeavingRangeIsStillARange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settledRange("more", "10.1.0.0/24"), claiming("web", "10.1.0.5", 0), object("10.1.0.5", "web"))
		w.run()
		w.deleteRange("more")
		w.settle(time.Minute)
		w.expectEvents()
	})
}

// Freeing many addresses of a range that is being deleted costs each its own
// share only.
func BenchmarkFreeInLeavingRange(b *testing.B) {
	r := NewRepair(RepairConfig{})
	cidr := settledRange("more", "10.1.0.0/16")
	cidr.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	r.setRange("more", cidr)
	addr := netip.MustParseAddr("10.1.0.1")
	for range 65534 {
		r.setObject(addr.String(), object(addr.String(), "web"))
		addr = addr.Next()
	}
	for b.Loop() {
		r.setObject("10.1.7.7", nil)
		r.setObject("10.1.7.7", object("10.1.7.7", "web"))
	}
}
