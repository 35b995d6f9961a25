package tracing_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/tracing"
)

// recorder of all changes, and what it recorded.
func recorder(c tracing.Config) (*tracing.Recorder, *[]*tracing.Span) {
	spans := &[]*tracing.Span{}
	if c.Ratio == 0 {
		c.Ratio = 1
	}
	c.Sink = func(s *tracing.Span) { *spans = append(*spans, s) }
	return tracing.New(c), spans
}

type object struct {
	version     string
	annotations map[string]string
}

func (o object) GetResourceVersion() string        { return o.version }
func (o object) GetAnnotations() map[string]string { return o.annotations }
func of(kind, name string) tracing.Object {
	return tracing.Object{Kind: kind, Namespace: "shop", Name: name}
}
func sampled(r *tracing.Recorder, revision uint64) bool { _, ok := r.Root(revision); return ok }

func TestProcessesDecideAlike(t *testing.T) {
	a, _ := recorder(tracing.Config{Epoch: "e", Ratio: 0.1})
	b, _ := recorder(tracing.Config{Epoch: "e", Ratio: 0.1})
	other, _ := recorder(tracing.Config{Epoch: "f", Ratio: 0.1})
	const revisions = 20_000
	n := 0
	for revision := uint64(1); revision <= revisions; revision++ {
		x, ok := a.Root(revision)
		y, same := b.Root(revision)
		if x != y || ok != same {
			t.Fatalf("revision %d: %v %v and %v %v", revision, x, ok, y, same)
		}
		if z, _ := other.Root(revision); z.Trace == x.Trace {
			t.Fatalf("revision %d: the same trace in another epoch", revision)
		}
		if ok {
			n++
		}
	}
	// Binomial, σ = √(20000 · 0.1 · 0.9) = 42: eight of them.
	if math.Abs(float64(n)-0.1*revisions) > 340 {
		t.Errorf("%d of %d sampled, want a tenth", n, revisions)
	}
	all, _ := recorder(tracing.Config{Ratio: 1})
	none := tracing.New(tracing.Config{})
	for revision := uint64(1); revision < 1000; revision++ {
		if !sampled(all, revision) || sampled(none, revision) {
			t.Fatalf("revision %d: ratio 1 %v, ratio 0 %v", revision, sampled(all, revision), sampled(none, revision))
		}
	}
}

func TestContextsAreRead(t *testing.T) {
	r, _ := recorder(tracing.Config{})
	one, _ := r.Root(1)
	two, _ := r.Root(2)
	want := tracing.Parents{one, two.Child()}
	got, err := tracing.ParseParents(want.String())
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v, %v: want %v", got, err, want)
	}
	for _, text := range []string{"", "00", want.String()[1:], want.String() + ",", "00-00000000000000000000000000000000-0000000000000001-01", "00-0000000000000000000000000000000g-0000000000000001-01"} {
		if got, err := tracing.ParseParents(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

func TestReactionsContinueTheirTrace(t *testing.T) {
	r, spans := recorder(tracing.Config{Epoch: "e"})
	r.Committed(t.Context(), tracing.Commit{Object: of("Dataplane", "web-1"), Verb: "create", Revision: 7, Begin: time.Now()})
	writes := r.Of(of("Dataplane", "web-1"), nil, object{version: "7"})
	if len(*spans) != 1 || len(writes) != 1 || (*spans)[0].ID != writes[0] {
		t.Fatalf("spans %v, the watcher has %v", *spans, writes)
	}
	controllers := writes.Children()
	ctx, reaction := r.React(tracing.WithCause(t.Context(), controllers), "create", of("EndpointSlice", ""), "web-")
	// A watcher may see it while the call lasts.
	if got := r.Of(of("EndpointSlice", "web-abcde"), nil, object{version: "9"}); !cmp.Equal(got, reaction.Spans) {
		t.Errorf("during the call it is of %v, want %v", got, reaction.Spans)
	}
	r.Committed(ctx, tracing.Commit{Object: of("EndpointSlice", "web-abcde"), Verb: "create", Revision: 9})
	reaction.End("web-abcde", nil)
	if got := r.Of(of("EndpointSlice", "web-abcde"), nil, object{version: "9"}); !cmp.Equal(got, reaction.Spans) {
		t.Errorf("after the call it is of %v, want %v", got, reaction.Spans)
	}
	last := (*spans)[len(*spans)-1]
	if len(*spans) != 2 || last.Of != controllers[0].Span || last.ID != reaction.Spans[0] || last.ID.Trace != writes[0].Trace {
		t.Errorf("spans %v", *spans)
	}
	// A later change of it is another one.
	if got := r.Of(of("EndpointSlice", "web-abcde"), object{version: "9"}, object{version: "12"}); len(got) != 1 || got[0].Trace == writes[0].Trace {
		t.Errorf("revision 12 is of %v", got)
	}
}

func TestReactionsThatChangeNothing(t *testing.T) {
	r, spans := recorder(tracing.Config{})
	cause := tracing.WithCause(t.Context(), r.Of(of("Service", "web"), nil, object{version: "3"}))
	_, unchanged := r.React(cause, "update", of("EndpointSlice", "a"), "")
	unchanged.End("a", nil)
	_, failed := r.React(cause, "update", of("EndpointSlice", "b"), "")
	failed.End("", errors.New("conflict"))
	if len(*spans) != 1 || (*spans)[0].Err == nil {
		t.Errorf("spans %v, want that of the failure alone", *spans)
	}
	for _, name := range []string{"a", "b"} {
		if got := r.Of(of("EndpointSlice", name), object{version: "1"}, object{version: "4"}); len(got) != 1 || got[0] != root(r, 4) {
			t.Errorf("%s is of %v", name, got)
		}
	}
}

func root(r *tracing.Recorder, revision uint64) tracing.Parent {
	p, _ := r.Root(revision)
	return p
}

func TestDeletionsHaveTheirRevision(t *testing.T) {
	r, _ := recorder(tracing.Config{})
	if got := r.Of(of("Service", "web"), object{version: "3"}, nil); got != nil {
		t.Errorf("nobody knows the revision, and it is of %v", got)
	}
	r.Deleted(of("Service", "web"), 8)
	if got := r.Of(of("Service", "web"), object{version: "3"}, nil); len(got) != 1 || got[0] != root(r, 8) {
		t.Errorf("it is of %v, want revision 8", got)
	}
}

// TestOtherInstances: one that did not make a write in reaction knows its trace by the annotation.
func TestOtherInstances(t *testing.T) {
	r, _ := recorder(tracing.Config{Epoch: "e", Annotate: true})
	cause := tracing.Parents{root(r, 5).Child()}
	written := object{version: "9", annotations: map[string]string{tracing.Annotation: cause.String()}}
	if got := r.Of(of("EndpointSlice", "a"), nil, written); !cmp.Equal(got, cause) {
		t.Errorf("it is of %v, want %v", got, cause)
	}
	// Who changes the object later leaves the annotation.
	later := object{version: "11", annotations: written.annotations}
	if got := r.Of(of("EndpointSlice", "a"), written, later); len(got) != 1 || got[0] != root(r, 11) {
		t.Errorf("revision 11 is of %v", got)
	}
}

func TestLeasesAreNotFollowed(t *testing.T) {
	r, spans := recorder(tracing.Config{})
	for _, kind := range []string{"Lease", "Event"} {
		r.Committed(t.Context(), tracing.Commit{Object: of(kind, "x"), Revision: 1})
	}
	if len(*spans) != 0 {
		t.Errorf("spans %v", *spans)
	}
}

// TestOffIsFree: what a write passes costs nothing while tracing is off.
func TestOffIsFree(t *testing.T) {
	var r *tracing.Recorder
	ctx := context.Background()
	commit := tracing.Commit{Object: of("Service", "web"), Verb: "update", Revision: 7}
	var was, is tracing.Versioned = object{version: "6"}, object{version: "7"}
	if n := testing.AllocsPerRun(1000, func() {
		if r.On() || r.Annotates() {
			t.Fatal("on")
		}
		r.Committed(tracing.WithCause(ctx, nil), commit)
		r.Deleted(commit.Object, 7)
		if _, reaction := r.React(ctx, "update", commit.Object, ""); reaction != nil || r.Of(commit.Object, was, is) != nil {
			t.Fatal("followed")
		}
		r.Record(nil)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
