//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
)

// sizes of a run.
type sizes struct {
	services []int // of the nftables mode alone; the last is the large one
	installs int   // rounds of cold and warm installs
	changes  int   // rounds of single changes
	rounds   int   // of connections, of each side in turns
	batch    int   // connections in a round
	bulk     int   // bytes of a long connection
	iptables int   // services
	restores int   // rounds of changes by iptables-restore
	// trafficChanges are made while connections are.
	trafficChanges int
	agents         [2]int
	reactions      int // rounds
	restarts       int
	perLarge       int // endpoints per service when memory is measured
	settle         time.Duration
	idle           time.Duration
}

var (
	full = sizes{
		services: []int{100, 1000, 10_000}, installs: 5, changes: 10, rounds: 31, batch: 200, bulk: 32 << 20, trafficChanges: 1000,
		iptables: 10_000, restores: 7, agents: [2]int{100, 10_000}, reactions: 60, restarts: 5, perLarge: 10,
		settle: 20 * time.Second, idle: 30 * time.Second,
	}
	smoke = sizes{
		services: []int{7, 20}, installs: 1, changes: 1, rounds: 1, batch: 5, bulk: 1 << 20, trafficChanges: 10,
		iptables: 20, restores: 1, agents: [2]int{5, 20}, reactions: 2, restarts: 1, perLarge: 5,
		settle: 100 * time.Millisecond, idle: 200 * time.Millisecond,
	}
)

// bench is one run of the program.
type bench struct {
	sizes
	table
	binary    string // proxima
	kubeProxy string // a real one; empty: none is compared with
}

// part of a run, which prints its lines.
type part struct {
	name string
	run  func(*bench, context.Context) error
}

var parts = []part{
	{"programming", (*bench).programming},
	{"path", (*bench).path},
	{"ebpf", (*bench).ebpf},
	{"iptables", (*bench).iptablesMode},
	{"ipvs", (*bench).ipvsMode},
	{"agent", (*bench).agent},
}

func main() {
	quick := flag.Bool("smoke", false, "only show that it works; the figures mean nothing")
	only := flag.String("only", "", "parts to run, comma-separated: programming, path, ebpf, iptables, ipvs, agent; empty: all")
	binary := flag.String("binary", "bin/proxima", "the program to measure, built as \"make build\" does")
	flag.Parse()
	b := &bench{sizes: full, binary: *binary, kubeProxy: os.Getenv("KUBE_PROXY")}
	if *quick {
		b.sizes = smoke
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := b.run(ctx, os.Stdout, *only); err != nil {
		fmt.Fprintln(os.Stderr, "kernel:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, out io.Writer, only string) error {
	if err := netns.Available(); err != nil {
		return err
	}
	if err := b.check(only); err != nil {
		return err
	}
	began := time.Now()
	b.out = out
	b.head()
	var errs []error
	for _, s := range parts {
		if only != "" && !slices.Contains(strings.Split(only, ","), s.name) {
			continue
		}
		if err := s.run(b, ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	b.note("\n%d goals missed; %s in all", b.missed, time.Since(began).Round(time.Second))
	return errors.Join(errs...)
}

func (b *bench) check(only string) error {
	for name := range strings.SplitSeq(only, ",") {
		if name != "" && !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("-only %s: there is no such part; use programming, path, ebpf, iptables, ipvs or agent", name)
		}
	}
	for _, n := range append([]int{b.iptables, b.agents[0], b.agents[1]}, b.services...) {
		if n < 2 || n >= mostServices-300 {
			return fmt.Errorf("%d services: want 2 to %d", n, mostServices-300)
		}
	}
	if b.kubeProxy != "" {
		if _, err := os.Stat(b.kubeProxy); err != nil {
			return fmt.Errorf("KUBE_PROXY: %w; name a kube-proxy binary, or unset it", err)
		}
	}
	return nil
}
