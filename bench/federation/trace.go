package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// trace notes when each control plane has stored what a change leads to, by watches of
// the kinds on its path. An event comes here some 0.3 ms after its commit. A nil trace
// notes nothing.
type trace struct {
	mu     sync.Mutex
	begin  time.Time
	round  []step
	rounds [][]step
	stops  []func()
	ended  sync.WaitGroup
}

// step is one commit, and what it changed.
type step struct {
	// name of the step: the control plane, the kind, the object's part, and the verb.
	name string
	at   time.Duration
}

// follow begins the watches.
func follow(ctx context.Context, w *world) (*trace, error) {
	t := &trace{}
	for _, f := range []struct {
		site   string
		client resource.Client
		kinds  []*resource.Descriptor
	}{
		{near, w.here, []*resource.Descriptor{kind.Dataplane, kind.Service, kind.EndpointSlice, kind.ServiceExport, kind.ServiceImport}},
		{"global", w.global, []*resource.Descriptor{kind.ServiceExport, kind.Mesh, kind.ConfigMap}},
		{far, w.away, []*resource.Descriptor{
			kind.ServiceExport, kind.ServiceImport, kind.Service, kind.EndpointSlice, kind.VirtualIP, kind.Mesh, kind.ConfigMap,
		}},
	} {
		for _, d := range f.kinds {
			events, err := f.client.Watch(ctx, d, resource.WatchOptions{})
			if err != nil {
				t.close()
				return nil, fmt.Errorf("watch %s of %s: %w", d.Resource, f.site, err)
			}
			t.stops = append(t.stops, events.Stop)
			t.ended.Go(func() { t.note(f.site+" "+d.Singular, events) })
		}
	}
	return t, nil
}

func (t *trace) note(what string, events watch.Interface) {
	for e := range events.ResultChan() {
		object, ok := e.Object.(resource.Object)
		if !ok || e.Type == watch.Bookmark || e.Type == watch.Error {
			continue
		}
		derived := ""
		if object.GetLabels()[mcs.LabelServiceName] != "" {
			derived = " of an import"
		}
		t.mu.Lock()
		if !t.begin.IsZero() {
			t.round = append(t.round, step{fmt.Sprintf("%s%s %s", what, derived, e.Type), time.Since(t.begin)})
		}
		t.mu.Unlock()
	}
}

// start of a round. What came before does not count.
func (t *trace) start() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin, t.round = time.Now(), nil
}

// end of a round.
func (t *trace) end(took time.Duration) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := map[string]int{}
	for i, s := range t.round {
		if seen[s.name]++; seen[s.name] > 1 {
			t.round[i].name = fmt.Sprintf("%s, %d", s.name, seen[s.name])
		}
	}
	t.rounds = append(t.rounds, append(t.round, step{"in use", took}))
	t.begin = time.Time{}
}

// print writes, for each step, the median of its time since the change and in how many
// rounds it was there, and forgets the rounds.
func (t *trace) print(out io.Writer) error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	times := map[string][]time.Duration{}
	for _, round := range t.rounds {
		for _, s := range round {
			times[s.name] = append(times[s.name], s.at)
		}
	}
	names := make([]string, 0, len(times))
	for name := range times {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return int(1000 * (quantile(times[a], 0.5) - quantile(times[b], 0.5)))
	})
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, name := range names {
		all := times[name]
		fmt.Fprintf(table, "    %s\t%.1f\t%.1f\tin %d of %d\n", name, quantile(all, 0.5), quantile(all, 0.99), len(all), len(t.rounds))
	}
	t.rounds = nil
	return table.Flush()
}

func (t *trace) close() {
	if t == nil {
		return
	}
	for _, stop := range t.stops {
		stop()
	}
	t.ended.Wait()
}
