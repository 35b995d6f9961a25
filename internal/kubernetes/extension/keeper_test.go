package extension

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

const ownNamespace = "proxima-system"

var errCut = errors.New("the connection is cut")

// api is a cluster's API in memory, with the checks of resource versions and the server-side apply
// that the fake client lacks.
type api struct {
	*fake.FakeDynamicClient
	t *testing.T

	mu      sync.Mutex
	version int
	// cut fails writes, before or after they are made.
	cut func(verb string) (before, after bool)
	// writes of each kind.
	writes map[string]int
}

func newAPI(t *testing.T) *api {
	t.Helper()
	webhook := &unstructured.Unstructured{Object: map[string]any{"webhooks": []any{
		map[string]any{"name": "validate.mesh.proxima.dev", "clientConfig": map[string]any{}},
		map[string]any{"name": "multicluster.mesh.proxima.dev", "clientConfig": map[string]any{}},
	}}}
	webhook.SetName("proxima")
	aggregated := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"group": GroupVersion.Group}}}
	aggregated.SetName(APIServiceTarget().Name)
	kinds := map[schema.GroupVersionResource]string{secrets: "SecretList"}
	var objects []runtime.Object
	for i, of := range targets() {
		kinds[of.Resource] = of.Kind + "List"
		obj := []*unstructured.Unstructured{webhook, aggregated}[i]
		obj.SetAPIVersion(of.Resource.GroupVersion().String())
		obj.SetKind(of.Kind)
		obj.SetResourceVersion("1")
		objects = append(objects, obj)
	}
	a := &api{FakeDynamicClient: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds), t: t, version: 1, writes: map[string]int{}}
	for i, of := range targets() {
		if err := a.Tracker().Create(of.Resource, objects[i], ""); err != nil {
			t.Fatal(err)
		}
	}
	a.PrependReactor("*", "*", a.react)
	return a
}

func targets() []Target { return []Target{WebhookTarget("proxima"), APIServiceTarget()} }

// react to writes.
func (a *api) react(action clienttesting.Action) (handled bool, _ runtime.Object, err error) {
	var write func() (runtime.Object, error)
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		write = func() (runtime.Object, error) {
			return a.store(action.GetResource(), action.GetNamespace(), action.GetObject(), true)
		}
	case clienttesting.UpdateActionImpl:
		write = func() (runtime.Object, error) {
			return a.store(action.GetResource(), action.GetNamespace(), action.GetObject(), false)
		}
	case clienttesting.PatchActionImpl:
		write = func() (runtime.Object, error) { return a.apply(action) }
	default:
		return false, nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes[action.GetVerb()+" "+action.GetResource().Resource]++
	before, after := false, false
	if a.cut != nil {
		before, after = a.cut(action.GetVerb())
	}
	if before {
		return true, nil, errCut
	}
	obj, err := write()
	if after && err == nil {
		return true, nil, errCut
	}
	return true, obj, err
}

func (a *api) store(kind schema.GroupVersionResource, namespace string, obj runtime.Object, create bool) (runtime.Object, error) {
	o := obj.(*unstructured.Unstructured).DeepCopy()
	if !create {
		was, err := a.Tracker().Get(kind, namespace, o.GetName())
		if err != nil {
			return nil, err
		}
		if was.(*unstructured.Unstructured).GetResourceVersion() != o.GetResourceVersion() {
			return nil, apierrors.NewConflict(kind.GroupResource(), o.GetName(), errors.New("it has changed"))
		}
	}
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	if create {
		return o, a.Tracker().Create(kind, o, namespace)
	}
	return o, a.Tracker().Update(kind, o, namespace)
}

// apply a patch of webhooks, which are a map by name, or of other fields.
func (a *api) apply(action clienttesting.PatchActionImpl) (runtime.Object, error) {
	was, err := a.Tracker().Get(action.GetResource(), "", action.GetName())
	if err != nil {
		return nil, err
	}
	o := was.(*unstructured.Unstructured).DeepCopy()
	var patch map[string]any
	if err := json.Unmarshal(action.GetPatch(), &patch); err != nil {
		return nil, err
	}
	text, _, _ := unstructured.NestedString(patch, "spec", "caBundle")
	if text != "" {
		if err := unstructured.SetNestedField(o.Object, text, "spec", "caBundle"); err != nil {
			return nil, err
		}
	}
	hooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
	changes, _, _ := unstructured.NestedSlice(patch, "webhooks")
	for _, c := range changes {
		for _, h := range hooks {
			if hook, change := h.(map[string]any), c.(map[string]any); hook["name"] == change["name"] {
				hook["clientConfig"] = change["clientConfig"]
			}
		}
	}
	if len(hooks) > 0 {
		if err := unstructured.SetNestedSlice(o.Object, hooks, "webhooks"); err != nil {
			return nil, err
		}
	}
	return a.store(action.GetResource(), "", o, false)
}

func (a *api) get(kind schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	a.t.Helper()
	obj, err := a.Tracker().Get(kind, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return obj.(*unstructured.Unstructured).DeepCopy()
}

func (a *api) secret() *unstructured.Unstructured { return a.get(secrets, ownNamespace, SecretName) }

func (a *api) record() Authorities {
	a.t.Helper()
	secret := a.secret()
	if secret == nil {
		return nil
	}
	all, err := recordOf(secret)
	if err != nil {
		a.t.Fatal(err)
	}
	return all
}

// bundles that the API server has been given, of all webhooks and the aggregated API.
func (a *api) bundles() (out [][]byte) {
	a.t.Helper()
	for _, of := range targets() {
		for _, text := range of.bundles(a.get(of.Resource, "", of.Name)) {
			b, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				a.t.Fatal(err)
			}
			out = append(out, b)
		}
	}
	return out
}

func (a *api) keeper(c *clocktesting.FakeClock) *Keeper {
	cfg := KeeperConfig{Client: a, Namespace: ownNamespace, Targets: targets(), Logger: slog.New(slog.DiscardHandler)}
	if c != nil {
		cfg.Clock = c
	}
	return NewKeeper(cfg)
}

// see has a Keeper see what there is, as its watches do in the end.
func (a *api) see(k *Keeper) *Keeper {
	a.t.Helper()
	k.secret = a.secret()
	for _, of := range targets() {
		k.seen[of.Kind] = a.get(of.Resource, "", of.Name)
	}
	return k
}

// settle has a Keeper work until it writes nothing more, and returns when it is due again.
func (a *api) settle(k *Keeper) time.Time {
	a.t.Helper()
	for range 10 {
		before := a.version
		due, err := a.see(k).reconcile(context.Background())
		if err != nil {
			a.t.Fatal(err)
		}
		if a.version == before {
			return due
		}
	}
	a.t.Fatal("the Keeper goes on writing")
	return time.Time{}
}

// wantServed: a certificate by the record, as each replica makes itself one, is one that the API
// server trusts in all places.
func (a *api) wantServed(now time.Time) {
	a.t.Helper()
	leaf, _, err := a.record().Leaf(name, now)
	if err != nil {
		a.t.Fatal(err)
	}
	for i, b := range a.bundles() {
		if !trusts(a.t, b, leaf, now) {
			a.t.Fatalf("%s: bundle %d does not trust the certificate that replicas show", now, i)
		}
	}
}

// TestKeeperRotates: the first authority is there and published at once, each is replaced in
// time and dropped a day later, and at no time is a certificate shown that is not trusted.
func TestKeeperRotates(t *testing.T) {
	a, c := newAPI(t), clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	k := a.keeper(c)
	names := map[string]bool{}
	for end := c.Now().Add(365 * 24 * time.Hour); c.Now().Before(end); {
		due := a.settle(k)
		a.wantServed(c.Now())
		all := a.record()
		for _, of := range all {
			names[of.cert.Subject.CommonName] = true
		}
		if last := all[len(all)-1]; last.Published.IsZero() || !due.After(c.Now()) || len(all) > 2 {
			t.Fatalf("%s: %d authorities, the last published %s, due again %s", c.Now(), len(all), last.Published, due)
		}
		c.SetTime(due.Add(time.Second))
	}
	if len(names) != 7 { // the first, and one each 60 days
		t.Errorf("%d authorities in a year, want 7", len(names))
	}
	if n := a.writes["create secrets"]; n != 1 {
		t.Errorf("the record was made %d times", n)
	}
}

// TestKeeperCrashes: whichever write is the last one of a leader, made or not, the next leader goes
// on where it ended, and at no time is a certificate shown that is not trusted.
func TestKeeperCrashes(t *testing.T) {
	for seed := range uint64(20) {
		a, c := newAPI(t), clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
		r := rand.New(rand.NewPCG(seed, 1))
		a.settle(a.keeper(c))
		a.cut = func(string) (before, after bool) { n := r.IntN(5); return n == 0, n == 1 }
		most := 0
		for end := c.Now().Add(200 * 24 * time.Hour); c.Now().Before(end); {
			due, err := a.see(a.keeper(c)).reconcile(context.Background()) // each time another leader
			if err != nil && !errors.Is(err, errCut) {
				t.Fatal(err)
			}
			a.wantServed(c.Now())
			most = max(most, len(a.record()))
			if err == nil && due.Sub(c.Now()) > retryAfter && r.IntN(2) == 0 {
				c.SetTime(due.Add(time.Second))
				continue
			}
			c.Step(time.Duration(1+r.IntN(60)) * time.Second)
		}
		if most != 2 {
			t.Errorf("seed %d: up to %d authorities at a time, want 2", seed, most)
		}
	}
}

// TestBundlesCannotBeWritten: replicas go on with the authority that the API server trusts, however
// long it takes until it has the next one.
func TestBundlesCannotBeWritten(t *testing.T) {
	a, c := newAPI(t), clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	k := a.keeper(c)
	a.settle(k)
	c.Step(Life * 2 / 3)
	broken := true
	a.cut = func(verb string) (before, after bool) { return broken && verb == "patch", false }
	for range 24 {
		_, _ = a.see(k).reconcile(context.Background())
		a.wantServed(c.Now())
		c.Step(time.Hour)
	}
	if all := a.record(); len(all) != 2 || !all[1].Published.IsZero() {
		t.Fatalf("%d authorities, the last published %s", len(all), all[len(all)-1].Published)
	}
	broken = false
	a.settle(k)
	c.Step(Settle)
	a.wantServed(c.Now())
	if i, _ := a.record().signer(c.Now()); i != 1 {
		t.Error("the new authority does not sign")
	}
}

// TestTwoKeepers: one that has not noticed that it leads no more writes nothing over the record of
// the other one.
func TestTwoKeepers(t *testing.T) {
	a, c := newAPI(t), clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	first, second := a.see(a.keeper(c)), a.see(a.keeper(c))
	for _, k := range []*Keeper{first, second} { // both see that there is no record
		if _, err := k.reconcile(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	made := a.record()
	a.settle(second)
	if got := a.record(); len(got) != 1 || !bytes.Equal(got[0].Cert, made[0].Cert) {
		t.Fatalf("the record of the first one was replaced")
	}
	c.Step(Life * 2 / 3)
	a.see(first)
	a.settle(second)
	have := a.record()
	if _, err := first.reconcile(context.Background()); err != nil { // by what it saw before
		t.Fatal(err)
	}
	if got := a.record(); len(have) != 2 || !bytes.Equal(got.Bundle(), have.Bundle()) {
		t.Errorf("%d authorities, and %d after the late write", len(have), len(got))
	}
	a.wantServed(c.Now())
}

// TestRotateByAnnotation: it makes one authority, and is removed with it. Asked for while a change
// is under way, it is done after that.
func TestRotateByAnnotation(t *testing.T) {
	a, c := newAPI(t), clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	k := a.keeper(c)
	ask := func() {
		t.Helper()
		secret := a.secret()
		secret.SetAnnotations(map[string]string{RotateAnnotation: "now", "example.com/other": "stays"})
		if _, err := a.Resource(secrets).Namespace(ownNamespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	a.settle(k)
	ask()
	a.settle(k)
	notes := a.secret().GetAnnotations()
	if n := len(a.record()); n != 2 || notes[RotateAnnotation] != "" || notes["example.com/other"] != "stays" {
		t.Fatalf("%d authorities, annotations %v", n, notes)
	}
	ask()
	due := a.settle(k)
	if n := len(a.record()); n != 2 || a.secret().GetAnnotations()[RotateAnnotation] == "" {
		t.Fatalf("%d authorities while the first change is under way", n)
	}
	c.SetTime(due.Add(time.Second))
	a.settle(k)
	if n := len(a.record()); n != 3 || a.secret().GetAnnotations()[RotateAnnotation] != "" {
		t.Errorf("%d authorities, annotations %v after it", n, a.secret().GetAnnotations())
	}
	a.wantServed(c.Now())
}

// TestBrokenRecord: one that cannot be read is named, and nothing is written; deleted, it is made
// again.
func TestBrokenRecord(t *testing.T) {
	a, c := newAPI(t), clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	k := a.keeper(c)
	a.settle(k)
	secret := a.secret()
	if err := unstructured.SetNestedField(secret.Object, base64.StdEncoding.EncodeToString([]byte("[{}]")), "data", recordKey); err != nil {
		t.Fatal(err)
	}
	client := a.Resource(secrets).Namespace(ownNamespace)
	if _, err := client.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	before := a.version
	if _, err := a.see(k).reconcile(t.Context()); err == nil || !strings.Contains(err.Error(), "secret proxima-system/proxima-extension") ||
		!strings.Contains(err.Error(), "delete it") {
		t.Errorf("told as %v", err)
	}
	if a.version != before {
		t.Error("something was written")
	}
	if err := client.Delete(t.Context(), SecretName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a.settle(k)
	a.wantServed(c.Now())
}

// TestKeeperRuns: by its watches and its clock alone, and over failures of the API.
func TestKeeperRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		failures := 3
		a.cut = func(string) (before, after bool) { failures--; return failures >= 0, false }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- a.keeper(nil).Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		a.wantServed(time.Now())
		time.Sleep(Life*2/3 + time.Hour)
		synctest.Wait()
		if n := len(a.record()); n != 2 {
			t.Errorf("%d authorities after two thirds of the life of one", n)
		}
		a.wantServed(time.Now())
		time.Sleep(Settle + Retire)
		synctest.Wait()
		if n := len(a.record()); n != 1 {
			t.Errorf("%d authorities once the first one is not needed", n)
		}
		a.wantServed(time.Now())
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
