// Command registry measures the servers of registry protocols beside the registries that clients come
// from: r-nacos 0.8.8, ZooKeeper 3.8.4 and Netflix's Eureka server (of Spring Cloud 4.2.0). The same client
// speaks to both, and they take turns, so that what disturbs one disturbs both: ratios hold where times do
// not.
//
//	go run . [-smoke] [-only push,rates,profile,memory,staleness] [-protocols nacos,zookeeper,eureka]
//	         [-rounds 5] [-for 3s] [-instances 100000] [-clients 10000] [-binary FILE] [-peers FOLDER]
//
// Ours is a real control plane on SQLite, with the protocol alone, whose answers to a registration mean that it is durable. The peers
// are those that bench/registry/peers installs; one that is not installed is left out, and said so. It is a
// module of its own, so that the product does not link a client of ZooKeeper.
//
// It exits with 1 if something did not work, and not because a goal was missed: that depends on the machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// plan is how much is measured.
type plan struct {
	rounds int
	// slice is how long a server is loaded before it is the other's turn.
	slice time.Duration
	// workers are the clients of rates, each with one request at a time.
	workers     int
	subscribers []int
	// changes that subscribers are told of.
	changes int
	// instances of memory; clients and seconds of the profile.
	instances, clients int
	profile            time.Duration
	// registrations, queries, publishes and reads each second of the profile.
	registrations, queries, publishes, reads int
	// pollers of staleness, and how often an instance is registered for them.
	pollers, events int
	settle          time.Duration
	// fetch is the interval of clients of Eureka at their defaults, fetchTuned of those that want to know sooner.
	fetch, fetchTuned time.Duration

	protocols           []string
	binary, peers, heap string
	env                 []string
}

var (
	full = plan{
		rounds: 5, slice: 3 * time.Second, workers: 64, subscribers: []int{1, 100, 1000}, changes: 20, instances: 100_000, clients: 10_000,
		profile: 10 * time.Second, registrations: 5000, queries: 10_000, publishes: 500, reads: 10_000, pollers: 30, events: 40,
		settle: 30 * time.Second, fetch: 30 * time.Second, fetchTuned: 5 * time.Second, heap: "2g",
	}
	smoke = plan{
		rounds: 1, slice: time.Second / 4, workers: 4, subscribers: []int{1, 5}, changes: 2, instances: 200, clients: 20,
		profile: time.Second, registrations: 50, queries: 100, publishes: 10, reads: 100, pollers: 2, events: 1, settle: time.Second / 2,
		fetch: time.Second, fetchTuned: time.Second / 4, heap: "256m",
	}
)

// part of the benchmark.
type part struct {
	name string
	run  func(ctx context.Context, p plan, out io.Writer) error
}

func parts() []part {
	return []part{{"push", measurePush}, {"rates", measureRates}, {"profile", measureProfile}, {"memory", measureMemory}, {"staleness", measureStaleness}}
}

func main() {
	p := full
	quick := flag.Bool("smoke", false, "a quick look, whose figures mean nothing")
	only := flag.String("only", "", "parts to run, comma-separated; empty: all")
	protocols := flag.String("protocols", "nacos,zookeeper,eureka", "protocols to measure, comma-separated")
	rounds := flag.Int("rounds", 0, "rounds of rates; 0: 5")
	slice := flag.Duration("for", 0, "how long a server is loaded at a time, of rates; 0: 3s")
	profile := flag.Duration("profile", 0, "how long the profile lasts; 0: 10s")
	instances := flag.Int("instances", 0, "instances of memory; 0: 100,000")
	clients := flag.Int("clients", 0, "clients of the profile; 0: 10,000")
	env := flag.String("env", "", "NAME=VALUE,… for our process, as GOGC=50")
	flag.StringVar(&p.binary, "binary", "", "control plane; empty: bin/proxima of the repository")
	flag.StringVar(&p.peers, "peers", "", "folder of the peers; empty: that of bench/registry/peers")
	flag.Parse()
	if *quick {
		smoke.binary, smoke.peers = p.binary, p.peers
		p = smoke
	}
	for _, set := range []struct {
		at   *int
		flag int
	}{{&p.rounds, *rounds}, {&p.instances, *instances}, {&p.clients, *clients}} {
		if set.flag > 0 {
			*set.at = set.flag
		}
	}
	if *slice > 0 {
		p.slice = *slice
	}
	if *profile > 0 {
		p.profile = *profile
	}
	if *env != "" {
		p.env = strings.Split(*env, ",")
	}
	p.protocols = strings.Split(*protocols, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, p, *only); err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, p plan, only string) error {
	if p.binary == "" {
		root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
		if err != nil {
			return fmt.Errorf("find the repository: %w; name the program with -binary", err)
		}
		p.binary = filepath.Join(strings.TrimSpace(string(root)), "bin", "proxima")
	}
	if _, err := os.Stat(p.binary); err != nil {
		return fmt.Errorf("%w; build it with \"make build\"", err)
	}
	if p.peers == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		p.peers = filepath.Join(cache, "proxima-bench")
	}
	var names []string
	if only != "" {
		names = strings.Split(only, ",")
	}
	for _, part := range parts() {
		if names != nil && !slices.Contains(names, part.name) {
			continue
		}
		load, _ := os.ReadFile("/proc/loadavg") // Linux only
		first, _, _ := strings.Cut(string(load), " ")
		fmt.Fprintf(out, "## %s (load %s)\n", part.name, first)
		began := time.Now()
		if err := part.run(ctx, p, out); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		fmt.Fprintf(out, "%s took %s\n", part.name, time.Since(began).Round(time.Second))
		names = slices.DeleteFunc(names, func(n string) bool { return n == part.name })
	}
	if len(names) > 0 {
		return fmt.Errorf("-only: there is no part %s", strings.Join(names, ", "))
	}
	return nil
}
