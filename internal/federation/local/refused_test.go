package local

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// TestNameTaken: a copy does not replace an object of the zone, and is there once that
// has gone.
func TestNameTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := newWorld(t, 2)
		w.east.create(w.east.kinds.mesh, newMesh("m"))
		w.global.create(w.global.kinds.mesh, newMesh("m"))
		time.Sleep(time.Second)
		w.east.want(w.east.kinds.mesh, "m")
		status := w.inlets["east east"].Status()[0]
		if len(status.Waiting) != 1 || status.Waiting[0].Resource != "/m" {
			t.Errorf("%+v", status)
		}
		w.east.delete(w.east.kinds.mesh, "", "m")
		time.Sleep(time.Second)
		w.east.want(w.east.kinds.mesh, "m of global")
	})
}

// TestMissingNamespace: what has no namespace waits for it.
func TestMissingNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := newWorld(t, 2)
		missing := true
		w.west.client.Intercept(func(c resourcetest.Call) error {
			if missing && c.Verb == resourcetest.Create && c.Key.Namespace == "system" && c.Kind.Kind == "Service" {
				return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "system")
			}
			return nil
		})
		w.east.create(w.east.kinds.ingress, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "in"}})
		time.Sleep(time.Second)
		w.west.want(w.west.kinds.ingress)
		missing = false
		w.west.create(w.west.kinds.namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "system"}})
		time.Sleep(time.Second)
		w.west.want(w.west.kinds.ingress, "in of zone east")
	})
}

// TestRefusedByTheStore: an object that the rules of its kind refuse does not hold back
// the others; global hears of it.
func TestRefusedByTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := newWorld(t, 2)
		w.east.client.Intercept(func(c resourcetest.Call) error {
			if c.Verb == resourcetest.Create && c.Key.Name == "bad" {
				return apierrors.NewInvalid(c.Kind.GroupKind(), "bad", nil)
			}
			return nil
		})
		w.global.create(w.global.kinds.mesh, newMesh("bad"))
		w.global.create(w.global.kinds.mesh, newMesh("good"))
		time.Sleep(time.Second)
		w.east.want(w.east.kinds.mesh, "good of global")
		w.west.want(w.west.kinds.mesh, "bad of global", "good of global")
		if got := w.inlets["east east"].Status()[0].Refused; len(got) != 1 || got[0].Resource != "/bad" {
			t.Error(got)
		}
	})
}

// TestForbiddenReads: that the store forbids to read is not held against an object. An API server
// that has just started forbids everything.
func TestForbiddenReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := newWorld(t, 2)
		w.east.client.Intercept(func(c resourcetest.Call) error {
			if c.Verb == resourcetest.Get && c.Key.Name == "m" {
				return apierrors.NewForbidden(w.east.kinds.mesh.GroupResource(), c.Key.Name, errors.New("no roles yet"))
			}
			return nil
		})
		w.global.create(w.global.kinds.mesh, newMesh("m"))
		time.Sleep(time.Second)
		for _, s := range w.inlets["east east"].Status() {
			if len(s.Refused) > 0 {
				t.Error(s.Refused)
			}
		}
		w.east.client.Intercept(nil)
		time.Sleep(20 * time.Second)
		w.east.want(w.east.kinds.mesh, "m of global")
	})
}

// TestStoreFails: what the store did not take is applied once it works again.
func TestStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := newWorld(t, 2)
		var mu sync.Mutex
		calls := 0
		w.east.client.Intercept(func(c resourcetest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if calls++; calls%3 != 0 && c.Verb != resourcetest.Watch {
				return errors.New("the disk is full")
			}
			return nil
		})
		for n := range 20 {
			w.global.create(w.global.kinds.mesh, newMesh(fmt.Sprintf("m%d", n)))
		}
		time.Sleep(5 * time.Second)
		w.east.client.Intercept(nil)
		time.Sleep(10 * time.Second)
		if got := w.east.names(w.east.kinds.mesh); len(got) != 20 {
			t.Errorf("%d meshes", len(got))
		}
	})
}
