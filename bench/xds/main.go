// Command xds measures what proxies get from a control plane, and when: a change until a stream
// holds it and until a connection through a real Envoy follows it, the last of many streams, memory
// and CPU time of a stream, and what a change costs as the number of Services grows.
//
//	go run . [-smoke] [-only envoy,fanout,memory,cost,change,crowd,lean] [-rounds 100] [-streams 200]
//	         [-sidecars 1000,2000] [-pause 30s] [-heap FILE] [-binary FILE] [-sidecar FILE] [-envoy FILE]
//
// It is a module of its own, so that the product does not link go-control-plane's server, which it
// is compared with. Run it in its folder, or by bench/run.
//
//   - envoy, fanout, memory and cost have the control plane's packages in this process: objects in
//     memory, tables, resources and the server. Servers take turns, so that what disturbs one
//     disturbs all: the ratios hold where the times do not.
//   - change, crowd and lean have a real control plane (SQLite) as a process, a real supervisor
//     and a real Envoy; sidecars of a crowd are streams of this process, which ask as a supervisor
//     does, each on a connection of its own with mutual TLS.
//
// Envoy is that of tools/envoy. It exits with 1 if something did not work, and not because a goal
// was missed: that depends on the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// plan is how much is measured.
type plan struct {
	rounds int
	// streams of fanout and memory; services that there are, and of them used by each proxy.
	streams, services, used int
	// sidecars of a crowd, rising.
	sidecars []int
	// large is the number of Services of lean, sizes those of cost.
	large  int
	sizes  []int
	settle time.Duration

	binary, sidecar, envoy string
	heap                   string
}

var (
	full = plan{
		rounds: 100, streams: 200, services: 1000, used: 20, sidecars: []int{1000, 2000},
		large: 10_000, sizes: []int{10, 1000, 10_000}, settle: 30 * time.Second,
	}
	smoke = plan{
		rounds: 3, streams: 5, services: 30, used: 5, sidecars: []int{5, 10}, large: 40, sizes: []int{10, 40}, settle: time.Second / 2,
	}
)

// part of the benchmark.
type part struct {
	name string
	run  func(ctx context.Context, p plan, out io.Writer) error
}

func parts() []part {
	return []part{
		{"envoy", measureEnvoy}, {"fanout", measureFanout}, {"memory", measureMemory}, {"cost", measureCost},
		{"change", measureChange}, {"crowd", measureCrowd}, {"lean", measureLean},
	}
}

func main() {
	if role := os.Getenv(clientsEnv); role != "" {
		exit(clients(os.Args[1:], os.Stdout, os.Stdin))
		return
	}
	p := full
	quick := flag.Bool("smoke", false, "a quick look, whose figures mean nothing")
	only := flag.String("only", "", "parts to run, comma-separated; empty: all")
	rounds := flag.Int("rounds", 0, "rounds of each measurement; 0: 100")
	streams := flag.Int("streams", 0, "streams of fanout; those of memory are five times as many; 0: 200")
	sidecars := flag.String("sidecars", "", "streams of crowd, rising, comma-separated; empty: 1000,2000")
	wait := flag.Duration("pause", 0, "how long memory settles before it is read; 0: 30s")
	flag.StringVar(&p.heap, "heap", "", "file for the heap profile of our server with the streams of memory; empty: none")
	flag.StringVar(&p.binary, "binary", "", "control plane; empty: bin/proxima of the repository")
	flag.StringVar(&p.sidecar, "sidecar", "", "supervisor; empty: bin/proxima-sidecar of the repository")
	flag.StringVar(&p.envoy, "envoy", "", "Envoy; empty: that of tools/envoy")
	flag.Parse()
	if *quick {
		smoke.binary, smoke.sidecar, smoke.envoy, smoke.heap = p.binary, p.sidecar, p.envoy, p.heap
		p = smoke
	}
	if *wait > 0 {
		p.settle = *wait
	}
	if *rounds > 0 {
		p.rounds = *rounds
	}
	if *streams > 0 {
		p.streams = *streams
	}
	err := p.numbers(*sidecars)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		err = run(ctx, os.Stdout, p, *only)
	}
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "xds:", err)
		os.Exit(1)
	}
}

func (p *plan) numbers(text string) error {
	if text == "" {
		return nil
	}
	p.sidecars = nil
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 {
			return fmt.Errorf("-sidecars: %q is not a number above 0", field)
		}
		p.sidecars = append(p.sidecars, n)
	}
	if !slices.IsSorted(p.sidecars) {
		return errors.New("-sidecars: the numbers must rise")
	}
	return nil
}

func run(ctx context.Context, out io.Writer, p plan, only string) error {
	if err := p.find(); err != nil {
		return err
	}
	var names []string
	for _, part := range parts() {
		names = append(names, part.name)
	}
	for name := range strings.SplitSeq(only, ",") {
		if only != "" && !slices.Contains(names, name) {
			return fmt.Errorf("-only: no part %q; there are %s", name, strings.Join(names, ", "))
		}
	}
	for _, part := range parts() {
		if only != "" && !slices.Contains(strings.Split(only, ","), part.name) {
			continue
		}
		fmt.Fprintf(out, "### %s (load %s)\n", part.name, load())
		if err := part.run(ctx, p, out); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// find the programs that were not named.
func (p *plan) find() error {
	root, err := repository()
	if err != nil {
		return err
	}
	for _, f := range []struct {
		at   *string
		name string
	}{{&p.binary, "proxima"}, {&p.sidecar, "proxima-sidecar"}} {
		if *f.at == "" {
			*f.at = filepath.Join(root, "bin", f.name)
		}
		if *f.at, err = filepath.Abs(*f.at); err != nil {
			return err
		}
	}
	if p.envoy == "" {
		text, err := exec.Command(filepath.Join(root, "tools", "envoy")).Output()
		if err != nil {
			return fmt.Errorf("tools/envoy: %w", err)
		}
		p.envoy = strings.TrimSpace(string(text))
	}
	return nil
}

// repository is the folder above that has bench/run.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "bench", "run")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not below the repository", dir)
		}
	}
}

// load average of the last minute; empty: unknown.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg") // there on Linux alone
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// times are samples of one thing.
type times []time.Duration

func (t times) quantile(q float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(t))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// ms writes a time in milliseconds.
func ms(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 2, 64)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
