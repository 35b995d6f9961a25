package mirrortest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
)

// Entries that every protocol has a name for: a rule of Dubbo, another one, a mapping, and the metadata of a revision.
var (
	rule     = registry.ConfigKey{Namespace: "default", Group: "dubbo", DataID: "orders.configurators"}
	another  = registry.ConfigKey{Namespace: "default", Group: "dubbo", DataID: "stock.tag-router"}
	mapping  = registry.ConfigKey{Namespace: "default", Group: mirror.GroupMapping, DataID: "shop.Orders"}
	metadata = registry.ConfigKey{Namespace: "default", Group: "5a1f", DataID: "orders"}
)

const metadataJSON = `{"app":"orders","revision":"5a1f","services":{}}`

var admin = registry.User{Name: "admin", Admin: true}

// write an entry, as a client of the registry does; empty: remove it.
func (w *Town) write(t *testing.T, key registry.ConfigKey, content string) {
	t.Helper()
	var err error
	if content == "" {
		err = w.Configs.Delete(t.Context(), admin, key)
	} else {
		err = w.Configs.Put(t.Context(), admin, key, func(spec *meshv1alpha1.RegistryConfigSpec, _ bool) error {
			spec.Content = registry.MergeConfig(key, spec.Content, content)
			return nil
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// has is the content of an entry; empty: it has none.
func (w *Town) has(key registry.ConfigKey) string {
	if o := w.Configs.Get(key); o != nil {
		return o.Spec.Content
	}
	return ""
}

func (w *Town) awaitEntry(t *testing.T, key registry.ConfigKey, want string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%s has %q", key, w.has(key))
		}
	}()
	w.Eventually(fmt.Sprintf("%s is %q", key, want), func() bool { return w.has(key) == want })
}

// mirrorEntries makes a mirror of two registries with their configuration.
func mirrorEntries(old, here *Town, change func(*mirror.Config)) *mirror.Mirror {
	c := mirror.Config{
		Old: old.Client(false), Catalogue: &mirror.Catalogue{Client: here.Plane.Client, Namespaces: []string{"default"}}, Here: here.Client(true),
		OldEntries: old.Entries(false), HereEntries: here.Entries(true), OldName: "old", HereName: "here", Follow: true, Hold: time.Millisecond, Apart: here.Apart,
	}
	if change != nil {
		change(&c)
	}
	return mirror.New(c)
}

func testEntries(t *testing.T, newTown func(*testing.T) *Town) {
	old, here := newTown(t), newTown(t)
	old.write(t, rule, "rule: 1")
	here.write(t, another, "tags: 1")
	old.write(t, mapping, "orders,old-orders")
	here.write(t, mapping, "new-orders")
	old.write(t, metadata, metadataJSON)
	m := mirrorEntries(old, here, nil)
	stop := runMirror(t, m)
	here.awaitEntry(t, rule, "rule: 1")
	old.awaitEntry(t, another, "tags: 1")
	here.awaitEntry(t, metadata, metadataJSON)
	for _, w := range []*Town{old, here} {
		w.Eventually("the mapping has all", func() bool {
			names := w.has(mapping)
			return strings.Count(names, ",") == 2 && strings.Contains(names, "old-orders") && strings.Contains(names, "new-orders")
		})
	}
	// Changes and removals on either side.
	old.write(t, rule, "rule: 2")
	here.awaitEntry(t, rule, "rule: 2")
	here.write(t, rule, "rule: 3")
	old.awaitEntry(t, rule, "rule: 3")
	old.write(t, rule, "")
	here.awaitEntry(t, rule, "")
	here.write(t, another, "")
	old.awaitEntry(t, another, "")
	old.write(t, rule, "rule: 4")
	here.awaitEntry(t, rule, "rule: 4")
	here.Eventually("all is mirrored", func() bool { s := m.Status(); return s.EntriesWaiting == 0 && s.Entries >= 3 })
	if s := m.Status(); s.EntriesImported < 4 || s.EntriesExported < 2 || s.EntriesRemoved != 2 || s.EntryConflicts != 0 || s.EntriesSkipped != 0 {
		t.Errorf("status %+v", s)
	}
	stop()
	for _, w := range []*Town{old, here} {
		if w.has(rule) != "rule: 4" || w.has(metadata) != metadataJSON {
			t.Error("an entry goes with the mirror")
		}
	}
}

// Mirrors that disagree come to rest: with one content, and without a write.
func testEntriesNoLoop(t *testing.T, newTown func(*testing.T) *Town) {
	old, here := newTown(t), newTown(t)
	old.write(t, rule, "rule: old")
	here.write(t, rule, "rule: here")
	old.write(t, mapping, "a,b")
	here.write(t, mapping, "b,c")
	for _, pair := range [][2]*Town{{old, here}, {here, old}, {here, here}} {
		runMirror(t, mirrorEntries(pair[0], pair[1], nil))
	}
	last, still := "", 0
	here.Eventually("both are alike, and nothing is written any more", func() bool {
		var now strings.Builder
		for _, w := range []*Town{old, here} {
			for _, key := range []registry.ConfigKey{rule, mapping} {
				if o := w.Configs.Get(key); o != nil {
					now.WriteString(o.ResourceVersion + " ")
				}
			}
		}
		if still++; now.String() != last {
			last, still = now.String(), 0
		}
		return still > 200 && old.has(rule) == here.has(rule) // a second
	})
	for _, w := range []*Town{old, here} {
		if n := len(strings.Split(w.has(mapping), ",")); n != 3 {
			t.Errorf("the mapping is %s", w.has(mapping))
		}
	}
}

// A registry that was away, and has lost entries, gets them back.
func testEntriesLost(t *testing.T, newTown func(*testing.T) *Town) {
	old, here := newTown(t), newTown(t)
	old.write(t, rule, "rule: 1")
	away := &lossy{EntryClient: old.Entries(false)}
	m := mirrorEntries(old, here, func(c *mirror.Config) { c.OldEntries = away })
	runMirror(t, m)
	here.awaitEntry(t, rule, "rule: 1")
	here.Eventually("they are alike", func() bool { return m.Status().Entries == 1 })
	away.lost.Store(true)
	old.write(t, rule, "")
	old.awaitEntry(t, rule, "rule: 1")
	if here.has(rule) != "rule: 1" || m.Status().EntriesRemoved != 0 {
		t.Error("an entry is removed as its registry has lost it")
	}
}

// lossy tells of removals as a registry does that was away meanwhile: as what it has then.
type lossy struct {
	mirror.EntryClient
	lost atomic.Bool
}

func (l *lossy) RunEntries(ctx context.Context, to mirror.EntrySink) error {
	return l.EntryClient.RunEntries(ctx, &forgetting{EntrySink: to, of: l})
}

type forgetting struct {
	mirror.EntrySink
	of *lossy
}

func (f *forgetting) Removed(key registry.ConfigKey) {
	if f.of.lost.Load() {
		f.Listed(nil)
		return
	}
	f.EntrySink.Removed(key)
}

// What was removed, or changed, in one registry while no mirror ran is so in the other when one starts again.
func testEntriesRestart(t *testing.T, newTown func(*testing.T) *Town) {
	old, here := newTown(t), newTown(t)
	again := func(c *mirror.Config) {
		c.Bases = &mirror.SecretBases{Client: here.Plane.Client, Namespace: "default", Old: "old", Identity: "old"}
		c.Winner = mirror.HereWins
	}
	fresh := registry.ConfigKey{Namespace: "default", Group: "dubbo", DataID: "fresh.configurators"}
	changed := registry.ConfigKey{Namespace: "default", Group: "dubbo", DataID: "changed.configurators"}
	both := registry.ConfigKey{Namespace: "default", Group: "dubbo", DataID: "both.configurators"}
	stays := registry.ConfigKey{Namespace: "default", Group: "dubbo", DataID: "stays.configurators"}
	for _, key := range []registry.ConfigKey{rule, another, changed, both, stays} {
		old.write(t, key, "rule: 1")
	}
	m := mirrorEntries(old, here, again)
	stop := runMirror(t, m)
	here.Eventually("they are alike", func() bool { return m.Status().Entries == 5 })
	stop()
	old.write(t, rule, "")
	here.write(t, another, "")
	old.write(t, changed, "rule: 2")
	old.write(t, both, "")
	here.write(t, both, "rule: 2")
	old.write(t, fresh, "rule: new")
	for _, w := range []*Town{old, here} { // its clients see what was written
		w.awaitEntry(t, stays, "rule: 1")
	}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, steps, err := mirrorEntries(old, here, again).Plan(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var plan []string
	for _, s := range steps {
		plan = append(plan, fmt.Sprintf("%s %t %t %t %t", s.Key.DataID, s.Here, s.Old, s.RemoveHere, s.RemoveOld))
	}
	want := "both.configurators false true false false, changed.configurators true false false false, fresh.configurators true false false false, " +
		"orders.configurators false false true false, stock.tag-router false false false true"
	if got := strings.Join(plan, ", "); got != want {
		t.Errorf("the plan is %s, want %s", got, want)
	}

	m = mirrorEntries(old, here, again)
	stop = runMirror(t, m)
	here.awaitEntry(t, rule, "")
	old.awaitEntry(t, another, "")
	here.awaitEntry(t, changed, "rule: 2")
	old.awaitEntry(t, both, "rule: 2")
	here.awaitEntry(t, fresh, "rule: new")
	stop()
	if old.has(rule) != "" || here.has(another) != "" || old.has(stays) != "rule: 1" || here.has(stays) != "rule: 1" {
		t.Errorf("old %q, here %q, %q and %q stay", old.has(rule), here.has(another), old.has(stays), here.has(stays))
	}
	if s := m.Status(); s.EntriesRemoved != 2 || s.EntryConflicts != 0 {
		t.Errorf("status %+v", s)
	}
}

func testEntriesOneWay(t *testing.T, newTown func(*testing.T) *Town) {
	old, here := newTown(t), newTown(t)
	old.write(t, rule, "rule: old")
	here.write(t, rule, "rule: here")
	here.write(t, another, "tags: 1")
	runMirror(t, mirrorEntries(old, here, func(c *mirror.Config) { c.Follow, c.Winner = false, mirror.HereWins }))
	old.write(t, metadata, metadataJSON)
	here.awaitEntry(t, metadata, metadataJSON)
	if old.has(another) != "" || old.has(rule) != "rule: old" || here.has(rule) != "rule: here" {
		t.Errorf("old %q %q, here %q", old.has(another), old.has(rule), here.has(rule))
	}
}

func testEntriesPlan(t *testing.T, newTown func(*testing.T) *Town) {
	old, here := newTown(t), newTown(t)
	old.write(t, rule, "rule: old")
	here.write(t, rule, "rule: here")
	here.write(t, another, "tags: 1")
	old.write(t, mapping, "a")
	here.write(t, mapping, "b")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, steps, err := mirrorEntries(old, here, func(c *mirror.Config) { c.Winner = mirror.HereWins }).Plan(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range steps {
		got = append(got, fmt.Sprintf("%s %t %t %s", s.Key.DataID, s.Here, s.Old, s.Why))
	}
	want := "orders.configurators false true they differ, and this one's counts, stock.tag-router false true it is new, shop.Orders true true the applications of both"
	if strings.Join(got, ", ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if here.has(rule) != "rule: here" || old.has(rule) != "rule: old" || old.has(another) != "" {
		t.Error("a plan writes")
	}
}
