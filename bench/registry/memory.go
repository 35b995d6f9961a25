package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

// measureMemory registers many instances at each server, and reads its memory when it is at rest.
func measureMemory(ctx context.Context, p plan, out io.Writer) error {
	return pairs(ctx, p, out, func(proto protocol, servers []*process) error {
		fmt.Fprintf(out, "%s, %d instances, %d of each service\n", proto.name, p.instances, perService)
		for _, s := range servers {
			empty, err := s.resident()
			if err != nil {
				return err
			}
			clients, err := connectAll(proto, s, perService*8)
			if err != nil {
				return err
			}
			began := time.Now()
			groups := len(clients) / perService
			err = each(len(clients), len(clients), func(_, w int) error {
				for k := w / perService; k < p.instances/perService; k += groups {
					if err := clients[w].register(fmt.Sprintf("bench-%d", k), k*perService+w%perService); err != nil {
						return err
					}
				}
				return nil
			})
			took := time.Since(began)
			if err != nil {
				closeAll(clients)
				return fmt.Errorf("%s: %w", s.name, err)
			}
			peak, err := s.resident()
			if err == nil {
				err = pause(ctx, p.settle)
			}
			if err != nil {
				return err
			}
			full, err := s.resident()
			if err != nil {
				return err
			}
			cpu, err := s.cpu()
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "  %-12s %7.0f MB, %.0f before, %.0f when the last was registered; %.0f a second, %s of CPU in all\n", s.name, full, empty, peak,
				float64(p.instances)/took.Seconds(), cpu.Round(time.Second/10))
			err = listings(out, clients[0])
			closeAll(clients)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if len(servers) > 1 {
				s.stop() // it has much to delete, which would be beside the next one
			}
		}
		return nil
	})
}

// lister reads what there is as a whole.
type lister interface {
	// list all services, or all that there is where the protocol has no list of services alone.
	list() (bytes int, err error)
}

// listings are what it takes to read the list of services, and one of them, with so many instances.
func listings(out io.Writer, c client) error {
	const times = 20
	var whole, one []time.Duration
	size := 0
	for k := range times {
		began := time.Now()
		if l, ok := c.(lister); ok {
			n, err := l.list()
			if err != nil {
				return err
			}
			size, whole = n, append(whole, time.Since(began))
		}
		began = time.Now()
		switch n, err := c.query(fmt.Sprintf("bench-%d", k)); {
		case err != nil:
			return err
		case n != perService:
			return fmt.Errorf("service bench-%d has %d instances, not %d", k, n, perService)
		}
		one = append(one, time.Since(began))
	}
	fmt.Fprintf(out, "    list of all: %d kB, p50 %s ms, p99 %s ms; one service: p50 %s ms, p99 %s ms\n", size/1000,
		millis(percentile(whole, 50)), millis(percentile(whole, 99)), millis(percentile(one, 50)), millis(percentile(one, 99)))
	return nil
}
