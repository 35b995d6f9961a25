package tracing

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Annotation of an object that a controller wrote in reaction to sampled changes, with Config.Annotate: the write spans.
const Annotation = "mesh.proxima.dev/trace"

// Object names an object.
type Object struct{ Kind, Namespace, Name string }

func (o Object) attributes() []Attribute {
	out := []Attribute{Text(KeyKind, o.Kind)}
	if o.Namespace != "" {
		out = append(out, Text(KeyNamespace, o.Namespace))
	}
	return append(out, Text(KeyName, o.Name))
}

// Versioned is an object as far as its traces depend on it.
type Versioned interface {
	GetResourceVersion() string
	GetAnnotations() map[string]string
}

// maxChanges are remembered of each sort; what is forgotten is not traced on.
const maxChanges = 1024

// changes are what is remembered of recent changes.
type changes struct {
	mu sync.Mutex
	// reactions are the last sampled writes of controllers, by object.
	reactions map[Object]*reaction
	// deletions are the revisions at which objects went, as objects that are gone do not have them.
	deletions map[Object]uint64
}

func newChanges() changes {
	return changes{reactions: map[Object]*reaction{}, deletions: map[Object]uint64{}}
}

// reaction is a write of a controller. While the call lasts, watchers may see its change already, and its revision is
// not known yet: then any change of the object counts as it.
type reaction struct {
	writes Parents
	// ended is 0 while the call lasts, then the revision that it made.
	ended uint64
}

// Deleted notes the revision at which an object went.
func (r *Recorder) Deleted(o Object, revision uint64) {
	if r == nil || revision == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.deletions) >= maxChanges {
		clear(r.deletions)
	}
	r.deletions[o] = revision
}

// Of returns the write spans of a change of an object, from was to is; nil stands for an object that does not exist.
// None: the change is not sampled.
func (r *Recorder) Of(o Object, was, is Versioned) Parents {
	if r == nil {
		return nil
	}
	var revision uint64
	if is != nil {
		revision, _ = strconv.ParseUint(is.GetResourceVersion(), 10, 64)
	}
	r.mu.Lock()
	if is == nil {
		revision = r.deletions[o]
	}
	made := r.reactions[o]
	if made == nil && was == nil && is != nil && len(o.Name) > generatedLength {
		made = r.reactions[Object{o.Kind, o.Namespace, o.Name[:len(o.Name)-generatedLength]}]
	}
	if made != nil && (made.ended == 0 || made.ended == revision) {
		r.mu.Unlock()
		return made.writes
	}
	r.mu.Unlock()
	if is != nil && r.config.Annotate {
		text := is.GetAnnotations()[Annotation]
		if text != "" && (was == nil || was.GetAnnotations()[Annotation] != text) {
			if p, err := ParseParents(text); err == nil {
				return p
			}
		}
	}
	if root, ok := r.Root(revision); ok {
		return Parents{root}
	}
	return nil
}

// Annotates reports whether objects that controllers write get the Annotation.
func (r *Recorder) Annotates() bool { return r != nil && r.config.Annotate }

type causeKey struct{}

// cause is what a context has of a write in reaction.
type cause struct {
	parents Parents
	// revision of the commit, for who made the call.
	revision atomic.Uint64
}

// WithCause returns a context whose writes continue the traces of parents. Without parents it is ctx itself.
func WithCause(ctx context.Context, parents Parents) context.Context {
	if len(parents) == 0 {
		return ctx
	}
	return context.WithValue(ctx, causeKey{}, &cause{parents: parents})
}

func causeOf(ctx context.Context) *cause {
	c, _ := ctx.Value(causeKey{}).(*cause)
	return c
}

// Commit is a change that was made.
type Commit struct {
	Object
	Verb     string
	Revision uint64
	// Begin of the request, or of the commit where none is known.
	Begin time.Time
}

// unfollowed are the kinds of which no trace begins: they change all the time, and nothing but a status follows.
func unfollowed(kind string) bool { return kind == "Lease" || kind == "Event" }

// Committed records the root span of a change, if it is sampled. Writes of a context WithCause are recorded by who
// makes them (Reaction).
func (r *Recorder) Committed(ctx context.Context, c Commit) {
	if r == nil {
		return
	}
	if of := causeOf(ctx); of != nil {
		of.revision.Store(c.Revision)
		return
	}
	if unfollowed(c.Kind) {
		return
	}
	root, ok := r.Root(c.Revision)
	if !ok {
		return
	}
	r.Record(&Span{
		Name: Write, ID: root, Begin: c.Begin, End: time.Now(),
		Attributes: append(c.attributes(), Text(KeyVerb, c.Verb), Number(KeyRevision, int64(c.Revision))), //nolint:gosec // revisions are of 63 bits
	})
}

// Names that the server generates are a base, cut to maxBase, and generatedLength random characters
// (k8s.io/apiserver/pkg/storage/names).
const generatedLength, maxBase = 5, 58

// Reaction is a write of a controller that lasts. Its spans are below those of the context's cause.
type Reaction struct {
	recorder *Recorder
	of       *cause
	// Spans of the write, one in each trace.
	Spans  Parents
	object Object
	// key under which it is remembered: of the object or, until the server has named it, of a base of names.
	key    Object
	made   *reaction
	before *reaction
	verb   string
	began  time.Time
}

// React begins a write of a context WithCause, and returns the context to write with; nil: the context has no cause,
// or tracing is off. Where the server generates the name, o has none, and base is what it begins with. Who begins a
// reaction ends it.
func (r *Recorder) React(ctx context.Context, verb string, o Object, base string) (context.Context, *Reaction) {
	of := causeOf(ctx)
	if r == nil || of == nil {
		return ctx, nil
	}
	own := &cause{parents: of.parents} // the revision is of this write alone
	w := &Reaction{recorder: r, of: own, Spans: of.parents.Children(), object: o, key: o, verb: verb, began: time.Now()}
	if o.Name == "" {
		w.key.Name = base[:min(len(base), maxBase)]
	}
	w.made = &reaction{writes: w.Spans}
	r.mu.Lock()
	defer r.mu.Unlock()
	w.before = r.reactions[w.key]
	if len(r.reactions) >= maxChanges {
		clear(r.reactions)
	}
	r.reactions[w.key] = w.made
	return context.WithValue(ctx, causeKey{}, own), w
}

// End the write: the name of the object, if it was made, and why it failed. It records the spans, unless the write has changed
// nothing.
func (w *Reaction) End(name string, err error) {
	revision := w.of.revision.Load()
	if name != "" {
		w.object.Name = name
	}
	w.remember(revision)
	if revision == 0 && err == nil {
		return
	}
	s := Span{
		Name: Write, Begin: w.began, End: time.Now(), Err: err,
		Attributes: append(w.object.attributes(), Text(KeyVerb, w.verb)),
	}
	if revision != 0 {
		s.Attributes = append(s.Attributes, Number(KeyRevision, int64(revision))) //nolint:gosec // revisions are of 63 bits
	}
	w.recorder.RecordEach(w.Spans, w.of.parents, s)
}

// Made notes the revision of the write, where Recorder.Committed is not told.
func (w *Reaction) Made(revision uint64) { w.of.revision.Store(revision) }

func (w *Reaction) remember(revision uint64) {
	r := w.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case revision != 0:
		w.made.ended = revision
		r.reactions[w.object] = w.made
	case r.reactions[w.key] == w.made && w.before != nil:
		r.reactions[w.key] = w.before
	case r.reactions[w.key] == w.made:
		delete(r.reactions, w.key)
	}
}
