package observed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const meshType = "mesh.proxima.dev/Mesh"

func meshKinds() map[string]*resource.Descriptor {
	return map[string]*resource.Descriptor{meshType: kind.Mesh, "mesh.proxima.dev/ExternalService": kind.ExternalService}
}

func condition(typ, reason string) metav1.Condition {
	return metav1.Condition{
		Type: typ, Status: metav1.ConditionTrue, Reason: reason, Message: "because",
		LastTransitionTime: metav1.Unix(1_700_000_000, 0), ObservedGeneration: 7,
	}
}

func encoded(t testing.TB, conditions ...metav1.Condition) []byte {
	t.Helper()
	data, err := encode(conditions)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// shown is what global shows of a mesh: ZONE:TYPE=REASON.
func shown(t testing.TB, c resource.Client, name string) string {
	t.Helper()
	obj, err := c.Get(t.Context(), kind.Mesh, resource.Key{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, z := range obj.(*v1alpha1.Mesh).Status.Zones {
		for _, c := range z.Conditions {
			out = append(out, fmt.Sprintf("%s:%s=%s@%d", z.Zone, c.Type, c.Reason, c.ObservedGeneration))
		}
	}
	return strings.Join(out, " ")
}

func TestRecorder(t *testing.T) {
	client := resourcetest.New(kind.Mesh, kind.ExternalService)
	create := func(name string, labels map[string]string) {
		_, err := client.Create(t.Context(), kind.Mesh, &v1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
		if err != nil {
			t.Fatal(err)
		}
	}
	create("shop", nil)
	create("theirs", map[string]string{federation.LabelOrigin: federation.OriginZone, federation.LabelZone: "east"})
	r := NewRecorder(client, meshKinds())
	record := func(zone, name string, data []byte) error {
		return r.Record(t.Context(), zone, []Status{{Type: meshType, Policy: resource.Key{Name: name}, Conditions: data}})
	}
	ready, enforced := condition("Ready", "Yes"), condition("Enforced", "Yes")
	for _, step := range []struct {
		zone string
		data []byte
		want string
	}{
		{"west", encoded(t, ready), "west:Ready=Yes@0"},
		{"east", encoded(t, ready, enforced), "east:Enforced=Yes@0 east:Ready=Yes@0 west:Ready=Yes@0"},
		{"west", encoded(t, enforced), "east:Enforced=Yes@0 east:Ready=Yes@0 west:Enforced=Yes@0"},
		{"east", encoded(t), "west:Enforced=Yes@0"},
	} {
		if err := record(step.zone, "shop", step.data); err != nil {
			t.Fatal(err)
		}
		if got := shown(t, client, "shop"); got != step.want {
			t.Errorf("after a report of %s: %q, want %q", step.zone, got, step.want)
		}
	}
	before, _ := client.Get(t.Context(), kind.Mesh, resource.Key{Name: "shop"})
	if err := record("west", "shop", encoded(t, enforced)); err != nil {
		t.Fatal(err)
	}
	if after, _ := client.Get(t.Context(), kind.Mesh, resource.Key{Name: "shop"}); after.GetResourceVersion() != before.GetResourceVersion() {
		t.Error("a report of nothing new is a write")
	}
	if err := record("west", "theirs", encoded(t, ready)); err != nil || shown(t, client, "theirs") != "" {
		t.Errorf("the copy of a zone's object: %v, %q", err, shown(t, client, "theirs"))
	}
	if err := errors.Join(record("west", "gone", encoded(t, ready)), r.Record(t.Context(), "west", []Status{{Type: "x/Y"}})); err != nil {
		t.Errorf("policies that are not there: %v", err)
	}
	many := make([]metav1.Condition, maxConditions+1)
	for i := range many {
		many[i] = condition(fmt.Sprintf("C%d", i), "R")
	}
	var invalid *InvalidError
	for name, data := range map[string][]byte{
		"no JSON": []byte("x"), "too many": encoded(t, many...), "too large": []byte(strings.Repeat(" ", maxEncoded+1)),
		"twice": encoded(t, ready, ready), "no type": encoded(t, condition("", "R")),
	} {
		err := r.Record(t.Context(), "west", []Status{
			{Type: meshType, Policy: resource.Key{Name: "shop"}, Conditions: data},
			{Type: meshType, Policy: resource.Key{Name: "shop"}, Conditions: encoded(t, condition("After", "Yes"))},
		})
		if !errors.As(err, &invalid) || shown(t, client, "shop") != "west:After=Yes@0" {
			t.Errorf("%s: %v, then %q", name, err, shown(t, client, "shop"))
		}
	}
	if err := r.Record(t.Context(), "west", []Status{{Type: meshType, Policy: resource.Key{Namespace: "n", Name: "shop"}}}); !errors.As(err, &invalid) {
		t.Errorf("a namespace: %v", err)
	}
	if err := r.Forget(t.Context(), "west"); err != nil || shown(t, client, "shop") != "" {
		t.Errorf("forget: %v, %q", err, shown(t, client, "shop"))
	}
}

// global takes reports.
type global struct {
	mu   sync.Mutex
	has  map[resource.Key]string
	sent int
	err  error
}

func (g *global) take(_ context.Context, all []Status) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	for _, s := range all {
		conditions, err := decode(s.Conditions)
		if err != nil {
			return err
		}
		var names []string
		for _, c := range conditions {
			names = append(names, c.Type+"="+c.Reason)
		}
		g.has[s.Policy] = strings.Join(names, " ")
		g.sent++
	}
	return nil
}

func TestReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.Mesh, kind.ExternalService)
		g := &global{has: map[resource.Key]string{}}
		r := NewReporter(ReporterConfig{Client: client, Kinds: meshKinds(), Send: g.take})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		expect := func(what string, sent int, want map[resource.Key]string) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			g.mu.Lock()
			defer g.mu.Unlock()
			if !maps.Equal(g.has, want) || g.sent != sent {
				t.Errorf("%s: global has %v after %d, want %v after %d", what, g.has, g.sent, want, sent)
			}
		}
		write := func(name, version string, labels map[string]string, conditions ...metav1.Condition) {
			t.Helper()
			m := &v1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: labels, Annotations: map[string]string{federation.AnnotationSyncVersion: version},
			}}
			obj, err := client.Get(t.Context(), kind.Mesh, resource.Key{Name: name})
			if err == nil {
				m.ResourceVersion, m.UID = obj.GetResourceVersion(), obj.GetUID()
				obj, err = client.Update(t.Context(), kind.Mesh, m)
			} else {
				obj, err = client.Create(t.Context(), kind.Mesh, m)
			}
			if err != nil {
				t.Fatal(err)
			}
			obj.(*v1alpha1.Mesh).Status.Conditions = conditions
			if _, err := client.UpdateStatus(t.Context(), kind.Mesh, obj); err != nil {
				t.Fatal(err)
			}
		}
		copied := map[string]string{federation.LabelOrigin: federation.OriginGlobal}
		shop, own := resource.Key{Name: "shop"}, resource.Key{Name: "own"}
		write("shop", "1", copied, condition("Ready", "No"))
		write("own", "", map[string]string{federation.LabelOrigin: federation.OriginZone}, condition("Ready", "No"))
		expect("a copy, and an own policy", 1, map[resource.Key]string{shop: "Ready=No"})
		write("shop", "1", copied, condition("Ready", "Yes"))
		expect("a change", 2, map[resource.Key]string{shop: "Ready=Yes"})
		write("shop", "2", copied, condition("Ready", "Yes"))
		expect("another version of the policy", 3, map[resource.Key]string{shop: "Ready=Yes"})
		g.mu.Lock()
		g.has, g.err = map[resource.Key]string{}, errors.New("away")
		g.mu.Unlock()
		r.Again()
		expect("global is away", 3, map[resource.Key]string{})
		g.mu.Lock()
		g.err = nil
		g.mu.Unlock()
		expect("global is back", 4, map[resource.Key]string{shop: "Ready=Yes"})
		write("own", "1", copied, condition("Ready", "Yes"))
		expect("a copy takes a name", 5, map[resource.Key]string{shop: "Ready=Yes", own: "Ready=Yes"})
		if err := client.Delete(t.Context(), kind.Mesh, shop, resource.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		r.Again()
		expect("a copy that is gone", 6, map[resource.Key]string{shop: "Ready=Yes", own: "Ready=Yes"})
	})
}

// FuzzDecode: what a zone sends is taken within the limits, or refused.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("[]"))
	f.Add(encoded(f, condition("Ready", "Yes")))
	f.Add([]byte(`[{"type":"a"},{"type":"a"}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := decode(data)
		if err != nil {
			return
		}
		var all []v1alpha1.PolicyZoneStatus
		set(&all, "east", out)
		if len(out) > maxConditions || len(out) > 0 && set(&all, "east", out) {
			t.Fatalf("%d conditions, or a change without one", len(out))
		}
	})
}
