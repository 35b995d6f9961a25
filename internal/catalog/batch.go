package catalog

import (
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// input is what a feed hands to the writer: one event, or a list (full).
type input struct {
	kind     Kind
	full     bool
	objects  []resource.Object
	deleted  bool
	revision uint64
}

// batch is the next snapshot in the making. Only tables that inputs touch are
// opened.
type batch struct {
	base   *Snapshot
	open   [Kinds]tableEdit
	listed map[Kind]struct{}
}

func newBatch(base *Snapshot) *batch {
	return &batch{base: base, listed: make(map[Kind]struct{})}
}

func (b *batch) add(in input) {
	if b.open[in.kind] == nil {
		b.open[in.kind] = tables[in.kind].edit(b.base)
	}
	b.open[in.kind].add(in)
	if in.full {
		b.listed[in.kind] = struct{}{}
	}
}

// commit returns the next snapshot and the keys that changed, per kind. The
// position rises only if there are any.
func (b *batch) commit() (*Snapshot, [Kinds]map[Key]struct{}) {
	next := *b.base
	var changed [Kinds]map[Key]struct{}
	different := false
	for kind, edit := range b.open {
		if edit == nil {
			continue
		}
		keys := edit.commitTo(&next)
		changed[kind] = keys
		different = different || len(keys) > 0
	}
	if different {
		next.Position.Sequence = max(b.base.Position.Sequence+1, next.Revision())
	}
	return &next, changed
}

// Revision is the highest resource version that any table has come to; 0 where resource versions are
// not numbers.
func (s *Snapshot) Revision() uint64 {
	var highest uint64
	for _, t := range tables {
		highest = max(highest, t.revision(s))
	}
	return highest
}

// tableOps is what the writer and subscriptions do with a table without knowing
// its type.
type tableOps interface {
	groupKind() schema.GroupKind
	clear(s *Snapshot)
	edit(s *Snapshot) tableEdit
	revision(s *Snapshot) uint64
	len(s *Snapshot) int
	diff(d *Delta, keys map[Key]struct{}, all bool)
	traced(d, rest *Delta, r *tracing.Recorder) []TracedDelta
	changes(d *Delta) int
}

type tableEdit interface {
	add(in input)
	commitTo(s *Snapshot) map[Key]struct{}
}

// tableKind ties the type of a kind to its places in Snapshot and Delta.
type tableKind[T Row] struct {
	gk      schema.GroupKind
	at      func(*Snapshot) *Table[T]
	delta   func(*Delta) *[]Change[T]
	indexes []index[T]
}

func (t *tableKind[T]) groupKind() schema.GroupKind { return t.gk }
func (t *tableKind[T]) clear(s *Snapshot)           { *t.at(s) = newTable[T](len(t.indexes)) }
func (t *tableKind[T]) revision(s *Snapshot) uint64 { return t.at(s).revision }
func (t *tableKind[T]) len(s *Snapshot) int         { return t.at(s).Len() }
func (t *tableKind[T]) edit(s *Snapshot) tableEdit {
	return &typedEdit[T]{tableTxn: t.at(s).edit(t.indexes), at: t.at}
}

type typedEdit[T Row] struct {
	*tableTxn[T]
	at func(*Snapshot) *Table[T]
}

func (e *typedEdit[T]) add(in input) {
	rows := make([]T, 0, len(in.objects))
	for _, obj := range in.objects {
		// A client that hands out another type than its descriptor says is a
		// programming error; such an object is left out rather than guessed at.
		if row, ok := obj.(T); ok {
			rows = append(rows, row)
		}
	}
	switch {
	case in.full:
		e.replace(rows)
		e.tableTxn.revision = in.revision
		return
	case in.deleted:
		for _, row := range rows {
			e.remove(resource.KeyOf(row))
		}
	default:
		for _, row := range rows {
			e.put(row)
		}
	}
	e.tableTxn.revision = max(e.tableTxn.revision, in.revision)
}

func (e *typedEdit[T]) commitTo(s *Snapshot) map[Key]struct{} {
	*e.at(s) = e.tableTxn.commit()
	return e.changed
}

// parseRevision reads a resource version; 0 if it is not a number.
func parseRevision(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
