package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// component is one thing that a role runs.
type component struct {
	// Name for errors.
	Name string
	// Run blocks until ctx ends; to return earlier is a failure. A component of the
	// leader is run once in each term, so Run makes all that it keeps.
	Run func(ctx context.Context) error
	// Scope selects the instances that run it.
	Scope scope
	// Ready, if it is not nil, is closed by Run. The components behind this one start
	// then, and this one ends after they have ended.
	Ready <-chan struct{}
}

// scope of a component: which of the instances on one store run it.
type scope int

const (
	each   scope = iota // all of them
	leader              // the one that leads, as long as it leads
)

// election decides which of the instances on one store leads.
type election interface {
	// Run takes part until ctx ends, and returns nil then. Whenever this instance has
	// won, lead is called, with a context that ends with the term. There is one term at a
	// time: the next one begins after lead has returned. An error of lead is returned.
	Run(ctx context.Context, lead func(term context.Context) error) error
}

// unopposed is the election of a store that has one instance: it always leads.
type unopposed struct{}

// Run implements election.
func (unopposed) Run(ctx context.Context, lead func(context.Context) error) error { return lead(ctx) }

// run runs components until ctx ends or one of them fails, and returns after all have
// ended: nil, or why the first one failed.
//
// They start in the order of the list. Those up to one with Ready are a stage: the next
// stage starts when that is ready, and stages end one after the other in reverse order.
// Components of the leader run together, where the last of them stands in the list.
func run(ctx context.Context, e election, list []component) error {
	parent := ctx
	ctx, fail := context.WithCancelCause(parent)
	defer fail(nil)
	var running []*stage
	for _, components := range stages(withLeader(e, list)) {
		s := startStage(ctx, components, fail)
		running = append(running, s)
		if !s.waitReady(ctx) {
			break
		}
	}
	<-ctx.Done()
	for _, s := range slices.Backward(running) {
		s.end()
	}
	cause := context.Cause(ctx)
	if parent.Err() != nil && errors.Is(cause, context.Cause(parent)) {
		return nil
	}
	return cause
}

// withLeader puts one component in place of those of the leader: it runs them in each
// term.
func withLeader(e election, list []component) []component {
	var out, term []component
	at := 0
	for _, c := range list {
		if c.Scope == each {
			out = append(out, c)
			continue
		}
		c.Scope = each // of the instance that leads
		term = append(term, c)
		at = len(out)
	}
	if len(term) == 0 {
		return out
	}
	return slices.Insert(out, at, component{Name: "leader", Run: func(ctx context.Context) error {
		return e.Run(ctx, func(ctx context.Context) error { return run(ctx, e, term) })
	}})
}

// stages are a list of components, cut behind each one that has Ready.
func stages(list []component) [][]component {
	var out [][]component
	begin := 0
	for i, c := range list {
		if c.Ready != nil || i == len(list)-1 {
			out = append(out, list[begin:i+1])
			begin = i + 1
		}
	}
	return out
}

// stage is components that start and end at the same time.
type stage struct {
	ready  <-chan struct{} // nil: at once
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// startStage runs components, whose failures go to fail, until end is called: the end of
// ctx alone does not end them.
func startStage(ctx context.Context, components []component, fail context.CancelCauseFunc) *stage {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &stage{ready: components[len(components)-1].Ready, cancel: cancel}
	for _, c := range components {
		s.wg.Go(func() {
			err := c.Run(ctx)
			if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
				return
			}
			if err == nil {
				err = errors.New("ended by itself")
			}
			fail(fmt.Errorf("%s: %w", c.Name, err))
		})
	}
	return s
}

// waitReady blocks until the next stage may start; false: ctx has ended first.
func (s *stage) waitReady(ctx context.Context) bool {
	if s.ready != nil {
		select {
		case <-s.ready:
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// end stops the components and waits for them.
func (s *stage) end() {
	s.cancel()
	s.wg.Wait()
}

// announce calls ready once, when everything before it in the list is ready.
func announce(ready func(Serving), serving Serving) component {
	return component{Name: "ready", Run: func(ctx context.Context) error {
		ready(serving)
		<-ctx.Done()
		return nil
	}}
}
