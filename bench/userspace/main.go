// Command userspace measures what a detour through a proxy costs: this
// project's userspace mode against a direct connection, the proxy that one writes
// first in Go, and HAProxy (if it is installed).
//
// Every way is a process of its own, as is the server, all on loopback. The ways
// take turns, round by round and in changing order, so that whatever else the
// machine does meets all of them: ratios are comparable, times only within a run.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// plan is how much is measured.
type plan struct {
	rounds     int
	short      int // transactions of one client per round and way
	kept       int // round trips
	rate       int // transactions of all clients together
	concurrent []int
}

var (
	fullPlan  = plan{rounds: 31, short: 200, kept: 400, rate: 1000, concurrent: []int{1, 8, 64}}
	smokePlan = plan{rounds: 1, short: 5, kept: 5, rate: 20, concurrent: []int{1, 8}}
)

func main() {
	role := flag.String("role", "", "for the program's own use: what this process is")
	vip := flag.String("vip", "", "for the program's own use: where to listen")
	target := flag.String("target", "", "for the program's own use: where to connect")
	smoke := flag.Bool("smoke", false, "only show that it works")
	rounds := flag.Int("rounds", fullPlan.rounds, "rounds; medians are over them")
	flag.Parse()
	if *role != "" {
		fail(serve(*role, *vip, *target))
		return
	}
	p := fullPlan
	p.rounds = *rounds
	if *smoke {
		p = smokePlan
	}
	fail(run(os.Stdout, p))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "userspace:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, p plan) error {
	ways, stop, err := startWays(out)
	defer stop()
	if err != nil {
		return err
	}
	results := make([]result, len(ways))
	for i, w := range ways {
		results[i].rates = make([][]float64, len(p.concurrent))
		results[i].cpu = make([][]float64, len(p.concurrent))
		if err := w.shorts(20, 2); err != nil { // warm up
			return err
		}
	}
	for round := range p.rounds {
		for turn := range ways {
			i := (round + turn) % len(ways)
			if err := results[i].measure(p, ways[i]); err != nil {
				return fmt.Errorf("%s: %w", ways[i].name, err)
			}
		}
	}
	report(out, p, ways, results)
	return nil
}

// result is what one way took: times are medians of a round, one per round.
type result struct {
	short, kept []time.Duration
	rates       [][]float64 // by number of clients, one per round
	cpu         [][]float64 // microseconds of the proxy for each connection
}

func (r *result) measure(p plan, w way) error {
	short, err := w.latencies(p.short)
	if err != nil {
		return err
	}
	kept, err := w.roundTrips(p.kept)
	if err != nil {
		return err
	}
	r.short, r.kept = append(r.short, short), append(r.kept, kept)
	for i, clients := range p.concurrent {
		cpu, begin := w.cpu(), time.Now()
		if err := w.shorts(p.rate, clients); err != nil {
			return err
		}
		r.rates[i] = append(r.rates[i], float64(p.rate)/time.Since(begin).Seconds())
		r.cpu[i] = append(r.cpu[i], float64((w.cpu()-cpu).Microseconds())/float64(p.rate))
	}
	return nil
}

func report(out io.Writer, p plan, ways []way, results []result) {
	fmt.Fprintf(out, "%-12s %10s %10s", "", "short µs", "kept µs")
	for _, n := range p.concurrent {
		fmt.Fprintf(out, " %9s %9s", fmt.Sprint("conn/s@", n), fmt.Sprint("cpu µs@", n))
	}
	fmt.Fprintln(out)
	for i, w := range ways {
		r := &results[i]
		fmt.Fprintf(out, "%-12s %10.1f %10.1f", w.name, micros(median(r.short)), micros(median(r.kept)))
		for j := range p.concurrent {
			fmt.Fprintf(out, " %9.0f %9.1f", median(r.rates[j]), median(r.cpu[j]))
		}
		fmt.Fprintln(out)
	}
	for _, base := range []string{"direct", "haproxy"} {
		b := slices.IndexFunc(ways, func(w way) bool { return w.name == base })
		if b < 0 {
			continue
		}
		fmt.Fprintf(out, "\nspeed relative to %s (median of the rounds' ratios; 1 is as fast, more is faster)\n", base)
		for i, w := range ways {
			if i == b {
				continue
			}
			r, to := &results[i], &results[b]
			fmt.Fprintf(out, "%-12s %10.2f %10.2f", w.name, ratio(to.short, r.short), ratio(to.kept, r.kept))
			for j := range p.concurrent {
				fmt.Fprintf(out, " %9.2f %9s", ratio(r.rates[j], to.rates[j]), "")
			}
			fmt.Fprintln(out)
		}
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

func median[T cmp.Ordered](all []T) T {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// ratio is the median of a/b, round by round.
func ratio[T time.Duration | float64](a, b []T) float64 {
	var all []float64
	for i := range a {
		all = append(all, float64(a[i])/float64(b[i]))
	}
	return median(all)
}
