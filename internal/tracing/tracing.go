// Package tracing follows sampled changes of the store from their write to the kernels of nodes: one change is one
// trace, of the spans write, controller, view, agent and kernel.
//
// It owns the identities of traces and spans, the decision which changes are sampled, and what is remembered of the
// writes that controllers make in reaction. Enter at New; a nil *Recorder is tracing that is off: its methods do
// nothing and allocate nothing. Package otlp sends spans on. This package does no I/O and starts no goroutine.
// Why it is made like this: docs/adr/0016-traces-of-changes.md.
package tracing

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// Names of spans.
const (
	// Write is a commit of the store: the root of a trace, or a write of a controller in reaction.
	Write = "write"
	// Controller is a controller that brings an object up to date after the change.
	Controller = "controller"
	// View is the change of the view of one zone.
	View = "view"
	// Agent is what an agent does with the change, up to its model.
	Agent = "agent"
	// Kernel is a call of the agent's mode, which programs the data path.
	Kernel = "kernel"
)

// Parent is a place in a trace: a span, of which others are children. It is the parent ID and trace ID of W3C Trace
// Context.
type Parent struct {
	Trace [16]byte
	Span  [8]byte
}

// Parents are places in different traces. A step that serves several sampled changes at once is a span in each.
type Parents []Parent

// maxParents bounds the traces that one step is in; further ones end before it.
const maxParents = 16

// Span is one step of a change. Immutable once recorded.
type Span struct {
	Name string
	// ID of the span itself, Of the parent's in the same trace; zero: it is the root.
	ID Parent
	Of [8]byte
	// Begin and End by the clock of this machine.
	Begin, End time.Time
	Attributes []Attribute
	// Err is why the step failed; nil: it did not.
	Err error
}

// Attribute of a span: Number if Text is empty.
type Attribute struct {
	Key, Text string
	Number    int64
}

// Keys of attributes.
const (
	KeyRevision   = "proxima.revision"
	KeyVerb       = "proxima.verb"
	KeyKind       = "proxima.kind"
	KeyNamespace  = "proxima.namespace"
	KeyName       = "proxima.name"
	KeyController = "proxima.controller"
	KeyZone       = "proxima.zone"
	KeyNode       = "proxima.node"
	KeyMode       = "proxima.mode"
	KeyType       = "proxima.type"
	KeyPorts      = "proxima.ports"
	KeyResources  = "proxima.resources"
)

// Text is an attribute.
func Text(key, text string) Attribute { return Attribute{Key: key, Text: text} }

// Number is an attribute.
func Number(key string, n int64) Attribute { return Attribute{Key: key, Number: n} }

// Config of a Recorder.
type Config struct {
	// Epoch of the store whose revisions are traced; empty at an agent, which begins no traces.
	Epoch string
	// Ratio of the changes that are sampled, from 0 to 1. All processes of a control plane have the same one, as
	// each decides by itself.
	Ratio float64
	// Sink takes spans. It must not block, and is called concurrently.
	Sink func(*Span)
	// Rootless: commits are made by another API, which records no spans. Then the first spans of a change have no parent.
	Rootless bool
	// Annotate the objects that controllers write in reaction to sampled changes, so that other instances of the
	// control plane continue their traces. A single instance remembers them.
	Annotate bool
}

// Recorder makes spans. Safe for concurrent use. nil: tracing is off.
type Recorder struct {
	config Config
	limit  uint64
	changes
}

// New makes a recorder.
func New(c Config) *Recorder {
	return &Recorder{config: c, limit: limitOf(c.Ratio), changes: newChanges()}
}

// limitOf is the bound below which 63 bits of a trace ID are sampled, as in OpenTelemetry's TraceIDRatioBased.
func limitOf(ratio float64) uint64 {
	if ratio >= 1 {
		return 1 << 63
	}
	return uint64(max(ratio, 0) * (1 << 63))
}

// On reports whether tracing is on.
func (r *Recorder) On() bool { return r != nil }

// Root is the write span of a revision, which is the root of its trace; ok is false if the change is not sampled.
// It is the same in every process that knows epoch and revision. With Config.Rootless its Span is zero.
func (r *Recorder) Root(revision uint64) (p Parent, ok bool) {
	if r == nil || revision == 0 {
		return p, false
	}
	input := make([]byte, 0, 96)
	input = append(input, "proxima trace\x00"...)
	input = append(input, r.config.Epoch...)
	input = binary.BigEndian.AppendUint64(input, revision)
	sum := sha256.Sum256(input)
	copy(p.Trace[:], sum[:16])
	if !r.config.Rootless {
		copy(p.Span[:], sum[16:24])
	}
	return p, binary.BigEndian.Uint64(p.Trace[8:])>>1 < r.limit
}

// Child is a new span below a parent.
func (p Parent) Child() Parent {
	c := Parent{Trace: p.Trace}
	for c.Span == [8]byte{} { // all zeros is no ID
		binary.BigEndian.PutUint64(c.Span[:], rand.Uint64())
	}
	return c
}

// Children are new spans, one below each parent.
func (p Parents) Children() Parents {
	out := make(Parents, 0, len(p))
	for _, one := range p {
		out = append(out, one.Child())
	}
	return out
}

// Add parents of traces that are not among p yet, up to a bound.
func (p Parents) Add(others Parents) Parents {
	for _, other := range others {
		if len(p) < maxParents && !p.has(other.Trace) {
			p = append(p, other)
		}
	}
	return p
}

func (p Parents) has(trace [16]byte) bool {
	for _, one := range p {
		if one.Trace == trace {
			return true
		}
	}
	return false
}

// Record a span. It never blocks.
func (r *Recorder) Record(s *Span) {
	if r != nil {
		r.config.Sink(s)
	}
}

// RecordEach records a span below each parent, under the IDs of spans, which are Children of the parents. They
// differ in their IDs alone.
func (r *Recorder) RecordEach(spans, parents Parents, s Span) {
	if r == nil {
		return
	}
	for i, id := range spans {
		one := s
		one.ID, one.Of = id, parents[i].Span
		r.Record(&one)
	}
}

// String is the parents as values of W3C traceparent, separated by commas.
func (p Parents) String() string {
	b := make([]byte, 0, len(p)*(parentLength+1))
	for i, one := range p {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, "00-"...)
		b = hex.AppendEncode(b, one.Trace[:])
		b = append(b, '-')
		b = hex.AppendEncode(b, one.Span[:])
		b = append(b, "-01"...)
	}
	return string(b)
}

// parentLength is that of "00-", 32 digits, "-", 16 digits, "-01".
const parentLength = 55

// ParseParents reads what String wrote. More than a bounded number are an error.
func ParseParents(text string) (Parents, error) {
	if len(text) > maxParents*(parentLength+1) {
		return nil, fmt.Errorf("parse trace context: %d bytes, more than %d contexts have", len(text), maxParents)
	}
	var out Parents
	for one := range strings.SplitSeq(text, ",") {
		if len(one) != parentLength || one[:3] != "00-" || one[35] != '-' || one[52:] != "-01" {
			return nil, fmt.Errorf("parse trace context %.60q: it is not of the form 00-TRACE-SPAN-01", one)
		}
		var p Parent
		if _, err := hex.Decode(p.Trace[:], []byte(one[3:35])); err != nil {
			return nil, fmt.Errorf("parse trace context %.60q: %w", one, err)
		}
		if _, err := hex.Decode(p.Span[:], []byte(one[36:52])); err != nil {
			return nil, fmt.Errorf("parse trace context %.60q: %w", one, err)
		}
		if p.Trace == [16]byte{} || p.Span == [8]byte{} {
			return nil, fmt.Errorf("parse trace context %.60q: an ID of zeros", one)
		}
		out = append(out, p)
	}
	return out, nil
}

// CheckRatio returns why a ratio is none; nil: it is one.
func CheckRatio(ratio float64) error {
	if math.IsNaN(ratio) || ratio < 0 || ratio > 1 {
		return fmt.Errorf("%v: from 0 (none) to 1 (all changes)", ratio)
	}
	return nil
}
