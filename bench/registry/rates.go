package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// perService is how many instances a service has.
const perService = 10

// rate of one kind of request at one server, over all slices.
type rate struct {
	count     int
	took, cpu time.Duration
	latency   []time.Duration
}

func (r *rate) perSecond() float64 { return float64(r.count) / r.took.Seconds() }
func (r *rate) cpuEach() float64   { return float64(r.cpu.Microseconds()) / float64(max(r.count, 1)) }

// kinds of request of measureRates.
var kinds = []string{"registrations", "queries", "deregistrations"}

// measureRates loads each server by turns with registrations, queries and deregistrations of clients that
// send one request at a time.
func measureRates(ctx context.Context, p plan, out io.Writer) error {
	return pairs(ctx, p, out, func(proto protocol, servers []*process) error {
		rates := make([]map[string]*rate, len(servers))
		for i := range rates {
			rates[i] = map[string]*rate{}
			for _, kind := range kinds {
				rates[i][kind] = &rate{}
			}
		}
		for round := range p.rounds + 1 { // the first one warms up
			for i, s := range servers {
				into := rates[i]
				if round == 0 {
					into = map[string]*rate{"registrations": {}, "queries": {}, "deregistrations": {}}
				}
				if err := oneSlice(ctx, p, proto, s, into); err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
			}
		}
		fmt.Fprintf(out, "%s, %d clients, %d rounds of %s by turns\n", proto.name, p.workers, p.rounds, p.slice)
		fmt.Fprintf(out, "  %-16s %-12s %10s %7s %14s %9s %9s\n", "request", "server", "per second", "ratio", "CPU each, µs", "p50, ms", "p99, ms")
		for _, kind := range kinds {
			for i, s := range servers {
				r := rates[i][kind]
				ratio := ""
				if i == 0 && len(servers) > 1 {
					ratio = fmt.Sprintf("%.2f", r.perSecond()/rates[1][kind].perSecond())
				}
				fmt.Fprintf(out, "  %-16s %-12s %10.0f %7s %14.1f %9s %9s\n", kind, s.name, r.perSecond(), ratio, r.cpuEach(),
					millis(percentile(r.latency, 50)), millis(percentile(r.latency, 99)))
			}
		}
		return nil
	})
}

// oneSlice registers instances for a while, queries their services as long, and deregisters all.
func oneSlice(ctx context.Context, p plan, proto protocol, s *process, into map[string]*rate) error {
	clients, err := connectAll(proto, s, p.workers)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	// A client has one instance of a service, as instances of Nacos take the place of each other otherwise:
	// so perService clients share the services.
	registered := make([]int, p.workers)
	name := func(w, k int) string { return fmt.Sprintf("bench-%d-%d", w/perService, k) }
	err = loaded(ctx, s, into["registrations"], p.slice, clients, func(w, k int) error {
		if err := clients[w].register(name(w, k), w); err != nil {
			return err
		}
		registered[w] = k + 1
		return nil
	})
	if err != nil {
		return err
	}
	err = loaded(ctx, s, into["queries"], p.slice, clients, func(w, k int) error {
		n, err := clients[w].query(name(w, k%registered[w]))
		if err == nil && n == 0 {
			err = fmt.Errorf("service %s has no instances", name(w, k%registered[w]))
		}
		return err
	})
	if err != nil {
		return err
	}
	return loaded(ctx, s, into["deregistrations"], 0, clients, func(w, k int) error {
		if k == registered[w] {
			return errDone
		}
		return clients[w].deregister(name(w, k), w)
	})
}

var errDone = errors.New("done")

// loaded calls f with each worker again and again, for a time, or until it returns errDone.
func loaded(ctx context.Context, s *process, into *rate, d time.Duration, clients []client, f func(worker, k int) error) error {
	before, err := s.cpu()
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	errs := make([]error, len(clients))
	latency := make([][]time.Duration, len(clients))
	began := time.Now()
	for w := range clients {
		running.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				from := time.Now()
				if d > 0 && from.Sub(began) >= d {
					return
				}
				if errs[w] = f(w, k); errs[w] != nil {
					return
				}
				latency[w] = append(latency[w], time.Since(from))
			}
		})
	}
	running.Wait()
	into.took += time.Since(began)
	after, err := s.cpu()
	into.cpu += after - before
	for w := range clients {
		into.count += len(latency[w])
		into.latency = append(into.latency, latency[w]...)
		if !errors.Is(errs[w], errDone) {
			err = errors.Join(err, errs[w])
		}
	}
	return errors.Join(err, ctx.Err())
}
