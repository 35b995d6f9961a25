package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// measurePush measures how long it takes from the request of a registration until subscribers have it.
func measurePush(ctx context.Context, p plan, out io.Writer) error {
	return pairs(ctx, p, out, func(proto protocol, servers []*process) error {
		if proto.name == "eureka" {
			return nil // see staleness
		}
		fmt.Fprintf(out, "%s, from a registration until subscribers of the service have it, %d registrations by turns\n", proto.name, p.changes)
		fmt.Fprintf(out, "  %-11s %-12s %9s %7s %9s %12s %20s\n", "subscribers", "server", "p50, ms", "ratio", "p99, ms", "last p50, ms", "CPU of server, µs each")
		for _, n := range p.subscribers {
			if err := pushTo(ctx, p, out, proto, servers, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// crowd are the subscribers of a service at one server.
type crowd struct {
	server  *process
	service string
	writers []client // each registers one instance
	readers []client

	mu     sync.Mutex
	wanted int  // instance; -1: none
	has    bool // whether it is to be there
	got    map[int]time.Time
	all    chan struct{}
	took   []time.Duration
	last   []time.Duration
	cpu    time.Duration
}

// standing instances of the service.
const standing = 10

func pushTo(ctx context.Context, p plan, out io.Writer, proto protocol, servers []*process, n int) error {
	var crowds []*crowd
	for _, s := range servers {
		c, err := newCrowd(p, proto, s, n)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		defer closeAll(c.readers)
		defer closeAll(c.writers)
		crowds = append(crowds, c)
	}
	if err := pause(ctx, 2*time.Second); err != nil { // what a subscription leads to
		return err
	}
	for k := range p.changes {
		for _, c := range crowds {
			if err := c.round(standing+k, k == 0); err != nil {
				return fmt.Errorf("%s, %d subscribers: %w", c.server.name, n, err)
			}
		}
	}
	peer := time.Duration(0)
	if len(crowds) > 1 {
		peer = percentile(crowds[1].took, 50)
	}
	for i, c := range crowds {
		ratio := ""
		if i == 0 && peer > 0 {
			ratio = fmt.Sprintf("%.3f", float64(percentile(c.took, 50))/float64(peer))
		}
		fmt.Fprintf(out, "  %-11d %-12s %9s %7s %9s %12s %20.1f\n", n, c.server.name, millis(percentile(c.took, 50)), ratio, millis(percentile(c.took, 99)),
			millis(percentile(c.last, 50)), float64(c.cpu.Microseconds())/float64(max(len(c.took), 1)))
	}
	return nil
}

func newCrowd(p plan, proto protocol, s *process, n int) (*crowd, error) {
	c := &crowd{server: s, service: fmt.Sprintf("push-%d", n), wanted: -1}
	var err error
	if c.writers, err = connectAll(proto, s, standing+p.changes); err != nil {
		return nil, err
	}
	for i := range standing {
		if err := c.writers[i].register(c.service, i); err != nil {
			return nil, err
		}
	}
	if c.readers, err = connectAll(proto, s, n); err != nil {
		return nil, err
	}
	return c, each(min(n, 32), n, func(_, i int) error {
		return c.readers[i].follow(c.service, func(has func(int) bool, at time.Time) { c.told(i, has, at) })
	})
}

func (c *crowd) told(reader int, has func(int) bool, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wanted < 0 || has(c.wanted) != c.has {
		return
	}
	if _, twice := c.got[reader]; twice {
		return
	}
	if c.got[reader] = at; len(c.got) == len(c.readers) {
		close(c.all)
	}
}

// round registers an instance, and deregisters it again, each until all know.
func (c *crowd) round(n int, warmUp bool) error {
	before, err := c.server.cpu()
	if err != nil {
		return err
	}
	c.expect(n, true)
	began := time.Now()
	if err := c.writers[n].register(c.service, n); err != nil {
		return err
	}
	if err := c.await(); err != nil {
		return err
	}
	after, err := c.server.cpu()
	if err != nil {
		return err
	}
	if !warmUp {
		c.cpu += after - before
		var last time.Duration
		for _, at := range c.got {
			c.took = append(c.took, at.Sub(began))
			last = max(last, at.Sub(began))
		}
		c.last = append(c.last, last)
	}
	c.expect(n, false)
	if err := c.writers[n].deregister(c.service, n); err != nil {
		return err
	}
	return c.await()
}

func (c *crowd) expect(n int, has bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted, c.has, c.got, c.all = n, has, map[int]time.Time{}, make(chan struct{})
}

func (c *crowd) await() error {
	select {
	case <-c.all:
		return nil
	case <-time.After(20 * time.Second):
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Errorf("%d of %d subscribers know of the change after 20 s", len(c.got), len(c.readers))
	}
}
