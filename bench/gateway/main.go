// Command gateway measures the path between sites: this project's tunnel and ingress
// and, in turns, pairs of HAProxy and of Envoy, with mTLS between the two proxies of a pair.
//
// Each proxy is a process of its own. All proxies are on one core, client and endpoint
// on another one. Ways take turns within each round, in changing order, so that
// whatever else the machine does meets all of them: ratios are comparable, figures only
// within a run. The script peers installs HAProxy and Envoy; without them, their ways
// are left out with a line.
//
// It is also the test program of internal/gateway: "gateway -role node" and "gateway
// -role ingress" are the two ends, of the packages that the product uses.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

// plan is how much is measured.
type plan struct {
	rounds int
	bulk   int64 // bytes in each direction, per round and way
	short  int   // transactions
	echoes int
	idle   int   // connections; 0: memory is not measured
	each   int64 // bytes in each direction on each of them
	settle time.Duration
}

var (
	fullPlan  = plan{rounds: 9, bulk: 512 << 20, short: 1500, echoes: 2000, idle: 9900, each: 256 << 10, settle: 15 * time.Second}
	smokePlan = plan{rounds: 1, bulk: 4 << 20, short: 20, echoes: 20, idle: 20, each: 64 << 10}
)

func main() {
	role := flag.String("role", "", "be one process of the benchmark: node, ingress or endpoint")
	dir := flag.String("dir", "", "folder with the certificates, for -role")
	listen := flag.String("listen", "127.0.0.1:0", "where to listen, for -role")
	target := flag.String("target", "", "address of the ingress or endpoint, for -role")
	smoke := flag.Bool("smoke", false, "only show that it works")
	p := fullPlan
	flag.IntVar(&p.rounds, "rounds", p.rounds, "rounds; medians are over them")
	flag.IntVar(&p.idle, "idle", p.idle, "idle connections for the measurement of memory; 0: none")
	flag.Int64Var(&p.bulk, "bulk", p.bulk, "bytes per direction, round and way")
	flag.Parse()
	if *role != "" {
		fail(serve(*role, *dir, *listen, *target))
		return
	}
	if *smoke {
		p = smokePlan
	}
	fail(run(os.Stdout, p))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, p plan) error {
	b, err := newBench(out)
	if err != nil {
		return err
	}
	defer b.close()
	if err := b.pinSelf(); err != nil {
		return err
	}
	if err := b.start(); err != nil {
		return err
	}
	results := make([]result, len(b.ways))
	for i := range b.ways {
		if err := (&result{}).measure(plan{bulk: p.bulk / 16, short: 20, echoes: 20}, &b.ways[i]); err != nil { // warm up
			return fmt.Errorf("%s: %w", b.ways[i].name, err)
		}
	}
	for round := range p.rounds {
		for turn := range b.ways {
			i := (round + turn) % len(b.ways)
			if err := results[i].measure(p, &b.ways[i]); err != nil {
				return fmt.Errorf("%s: %w", b.ways[i].name, err)
			}
		}
	}
	report(out, p, b.ways, results)
	if p.idle > 0 {
		return b.memory(p)
	}
	return nil
}
