// Command gateway measures the path between sites: this project's tunnel and ingress
// and, in turns, pairs of HAProxy and of Envoy, with mTLS between the two proxies of a pair.
//
// Each proxy is a process of its own. All proxies are on one core, client and endpoint
// on another one. Ways take turns within each round, in changing order, so that
// whatever else the machine does meets all of them: ratios are comparable, figures only
// within a run. The script peers installs HAProxy and Envoy; without them, their ways
// are left out with a line.
//
// With -product, the ends are the processes of the product, as root on Linux: a lab (package lab)
// of global and two zones, whose agent redirects a client's connections to a virtual IP into its
// tunnel, and whose "proxima ingress" connects them to the workload. The pairs of peers run on the
// same two machines of the lab, and a client there connects to all ways in turns.
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
	Rounds int
	Bulk   int64 // bytes in each direction, per round and way
	Short  int   // transactions
	Echoes int
	Idle   int   // connections; 0: memory is not measured
	Each   int64 // bytes in each direction on each of them
	Settle time.Duration
}

var (
	fullPlan  = plan{Rounds: 9, Bulk: 512 << 20, Short: 1500, Echoes: 2000, Idle: 9900, Each: 256 << 10, Settle: 15 * time.Second}
	smokePlan = plan{Rounds: 1, Bulk: 4 << 20, Short: 20, Echoes: 20, Idle: 20, Each: 64 << 10}
)

func main() {
	role := flag.String("role", "", "be one process of the benchmark: node, ingress, endpoint or client")
	dir := flag.String("dir", "", "folder with the certificates, for -role")
	listen := flag.String("listen", "127.0.0.1:0", "where to listen, for -role")
	target := flag.String("target", "", "address of the ingress or endpoint, for -role")
	product := flag.Bool("product", false, "measure the processes of the product, in a lab")
	binary := flag.String("binary", "bin/proxima", "the product, for -product")
	mode := flag.String("mode", "auto", "mode of the agents, for -product")
	smoke := flag.Bool("smoke", false, "only show that it works")
	p := fullPlan
	flag.IntVar(&p.Rounds, "rounds", p.Rounds, "rounds; medians are over them")
	flag.IntVar(&p.Idle, "idle", p.Idle, "idle connections for the measurement of memory; 0: none")
	flag.Int64Var(&p.Bulk, "bulk", p.Bulk, "bytes per direction, round and way")
	flag.Parse()
	if *role != "" {
		fail(serve(*role, *dir, *listen, *target))
		return
	}
	if *smoke {
		p = smokePlan
	}
	if *product {
		fail(runProduct(os.Stdout, p, *binary, *mode))
		return
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
	return measureAll(out, p, b.ways)
}

// measureAll measures all ways in turns, and reports.
func measureAll(out io.Writer, p plan, ways []way) error {
	results := make([]result, len(ways))
	for i := range ways {
		if err := (&result{}).measure(plan{Bulk: p.Bulk / 16, Short: 20, Echoes: 20}, &ways[i]); err != nil { // warm up
			return fmt.Errorf("%s: %w", ways[i].Name, err)
		}
	}
	for round := range p.Rounds {
		for turn := range ways {
			i := (round + turn) % len(ways)
			if err := results[i].measure(p, &ways[i]); err != nil {
				return fmt.Errorf("%s: %w", ways[i].Name, err)
			}
		}
	}
	report(out, p, ways, results)
	if p.Idle > 0 {
		return memory(out, p, ways)
	}
	return nil
}
