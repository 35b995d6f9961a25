package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store"
)

const (
	// beatEvery is the interval at which an instance writes its record.
	beatEvery = 2 * time.Second
	// goneAfter is how long after its last heartbeat an instance counts as gone.
	goneAfter = 7 * time.Second
	// ownSilence of this instance's own heartbeat means that none arrives.
	ownSilence = 2 * beatEvery
	// forgetAfter is when the record of an instance that is gone is deleted.
	forgetAfter = 30 * time.Second
	// beatPause bounds how often changes of a record are written.
	beatPause = 100 * time.Millisecond
)

// Member is the record of an instance.
type Member struct {
	// Name of the instance, for people; Run identifies its process.
	Name string `json:"name"`
	Run  string `json:"run"`
	// API is the URL of its API, GRPC (host:port) the address of its gRPC port, as other
	// machines reach them; empty: they do not.
	API  string `json:"api,omitempty"`
	GRPC string `json:"grpc,omitempty"`
	// Version of its program.
	Version string `json:"version,omitempty"`
	// Started is the time at the instance when it started.
	Started time.Time `json:"started"`
	// Agents that follow their view there.
	Agents int `json:"agents"`
	// Registries are the registry protocols that it serves to clients with a list of servers.
	Registries map[string]Registry `json:"registries,omitempty"`
	// Suspects are machines of which the instance has found that they do not answer.
	Suspects []string `json:"suspects,omitempty"`
	// Leaving: it is about to end.
	Leaving bool `json:"leaving,omitempty"`
}

// Registry is the server of a registry protocol.
type Registry struct {
	Port int `json:"port"`
	// Clients that are connected.
	Clients int `json:"clients"`
}

// MembersConfig configures Members.
type MembersConfig struct {
	Store store.Store
	// Self is the record of this instance, as far as it is known at the start.
	Self Member
	// Logger; nil: silence.
	Logger *slog.Logger
	// Registerer of the metrics; nil: none.
	Registerer prometheus.Registerer
}

// Members are the instances on one store. Safe for concurrent use.
type Members struct {
	store store.Store
	log   *slog.Logger

	mu    sync.Mutex
	self  Member
	dirty chan struct{} // has an entry when self differs from its record
	known map[string]*heartbeat
	news  chan struct{}
}

// heartbeat is what is known of another instance.
type heartbeat struct {
	Member
	rev store.Revision
	// seen is when the newest change of the record was seen here.
	seen time.Time
}

// NewMembers makes the list; Run keeps it.
func NewMembers(cfg MembersConfig) *Members {
	m := &Members{
		store: cfg.Store, log: cfg.Logger, self: cfg.Self,
		dirty: make(chan struct{}, 1), known: map[string]*heartbeat{}, news: make(chan struct{}),
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "proxima", Subsystem: "cluster", Name: "instances",
			Help: "Instances of this control plane whose heartbeats arrive, with this one.",
		}, func() float64 { return float64(len(m.List())) }))
	}
	return m
}

// List returns the instances that live, by name; this one is always among them.
func (m *Members) List() []Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := []Member{m.self}
	now := m.now()
	for run, h := range m.known {
		if run != m.self.Run && now.Sub(h.seen) < goneAfter {
			out = append(out, h.Member)
		}
	}
	slices.SortFunc(out, func(a, b Member) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Run, b.Run))
	})
	return out
}

// now is the time by which others are judged: that at which heartbeats last arrived here, as
// this instance's own shows. While the store is out of reach, nobody is gone. The caller has
// the lock.
func (m *Members) now() time.Time {
	now := time.Now()
	if own := m.known[m.self.Run]; own != nil && now.Sub(own.seen) > ownSilence {
		return own.seen
	}
	return now
}

// Changed is closed when List may have changed. Ask for it before List.
func (m *Members) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.news
}

// Update changes the record of this instance. It does not block: the record is written soon.
func (m *Members) Update(change func(*Member)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.self
	change(&m.self)
	if reflect.DeepEqual(before, m.self) {
		return
	}
	m.signal()
	select {
	case m.dirty <- struct{}{}:
	default:
	}
}

// signal wakes those who wait for news. The caller has the lock.
func (m *Members) signal() {
	close(m.news)
	m.news = make(chan struct{})
}

// Run writes the record of this instance and follows those of the others until ctx ends,
// and returns nil then. Others see at once that it has ended.
func (m *Members) Run(ctx context.Context) error {
	var following sync.WaitGroup
	following.Go(func() { m.beat(ctx) })
	following.Go(func() { m.expire(ctx) })
	backoff.Retry(ctx, retryPolicy, m.watch, func(err error, delay time.Duration) {
		m.log.Warn("the instances of this control plane are not followed", "error", err, "retry_in", delay)
	})
	following.Wait()
	m.leave(ctx)
	return nil
}

func (m *Members) key() string { return memberPrefix + m.self.Run }

// beat writes the record at intervals, and soon after it has changed.
func (m *Members) beat(ctx context.Context) {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	failed := false
	for ctx.Err() == nil {
		m.mu.Lock()
		op := put(m.key(), m.self)
		m.mu.Unlock()
		_, err := m.store.Commit(ctx, store.Txn{Ops: []store.Op{op}})
		if err != nil && !failed && ctx.Err() == nil {
			m.log.Warn("heartbeat not written; it is tried again", "error", err)
		}
		failed = err != nil
		select {
		case <-ticker.C:
		case <-m.dirty:
			backoff.Sleep(ctx, beatPause)
		case <-ctx.Done():
		}
	}
}

// Mark writes a record that says nothing, and returns its revision. It is above every revision that an instance has
// read, or was told of, before the call. Errors: those of the store.
func (m *Members) Mark(ctx context.Context) (store.Revision, error) {
	return m.store.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Put, Key: markKey, Value: []byte("{}")}}})
}

// leave deletes the record. ctx has ended.
func (m *Members) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if _, err := m.store.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Delete, Key: m.key()}}}); err != nil {
		m.log.Warn("the record of this instance was not deleted; others do so", "error", err)
	}
}

// watch follows the records until the watch ends.
func (m *Members) watch(ctx context.Context) error {
	page, err := m.store.List(ctx, store.ListOptions{Prefix: memberPrefix})
	if err != nil {
		return err
	}
	events := make([]store.Event, 0, len(page.Records))
	for _, rec := range page.Records {
		events = append(events, store.Event{Kind: store.Put, Record: rec})
	}
	m.apply(events, true)
	w, err := m.store.Watch(ctx, memberPrefix, page.Revision)
	if err != nil {
		return err
	}
	defer w.Close()
	for batch := range w.Batches() {
		m.apply(batch.Events, false)
	}
	return errors.Join(errors.New("the watch ended"), w.Err())
}

// apply takes events; all: what is not among them is gone.
func (m *Members) apply(events []store.Event, all bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, changed := time.Now(), false
	there := map[string]bool{}
	for _, event := range events {
		run := strings.TrimPrefix(event.Record.Key, memberPrefix)
		there[run] = event.Kind == store.Put
		h := m.known[run]
		if event.Kind == store.Delete {
			delete(m.known, run)
			changed = changed || h != nil
			continue
		}
		var member Member
		if err := json.Unmarshal(event.Record.Value, &member); err != nil || member.Run != run {
			m.log.Warn("the record of an instance cannot be read", "key", event.Record.Key, "error", err)
			continue
		}
		if h == nil {
			h = &heartbeat{}
			m.known[run] = h
			changed = true
		}
		if h.rev == event.Record.Modified {
			continue
		}
		changed = changed || !reflect.DeepEqual(h.Member, member) || m.now().Sub(h.seen) >= goneAfter
		if run == m.self.Run && now.Sub(h.seen) > ownSilence {
			for _, other := range m.known { // heartbeats arrive again: others get their time
				other.seen = now
			}
		}
		h.Member, h.rev, h.seen = member, event.Record.Modified, now
	}
	for run := range m.known {
		if all && !there[run] {
			delete(m.known, run)
			changed = true
		}
	}
	if changed {
		m.signal()
	}
}

// expire tells readers of the list when an instance is gone, and deletes old records.
func (m *Members) expire(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	alive := map[string]bool{}
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		for _, rec := range m.stale(alive) {
			var conflict *store.ConflictError
			_, err := m.store.Commit(ctx, store.Txn{
				Conditions: []store.Condition{{Key: rec.Key, Modified: rec.Modified}},
				Ops:        []store.Op{{Kind: store.Delete, Key: rec.Key}},
			})
			if err != nil && !errors.As(err, &conflict) && ctx.Err() == nil {
				m.log.Debug("old record not deleted", "key", rec.Key, "error", err)
			}
		}
	}
}

// stale returns the records to delete. alive is what was alive before.
func (m *Members) stale(alive map[string]bool) (old []store.Condition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, changed := m.now(), false
	for run, h := range m.known {
		silent := now.Sub(h.seen)
		lives := silent < goneAfter
		if alive[run] && !lives {
			m.log.Warn("an instance of this control plane is gone", "instance", h.Name, "silent_for", silent.Round(time.Second))
			changed = true
		}
		alive[run] = lives
		if silent > forgetAfter && run != m.self.Run {
			old = append(old, store.Condition{Key: memberPrefix + run, Modified: h.rev})
		}
	}
	for run := range alive {
		if m.known[run] == nil {
			delete(alive, run)
		}
	}
	if changed {
		m.signal()
	}
	return old
}
