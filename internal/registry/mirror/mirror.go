package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/proxima-mesh/proxima/internal/registry"
)

const (
	// DefaultHold is how long instances that an old registry has lost stay: two renewals of a client of Eureka, the
	// slowest to register again.
	DefaultHold = time.Minute
	// publishers of each direction publish at the same time.
	publishers = 8
	// verifyAfter is how long a registry may take to show what was published. It doubles while it does not.
	verifyAfter = 4 * time.Second
	maxVerify   = 6 // doublings
	// publishWithin is how long one service may take.
	publishWithin = 30 * time.Second
	// withdrawWithin is how long the end may take.
	withdrawWithin = 15 * time.Second
)

// Config of a Mirror. Old, Catalogue and Here are required.
type Config struct {
	// Old registry.
	Old Client
	// Catalogue reads the instances that are registered in Proxima, and Here writes them, by the protocol of the
	// old registry.
	Catalogue Reader
	Here      Client
	// OldName and HereName are what copies say that they are from.
	OldName, HereName string
	// Follow: the old registry is given copies of what is registered here. Without it, it is only read.
	Follow bool
	// Loopback: both registries are on this machine, so loopback addresses are copied.
	Loopback bool
	// Refuse says why the old registry cannot have an instance; empty: it can. Nil: it can.
	Refuse func(*registry.Instance) string
	// Apart reports whether the copy of an instance is another object of the protocol than the instance itself. Nil: it is
	// not.
	Apart func(*registry.Instance) bool
	// OldEntries and HereEntries are the configuration of both; nil: it is not mirrored.
	OldEntries, HereEntries EntryClient
	// Bases outlive the mirror; nil: an entry that is removed while no mirror runs comes back.
	Bases Bases
	// Winner is whose entry counts where both have one, and neither is known to be the older one.
	Winner Winner
	// Hold is how long instances stay that are missing after a disturbance of the old registry, or as
	// more than half of them are, and how long an entry must be gone before it is removed in the other registry, too; 0:
	// DefaultHold.
	Hold   time.Duration
	Logger *slog.Logger // nil: discard
}

// Mirror keeps two registries alike. Make it with New.
type Mirror struct {
	config Config
	log    *slog.Logger
	old    *side
	here   *side
	into   *direction // the old registry, in here
	back   *direction // what is here, in the old registry; nil: not followed
	// entries of the configuration; nil: they are not mirrored.
	entries *entries
}

// New makes a mirror; Run starts it.
func New(c Config) *Mirror {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Mirror{config: c, log: c.Logger}
	m.old = newSide(cmp.Or(c.Hold, DefaultHold), m.changed, m.complete)
	m.here = newSide(0, m.changed, m.complete)
	m.into = newDirection("import", m.old, m.here, c.Here, rules{origin: c.OldName, standby: true, apart: c.Apart, loopback: c.Loopback}, m.log)
	if c.Follow {
		m.back = newDirection("export", m.here, m.old, c.Old, rules{origin: c.HereName, loopback: c.Loopback, refuse: c.Refuse}, m.log)
	}
	if c.OldEntries != nil && c.HereEntries != nil {
		m.entries = newEntries(&c, m.log)
	}
	return m
}

func (m *Mirror) changed(s registry.Service) {
	for _, d := range m.directions() {
		d.queue.Add(s)
	}
}

// complete has everything looked at again, as nothing is done before both sides are known.
func (m *Mirror) complete() {
	for _, side := range []*side{m.old, m.here} {
		for _, s := range side.names() {
			m.changed(s)
		}
	}
}

func (m *Mirror) directions() []*direction {
	if m.back == nil {
		return []*direction{m.into}
	}
	return []*direction{m.into, m.back}
}

// Run mirrors until ctx ends. Then it removes its copies from the old registry; those here end as those of any client that
// has gone. The error is of the withdrawal, or of a client that cannot go on. It must be called once.
func (m *Mirror) Run(ctx context.Context) error {
	// The clients end after the withdrawal.
	clients, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running, workers sync.WaitGroup
	for _, run := range []func() error{
		func() error { return m.config.Old.Run(clients, m.old) },
		func() error { return m.config.Catalogue.Run(clients, m.here) },
		func() error { return m.config.Here.Run(clients, nil) },
	} {
		running.Go(func() {
			if err := run(); err != nil {
				cancel(err)
			}
		})
	}
	for _, d := range m.directions() {
		for range publishers {
			workers.Go(func() { d.work(working) })
		}
	}
	if m.entries != nil {
		workers.Go(func() {
			if err := m.entries.run(working); err != nil {
				cancel(err)
			}
		})
	}
	<-working.Done()
	for _, d := range m.directions() {
		d.queue.ShutDown()
	}
	workers.Wait()
	failed := context.Cause(working)
	if ctx.Err() != nil {
		failed = nil
	}
	if m.back != nil {
		within, done := context.WithTimeout(clients, withdrawWithin)
		if err := m.config.Old.Withdraw(within); err != nil {
			failed = errors.Join(failed, fmt.Errorf("remove the copies from %s: they end there by themselves, with the session or the lease of this command: %w",
				m.config.OldName, err))
		}
		done()
	}
	stop(nil)
	running.Wait()
	return failed
}

// Synced blocks until both registries are read, or ctx ends.
func (m *Mirror) Synced(ctx context.Context) error {
	for _, s := range []*side{m.old, m.here} {
		select {
		case <-s.ready:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Status of a mirror.
type Status struct {
	// Old and Here are the instances that are registered in each, without copies.
	Old, Here int
	// Imported and Exported are the copies that were published here, and in the old registry.
	Imported, Exported int
	// Waiting are services whose copies are not published yet, or not as they should be.
	Waiting int
	// Skipped are instances that the other registry cannot have.
	Skipped int
	// Published is how often copies of a service were changed, and LastLag how long after the change in the other registry
	// the last time.
	Published uint64
	LastLag   time.Duration
	// Entries of the configuration are alike in both registries.
	Entries int
	// EntriesImported and EntriesExported is how often an entry was written here, and in the old registry, EntriesRemoved
	// how often one was removed in either, and EntryConflicts how often one was written over that was not known to be older.
	EntriesImported, EntriesExported, EntriesRemoved, EntryConflicts uint64
	// EntriesWaiting are not alike yet, or left alone as their registry lacks most of what it had, and EntriesSkipped cannot be.
	EntriesWaiting, EntriesSkipped int
}

// Status is where the mirror is.
func (m *Mirror) Status() Status {
	out := Status{Old: m.old.count(), Here: m.here.count()}
	for _, d := range m.directions() {
		d.mu.Lock()
		n := 0
		for _, copies := range d.published {
			n += len(copies)
		}
		if d == m.into {
			out.Imported = n
		} else {
			out.Exported = n
		}
		out.Waiting += len(d.unsure)
		for _, list := range d.skipped {
			out.Skipped += len(list)
		}
		out.Published += d.count
		out.LastLag = max(out.LastLag, d.lag)
		d.mu.Unlock()
	}
	if m.entries != nil {
		m.entries.status(&out)
	}
	return out
}

// Step is what a mirror would do for a service.
type Step struct {
	Service registry.Service
	// Export: to the old registry; else from there.
	Export bool
	// Instances that would be copied, as ADDRESS:PORT, and why others would not be.
	Instances, Skipped []string
}

// Plan reads both registries, and returns what Run would do with services and with entries of the configuration. It
// writes nothing.
func (m *Mirror) Plan(ctx context.Context) ([]Step, []EntryStep, error) {
	reading, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	if m.entries != nil {
		if err := m.entries.load(ctx); err != nil {
			cancel(nil)
			return nil, nil, err
		}
		running.Go(func() { _ = m.config.OldEntries.RunEntries(reading, m.entries.oldSide) })   // they end with reading
		running.Go(func() { _ = m.config.HereEntries.RunEntries(reading, m.entries.hereSide) }) // as above
	}
	for _, r := range []struct {
		reader Reader
		to     *side
	}{{m.config.Old, m.old}, {m.config.Catalogue, m.here}} {
		running.Go(func() {
			if err := r.reader.Run(reading, r.to); err != nil {
				cancel(err)
			}
		})
	}
	defer running.Wait()
	defer cancel(nil)
	if err := m.Synced(reading); err != nil {
		return nil, nil, context.Cause(reading)
	}
	var configuration []EntryStep
	if m.entries != nil {
		select {
		case <-m.entries.ready:
		case <-reading.Done():
			return nil, nil, fmt.Errorf("the configuration cannot be read, and can be left out: %w", context.Cause(reading))
		}
		configuration = m.entries.plan()
	}
	var out []Step
	for _, d := range m.directions() {
		d.queue.ShutDown()
		for _, s := range d.from.names() {
			from, _, _, _ := d.from.list(s)
			there, _, _, _ := d.to.list(s)
			copies, skipped := d.rules.decide(from, there)
			step := Step{Service: s, Export: d == m.back, Skipped: skipped}
			for _, id := range slices.Sorted(maps.Keys(copies)) {
				step.Instances = append(step.Instances, string(id))
			}
			if len(step.Instances)+len(skipped) > 0 {
				out = append(out, step)
			}
		}
	}
	return out, configuration, nil
}

// direction is from one registry to the other.
type direction struct {
	name     string
	from, to *side
	client   Client
	rules    rules
	log      *slog.Logger
	queue    workqueue.TypedRateLimitingInterface[registry.Service]

	mu        sync.Mutex
	published map[registry.Service]map[identity]*registry.Instance
	at        map[registry.Service]time.Time // of the last publication
	unseen    map[registry.Service]int       // publications in a row that the registry did not show
	unsure    map[registry.Service]struct{}  // the last publication failed
	skipped   map[registry.Service][]string
	count     uint64
	lag       time.Duration
}

func newDirection(name string, from, to *side, client Client, r rules, log *slog.Logger) *direction {
	return &direction{
		name: name, from: from, to: to, client: client, rules: r, log: log.With("direction", name),
		queue:     workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[registry.Service](100*time.Millisecond, 30*time.Second)),
		published: map[registry.Service]map[identity]*registry.Instance{}, at: map[registry.Service]time.Time{}, unseen: map[registry.Service]int{},
		unsure: map[registry.Service]struct{}{}, skipped: map[registry.Service][]string{},
	}
}

func (d *direction) work(ctx context.Context) {
	for {
		s, ended := d.queue.Get()
		if ended {
			return
		}
		if ctx.Err() == nil {
			d.handle(ctx, s)
		}
		d.queue.Done(s)
	}
}

func (d *direction) handle(ctx context.Context, s registry.Service) {
	err := d.sync(ctx, s)
	if ctx.Err() != nil {
		return
	}
	d.mu.Lock()
	_, before := d.unsure[s]
	if err != nil {
		d.unsure[s] = struct{}{}
	} else {
		delete(d.unsure, s)
	}
	d.mu.Unlock()
	if err == nil {
		d.queue.Forget(s)
		return
	}
	if !before && !errors.Is(err, ErrAway) { // the connection says so itself
		d.log.Warn("a service is not mirrored yet; it is tried again", "service", s, "error", err)
	}
	d.queue.AddRateLimited(s)
}

// sync publishes the copies of a service, where they are not what they should be.
func (d *direction) sync(ctx context.Context, s registry.Service) error {
	from, held, since, ok := d.from.list(s)
	there, _, _, also := d.to.list(s)
	if !ok || !also {
		return nil // it is called again when both are read
	}
	copies, skipped := d.rules.decide(from, there)
	d.mu.Lock()
	published, at, tries := d.published[s], d.at[s], d.unseen[s]
	_, unsure := d.unsure[s]
	if len(skipped) > len(d.skipped[s]) {
		d.log.Warn("instances cannot be copied", "service", s, "instances", skipped)
	}
	if d.skipped[s] = skipped; len(skipped) == 0 {
		delete(d.skipped, s)
	}
	d.mu.Unlock()
	if held > 0 && keep(copies, published, there) > 0 {
		d.queue.AddAfter(s, held+time.Millisecond)
	}
	changed := !same(copies, published)
	verify := verifyAfter << tries
	lost := !changed && missing(copies, there) > 0
	switch {
	case changed, unsure:
		tries = 0
	case !lost:
		d.mu.Lock()
		delete(d.unseen, s)
		d.mu.Unlock()
		return nil
	case time.Since(at) < verify:
		d.queue.AddAfter(s, verify-time.Since(at)+time.Millisecond)
		return nil
	default:
		tries = min(tries+1, maxVerify)
	}
	list := slices.SortedFunc(maps.Values(copies), (*registry.Instance).Compare)
	within, cancel := context.WithTimeout(ctx, publishWithin)
	defer cancel()
	if err := d.client.Publish(within, s, list); err != nil {
		return err
	}
	d.mu.Lock()
	if d.published[s], d.at[s], d.unseen[s] = copies, time.Now(), tries; len(copies) == 0 {
		delete(d.published, s)
		delete(d.at, s)
		delete(d.unseen, s)
	}
	if changed {
		d.count++
		d.lag = time.Since(since)
	}
	d.mu.Unlock()
	if changed {
		d.log.Debug("copies published", "service", s, "copies", len(list), "before", len(published))
	}
	if len(copies) > 0 {
		d.queue.AddAfter(s, verifyAfter<<tries+time.Millisecond)
	}
	return nil
}
