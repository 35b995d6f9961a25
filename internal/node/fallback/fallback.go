// Package fallback chooses what an agent in a Kubernetes cluster follows: the view of its
// control plane, or, where there is no control plane, the cluster's API.
//
// The view comes first: it has plans, suspect nodes and other sites, which the API lacks. The
// agent follows the API until it has its first view, and when it has been without a control
// plane for some time and a Service or EndpointSlice has changed meanwhile. As long as nothing
// changed, the last view is as good as the API, and better planned.
//
// Enter at [New]; updates of the view go through [Switch.FromView].
package fallback

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/node"
)

const (
	// FirstView is how long an agent without any state waits for a view.
	FirstView = 3 * time.Second
	// look is how often the connection to the control plane is looked at.
	look = 500 * time.Millisecond
	// spread of the moments at which agents begin to watch for changes: all of them lose a
	// control plane at the same time.
	spread = time.Second
	// retry is the pause after a watch that failed.
	retry = 2 * time.Second
)

// View is the feed of the control plane.
type View interface {
	// Current reports whether the control plane is connected, and its state received.
	Current() bool
	// Held reports whether there is a whole state, however old.
	Held() bool
	// State is all that was received.
	State() node.Update
}

// Config of a Switch. All but Logger are required.
type Config struct {
	View View
	// Direct follows the API until ctx ends. The first update has Reset.
	Direct func(ctx context.Context, update func(node.Update)) error
	// Changed returns nil once the API has a Service or EndpointSlice that has changed since
	// a moment, or lacks one of a state; an error if it cannot tell. It blocks until then, or
	// until ctx ends.
	Changed func(ctx context.Context, since time.Time, state node.Update) error
	// After is how long the agent goes on with its last view.
	After time.Duration
	// Apply gets the updates of what is followed, one at a time. The first after a change
	// between view and API has Reset.
	Apply  func(node.Update)
	Logger *slog.Logger // nil: silence
}

// Status of a Switch.
type Status struct {
	// Direct: the agent follows the cluster's API.
	Direct bool `json:"direct"`
	// Since when it follows what it follows; zero: nothing yet.
	Since time.Time `json:"since,omitzero"`
	// Alone is since when there is no control plane; zero: there is one.
	Alone time.Time `json:"alone,omitzero"`
	// Changed: something has changed since then.
	Changed bool `json:"changed,omitempty"`
	// Switches counts the changes from the view to the API.
	Switches uint64 `json:"switches"`
	// LastError of the API.
	LastError string `json:"lastError,omitempty"`
}

// Switch follows a view, and the API in its place. Make it with New.
type Switch struct {
	config Config

	mu     sync.Mutex // also held while Apply runs: its calls are in order
	status Status
}

// New makes a Switch; Run starts it.
func New(c Config) *Switch {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Switch{config: c}
}

// Status of the switch. Safe for concurrent use; it may wait for one update.
func (s *Switch) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// FromView takes an update of the view. While the API is followed, it is left to the state of
// the view, which is applied as a whole later.
func (s *Switch) FromView(u node.Update) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.Direct {
		return
	}
	if s.status.Since.IsZero() {
		s.status.Since = time.Now()
	}
	s.config.Apply(u)
}

// Run works until ctx ends, and returns nil then. Call it once.
func (s *Switch) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if !s.await(ctx, func() bool { return !s.config.View.Current() }) {
			return nil
		}
		s.alone(ctx)
	}
	return nil
}

// await a condition; false: ctx ended first.
func (s *Switch) await(ctx context.Context, there func() bool) bool {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for !there() {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	return ctx.Err() == nil
}

// alone lasts until the control plane is back.
func (s *Switch) alone(parent context.Context) {
	ctx, back := context.WithCancel(parent)
	defer back()
	began := time.Now()
	s.set(func(st *Status) { st.Alone, st.Changed = began, false })
	defer s.set(func(st *Status) { st.Alone, st.Changed = time.Time{}, false })
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() {
		defer back()
		s.await(ctx, s.config.View.Current)
	})
	if !s.wait(ctx, began) {
		return
	}
	s.direct(ctx)
	<-ctx.Done()
	if parent.Err() == nil {
		s.follow()
	}
}

// wait until the API is to be followed; false: ctx ended first.
func (s *Switch) wait(ctx context.Context, began time.Time) bool {
	first := time.Duration(0)
	if !s.config.View.Held() {
		first = FirstView
	}
	if !sleep(ctx, first+rand.N(spread)) {
		return false
	}
	if !s.config.View.Held() {
		return true
	}
	for {
		err := s.config.Changed(ctx, began, s.config.View.State())
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			break
		}
		s.fail(err)
		if !sleep(ctx, retry) {
			return false
		}
	}
	s.set(func(st *Status) { st.Changed = true })
	return sleep(ctx, s.config.After-time.Since(began))
}

// direct follows the API until ctx ends.
func (s *Switch) direct(ctx context.Context) {
	err := s.config.Direct(ctx, func(u node.Update) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		if !s.status.Direct {
			if !u.Reset {
				return // a Direct that breaks its contract
			}
			s.status.Direct, s.status.Since = true, time.Now()
			s.status.Switches++
			s.config.Logger.Warn("no control plane: the agent follows the cluster's API, without plans", "alone", s.status.Alone)
		}
		s.config.Apply(u)
	})
	if err != nil {
		s.fail(err)
	}
}

// follow the view again.
func (s *Switch) follow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.status.Direct {
		return // the API did not answer either
	}
	u := s.config.View.State()
	u.Reset = true
	s.status.Direct, s.status.Since = false, time.Now()
	s.config.Logger.Info("the control plane is back: the agent follows its view")
	s.config.Apply(u)
}

func (s *Switch) fail(err error) {
	s.config.Logger.Warn("the cluster's API cannot be followed", "error", err)
	s.set(func(st *Status) { st.LastError = err.Error() })
}

func (s *Switch) set(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// sleep reports whether d has passed; false: ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
