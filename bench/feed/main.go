// Command feed measures the change feed beside NATS JetStream, beside Apache Pulsar where make interop-pulsar has unpacked it, and
// beside the store without it.
//
// All parts of a round run one after the other, and the order changes with each round. It prints the median of the rounds, and ratios. See
// bench/README.md for the goals.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	rounds := flag.Int("rounds", 5, "rounds, of which the median counts")
	entries := flag.Int("entries", 200_000, "entries of append and catch-up, and a tenth of it commits of the store")
	only := flag.String("only", "append,catchup,tail,cost,cursors,grow", "parts to run")
	dir := flag.String("dir", "", "directory for the files; empty: a temporary one")
	alone := flag.Bool("without-pulsar", false, "do not start Apache Pulsar")
	svg := flag.String("plot", "", "file for a plot of what is measured of growing (SVG)")
	flag.Parse()
	if err := run(*rounds, *entries, strings.Split(*only, ","), *dir, *alone); err != nil {
		log.Fatal(err)
	}
	if *svg != "" {
		if err := plot(*svg); err != nil {
			log.Fatal(err)
		}
	}
}

// table of figures by name, a value per round.
type table map[string][]float64

func (t table) add(name string, v float64) { t[name] = append(t[name], v) }

func (t table) median(name string) float64 {
	v := slices.Clone(t[name])
	slices.Sort(v)
	return v[len(v)/2]
}

func run(rounds, entries int, only []string, dir string, withoutPulsar bool) error {
	if dir == "" {
		made, err := os.MkdirTemp("", "feed")
		if err != nil {
			return err
		}
		defer os.RemoveAll(made)
		dir = made
	}
	if home := pulsarHome(); home == "" {
		fmt.Println("without Apache Pulsar: make interop-pulsar downloads it")
	} else if !withoutPulsar {
		began := time.Now()
		var err error
		if peer, err = startBroker(home, filepath.Join(dir, "pulsar")); err != nil {
			return err
		}
		defer peer.stop()
		fmt.Printf("Apache Pulsar started in %.0f s\n", time.Since(began).Seconds())
	}
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("%d rounds of %d entries of 200 bytes, load %s\n", rounds, entries, cmp.Or(strings.Fields(string(load) + " ?")[0], "?"))
	parts := map[string]func(dir string, entries int, out table, round int) error{
		"append": measureAppend, "catchup": measureCatchUp, "tail": measureTail, "cost": measureCost, "cursors": measureCursors,
	}
	for _, part := range only {
		if part == "grow" {
			if err := grow(filepath.Join(dir, "grow")); err != nil {
				return err
			}
			continue
		}
		measure, ok := parts[part]
		if !ok {
			return fmt.Errorf("no part %q: append, catchup, tail, cost, cursors, grow", part)
		}
		out := table{}
		for round := range rounds {
			at := filepath.Join(dir, fmt.Sprintf("%s-%d", part, round))
			if err := os.MkdirAll(at, 0o700); err != nil {
				return err
			}
			if err := measure(at, entries, out, round); err != nil {
				return fmt.Errorf("%s: %w", part, err)
			}
			if err := os.RemoveAll(at); err != nil {
				return err
			}
		}
		show(part, out)
	}
	return nil
}

// alternate runs what is compared in an order that changes with the round.
func alternate(round int, those ...func() error) error {
	for i := range those {
		if err := those[(i+round)%len(those)](); err != nil {
			return err
		}
	}
	return nil
}

func show(part string, t table) {
	switch part {
	case "append":
		fmt.Printf("append, durable, in groups of %d: feed %.0f/s, JetStream %.0f/s: %.1f × as fast (goal: ≥ 100,000/s, ≥ 1 ×)\n",
			group, t.median("feed"), t.median("nats"), t.median("feed")/t.median("nats"))
		beside(t)
	case "catchup":
		fmt.Printf("catch-up: feed %.0f/s, JetStream %.0f/s: %.1f × as fast (goal: ≥ 500,000/s)\n",
			t.median("feed"), t.median("nats"), t.median("feed")/t.median("nats"))
		beside(t)
	case "tail":
		fmt.Printf("commit acknowledged to subscriber, ms: store and feed p50 %.3f p99 %.3f; JetStream, from its acknowledgement p50 %.3f p99 %.3f (goal: p50 ≤ 1, p99 ≤ 10)\n",
			t.median("feed50"), t.median("feed99"), t.median("nats50"), t.median("nats99"))
		fmt.Printf("from the beginning of the commit, ms: store and feed p50 %.3f p99 %.3f; JetStream p50 %.3f p99 %.3f: %.2f × the time at p50\n",
			t.median("feedAll50"), t.median("feedAll99"), t.median("natsAll50"), t.median("natsAll99"), t.median("feedAll50")/t.median("natsAll50"))
		if len(t["pulsar50"]) > 0 {
			fmt.Printf("Apache Pulsar, ms: from its acknowledgement p50 %.3f p99 %.3f, from the beginning of the send p50 %.3f p99 %.3f\n",
				t.median("pulsar50"), t.median("pulsar99"), t.median("pulsarAll50"), t.median("pulsarAll99"))
		}
	case "cursors":
		fmt.Printf("%d durable cursors: %.1f MB idle, %.1f MB when all are open, %.1f MB after each has acknowledged (goal: ≤ 50 MB); acknowledgements written one by one %.0f/s\n",
			idle, t.median("idle"), t.median("open"), t.median("acked"), t.median("acks"))
	case "cost":
		fmt.Printf("durable commits of 8 writers: store alone %.0f/s, with the feed %.0f/s: %.1f %% less (goal: ≤ 10 %%)\n",
			t.median("alone"), t.median("with"), 100*(1-t.median("with")/t.median("alone")))
	}
}

// beside prints the rates of Apache Pulsar, if it ran.
func beside(t table) {
	if len(t["pulsar"]) > 0 {
		fmt.Printf("  Apache Pulsar %.0f/s: the feed %.1f × as fast\n", t.median("pulsar"), t.median("feed")/t.median("pulsar"))
	}
}

// quantile of durations in ms.
func quantile(d []time.Duration, q float64) float64 {
	d = slices.Clone(d)
	slices.Sort(d)
	return float64(d[int(q*float64(len(d)-1))]) / float64(time.Millisecond)
}
