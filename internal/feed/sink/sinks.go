package sink

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/feed/cursor"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// recordPrefix is that of the names of records.
const recordPrefix = "feed/sinks/"

// Config of Sinks. All but Kinds, Logger, Metrics and Now are required.
type Config struct {
	History *history.Reader
	Cursors *cursor.Cursors
	Records Records
	// Source of events (CloudEvents), which names the control plane.
	Source string
	// Known reports whether there is a resource in the feed, by its plural and group, as "dataplanes.mesh.proxima.dev".
	Known func(resource string) bool
	// Kinds of sinks, by their names, beside the webhook.
	Kinds   map[string]Kind
	Logger  *slog.Logger          // nil: discard
	Metrics prometheus.Registerer // nil: none
	Now     func() time.Time      // nil: time.Now
}

// Sinks of a control plane. Make them with New. Safe for concurrent use.
type Sinks struct {
	cfg   Config
	log   *slog.Logger
	kinds map[string]Kind

	delivered, failures *prometheus.CounterVec
	up, behind          *prometheus.GaugeVec

	mu      sync.Mutex
	running map[string]*worker
}

// New makes Sinks; Run delivers.
func New(c Config) (*Sinks, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	s := &Sinks{cfg: c, log: c.Logger, running: map[string]*worker{}, kinds: map[string]Kind{Webhook: &webhooks{history: c.History, source: c.Source, now: c.Now}}}
	maps.Copy(s.kinds, c.Kinds)
	labels := []string{"sink"}
	s.delivered = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "proxima_feed_sink_delivered_total", Help: "Events that receivers of sinks have accepted.",
	}, labels)
	s.failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "proxima_feed_sink_failures_total", Help: "Deliveries of sinks that failed, and are repeated.",
	}, labels)
	s.up = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "proxima_feed_sink_up", Help: "1 if the last delivery of a sink was accepted, else 0.",
	}, labels)
	s.behind = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "proxima_feed_sink_lag_positions", Help: "Positions of the change feed that a sink is behind.",
	}, labels)
	if c.Metrics != nil {
		for _, m := range []prometheus.Collector{s.delivered, s.failures, s.up, s.behind} {
			if err := c.Metrics.Register(m); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// Add a sink, which begins with the changes from now on. It returns the spec with what was completed. Errors: *InvalidError,
// ErrExists, those of the store.
func (s *Sinks) Add(ctx context.Context, spec Spec) (*Spec, error) {
	spec.Kind = cmp.Or(spec.Kind, Webhook)
	k := s.kinds[spec.Kind]
	if k == nil {
		return nil, Invalid("kind %q: want one of %s", spec.Kind, strings.Join(slices.Sorted(maps.Keys(s.kinds)), ", "))
	}
	if err := spec.check(k, s.cfg.Known); err != nil {
		return nil, err
	}
	all, err := s.cfg.Records.Names(ctx, recordPrefix)
	if err != nil {
		return nil, err
	}
	switch {
	case slices.Contains(all, recordPrefix+spec.Name):
		return nil, ErrExists
	case len(all) >= MaxSinks:
		return nil, Invalid("there are %d sinks, which is the most; remove one", len(all))
	}
	if spec.Kind != Webhook { // two of them would deliver the same changes to one place, out of order
		others, err := s.specs(ctx)
		if err != nil {
			return nil, err
		}
		for _, other := range others {
			if other.URL == spec.URL {
				return nil, Invalid("url %q: sink %q delivers there already; remove it first", spec.Shown(), other.Name)
			}
		}
	}
	spec.Created, spec.ID = s.cfg.Now().UTC().Truncate(time.Second), strings.ToLower(rand.Text())
	data, err := json.Marshal(&spec)
	if err != nil {
		return nil, err
	}
	_, end := s.cfg.History.Feed.Log.End()
	_, err = s.cfg.Cursors.Create(ctx, cursorName(spec.Name), cursor.Exclusive, end, nil)
	if errors.Is(err, cursor.ErrExists) { // left over
		_, err = s.cfg.Cursors.Seek(ctx, cursorName(spec.Name), end)
	}
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Records.Create(ctx, recordPrefix+spec.Name, data); err != nil {
		return nil, err
	}
	return &spec, nil
}

func cursorName(name string) string { return "sink/" + name }

// Remove a sink, with how far it was. Errors: ErrNotFound, those of the store.
func (s *Sinks) Remove(ctx context.Context, name string) error {
	data, err := s.cfg.Records.Load(ctx, recordPrefix+name)
	if err != nil {
		return err
	}
	if data == nil {
		return ErrNotFound
	}
	if err := s.cfg.Records.Delete(ctx, recordPrefix+name); err != nil {
		return err
	}
	s.mu.Lock()
	w := s.running[name]
	s.mu.Unlock()
	if w != nil {
		w.stop()
	}
	if err := s.cfg.Cursors.Delete(ctx, cursorName(name)); err != nil && !errors.Is(err, cursor.ErrNotFound) {
		return err
	}
	return nil
}

// List the sinks, in order of names. Errors: those of the store.
func (s *Sinks) List(ctx context.Context) ([]Status, error) {
	specs, err := s.specs(ctx)
	if err != nil {
		return nil, err
	}
	cursors, err := s.cfg.Cursors.List(ctx)
	if err != nil {
		return nil, err
	}
	last, _ := s.cfg.History.Feed.Log.End()
	out := make([]Status, 0, len(specs))
	for _, spec := range specs {
		st := Status{Name: spec.Name, Kind: cmp.Or(spec.Kind, Webhook), URL: spec.Shown(), Resources: spec.Resources, Namespaces: spec.Namespaces, Created: spec.Created, By: spec.By}
		for i := range cursors {
			if cursors[i].Name == cursorName(spec.Name) {
				st.Position = int64(cursors[i].Mark)
			}
		}
		s.mu.Lock()
		w := s.running[spec.Name]
		s.mu.Unlock()
		if w != nil {
			w.describe(&st)
		}
		st.Behind = max(int64(last)-st.Position, 0)
		out = append(out, st)
	}
	return out, nil
}

// specs of the store, in order of names. One that cannot be read is left out, and logged.
func (s *Sinks) specs(ctx context.Context) ([]*Spec, error) {
	all, err := s.cfg.Records.Names(ctx, recordPrefix)
	if err != nil {
		return nil, err
	}
	var out []*Spec
	for _, name := range all {
		data, err := s.cfg.Records.Load(ctx, name)
		spec := &Spec{}
		if err == nil && data == nil {
			continue // removed meanwhile
		}
		if err == nil {
			err = json.Unmarshal(data, spec)
		}
		if err != nil {
			s.log.Error("a sink of the change feed cannot be read, and delivers nothing", "record", name, "error", err)
			continue
		}
		out = append(out, spec)
	}
	return out, nil
}

// Run delivers until ctx ends, and returns nil then. One instance of a control plane does so.
func (s *Sinks) Run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	watching.Go(func() {
		_ = s.cfg.Records.Watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	defer watching.Wait()
	defer s.stopAll(nil)
	retry := backoff.Backoff{Policy: backoff.Policy{First: 100 * time.Millisecond, Last: 10 * time.Second, Jitter: 0.2}}
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
		specs, err := s.specs(ctx)
		if err != nil {
			backoff.Sleep(ctx, retry.Next())
			select {
			case changed <- struct{}{}:
			default:
			}
			continue
		}
		retry.Reset()
		s.apply(ctx, specs)
	}
}

// apply starts and stops workers, so that there is one for each spec.
func (s *Sinks) apply(ctx context.Context, specs []*Spec) {
	s.stopAll(specs)
	for _, spec := range specs {
		s.mu.Lock()
		there := s.running[spec.Name] != nil
		s.mu.Unlock()
		if there {
			continue
		}
		w, err := newWorker(s, spec)
		if err != nil {
			s.log.Error("a sink of the change feed is malformed, and delivers nothing", "sink", spec.Name, "error", err)
			continue
		}
		s.mu.Lock()
		s.running[spec.Name] = w
		s.mu.Unlock()
		w.start(ctx)
	}
}

// stopAll workers but those of specs.
func (s *Sinks) stopAll(but []*Spec) {
	s.mu.Lock()
	var gone []*worker
	for name, w := range s.running {
		if !slices.ContainsFunc(but, func(spec *Spec) bool { return spec.Name == name && spec.Created.Equal(w.spec.Created) }) {
			gone = append(gone, w)
			delete(s.running, name)
		}
	}
	s.mu.Unlock()
	for _, w := range gone {
		w.stop()
		for _, v := range []interface{ DeleteLabelValues(...string) bool }{s.delivered, s.failures, s.up, s.behind} {
			v.DeleteLabelValues(w.spec.Name)
		}
	}
}

// matches reports whether a sink wants changes of an object.
func (s *Spec) matches(kind *resource.Descriptor, name resource.Key) bool {
	full := kind.Resource
	if kind.GVK.Group != "" {
		full += "." + kind.GVK.Group
	}
	return (len(s.Resources) == 0 || slices.Contains(s.Resources, full)) &&
		(len(s.Namespaces) == 0 || slices.Contains(s.Namespaces, name.Namespace))
}

// Problems are why sinks do not deliver, by their names, at the instance that delivers.
func (s *Sinks) Problems() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{}
	for name, w := range s.running {
		var st Status
		if w.describe(&st); st.Problem != "" {
			out[name] = st.Problem
		}
	}
	return out
}

var errStopped = errors.New("the sink was removed, or this instance ends")
