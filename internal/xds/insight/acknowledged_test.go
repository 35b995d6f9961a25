package insight

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

func sourceNamed(name string) policy.Source {
	return policy.Source{Kind: "WorkloadPolicy", Key: resource.Key{Namespace: "shop", Name: name}}
}

func proxyNamed(name string) resource.Key { return resource.Key{Namespace: "shop", Name: name} }

// TestTracker: counts follow proxies that acknowledge, refuse, are not concerned any more, and go.
func TestTracker(t *testing.T) {
	tr := NewTracker()
	limits, logs := sourceNamed("limits"), sourceNamed("logs")
	want := func(step string, whole bool, want ...Acknowledged) {
		t.Helper()
		if diff := cmp.Diff(want, tr.Take(whole)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
	}
	tr.Set(proxyNamed("a"), map[policy.Source]string{limits: "", logs: "slow"})
	tr.Set(proxyNamed("b"), map[policy.Source]string{limits: "it refuses"})
	want("two proxies", false,
		Acknowledged{Policy: limits, Selected: 2, Behind: 1, Names: []Lag{{proxyNamed("b"), "it refuses"}}},
		Acknowledged{Policy: logs, Selected: 1, Behind: 1, Names: []Lag{{proxyNamed("a"), "slow"}}})
	want("nothing new", false)
	tr.Set(proxyNamed("a"), map[policy.Source]string{limits: "", logs: ""})
	want("one acknowledges, and the other policy is not told again", false, Acknowledged{Policy: logs, Selected: 1})
	tr.Touch(logs)
	tr.Touch(sourceNamed("unknown"))
	want("another version", false, Acknowledged{Policy: logs, Selected: 1})
	tr.Set(proxyNamed("b"), nil)
	tr.Set(proxyNamed("a"), map[policy.Source]string{limits: ""})
	want("one goes, and one is not concerned", false, Acknowledged{Policy: limits, Selected: 1}, Acknowledged{Policy: logs})
	want("everything", true, Acknowledged{Policy: limits, Selected: 1})
	tr.Set(proxyNamed("a"), nil)
	if want("all gone", false, Acknowledged{Policy: limits}); len(tr.policies)+len(tr.proxies) > 0 {
		t.Errorf("kept: %v %v", tr.policies, tr.proxies)
	}
}

// TestBoard: the counts of instances are added up, those of versions that are not asked for are behind,
// and of an instance that goes, or of which a report is missing, nothing stale is counted.
func TestBoard(t *testing.T) {
	b := NewBoard()
	limits := sourceNamed("limits")
	one := func(version string, selected, behind int, names ...Lag) []Acknowledged {
		return []Acknowledged{{Policy: limits, Version: version, Selected: selected, Behind: behind, Names: names}}
	}
	put := func(want error, r Report) {
		t.Helper()
		if err := b.Put(r); !errors.Is(err, want) {
			t.Errorf("put %+v: %v, want %v", r, err, want)
		}
	}
	of := func(step, version string, want Acknowledged) {
		t.Helper()
		want.Policy, want.Version = limits, version
		if diff := cmp.Diff(want, b.Of(limits, version)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
	}
	put(ErrGap, Report{Instance: "x", Run: "1", Sequence: 1})
	put(nil, Report{Instance: "x", Run: "1", Sequence: 1, Whole: true, Policies: one("u/1", 3, 0)})
	put(nil, Report{Instance: "y", Run: "1", Sequence: 7, Whole: true, Policies: one("u/1", 2, 1, Lag{proxyNamed("b"), "it refuses"})})
	of("both", "u/1", Acknowledged{Selected: 5, Behind: 1, Names: []Lag{{proxyNamed("b"), "it refuses"}}})
	put(nil, Report{Instance: "x", Run: "1", Sequence: 2, Policies: one("u/2", 3, 0)})
	of("one has the new version", "u/2", Acknowledged{Selected: 5, Behind: 2, Names: []Lag{{Reason: "instance y has not sent it yet"}}})
	put(ErrGap, Report{Instance: "y", Run: "1", Sequence: 9, Policies: one("u/2", 2, 0)})
	put(ErrGap, Report{Instance: "y", Run: "2", Sequence: 8, Policies: one("u/2", 2, 0)})
	put(nil, Report{Instance: "y", Run: "2", Sequence: 1, Whole: true, Policies: one("u/2", 2, 0)})
	of("both have", "u/2", Acknowledged{Selected: 5})
	b.Take()
	b.Keep(func(name string) bool { return name == "x" })
	if diff := cmp.Diff([]policy.Source{limits}, b.Take()); diff != "" {
		t.Errorf("an instance has gone (-want +got):\n%s", diff)
	}
	of("one instance is gone", "u/2", Acknowledged{Selected: 3})
	put(nil, Report{Instance: "x", Run: "1", Sequence: 3, Policies: []Acknowledged{{Policy: limits}}})
	of("nobody is concerned", "u/2", Acknowledged{})
}
