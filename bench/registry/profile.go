package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// measureProfile loads servers of Nacos as those of large installations are: so many clients, each with a
// connection, requests at a rate that does not depend on how fast they are answered.
func measureProfile(ctx context.Context, p plan, out io.Writer) error {
	p.protocols = slices.DeleteFunc(slices.Clone(p.protocols), func(name string) bool { return name != "nacos" })
	return pairs(ctx, p, out, func(proto protocol, servers []*process) error {
		for _, s := range servers {
			if err := profileOf(ctx, p, out, proto, s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if len(servers) > 1 {
				s.stop()
			}
		}
		return nil
	})
}

func profileOf(ctx context.Context, p plan, out io.Writer, proto protocol, s *process) error {
	began := time.Now()
	list, err := connectAll(proto, s, p.clients)
	if err != nil {
		return err
	}
	defer closeAll(list)
	clients := make([]*nacosClient, len(list))
	for i, c := range list {
		clients[i] = c.(*nacosRegistry).nacosClient
	}
	memory, err := s.resident()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %d clients connected in %s, %.0f MB\n", s.name, p.clients, time.Since(began).Round(time.Millisecond), memory)

	registered := make([]atomic.Int64, p.clients)
	err = together(ctx, out, s, p.profile, []stream{
		{"registrations", p.registrations, func(k int) error {
			w := k % p.clients
			n := registered[w].Load()
			err := clients[w].register(fmt.Sprintf("profile-%d-%d", w/perService, n), w)
			registered[w].Add(1)
			return err
		}},
		{"queries", p.queries, func(int) error {
			w := rand.IntN(p.clients)
			_, err := clients[w].query(fmt.Sprintf("profile-%d-0", rand.IntN(max(p.clients/perService, 1))))
			return err
		}},
	})
	if err != nil {
		return err
	}
	const entries = 1000
	publish := func(k int) error {
		return clients[k%p.clients].publish(fmt.Sprintf("profile-%d", k%entries), fmt.Sprintf("version: %d", k))
	}
	if err := each(32, entries, func(_, k int) error { return publish(k) }); err != nil {
		return err
	}
	return together(ctx, out, s, p.profile, []stream{
		{"publishes", p.publishes, func(k int) error { return publish(entries + k) }},
		{"config reads", p.reads, func(int) error {
			return clients[rand.IntN(p.clients)].config(fmt.Sprintf("profile-%d", rand.IntN(entries)))
		}},
	})
}

// stream of requests, so many each second.
type stream struct {
	name string
	rate int
	do   func(k int) error
}

// together sends streams of requests for a time, and says how they were answered. Latency is from when a
// request was due.
func together(ctx context.Context, out io.Writer, s *process, d time.Duration, streams []stream) error {
	before, err := s.cpu()
	if err != nil {
		return err
	}
	type result struct {
		latency []time.Duration
		failed  int
		first   error
		took    time.Duration
	}
	results := make([]result, len(streams))
	var running sync.WaitGroup
	began := time.Now()
	for i, st := range streams {
		running.Go(func() {
			r := &results[i]
			var mu sync.Mutex
			var calls sync.WaitGroup
			total := int(float64(st.rate) * d.Seconds())
			for k := 0; k < total && ctx.Err() == nil; {
				due := int(time.Since(began).Seconds() * float64(st.rate))
				for ; k < min(due, total); k++ {
					n := k
					calls.Go(func() {
						from := began.Add(time.Duration(float64(n) / float64(st.rate) * float64(time.Second)))
						err := st.do(n)
						took := time.Since(from)
						mu.Lock()
						defer mu.Unlock()
						if r.latency = append(r.latency, took); err != nil {
							if r.failed++; r.first == nil {
								r.first = err
							}
						}
					})
				}
				time.Sleep(time.Millisecond)
			}
			calls.Wait()
			r.took = time.Since(began)
		})
	}
	running.Wait()
	after, err := s.cpu()
	if err != nil {
		return err
	}
	for i, st := range streams {
		r := &results[i]
		fmt.Fprintf(out, "  %-14s %6d/s wanted, %6.0f/s answered, %d errors, p50 %s ms, p99 %s ms\n", st.name, st.rate,
			float64(len(r.latency))/r.took.Seconds(), r.failed, millis(percentile(r.latency, 50)), millis(percentile(r.latency, 99)))
		if r.first != nil {
			fmt.Fprintf(out, "    the first error: %v\n", r.first)
		}
	}
	fmt.Fprintf(out, "  %.2f processors of %s\n", (after-before).Seconds()/time.Since(began).Seconds(), s.name)
	return errors.Join(ctx.Err())
}
