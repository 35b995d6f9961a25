package redact

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Config of Redactions. All but Logger, Metrics and Now are required.
type Config struct {
	Feed    *feed.Feed
	Store   store.Store
	Objects Objects
	Records Records
	// Kind of a resource of the feed; nil: it has none of that name.
	Kind func(group, resource string) *resource.Descriptor
	// Memory is the path of a file that notes which segments were examined, and which roots there are.
	Memory string
	// Instance is the name of this one, if there may be others on the store; empty: there are none.
	Instance string
	Logger   *slog.Logger          // nil: discard
	Metrics  prometheus.Registerer // nil: none
	Now      func() time.Time      // nil: time.Now
}

// noted is what a restart must not forget.
type noted struct {
	// Examined tells which redactions have nothing to change in a file, by its SHA-256.
	Examined map[string][]string `json:"examined"`
	// Roots have marks, by their paths.
	Roots map[string]string `json:"roots"`
}

func newMemory() noted { return noted{Examined: map[string][]string{}, Roots: map[string]string{}} }

// Redactions of a control plane. Make them with New. Safe for concurrent use.
type Redactions struct {
	cfg Config
	log *slog.Logger

	turn   sync.Mutex // held by a pass, which alone uses what follows
	memory noted
	dirty  bool // the file has not all of the memory

	reporting sync.Mutex // guards reported
	reported  progress

	mu       sync.Mutex
	rows     map[string]*row     // by ID; what a row has never changes
	left     map[string][]string // what is outstanding, by ID; absent: nobody has looked
	replaced map[string]int
	unread   []string // why rows cannot be read
}

// New makes Redactions; Run carries them out.
func New(c Config) (*Redactions, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	r := &Redactions{
		cfg: c, log: c.Logger, memory: newMemory(), rows: map[string]*row{}, left: map[string][]string{}, replaced: map[string]int{},
	}
	data, err := os.ReadFile(c.Memory)
	if err == nil {
		err = json.Unmarshal(data, &r.memory)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.log.Warn("which segments of the change feed were examined for redactions cannot be read; all are examined again", "error", err)
		r.memory = newMemory()
	}
	if c.Metrics != nil {
		err := c.Metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "proxima_feed_redactions_outstanding", Help: "Redactions of the change feed that are not yet in all of its files that this instance can see.",
		}, func() float64 { return float64(r.outstanding()) }))
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Redact a field of an object in the past up to now, and wait until that is done at this instance, or is seen to have to wait. by is the
// user who wants it. Errors: *InvalidError, ErrPresent, those of the store; that of ctx, after which it goes on by itself.
func (r *Redactions) Redact(ctx context.Context, q Request, by string) (*Status, error) {
	one, path, err := r.check(&q)
	if err != nil {
		return nil, err
	}
	rec, ok, at, err := r.cfg.Store.Get(ctx, one.key, 0)
	if err != nil {
		return nil, err
	}
	if ok && !q.KeepCurrent {
		obj, err := r.cfg.Objects.Decode(ctx, one.key, rec.Value, rec.Modified)
		if err != nil {
			return nil, err
		}
		there, err := present(obj, path)
		if err != nil {
			return nil, err
		}
		if there {
			return nil, ErrPresent
		}
	}
	all, err := r.cfg.Records.Names(ctx, recordPrefix)
	if err != nil {
		return nil, err
	}
	if len(all) >= MaxRedactions {
		return nil, invalidf("there are %d redactions, which is the most: redact a map instead of its members", len(all))
	}
	id := make([]byte, 8)
	one.Key = make([]byte, keyBytes)
	_, _ = rand.Read(id) // it never fails
	_, _ = rand.Read(one.Key)
	one.ID, one.By, one.Created = hex.EncodeToString(id), by, r.cfg.Now().UTC().Truncate(time.Millisecond)
	one.Epoch, one.UpTo = r.cfg.Store.Epoch(), seglog.Position(at)
	data, err := json.Marshal(one)
	if err != nil {
		return nil, err
	}
	if err := r.cfg.Records.Create(ctx, recordPrefix+one.ID, data); err != nil {
		return nil, err
	}
	r.log.Info("a field is redacted in the change feed", "redaction", one.ID, "what", q.String(), "by", by)
	if err := r.pass(ctx, true); err != nil {
		return nil, err
	}
	r.tell(ctx)
	others, err := r.others(ctx)
	if err != nil { // the redaction is made all the same
		r.log.Warn("how far the other instances are with redactions cannot be read", "error", err)
	}
	st := r.among(r.status(one), others)
	return &st, nil
}

// check a request.
func (r *Redactions) check(q *Request) (*row, history.Path, error) {
	path, err := history.ParsePath(q.Field)
	if err != nil {
		return nil, path, invalidf("field: %w", err)
	}
	if path.Identifies() {
		return nil, path, invalidf("field %q: the change feed knows objects by it, or it is kept by the API server; it cannot be redacted", q.Field)
	}
	kind := r.cfg.Kind(q.Group, q.Resource)
	switch {
	case kind == nil:
		return nil, path, invalidf("resource %q, group %q: there is no such resource in the change feed", q.Resource, q.Group)
	case q.Name == "" || strings.Contains(q.Name, "/"):
		return nil, path, invalidf("name %q: want the name of one object", q.Name)
	case kind.Namespaced && (q.Namespace == "" || strings.Contains(q.Namespace, "/")):
		return nil, path, invalidf("namespace %q: required for one of %s", q.Namespace, kind.Resource)
	case !kind.Namespaced:
		q.Namespace = ""
	}
	one := &row{Request: *q}
	one.key = r.cfg.Objects.Prefix(kind, resource.Key{Namespace: q.Namespace, Name: q.Name})
	return one, path, nil
}

// List the redactions, the oldest first. Errors: those of the store.
func (r *Redactions) List(ctx context.Context) ([]Status, error) {
	rows, err := r.load(ctx)
	if err != nil {
		return nil, err
	}
	others, err := r.others(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Status, 0, len(rows))
	for _, one := range rows {
		out = append(out, r.among(r.status(one), others))
	}
	slices.SortStableFunc(out, func(a, b Status) int { return a.Created.Compare(b.Created) })
	return out, nil
}

func (r *Redactions) status(one *row) Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	left, looked := r.left[one.ID]
	if !looked {
		left = []string{notLooked}
	}
	return Status{
		ID: one.ID, Request: one.Request, By: one.By, Created: one.Created, UpTo: one.UpTo,
		Done: len(left) == 0, Outstanding: slices.Clone(left), Replaced: r.replaced[one.ID],
	}
}

// Problems are why redactions are outstanding at this instance: a sentence each, without repetition.
func (r *Redactions) Problems() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.unread)
	for _, left := range r.left {
		out = append(out, left...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (r *Redactions) outstanding() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.unread)
	for id := range r.rows {
		if left, looked := r.left[id]; len(left) > 0 || !looked {
			n++
		}
	}
	return n
}

// load the rows of the store, in order of IDs.
func (r *Redactions) load(ctx context.Context) ([]*row, error) {
	names, err := r.cfg.Records.Names(ctx, recordPrefix)
	if err != nil {
		return nil, err
	}
	var out []*row
	var unread []string
	for _, name := range names {
		id := strings.TrimPrefix(name, recordPrefix)
		r.mu.Lock()
		one := r.rows[id]
		r.mu.Unlock()
		if one == nil {
			if one, err = r.read(ctx, name); err != nil {
				unread = append(unread, fmt.Sprintf("redaction %s cannot be read: %v", id, err))
				continue
			}
			if one == nil {
				continue // removed meanwhile
			}
		}
		out = append(out, one)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unread = unread
	r.rows = map[string]*row{}
	for _, one := range out {
		r.rows[one.ID] = one
	}
	return out, ctx.Err()
}

func (r *Redactions) read(ctx context.Context, name string) (*row, error) {
	data, err := r.cfg.Records.Load(ctx, name)
	if err != nil || data == nil {
		return nil, err
	}
	var one row
	if err := json.Unmarshal(data, &one); err != nil {
		return nil, err
	}
	checked, _, err := r.check(&one.Request)
	if err != nil {
		return nil, err
	}
	if len(one.Key) < keyBytes || recordPrefix+one.ID != name {
		return nil, errors.New("it is malformed")
	}
	one.key = checked.key
	return &one, nil
}

// Run carries redactions out until ctx ends, and returns nil then. Each instance of a control plane does so.
func (r *Redactions) Run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	watching.Go(func() {
		_ = r.cfg.Records.Watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	defer watching.Wait()
	tick := time.NewTicker(passEvery)
	defer tick.Stop()
	for {
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := r.pass(ctx, false); err != nil && ctx.Err() == nil {
			r.log.Warn("redactions of the change feed cannot be carried out; it is tried again", "error", err)
		}
		r.tell(ctx)
	}
}
