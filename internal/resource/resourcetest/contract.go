package resourcetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// ContractOptions of Contract.
type ContractOptions struct {
	// Plain is the descriptor of ConfigMaps, WithStatus that of Nodes.
	Plain, WithStatus *resource.Descriptor
	// Namespace that exists.
	Namespace string
}

// Contract checks a client against what resource.Client promises. open returns a
// client of a state that has no other writers; the writer of open ends what it
// started.
func Contract(t *testing.T, open func(t *testing.T) resource.Client, opts ContractOptions) {
	t.Helper()
	for _, c := range []struct {
		name  string
		check func(*contract)
	}{
		{"life of an object", (*contract).life},
		{"status", (*contract).status},
		{"an object with its status", (*contract).withStatus},
		{"an object of another kind", (*contract).otherKind},
		{"preconditions", (*contract).preconditions},
		{"objects are the caller's", (*contract).ownership},
		{"lists", (*contract).lists},
		{"watch from a list", (*contract).watchFromList},
		{"watch with initial events", (*contract).watchInitial},
		{"watch with a selector", (*contract).watchSelected},
		{"writes can be read at once", (*contract).readYourWrites},
		{"what a watch delivered can be read", (*contract).readYourWatch},
		{"no increment is lost", (*contract).increments},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(&contract{T: t, ContractOptions: opts, client: open(t)}) })
	}
}

type contract struct {
	*testing.T
	ContractOptions
	client resource.Client
	names  int
}

// contractTimeout bounds waits of a failing test.
const contractTimeout = 2 * time.Minute

func (c *contract) key(name string) resource.Key {
	return resource.Key{Namespace: c.Namespace, Name: name}
}

// object is a new ConfigMap of a name that no other check uses.
func (c *contract) object(value string) *corev1.ConfigMap {
	c.names++
	name := fmt.Sprintf("contract-%d-%d", time.Now().UnixNano(), c.names)
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.Namespace, Labels: map[string]string{"check": name}},
		Data:       map[string]string{"value": value},
	}
}

func (c *contract) create(obj resource.Object) resource.Object {
	c.Helper()
	kind := c.Plain
	if _, isNode := obj.(*corev1.Node); isNode {
		kind = c.WithStatus
	}
	out, err := c.client.Create(c.Context(), kind, obj)
	if err != nil {
		c.Fatalf("create: %v", err)
	}
	return out
}

func (c *contract) get(name string) *corev1.ConfigMap {
	c.Helper()
	got, err := c.client.Get(c.Context(), c.Plain, c.key(name))
	if err != nil {
		c.Fatalf("get: %v", err)
	}
	return got.(*corev1.ConfigMap)
}

func (c *contract) delete(name string, pre resource.Preconditions) {
	c.Helper()
	if err := c.client.Delete(c.Context(), c.Plain, c.key(name), pre); err != nil {
		c.Fatalf("delete: %v", err)
	}
}

func (c *contract) list(selector labels.Selector) ([]resource.Object, string) {
	c.Helper()
	objects, version, err := c.client.List(c.Context(), c.Plain, resource.ListOptions{Namespace: c.Namespace, Labels: selector})
	if err != nil {
		c.Fatalf("list: %v", err)
	}
	return objects, version
}

func (c *contract) watch(opts resource.WatchOptions) watch.Interface {
	c.Helper()
	opts.Namespace = c.Namespace
	w, err := c.client.Watch(c.Context(), c.Plain, opts)
	if err != nil {
		c.Fatalf("watch: %v", err)
	}
	c.Cleanup(w.Stop)
	return w
}

// next is the next event that is no mere progress.
func (c *contract) next(w watch.Interface) watch.Event {
	c.Helper()
	timeout := time.NewTimer(contractTimeout)
	defer timeout.Stop()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				c.Fatal("the watch ended")
			}
			obj, isObject := e.Object.(resource.Object)
			if !isObject {
				c.Fatalf("event %s: %+v", e.Type, e.Object)
			}
			if e.Type != watch.Bookmark || obj.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "" {
				return e
			}
		case <-timeout.C:
			c.Fatalf("no event within %s", contractTimeout)
		}
	}
}

func (c *contract) want(w watch.Interface, event watch.EventType, name string) resource.Object {
	c.Helper()
	e := c.next(w)
	obj := e.Object.(resource.Object)
	if e.Type != event || (name != "" && obj.GetName() != name) {
		c.Fatalf("event %s of %q, want %s of %q", e.Type, obj.GetName(), event, name)
	}
	return obj
}

func (c *contract) life() {
	in := c.object("one")
	if _, err := c.client.Get(c.Context(), c.Plain, c.key(in.Name)); !apierrors.IsNotFound(err) {
		c.Errorf("get of nothing: %v", err)
	}
	created := c.create(in)
	if createdAt := created.GetCreationTimestamp(); created.GetUID() == "" || created.GetResourceVersion() == "" || createdAt.IsZero() {
		c.Errorf("created: %+v", created)
	}
	if in.UID != "" || in.ResourceVersion != "" {
		c.Error("create changed what it was given")
	}
	if _, err := c.client.Create(c.Context(), c.Plain, in); !apierrors.IsAlreadyExists(err) {
		c.Errorf("create twice: %v", err)
	}
	stale := c.get(in.Name)
	next := stale.DeepCopy()
	next.Data["value"] = "two"
	updated, err := c.client.Update(c.Context(), c.Plain, next)
	if err != nil || updated.GetResourceVersion() == created.GetResourceVersion() || updated.GetUID() != created.GetUID() {
		c.Fatalf("update: %+v, %v", updated, err)
	}
	if _, err := c.client.Update(c.Context(), c.Plain, stale); !apierrors.IsConflict(err) {
		c.Errorf("update of an old version: %v", err)
	}
	stale.ResourceVersion = ""
	stale.Data["value"] = "three"
	if _, err := c.client.Update(c.Context(), c.Plain, stale); err != nil {
		c.Errorf("update of any version: %v", err)
	}
	if got := c.get(in.Name); got.Data["value"] != "three" {
		c.Errorf("it is %v", got.Data)
	}
	c.delete(in.Name, resource.Preconditions{})
	if err := c.client.Delete(c.Context(), c.Plain, c.key(in.Name), resource.Preconditions{}); !apierrors.IsNotFound(err) {
		c.Errorf("delete twice: %v", err)
	}
	if _, err := c.client.Update(c.Context(), c.Plain, stale); !apierrors.IsNotFound(err) {
		c.Errorf("update of nothing: %v", err)
	}
	generated := c.object("")
	generated.GenerateName, generated.Name = generated.Name+"-", ""
	a, b := c.create(generated), c.create(generated)
	if a.GetName() == b.GetName() || len(a.GetName()) <= len(generated.GenerateName) {
		c.Errorf("generated names %q and %q", a.GetName(), b.GetName())
	}
}

func (c *contract) status() {
	name := c.object("").Name
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	created := c.create(node).(*corev1.Node)
	created.Status.Phase, created.Spec.PodCIDR = corev1.NodeTerminated, "10.9.0.0/24"
	out, err := c.client.UpdateStatus(c.Context(), c.WithStatus, created)
	if err != nil {
		c.Fatal(err)
	}
	after := out.(*corev1.Node)
	if after.Status.Phase != corev1.NodeTerminated || after.Spec.PodCIDR != "" {
		c.Errorf("status write: %+v", after)
	}
	after.Status.Phase, after.Labels = corev1.NodeRunning, map[string]string{"a": "b"}
	if out, err = c.client.Update(c.Context(), c.WithStatus, after); err != nil {
		c.Fatal(err)
	}
	if got := out.(*corev1.Node); got.Status.Phase != corev1.NodeTerminated || got.Labels["a"] != "b" {
		c.Errorf("write: %+v", got)
	}
	if err := c.client.Delete(c.Context(), c.WithStatus, resource.Key{Name: name}, resource.Preconditions{}); err != nil {
		c.Error(err)
	}
}

// withStatus: an object is written with its status at once, or not at all.
func (c *contract) withStatus() {
	name := c.object("").Name
	_, version, err := c.client.List(c.Context(), c.WithStatus, resource.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	w, err := c.client.Watch(c.Context(), c.WithStatus, resource.WatchOptions{ResourceVersion: version})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(w.Stop)
	ctx := resource.WithStatus(c.Context())
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Phase: corev1.NodeRunning}}
	out, err := c.client.Create(ctx, c.WithStatus, node)
	if errors.Is(err, resource.ErrStatusApart) {
		return
	}
	if err != nil {
		c.Fatal(err)
	}
	created := out.(*corev1.Node)
	next := created.DeepCopy()
	next.Status.Phase, next.Labels = corev1.NodeTerminated, map[string]string{"a": "b"}
	if out, err = c.client.Update(ctx, c.WithStatus, next); err != nil {
		c.Fatal(err)
	}
	if got := out.(*corev1.Node); created.Status.Phase != corev1.NodeRunning || got.Status.Phase != corev1.NodeTerminated || got.Labels["a"] != "b" {
		c.Errorf("created %+v, then %+v", created.Status, got)
	}
	if got := c.want(w, watch.Added, name).(*corev1.Node); got.Status.Phase != corev1.NodeRunning {
		c.Errorf("the first event has %+v", got.Status)
	}
	if got := c.want(w, watch.Modified, name).(*corev1.Node); got.Status.Phase != corev1.NodeTerminated || got.Labels["a"] != "b" {
		c.Errorf("the second event has %+v, labels %v", got.Status, got.Labels)
	}
	if _, err := c.client.Update(ctx, c.WithStatus, next); !apierrors.IsConflict(err) {
		c.Errorf("an older resource version: %v", err)
	}
	if err := c.client.Delete(c.Context(), c.WithStatus, resource.Key{Name: name}, resource.Preconditions{}); err != nil {
		c.Error(err)
	}
}

// otherKind: an object whose Go type is not that of the kind is refused.
func (c *contract) otherKind() {
	obj := c.object("one")
	if _, err := c.client.Create(c.Context(), c.WithStatus, obj); err == nil {
		c.Errorf("a %T was created as one of %s", obj, c.WithStatus.Resource)
	}
	created := c.create(obj)
	if _, err := c.client.Update(c.Context(), c.WithStatus, created); err == nil {
		c.Errorf("a %T was updated as one of %s", obj, c.WithStatus.Resource)
	}
}

func (c *contract) preconditions() {
	old := c.create(c.object("one")).(*corev1.ConfigMap)
	next := old.DeepCopy()
	next.Data["value"] = "two"
	created, err := c.client.Update(c.Context(), c.Plain, next)
	if err != nil {
		c.Fatal(err)
	}
	for what, pre := range map[string]resource.Preconditions{
		"another UID":     {UID: types.UID("00000000-0000-4000-8000-00000000dead")},
		"another version": {ResourceVersion: old.ResourceVersion},
	} {
		if err := c.client.Delete(c.Context(), c.Plain, resource.KeyOf(created), pre); !apierrors.IsConflict(err) {
			c.Errorf("%s: %v", what, err)
		}
	}
	c.delete(created.GetName(), resource.Preconditions{UID: created.GetUID(), ResourceVersion: created.GetResourceVersion()})
}

func (c *contract) ownership() {
	obj := c.object("mine")
	c.create(obj).(*corev1.ConfigMap).Data["value"] = "scribbled"
	c.get(obj.Name).Data["value"] = "scribbled"
	objects, _ := c.list(labels.SelectorFromSet(obj.Labels))
	for _, o := range objects {
		o.(*corev1.ConfigMap).Data["value"] = "scribbled"
	}
	w := c.watch(resource.WatchOptions{ListOptions: resource.ListOptions{Labels: labels.SelectorFromSet(obj.Labels)}})
	c.want(w, watch.Added, obj.Name).(*corev1.ConfigMap).Data["value"] = "scribbled"
	if got := c.get(obj.Name); got.Data["value"] != "mine" {
		c.Errorf("it is %v", got.Data)
	}
}

func (c *contract) lists() {
	in, out := c.object("in"), c.object("out")
	c.create(in)
	c.create(out)
	all, version := c.list(nil)
	if len(all) < 2 || version == "" {
		c.Errorf("%d objects at %q", len(all), version)
	}
	selected, _ := c.list(labels.SelectorFromSet(in.Labels))
	if len(selected) != 1 || selected[0].GetName() != in.Name {
		c.Errorf("selected %v", selected)
	}
	elsewhere, _, err := c.client.List(c.Context(), c.Plain, resource.ListOptions{Namespace: "contract-none"})
	if err != nil || len(elsewhere) != 0 {
		c.Errorf("in another namespace: %v, %v", elsewhere, err)
	}
}

func (c *contract) watchFromList() {
	before := c.object("before")
	c.create(before)
	_, version := c.list(nil)
	obj := c.object("one")
	created := c.create(obj)
	w := c.watch(resource.WatchOptions{ResourceVersion: version})
	// What the list shows may come again.
	e := c.next(w)
	for e.Object.(resource.Object).GetName() == before.Name {
		e = c.next(w)
	}
	if got := e.Object.(resource.Object); e.Type != watch.Added || got.GetName() != obj.Name ||
		got.GetResourceVersion() != created.GetResourceVersion() {
		c.Fatalf("event %+v", e)
	}
	next := c.get(obj.Name)
	next.Data["value"] = "two"
	if _, err := c.client.Update(c.Context(), c.Plain, next); err != nil {
		c.Fatal(err)
	}
	if got := c.want(w, watch.Modified, obj.Name).(*corev1.ConfigMap); got.Data["value"] != "two" {
		c.Errorf("modified to %v", got.Data)
	}
	c.delete(obj.Name, resource.Preconditions{})
	c.want(w, watch.Deleted, obj.Name)
}

func (c *contract) watchInitial() {
	obj := c.object("one")
	c.create(obj)
	w := c.watch(resource.WatchOptions{ListOptions: resource.ListOptions{Labels: labels.SelectorFromSet(obj.Labels)}})
	c.want(w, watch.Added, obj.Name)
	mark := c.want(w, watch.Bookmark, "")
	if mark.GetResourceVersion() == "" {
		c.Error("the mark has no version")
	}
	again := c.watch(resource.WatchOptions{ResourceVersion: mark.GetResourceVersion()})
	c.delete(obj.Name, resource.Preconditions{})
	c.want(w, watch.Deleted, obj.Name)
	c.want(again, watch.Deleted, obj.Name)
}

func (c *contract) watchSelected() {
	obj := c.object("one")
	w := c.watch(resource.WatchOptions{ListOptions: resource.ListOptions{Labels: labels.SelectorFromSet(labels.Set{"color": obj.Name})}})
	c.want(w, watch.Bookmark, "")
	c.create(obj)
	for _, step := range []struct {
		color string
		event watch.EventType
	}{{obj.Name, watch.Added}, {"none", watch.Deleted}, {obj.Name, watch.Added}} {
		next := c.get(obj.Name)
		next.Labels["color"] = step.color
		if _, err := c.client.Update(c.Context(), c.Plain, next); err != nil {
			c.Fatal(err)
		}
		c.want(w, step.event, obj.Name)
		// It is there all the while.
		if got := c.get(obj.Name); got.Labels["color"] != step.color {
			c.Fatalf("after %s it has %v", step.event, got.Labels)
		}
	}
}

// readYourWrites replaces objects of one name as fast as it can. Each read shows
// the write before it.
func (c *contract) readYourWrites() {
	obj := c.object("")
	selector := labels.SelectorFromSet(obj.Labels)
	for i := range 30 {
		obj.Data["value"] = strconv.Itoa(i)
		created := c.create(obj)
		if got := c.get(obj.Name); got.UID != created.GetUID() || got.Data["value"] != strconv.Itoa(i) {
			c.Fatalf("round %d: after create it is %v", i, got.Data)
		}
		next := created.(*corev1.ConfigMap)
		next.Data["value"] = "updated " + strconv.Itoa(i)
		updated, err := c.client.Update(c.Context(), c.Plain, next)
		if err != nil {
			c.Fatalf("round %d: %v", i, err)
		}
		if listed, _ := c.list(selector); len(listed) != 1 || listed[0].GetResourceVersion() != updated.GetResourceVersion() {
			c.Fatalf("round %d: after update the list has %v", i, listed)
		}
		c.delete(obj.Name, resource.Preconditions{})
		if got, err := c.client.Get(c.Context(), c.Plain, c.key(obj.Name)); !apierrors.IsNotFound(err) {
			c.Fatalf("round %d: after delete: %v, %v", i, got, err)
		}
		if listed, _ := c.list(selector); len(listed) != 0 {
			c.Fatalf("round %d: after delete the list has %v", i, listed)
		}
	}
}

// readYourWatch: reads are never behind what a watch of the client delivered.
func (c *contract) readYourWatch() {
	obj := c.object("0")
	c.create(obj)
	const changes = 30
	w := c.watch(resource.WatchOptions{ListOptions: resource.ListOptions{Labels: labels.SelectorFromSet(obj.Labels)}})
	var writing sync.WaitGroup
	writing.Go(func() {
		for range changes {
			if err := c.increment(obj.Name); err != nil {
				c.Error(err)
			}
		}
	})
	defer writing.Wait()
	for delivered := 0; delivered < changes; {
		e := c.next(w)
		if e.Type == watch.Bookmark {
			continue
		}
		delivered, _ = strconv.Atoi(e.Object.(*corev1.ConfigMap).Data["value"])
		if read, _ := strconv.Atoi(c.get(obj.Name).Data["value"]); read < delivered {
			c.Fatalf("a watch delivered %d, a read shows %d", delivered, read)
		}
	}
}

func (c *contract) increment(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), contractTimeout)
	defer cancel()
	for {
		got, err := c.client.Get(ctx, c.Plain, c.key(name))
		if err != nil {
			return err
		}
		obj := got.(*corev1.ConfigMap)
		n, _ := strconv.Atoi(obj.Data["value"])
		obj.Data["value"] = strconv.Itoa(n + 1)
		if _, err := c.client.Update(ctx, c.Plain, obj); !apierrors.IsConflict(err) {
			return errors.Join(err, ctx.Err())
		}
	}
}

func (c *contract) increments() {
	obj := c.object("0")
	c.create(obj)
	const writers, each = 4, 15
	var writing sync.WaitGroup
	for range writers {
		writing.Go(func() {
			for range each {
				if err := c.increment(obj.Name); err != nil {
					c.Error(err)
					return
				}
			}
		})
	}
	writing.Wait()
	if got := c.get(obj.Name).Data["value"]; got != strconv.Itoa(writers*each) {
		c.Errorf("%s after %d increments", got, writers*each)
	}
}
