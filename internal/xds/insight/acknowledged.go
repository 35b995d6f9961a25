package insight

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// maxBehind bounds how many proxies are named of one policy.
const maxBehind = 10

// Acknowledged is how many proxies of one instance a policy or a route concerns, and which of them
// have not taken it.
type Acknowledged struct {
	Policy policy.Source
	// Version of it that the instance has sent; see build.PolicyVersion.
	Version string
	// Selected proxies, and those of them that are behind.
	Selected, Behind int
	// Names of some that are behind, with the reason, in order.
	Names []Lag
}

// Lag is a proxy that has not taken a policy.
type Lag struct {
	Proxy  resource.Key
	Reason string
}

// Tracker counts per policy what the proxies of one instance have acknowledged. A change costs as
// much as the policies of the proxy that it is of. Safe for concurrent use.
type Tracker struct {
	mu       sync.Mutex
	proxies  map[resource.Key]map[policy.Source]string
	policies map[policy.Source]*tracked
	changed  map[policy.Source]struct{}
}

// tracked is one policy.
type tracked struct {
	selected int
	behind   map[resource.Key]string
}

// NewTracker returns one that knows of no proxy.
func NewTracker() *Tracker {
	return &Tracker{
		proxies: map[resource.Key]map[policy.Source]string{}, policies: map[policy.Source]*tracked{}, changed: map[policy.Source]struct{}{},
	}
}

// Set what a proxy makes of the policies that concern it: why it has not taken each; empty: it has. The
// map is the tracker's from then on. nil: the proxy has gone.
func (t *Tracker) Set(key resource.Key, next map[policy.Source]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.proxies[key]
	for source, reason := range was {
		if again, still := next[source]; still && again == reason {
			continue
		}
		p := t.policies[source]
		p.selected--
		delete(p.behind, key)
		t.changed[source] = struct{}{}
		if p.selected == 0 {
			delete(t.policies, source)
		}
	}
	for source, reason := range next {
		if before, had := was[source]; had && before == reason {
			continue
		}
		p := t.policies[source]
		if p == nil {
			p = &tracked{behind: map[resource.Key]string{}}
			t.policies[source] = p
		}
		p.selected++
		if reason != "" {
			p.behind[key] = reason
		}
		t.changed[source] = struct{}{}
	}
	if next == nil {
		delete(t.proxies, key)
		return
	}
	t.proxies[key] = next
}

// Touch notes that there is another version of a policy.
func (t *Tracker) Touch(source policy.Source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.policies[source] != nil {
		t.changed[source] = struct{}{}
	}
}

// Take what has changed since the last call, or with whole everything, in order. Version is not set.
func (t *Tracker) Take(whole bool) []Acknowledged {
	t.mu.Lock()
	defer t.mu.Unlock()
	if whole {
		for source := range t.policies {
			t.changed[source] = struct{}{}
		}
	}
	var out []Acknowledged
	for source := range t.changed {
		a := Acknowledged{Policy: source}
		if p := t.policies[source]; p != nil {
			a.Selected, a.Behind = p.selected, len(p.behind)
			for key, reason := range p.behind {
				a.Names = append(a.Names, Lag{key, reason})
			}
			slices.SortFunc(a.Names, compareLags)
			a.Names = slices.Clone(a.Names[:min(len(a.Names), maxBehind)])
		}
		out = append(out, a)
	}
	clear(t.changed)
	slices.SortFunc(out, func(a, b Acknowledged) int { return compareSources(a.Policy, b.Policy) })
	return out
}

func compareLags(a, b Lag) int {
	return cmp.Or(strings.Compare(a.Proxy.Namespace, b.Proxy.Namespace), strings.Compare(a.Proxy.Name, b.Proxy.Name))
}

func compareSources(a, b policy.Source) int {
	return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Key.Namespace, b.Key.Namespace), strings.Compare(a.Key.Name, b.Key.Name))
}

// Report is what one instance tells the one that leads. Reports of one run are numbered from 1; a
// whole one begins anew.
type Report struct {
	Instance, Run string
	Sequence      uint64
	Whole         bool
	Policies      []Acknowledged
}

// ErrGap says that a report does not follow the one before: the sender is to send everything.
var ErrGap = errors.New("a report of acknowledgements is missing before this one")

// Board has what all instances report. Safe for concurrent use.
type Board struct {
	mu        sync.Mutex
	instances map[string]*reported
	changed   map[policy.Source]struct{}
	signal    chan struct{}
}

// reported is what one instance has said.
type reported struct {
	run      string
	sequence uint64
	policies map[policy.Source]Acknowledged
}

// NewBoard returns one without any report.
func NewBoard() *Board {
	return &Board{instances: map[string]*reported{}, changed: map[policy.Source]struct{}{}, signal: make(chan struct{}, 1)}
}

// Put a report. The error is ErrGap.
func (b *Board) Put(r Report) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := b.instances[r.Instance]
	switch {
	case r.Whole:
		if at != nil {
			b.mark(at)
		}
		at = &reported{run: r.Run, policies: map[policy.Source]Acknowledged{}}
		b.instances[r.Instance] = at
	case at == nil || at.run != r.Run || at.sequence+1 != r.Sequence:
		return ErrGap
	}
	at.sequence = r.Sequence
	for _, a := range r.Policies {
		if a.Selected == 0 {
			delete(at.policies, a.Policy)
		} else {
			at.policies[a.Policy] = a
		}
		b.changed[a.Policy] = struct{}{}
	}
	b.wake()
	return nil
}

func (b *Board) mark(at *reported) {
	for source := range at.policies {
		b.changed[source] = struct{}{}
	}
}

func (b *Board) wake() {
	if len(b.changed) == 0 {
		return
	}
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// Keep drops what instances have reported that do not run.
func (b *Board) Keep(runs func(instance string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range slices.Collect(maps.Keys(b.instances)) {
		if !runs(name) {
			b.mark(b.instances[name])
			delete(b.instances, name)
		}
	}
	b.wake()
}

// Changed has a token after a change of which Take tells.
func (b *Board) Changed() <-chan struct{} { return b.signal }

// Take the policies of which something has changed since the last call, in order.
func (b *Board) Take() []policy.Source {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := slices.SortedFunc(maps.Keys(b.changed), compareSources)
	clear(b.changed)
	return out
}

// Of a policy, over all instances. An instance that has another version than the one that is asked for has
// sent it to none of its proxies.
func (b *Board) Of(source policy.Source, version string) Acknowledged {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := Acknowledged{Policy: source, Version: version}
	for name, at := range b.instances {
		a, ok := at.policies[source]
		if !ok {
			continue
		}
		out.Selected += a.Selected
		if a.Version != version {
			out.Behind += a.Selected
			out.Names = append(out.Names, Lag{Reason: "instance " + name + " has not sent it yet"})
			continue
		}
		out.Behind += a.Behind
		out.Names = append(out.Names, a.Names...)
	}
	slices.SortFunc(out.Names, func(a, b Lag) int { return cmp.Or(compareLags(a, b), strings.Compare(a.Reason, b.Reason)) })
	out.Names = out.Names[:min(len(out.Names), maxBehind)]
	return out
}
