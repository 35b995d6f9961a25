package cluster

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store"
)

const (
	// LeaseDuration after the last renewal, a leader is replaced.
	LeaseDuration = 5 * time.Second
	// renewals in the duration of a lease: one each second.
	renewals = 5
	// releaseTimeout bounds the release of a lease. If it fails, the lease runs out.
	releaseTimeout = time.Second
)

// ElectionConfig configures an Election.
type ElectionConfig struct {
	// Store that the instances share.
	Store store.Store
	// Name of this instance, for people and for the list of instances.
	Name string
	// Run identifies this process among all that ever take part.
	Run string
	// Duration of the lease; 0: LeaseDuration. Instances need not agree on it.
	Duration time.Duration
	// Logger; nil: silence.
	Logger *slog.Logger
	// Registerer of the metrics; nil: none.
	Registerer prometheus.Registerer
}

// Election elects one leader among the instances on one store.
type Election struct {
	cfg     ElectionConfig
	metrics *metrics

	mu        sync.Mutex
	candidate candidate
	news      chan struct{} // closed when the candidate has observed something
	tenure    *tenure       // nil: this instance does not lead
}

// NewElection makes an election; Run takes part in it.
func NewElection(cfg ElectionConfig) *Election {
	if cfg.Duration == 0 {
		cfg.Duration = LeaseDuration
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Election{
		cfg: cfg, news: make(chan struct{}),
		candidate: candidate{self: Term{Leader: cfg.Name, Run: cfg.Run}, duration: cfg.Duration},
	}
	e.metrics = newMetrics(cfg.Registerer, e)
	return e
}

// Status of the leadership, as this instance knows it.
type Status struct {
	// Term is the newest one; its number is 0 if there was none.
	Term Term `json:"term"`
	// Leads: it is a term of this instance, which has not ended.
	Leads bool `json:"leads"`
	// Vacant: the leader has stopped, or has not renewed its lease in time.
	Vacant bool `json:"vacant,omitempty"`
	// Fenced writes of this instance were refused by the store.
	Fenced uint64 `json:"fencedWrites"`
}

// Status of the leadership. Safe for concurrent use.
func (e *Election) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := &e.candidate
	s := Status{Term: c.term, Leads: e.tenure != nil, Fenced: e.metrics.refusals.Load()}
	if s.Leads {
		s.Term = e.tenure.term
	}
	s.Vacant = !s.Leads && c.wait(time.Now()) == 0
	return s
}

// Changed is closed when Status may have changed. Ask for it before Status.
func (e *Election) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.news
}

// Run takes part until ctx ends, and returns nil then. Whenever this instance has won, lead
// is called with a context that ends before another instance can win, as far as this process
// is running at all, and that fences what is written with it (see Fenced). There is one term
// at a time: the next one begins after lead has returned. An error of lead ends Run, which
// returns it. When Run returns, another instance may lead at once.
func (e *Election) Run(ctx context.Context, lead func(term context.Context) error) error {
	var following sync.WaitGroup
	ctx, stop := context.WithCancel(ctx)
	defer following.Wait()
	defer stop()
	following.Go(func() { e.follow(ctx) })
	retry := backoff.Backoff{Policy: retryPolicy}
	for e.await(ctx) {
		t, err := e.take(ctx)
		if err != nil {
			if ctx.Err() == nil {
				e.cfg.Logger.Debug("leadership not taken over", "error", err)
			}
			backoff.Sleep(ctx, retry.Next())
			continue
		}
		retry.Reset()
		if err := e.serve(ctx, t, lead); err != nil {
			return err
		}
	}
	return nil
}

// retryPolicy spaces attempts to take over, and to follow the records. The jitter keeps
// instances that fail together apart.
var retryPolicy = backoff.Policy{First: 50 * time.Millisecond, Last: time.Second, Jitter: 0.5}

// await blocks until this instance may take over. It returns false when ctx has ended.
func (e *Election) await(ctx context.Context) bool {
	for ctx.Err() == nil {
		e.mu.Lock()
		wait, news := e.candidate.wait(time.Now()), e.news
		e.mu.Unlock()
		if wait == 0 {
			return true
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-due:
		case <-news:
		case <-ctx.Done():
		}
	}
	return false
}

// take tries to begin a term.
func (e *Election) take(ctx context.Context) (*tenure, error) {
	began := time.Now()
	e.mu.Lock()
	next, txn := e.candidate.takeover(began)
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Duration)
	defer cancel()
	rev, err := e.cfg.Store.Commit(ctx, txn)
	if err != nil {
		// Who has won, or whether this was a commit after all, is in the records.
		return nil, errors.Join(err, e.read(ctx))
	}
	t := newTenure(next, rev, e.cfg.Duration, began)
	if !time.Now().Before(t.until) {
		return nil, errLapsed // the commit took too long; the next term is this instance's, too, if no other takes over
	}
	return t, nil
}

// errDeposed is the cause of a term's end if another one has begun.
var errDeposed = errors.New("another instance has taken over")

// errLapsed is the cause of a term's end if the lease was not renewed in time.
var errLapsed = errors.New("the lease was not renewed in time")

// serve leads for one term, and gives the lease back.
func (e *Election) serve(ctx context.Context, t *tenure, lead func(context.Context) error) error {
	log := e.cfg.Logger.With("term", t.term.Number)
	term, end := context.WithCancelCause(ctx)
	defer end(nil)
	term = withFence(term, &fence{term: t.term.Number, condition: t.fence, refused: func() {
		e.metrics.refusals.Add(1)
		end(errDeposed)
	}})
	e.setTenure(t)
	e.metrics.terms.Inc()
	log.Info("this instance leads")
	var renewing sync.WaitGroup
	renewing.Go(func() { e.renew(term, t, end) })
	err := lead(term)
	cause := context.Cause(term)
	end(nil)
	renewing.Wait()
	e.setTenure(nil)
	if !errors.Is(cause, errDeposed) {
		e.release(ctx, t, log)
	}
	if ctx.Err() == nil && err == nil {
		log.Warn("this instance does not lead any more", "reason", cause)
	}
	return err
}

// setTenure notes whether this instance leads.
func (e *Election) setTenure(t *tenure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tenure = t
	e.signal()
}

// signal wakes those who wait for news. The caller has the lock.
func (e *Election) signal() {
	close(e.news)
	e.news = make(chan struct{})
}

// renew renews the lease until the term ends, and ends it if it cannot. A commit may take
// longer than its context, so that none is waited for.
func (e *Election) renew(term context.Context, t *tenure, end context.CancelCauseFunc) {
	type result struct {
		began time.Time
		err   error
	}
	results := make(chan result, 1)
	var calls sync.WaitGroup
	defer calls.Wait()
	under := false // a renewal is under way
	ticker := time.NewTicker(e.cfg.Duration / renewals)
	defer ticker.Stop()
	lapse := time.NewTimer(time.Until(t.until))
	defer lapse.Stop()
	for {
		select {
		case <-term.Done():
			return
		case <-lapse.C:
			end(errLapsed)
			return
		case <-ticker.C:
			if under {
				continue
			}
			under = true
			began, txn := time.Now(), t.renew()
			calls.Go(func() {
				_, err := e.cfg.Store.Commit(term, txn)
				results <- result{began, err}
			})
		case r := <-results:
			under = false
			var conflict *store.ConflictError
			switch {
			case r.err == nil:
				t.renewed(r.began)
				lapse.Reset(time.Until(t.until))
			case errors.As(r.err, &conflict):
				end(errDeposed)
				return
			case term.Err() == nil:
				e.cfg.Logger.Warn("lease not renewed; it is tried again", "left", time.Until(t.until).Round(time.Millisecond), "error", r.err)
			}
		}
	}
}

// release lets another instance take over at once. ctx may have ended.
func (e *Election) release(ctx context.Context, t *tenure, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	_, err := e.cfg.Store.Commit(ctx, t.release())
	var conflict *store.ConflictError
	if err != nil && !errors.As(err, &conflict) {
		log.Warn("lease not given back; another instance leads when it has run out", "error", err)
	}
}
