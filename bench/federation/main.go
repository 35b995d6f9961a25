// Command federation measures how long a change takes to reach its users in the same zone
// and in another one: global, zones with a control plane, an ingress and a node each, as
// processes in network namespaces of one machine (package lab). It needs root and Linux.
//
//	go run ./bench/federation [-smoke] [-rounds 100] [-zones 2] [-services 0] [-mode auto] [-delay 0] [-trace] [-binary bin/proxima]
//
// -services creates so many exported Services in the first zone before it measures. Each
// -delay is that of every path between zones and global, in each direction: with it the goal of
// a change between zones is 1.5 round trips and 15 ms. -trace lists below each line the commits
// that the change leads to, by control plane, and when they were. Before each change, everything
// has been quiet for longer than controllers and streams collect changes. Each
// line has median and 99th percentile, and the goal. It exits with 1 if something did not
// work, and not because a goal was missed: that depends on the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/proxima-mesh/proxima/internal/lab"
)

// plan is how much is measured.
type plan struct {
	rounds, services int
	zones            int
	mode, binary     string
	delay            time.Duration
	trace            bool
}

func main() {
	p := plan{}
	smoke := flag.Bool("smoke", false, "only show that it works")
	flag.IntVar(&p.rounds, "rounds", 100, "rounds of each measurement")
	flag.IntVar(&p.zones, "zones", 2, "zones, from 2; changes are measured between the first two")
	flag.IntVar(&p.services, "services", 0, "exported Services that are there besides those that are measured")
	flag.StringVar(&p.mode, "mode", "auto", "mode of the agents")
	flag.DurationVar(&p.delay, "delay", 0, "delay in each direction between zones and global")
	flag.BoolVar(&p.trace, "trace", false, "list the commits of each change")
	flag.StringVar(&p.binary, "binary", "bin/proxima", "program to measure")
	flag.Parse()
	if *smoke {
		p.rounds = 2
	}
	if p.zones < 2 {
		fmt.Fprintln(os.Stderr, "federation: -zones must be 2 or more")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, p); err != nil {
		fmt.Fprintln(os.Stderr, "federation:", err)
		os.Exit(1)
	}
}

// measurement is one kind of change, and how often it is made.
type measurement struct {
	name, goal string
	// once makes the change of a round, and returns how long it took to be in use.
	once func(ctx context.Context, round int) (time.Duration, error)
}

func run(ctx context.Context, out io.Writer, p plan) (err error) {
	binary, err := filepath.Abs(p.binary)
	if err != nil {
		return err
	}
	l, err := lab.Start(ctx, lab.Spec{
		Name: fmt.Sprintf("b%d", os.Getpid()%10_000_000), Zones: p.zones, Nodes: 1, Mode: p.mode, Global: true, Executable: binary, Temporary: true,
	})
	if err != nil {
		return err
	}
	defer func() {
		if downErr := l.Down(context.WithoutCancel(ctx)); err == nil {
			err = downErr
		}
	}()
	if p.delay > 0 {
		ends := []string{"global"}
		for i := range p.zones {
			zone := "zone-" + string(rune('a'+i))
			for _, end := range ends {
				if err := l.Link(ctx, zone, end, lab.Quality{Delay: p.delay}); err != nil {
					return err
				}
			}
			ends = append(ends, zone)
		}
	}
	w, err := newWorld(ctx, l, p)
	if err != nil {
		return err
	}
	defer w.close()
	fmt.Fprintf(out, "%d zones of 1 node, mode %s, %d rounds, %d other exported Services; times in ms\n", p.zones, p.mode, p.rounds, p.services)
	if p.delay > 0 {
		fmt.Fprintf(out, "a delay of %s in each direction: between zones p50 ≤ %.0f (1.5 round trips and 15 ms)\n",
			p.delay, 3*float64(p.delay)/float64(time.Millisecond)+15)
	}
	if p.trace {
		if w.trace, err = follow(ctx, w); err != nil {
			return err
		}
	}
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "CHANGE\tP50\tP99\tGOAL")
	for _, m := range w.measurements() {
		times := make([]time.Duration, 0, p.rounds)
		for round := range p.rounds {
			took, err := m.once(ctx, round)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", m.name, round, err)
			}
			times = append(times, took)
			if p.trace {
				time.Sleep(settle) // for the commits that nobody waits for
				w.trace.end(took)
			}
		}
		fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%s\n", m.name, quantile(times, 0.5), quantile(times, 0.99), m.goal)
		if p.trace {
			if err := errors.Join(table.Flush(), w.trace.print(out)); err != nil {
				return err
			}
		}
	}
	return table.Flush()
}

// quantile in milliseconds; 0 of nothing.
func quantile(times []time.Duration, q float64) float64 {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	i := min(int(q*float64(len(sorted))), len(sorted)-1)
	return float64(sorted[i]) / float64(time.Millisecond)
}
