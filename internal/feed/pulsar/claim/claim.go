package claim

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Config of Claims. Store and Self are required.
type Config struct {
	// Store has the rows. It is the caller's.
	Store store.Store
	// Self is this instance.
	Self Owner
	// Duration of the lease, 1 s to 1 min; 0: DefaultDuration.
	Duration time.Duration
	Logger   *slog.Logger // nil: discard
}

// Claims of an instance. Make them with New. Safe for concurrent use.
type Claims struct {
	cfg Config
	run string
	log *slog.Logger

	// turn is held by who writes rows.
	turn    sync.Mutex
	renewal uint64
	failing bool

	mu     sync.Mutex
	closed bool
	// until is when what this instance has claimed must not be used any more; zero: it has no lease. rev is that of its lease.
	until time.Time
	rev   store.Revision
	timer *time.Timer
	held  map[string]*held
	// seen are the leases of other instances, by their runs.
	seen map[string]seen
}

// held is a claim that this instance has.
type held struct {
	key  string
	rev  store.Revision
	lost chan struct{}
	// users of it; idle is since when there are none.
	users int
	idle  time.Time
}

// seen is when the newest change of a lease was seen.
type seen struct {
	rev     store.Revision
	changed time.Time
}

// New makes Claims; Run keeps them.
func New(cfg Config) *Claims {
	cfg.Duration = cmp.Or(cfg.Duration, DefaultDuration)
	c := &Claims{cfg: cfg, run: rand.Text(), log: cfg.Logger, held: map[string]*held{}, seen: map[string]seen{}}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	return c
}

// ErrClosed is returned when Run has ended.
var ErrClosed = errors.New("this instance of the control plane ends")

// Claim of a topic. Its holder must not serve the topic after Lost is closed.
type Claim struct {
	all *Claims
	*held
	once sync.Once
}

// Lost is closed when the claim has ended, or may be another instance's soon.
func (c *Claim) Lost() <-chan struct{} { return c.lost }

// Valid reports whether the topic may be served now. It is right also where a process was stopped for a while.
func (c *Claim) Valid() bool {
	select {
	case <-c.lost:
		return false
	default:
	}
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	return time.Now().Before(c.all.until)
}

// Fence is the condition of what is written for the topic: it does not hold once another instance has claimed it.
func (c *Claim) Fence() store.Condition { return store.Condition{Key: c.key, Modified: c.rev} }

// Release says that the claim is not used any more. It does not block: the row is deleted later. Idempotent.
func (c *Claim) Release() {
	c.once.Do(func() {
		c.all.mu.Lock()
		defer c.all.mu.Unlock()
		c.users--
		c.idle = time.Now()
	})
}

// Count is how many topics this instance has claimed.
func (c *Claims) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held)
}

// Find returns which instance serves a topic. If none does, this one claims it. Errors: as of Take, but for *ElsewhereError.
func (c *Claims) Find(ctx context.Context, topic string) (owner Owner, here bool, err error) {
	claim, err := c.Take(ctx, topic)
	var elsewhere *ElsewhereError
	switch {
	case errors.As(err, &elsewhere):
		return elsewhere.Owner, false, nil
	case err != nil:
		return Owner{}, false, err
	}
	claim.Release()
	return c.cfg.Self, true, nil
}

// Take claims a topic, which the caller releases. It blocks for the store. Errors: *ElsewhereError; ErrClosed; those of the store.
func (c *Claims) Take(ctx context.Context, topic string) (*Claim, error) {
	if claim := c.use(topic); claim != nil {
		return claim, nil
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	if claim := c.use(topic); claim != nil {
		return claim, nil
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	if err := c.begin(ctx); err != nil {
		return nil, err
	}
	var err error
	for range attempts {
		if err = c.claim(ctx, topic); !conflict(err) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if claim := c.use(topic); claim != nil {
		return claim, nil
	}
	return nil, errLapsed
}

var errLapsed = errors.New("the lease of this instance has run out, as the store did not answer in time; try again")

// use a claim that this instance has; nil: it has none.
func (c *Claims) use(topic string) *Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[topic]
	if h == nil || !time.Now().Before(c.until) {
		return nil
	}
	h.users++
	return &Claim{all: c, held: h}
}

// begin gets a lease if this instance has none. It is called in the turn.
func (c *Claims) begin(ctx context.Context) error {
	c.mu.Lock()
	closed, has := c.closed, time.Now().Before(c.until)
	c.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case has:
		return nil
	}
	c.end()
	rec, _, _, err := c.cfg.Store.Get(ctx, c.leaseKey(c.run), 0)
	if err != nil {
		return err
	}
	return c.write(ctx, rec.Modified)
}

func (c *Claims) leaseKey(run string) string { return leasePrefix + run }

// write the lease, which was modified last at a revision. It is called in the turn.
func (c *Claims) write(ctx context.Context, modified store.Revision) error {
	began := time.Now()
	c.renewal++
	key := c.leaseKey(c.run)
	at, err := c.cfg.Store.Commit(ctx, store.Txn{
		Conditions: []store.Condition{{Key: key, Modified: modified}},
		Ops:        []store.Op{put(key, lease{Name: c.cfg.Self.Name, Seconds: c.cfg.Duration.Seconds(), Renewal: c.renewal})},
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.held) > 0 && !time.Now().Before(c.until) {
		return errLapsed // it was too late for what is held
	}
	c.rev, c.until = at, began.Add(c.cfg.Duration-c.cfg.Duration/5)
	if c.timer != nil {
		c.timer.Stop()
	}
	c.timer = time.AfterFunc(time.Until(c.until), c.lapse)
	return nil
}

// lapse ends the claims if the lease was not renewed.
func (c *Claims) lapse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.until) {
		return
	}
	if n := len(c.held); n > 0 {
		c.log.Warn("the lease of this instance has run out: other instances may serve its topics", "topics", n)
	}
	c.endLocked()
}

// end all claims here.
func (c *Claims) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked()
}

func (c *Claims) endLocked() {
	c.until, c.rev = time.Time{}, 0
	if c.timer != nil {
		c.timer.Stop()
	}
	for _, h := range c.held {
		close(h.lost)
	}
	c.held = map[string]*held{}
}

// claim a topic in the store. It is called in the turn.
func (c *Claims) claim(ctx context.Context, topic string) error {
	key := topicPrefix + url.PathEscape(topic)
	rec, ok, _, err := c.cfg.Store.Get(ctx, key, 0)
	if err != nil {
		return err
	}
	txn := store.Txn{Conditions: []store.Condition{{Key: key, Modified: rec.Modified}}}
	if ok {
		var now row
		if err := json.Unmarshal(rec.Value, &now); err != nil {
			return fmt.Errorf("key %s: %w", key, err)
		}
		if now.Run != c.run {
			if err := c.succeed(ctx, &now, &txn); err != nil {
				return err
			}
		}
	}
	txn.Ops = append(txn.Ops, put(key, row{Owner: c.cfg.Self, Run: c.run, Since: time.Now().UTC()})) // the last, as its revision is the fence
	at, err := c.cfg.Store.Commit(ctx, txn)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !time.Now().Before(c.until) {
		return errLapsed
	}
	c.held[topic] = &held{key: key, rev: at, lost: make(chan struct{}), idle: time.Now()}
	return nil
}

// succeed another owner, if its lease has run out: then the transaction ends the lease, too.
func (c *Claims) succeed(ctx context.Context, owner *row, txn *store.Txn) error {
	key := c.leaseKey(owner.Run)
	rec, ok, _, err := c.cfg.Store.Get(ctx, key, 0)
	if err != nil {
		return err
	}
	txn.Conditions = append(txn.Conditions, store.Condition{Key: key, Modified: rec.Modified})
	if !ok {
		return nil
	}
	wait, err := c.wait(owner.Run, rec)
	if err != nil {
		return err
	}
	if wait > 0 {
		return &ElsewhereError{Owner: owner.Owner, Wait: wait}
	}
	txn.Ops = append(txn.Ops, store.Op{Kind: store.Delete, Key: key})
	c.log.Info("the lease of an instance has run out: this one serves its topics", "instance", owner.Name)
	return nil
}

// wait is how long the lease of another instance must be respected.
func (c *Claims) wait(run string, rec store.Record) (time.Duration, error) {
	var l lease
	if err := json.Unmarshal(rec.Value, &l); err != nil {
		return 0, fmt.Errorf("key %s: %w", rec.Key, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.seen[run]
	if s.rev != rec.Modified {
		s = seen{rec.Modified, time.Now()}
		c.seen[run] = s
	}
	return time.Until(s.changed.Add(l.duration())), nil
}

func put(key string, value any) store.Op {
	data, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", value, err)) // all rows are plain data
	}
	return store.Op{Kind: store.Put, Key: key, Value: data}
}

func conflict(err error) bool {
	var c *store.ConflictError
	return errors.As(err, &c)
}
