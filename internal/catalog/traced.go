package catalog

import "github.com/proxima-mesh/proxima/internal/tracing"

// TracedDelta is one sampled change of a delta, with the write spans that it is of.
type TracedDelta struct {
	Delta
	// Object that changed.
	Object tracing.Object
	Writes tracing.Parents
}

// Traced divides a delta: each sampled change of it is a delta of its own, and rest has the others. Where nothing is
// sampled, rest is the delta itself.
func (d *Delta) Traced(r *tracing.Recorder) (traced []TracedDelta, rest *Delta) {
	if !r.On() {
		return nil, d
	}
	others := *d
	for _, t := range tables {
		traced = append(traced, t.traced(d, &others, r)...)
	}
	if len(traced) == 0 {
		return nil, d
	}
	return traced, &others
}

// Len is how many objects have changed.
func (d *Delta) Len() int {
	n := 0
	for _, t := range tables {
		n += t.changes(d)
	}
	return n
}

func (t *tableKind[T]) changes(d *Delta) int { return len(*t.delta(d)) }

func (t *tableKind[T]) traced(d, rest *Delta, r *tracing.Recorder) (out []TracedDelta) {
	all := *t.delta(d)
	var kept []Change[T]
	for i, c := range all {
		o := tracing.Object{Kind: t.gk.Kind, Namespace: c.Key.Namespace, Name: c.Key.Name}
		writes := r.Of(o, versioned(c.Old), versioned(c.New))
		if len(writes) == 0 {
			if out != nil {
				kept = append(kept, c)
			}
			continue
		}
		if out == nil {
			kept = append(kept, all[:i]...)
		}
		one := TracedDelta{Delta: Delta{Before: d.Before, After: d.After}, Object: o, Writes: writes}
		*t.delta(&one.Delta) = all[i : i+1 : i+1]
		out = append(out, one)
	}
	if out != nil {
		*t.delta(rest) = kept
	}
	return out
}

// versioned is a row as Recorder.Of takes it: nil for none.
func versioned[T Row](row T) tracing.Versioned {
	var none T
	if row == none {
		return nil
	}
	return row
}
