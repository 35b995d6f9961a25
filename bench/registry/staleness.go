package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// measureStaleness measures how old an instance is when clients of Eureka get to know of it. They read the
// changes, and again an interval after the answer, as Netflix's client does: 30 s at its defaults, 5 s tuned.
// The tuned server has no response cache. All have their instances at the same times.
func measureStaleness(ctx context.Context, p plan, out io.Writer) error {
	if !slices.Contains(p.protocols, "eureka") {
		return nil
	}
	ours, err := startOurs(ctx, p, "eureka")
	if err != nil {
		return err
	}
	defer ours.stop()
	servers := []*process{ours}
	crowds := []*pollers{
		{server: ours, every: p.fetch},
		{server: ours, every: p.fetchTuned},
	}
	for i, every := range []time.Duration{p.fetch, p.fetchTuned} {
		peer, err := startEureka(ctx, p, i == 1)
		if err != nil {
			fmt.Fprintf(out, "no peer: %v; bench/registry/peers installs it\n", err)
			break
		}
		defer peer.stop()
		servers = append(servers, peer)
		crowds = append(crowds, &pollers{server: peer, every: every})
	}
	if err := observe(ctx, p, servers, crowds); err != nil {
		return err
	}
	fmt.Fprintf(out, "eureka, %d clients, from the registration of an instance until a client has it, %d instances\n", p.pollers, p.events)
	fmt.Fprintf(out, "  %-14s %9s %9s %9s %7s %9s\n", "server", "interval", "p50, s", "p99, s", "ratio", "requests")
	for _, c := range crowds {
		ratio := ""
		if peer := slices.IndexFunc(crowds, func(o *pollers) bool { return o.server != ours && o.every == c.every }); c.server == ours && peer >= 0 {
			ratio = fmt.Sprintf("%.1f", float64(percentile(crowds[peer].took, 50))/float64(max(percentile(c.took, 50), 1)))
		}
		fmt.Fprintf(out, "  %-14s %9s %9.2f %9.2f %7s %9d\n", c.server.name, c.every, percentile(c.took, 50).Seconds(), percentile(c.took, 99).Seconds(), ratio, c.requests)
		if want := p.pollers * p.events; len(c.took) < want {
			return fmt.Errorf("%s: %d of %d times an instance was not seen", c.server.name, want-len(c.took), want)
		}
	}
	return nil
}

// pollers are the clients of a server with an interval.
type pollers struct {
	server *process
	every  time.Duration

	mu       sync.Mutex
	began    []time.Time // of each instance
	took     []time.Duration
	requests int
}

func observe(ctx context.Context, p plan, servers []*process, crowds []*pollers) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	errs := make(chan error, len(crowds)*p.pollers)
	for _, c := range crowds {
		for range p.pollers {
			running.Go(func() { errs <- c.poll(ctx) })
		}
	}
	writers := make([]client, len(servers))
	defer closeAll(writers)
	for i, s := range servers {
		var err error
		if writers[i], err = connectEureka(s.eureka); err != nil {
			return err
		}
	}
	if err := pause(ctx, p.fetch); err != nil {
		return err
	}
	for n := range p.events {
		for i, s := range servers {
			for _, c := range crowds {
				if c.server == s {
					c.mu.Lock()
					c.began = append(c.began, time.Now())
					c.mu.Unlock()
				}
			}
			if err := writers[i].register("stale", n); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		if err := pause(ctx, time.Duration(rand.Int64N(int64(p.fetch*2/3)))+time.Millisecond); err != nil {
			return err
		}
	}
	// The slowest ones: a cache, an interval, and what waits for one answer.
	if err := pause(ctx, 3*p.fetch+time.Second); err != nil {
		return err
	}
	stop()
	running.Wait()
	close(errs)
	var err error
	for e := range errs {
		err = errors.Join(err, e)
	}
	return err
}

// poll as one client does, until ctx ends.
func (c *pollers) poll(ctx context.Context) error {
	connected, err := connectEureka(c.server.eureka)
	if err != nil {
		return err
	}
	defer connected.close()
	client := connected.(*eurekaClient)
	if pause(ctx, time.Duration(rand.Int64N(int64(c.every)))) != nil {
		return nil
	}
	seen := map[int]bool{}
	for {
		text, err := client.delta()
		at := time.Now()
		if err != nil {
			return fmt.Errorf("%s: %w", c.server.name, err)
		}
		c.mu.Lock()
		c.requests++
		for n, began := range c.began {
			if !seen[n] && bytes.Contains(text, []byte(`"`+eurekaID("stale", n)+`"`)) {
				seen[n] = true
				c.took = append(c.took, at.Sub(began))
			}
		}
		c.mu.Unlock()
		if pause(ctx, c.every) != nil {
			return nil
		}
	}
}
