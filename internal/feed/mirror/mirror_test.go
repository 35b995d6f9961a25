package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/feed/mirror"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/memory"
	"github.com/proxima-mesh/proxima/internal/store"
	storememory "github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// rig is a cluster of Services and Nodes, and a copy of it.
type rig struct {
	t       *testing.T
	cluster *memory.Client
	objects *mirror.Objects
	store   store.Store
	forbid  atomic.Bool
	fail    atomic.Bool
	mirror  *mirror.Mirror
	stop    func()
}

func newRig(t *testing.T) *rig {
	kinds := []*resource.Descriptor{kind.Service, kind.Node}
	r := &rig{t: t, cluster: memory.New(kinds...), objects: mirror.NewObjects(kinds), store: storememory.New(storememory.Options{})}
	t.Cleanup(func() { _ = r.store.Close() })
	return r
}

// failing is a store that takes nothing while the rig says so.
type failing struct {
	store.Store
	r *rig
}

// Commit implements store.Store.
func (f failing) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if f.r.fail.Load() {
		return 0, errors.New("no space left")
	}
	return f.Store.Commit(ctx, txn)
}

// start a mirror, and wait until it has read everything.
func (r *rig) start() {
	r.t.Helper()
	client := resource.Wrap(r.cluster, resource.Intercept(func(ctx context.Context, call resource.Call, next func(context.Context) error) error {
		if r.forbid.Load() && call.Kind == kind.Node {
			return apierrors.NewForbidden(call.Kind.GroupResource(), "", errors.New("no role"))
		}
		return next(ctx)
	}))
	r.mirror = mirror.New(mirror.Config{Client: client, Objects: r.objects, Store: failing{r.store, r}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.mirror.Run(ctx) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
	r.t.Cleanup(r.stop)
	select {
	case <-r.mirror.Listed():
	case <-time.After(testkit.Timeout):
		r.t.Fatal("the mirror does not read the cluster")
	}
}

func (r *rig) service(name, value string) {
	r.t.Helper()
	obj := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"v": value}}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Port: 80}}, Selector: map[string]string{"app": name},
	}}
	has, err := r.cluster.Get(r.t.Context(), kind.Service, resource.KeyOf(obj))
	if apierrors.IsNotFound(err) {
		_, err = r.cluster.Create(r.t.Context(), kind.Service, obj)
	} else if err == nil {
		has.SetLabels(obj.Labels)
		_, err = r.cluster.Update(r.t.Context(), kind.Service, has)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) remove(name string) {
	r.t.Helper()
	if err := r.cluster.Delete(r.t.Context(), kind.Service, resource.Key{Namespace: "shop", Name: name}, resource.Preconditions{}); err != nil {
		r.t.Fatal(err)
	}
}

// eventually waits until cond returns nil.
func eventually(t *testing.T, cond func() error) {
	t.Helper()
	var err error
	defer func() {
		if err != nil {
			t.Log(err)
		}
	}()
	testkit.Eventually(t, "the copy is as it should be", func() bool {
		err = cond()
		return err == nil
	})
}

// has waits until the copy has what the cluster has, and compares them.
func (r *rig) has() {
	r.t.Helper()
	eventually(r.t, func() error {
		page, err := r.store.List(r.t.Context(), store.ListOptions{Prefix: mirror.Prefix})
		if err != nil {
			return err
		}
		got := map[string]string{}
		for _, rec := range page.Records {
			obj, err := r.objects.Decode(r.t.Context(), rec.Key, rec.Value, 0)
			if err != nil {
				return err
			}
			got[rec.Key] = obj.GetResourceVersion()
		}
		n := 0
		for _, d := range []*resource.Descriptor{kind.Service, kind.Node} {
			all, _, err := r.cluster.List(r.t.Context(), d, resource.ListOptions{})
			if err != nil {
				return err
			}
			for _, obj := range all {
				n++
				if key := r.objects.Prefix(d, resource.KeyOf(obj)); got[key] != obj.GetResourceVersion() {
					return fmt.Errorf("%s is at %q, the cluster at %s", key, got[key], obj.GetResourceVersion())
				}
			}
		}
		if n != len(got) {
			return fmt.Errorf("the copy has %d objects, the cluster %d", len(got), n)
		}
		return nil
	})
}

// changes of the copy after a revision, as "put web a".
func (r *rig) changes(after store.Revision) (out []string) {
	r.t.Helper()
	w, err := r.store.Watch(r.t.Context(), mirror.Prefix, after)
	if err != nil {
		r.t.Fatal(err)
	}
	defer w.Close()
	w.Progress()
	for b := range w.Batches() {
		for _, e := range b.Events {
			name := e.Record.Key[strings.LastIndex(e.Record.Key, "/")+1:]
			if e.Kind == store.Delete {
				out = append(out, "delete "+name)
				continue
			}
			obj, err := r.objects.Decode(r.t.Context(), e.Record.Key, e.Record.Value, 0)
			if err != nil {
				r.t.Fatal(err)
			}
			out = append(out, "put "+name+" "+obj.GetLabels()["v"])
		}
		now, err := r.store.Revision(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		if b.Revision >= now {
			return out
		}
	}
	return out
}

func (r *rig) revision() store.Revision {
	r.t.Helper()
	at, err := r.store.Revision(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return at
}

// TestFollows: the copy gets every change, in order; what happened while nobody followed is one change of each object; what did
// not change is not written again.
func TestFollows(t *testing.T) {
	r := newRig(t)
	r.service("web", "a")
	r.service("old", "a")
	r.start()
	r.has()
	at := r.revision()
	r.service("web", "b")
	r.has()
	r.service("web", "c")
	r.service("api", "a")
	r.has()
	r.remove("api")
	r.has()
	if got, want := strings.Join(r.changes(at), ", "), "put web b, put web c, put api a, delete api"; got != want {
		t.Errorf("the changes are %s, want %s", got, want)
	}
	r.stop()
	at = r.revision()
	r.service("web", "d")
	r.service("web", "e")
	r.service("new", "a")
	r.remove("old")
	r.start()
	r.has()
	if got, want := strings.Join(r.changes(at), ", "), "delete old, put web e, put new a"; got != want {
		t.Errorf("after a restart the changes are %s, want %s", got, want)
	}
	r.stop()
	at = r.revision()
	r.start()
	r.has()
	if got := r.changes(at); len(got) != 0 {
		t.Errorf("a restart without a change wrote %v", got)
	}
}

// TestRecreated: an object that was deleted and made again is another one, also if its resource version came back.
func TestRecreated(t *testing.T) {
	r := newRig(t)
	r.service("web", "a")
	r.start()
	r.has()
	r.stop()
	r.remove("web")
	r.service("web", "a")
	at := r.revision()
	r.start()
	r.has()
	if got := strings.Join(r.changes(at), ", "); got != "put web a" {
		t.Errorf("the changes are %q", got)
	}
}

// TestHeartbeats: what a kubelet writes to tell that it runs is no change; that a node is not ready is one, while following and after a restart.
func TestHeartbeats(t *testing.T) {
	r := newRig(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	made, err := r.cluster.Create(t.Context(), kind.Node, node)
	if err != nil {
		t.Fatal(err)
	}
	beat := func(status corev1.ConditionStatus, at int64) {
		t.Helper()
		now, err := r.cluster.Get(t.Context(), kind.Node, resource.KeyOf(made))
		if err != nil {
			t.Fatal(err)
		}
		n := now.(*corev1.Node)
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.Unix(at, 0)}}
		if _, err := r.cluster.UpdateStatus(t.Context(), kind.Node, n); err != nil {
			t.Fatal(err)
		}
	}
	beat(corev1.ConditionTrue, 1)
	r.start()
	at := r.revision()
	beat(corev1.ConditionTrue, 2)
	beat(corev1.ConditionTrue, 3)
	beat(corev1.ConditionFalse, 4)
	r.has() // the last is written
	if got := r.changes(at); len(got) != 1 {
		t.Errorf("%d changes are written, want the one of the condition", len(got))
	}
	r.stop()
	at = r.revision()
	beat(corev1.ConditionFalse, 5)
	r.start()
	if got := r.changes(at); len(got) != 0 {
		t.Errorf("after a restart %v is written", got)
	}
}

// TestRefused: a kind that may not be read holds up no other, is named, and is read when it may be.
func TestRefused(t *testing.T) {
	r := newRig(t)
	r.forbid.Store(true)
	if _, err := r.cluster.Create(t.Context(), kind.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}); err != nil {
		t.Fatal(err)
	}
	r.service("web", "a")
	before := time.Now()
	r.start()
	if err := r.mirror.Problems()["nodes"]; !apierrors.IsForbidden(err) {
		t.Errorf("the problem of nodes is %v", err)
	}
	if at := r.mirror.Complete(); at.Before(before) || !at.Before(time.Now()) {
		t.Errorf("the copy is complete up to %s", at)
	}
	apart := r.mirror.Complete()
	r.service("web", "b")
	if at := r.mirror.Complete(); !at.Equal(apart) {
		t.Errorf("the copy is complete up to %s, though nodes are not read since %s", at, apart)
	}
	r.forbid.Store(false)
	r.has()
	eventually(t, func() error {
		if p := r.mirror.Problems(); len(p) > 0 {
			return fmt.Errorf("there are problems: %v", p)
		}
		return nil
	})
	if at := r.mirror.Complete(); !at.After(apart) {
		t.Errorf("the copy stays complete up to %s", at)
	}
}

// TestUnwritable: a store that takes nothing is a problem that is told, and nothing is lost by it.
func TestUnwritable(t *testing.T) {
	r := newRig(t)
	r.start()
	r.fail.Store(true)
	r.service("web", "a")
	eventually(t, func() error {
		if r.mirror.Texts()["all"] == "" {
			return errors.New("there is no problem")
		}
		return nil
	})
	for i := range 600 {
		r.service(fmt.Sprintf("s%03d", i), "a")
	}
	r.service("web", "b")
	r.fail.Store(false)
	r.has()
	if p := r.mirror.Problems(); len(p) > 0 {
		t.Errorf("there are problems: %v", p)
	}
}

// TestKeys: keys name objects, and nothing else does.
func TestKeys(t *testing.T) {
	o := mirror.NewObjects([]*resource.Descriptor{kind.Service, kind.Node, kind.EndpointSlice})
	for key, want := range map[string]string{
		"/registry/services/shop/web": "Service shop/web", "/registry/nodes/n1": "Node /n1",
		"/registry/discovery.k8s.io/endpointslices/shop/web-1": "EndpointSlice shop/web-1",
		"/registry/services/web":                               "", "/registry/services/a/b/c": "", "/registry/nodes/": "", "/registry/pods/a/b": "", "/registry/services//a": "",
	} {
		d, name, ok := o.ObjectOf(key)
		got := ""
		if ok {
			got = d.GVK.Kind + " " + name.String()
			if back := o.Prefix(d, name); back != key {
				t.Errorf("%s becomes %s", key, back)
			}
		}
		if got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if p := o.Prefix(kind.Pod, resource.Key{}); p != "" {
		t.Errorf("Pods are at %s", p)
	}
	web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	if _, err := o.Encode(t.Context(), "/registry/services/shop/api", web); err == nil {
		t.Error("an object was encoded under the key of another")
	}
	if _, err := o.Decode(t.Context(), "/registry/services/shop/web", []byte("{"), 0); err == nil {
		t.Error("a malformed value was decoded")
	}
}
