// Command scale measures what a control plane takes as its zones grow, and computes from that what
// 100 zones of 1,000 agents take:
//
//	go run ./bench/scale [-smoke] [-only agents|global|cluster] [-binary FILE] [-agents 250,500,1000] [-pause 30s] [-page docs/concepts]
//
// Agents are simulated in this process: each has the connections, streams, watches and Leases of
// an agent, with certificates of its own, and neither a data path nor objects in memory. The
// control planes are real processes with SQLite. The global one finds the Dataplanes of all zones
// in its store.
//
// "-only cluster" measures a control plane with --store kubernetes in a cluster of 5,000 nodes, 10,000
// Services and 260,000 endpoints. The API server is simulated, too, in this process.
//
// With -page it writes the table into scale.md of that folder, and the plot into img/scale.svg. It
// exits with 1 if something did not work, and not because a bound was missed: that depends on the
// machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// plan is what is measured.
type plan struct {
	agents    []int // rising
	services  int   // of 10 endpoints
	changes   int
	endpoints []int // at global, rising
	settle    time.Duration
	idle      time.Duration
	cluster   clusterWorld
	calm      int // seconds without work after which the start of global is complete
}

var (
	full = plan{
		agents: []int{250, 500, 1000, 2000}, services: 1000, changes: 21,
		endpoints: []int{100_000, 300_000, 1_000_000}, settle: 30 * time.Second, idle: 30 * time.Second, calm: 10,
		cluster: clusterWorld{nodes: 5000, services: 10_000, perService: 25, large: 10_000},
	}
	smoke = plan{
		agents: []int{2, 4}, services: 5, changes: 3, endpoints: []int{20, 40}, settle: time.Second / 2, idle: time.Second / 2, calm: 1,
		cluster: clusterWorld{nodes: 6, services: 10, perService: 3, large: 250},
	}
)

// figures of one run.
type figures struct {
	Plan   plan
	Fleets []fleetFigures
	Global []globalFigures
	// Load averages when the run began and ended.
	LoadBefore, LoadAfter string
}

func main() {
	quick := flag.Bool("smoke", false, "a quick look, whose figures mean nothing")
	only := flag.String("only", "", "agents, global or cluster; empty: agents and global")
	binary := flag.String("binary", "bin/proxima", "the program to measure, built as \"make build\" does")
	agents := flag.String("agents", "", "numbers of agents, rising, comma-separated; empty: 250,500,1000,2000")
	endpoints := flag.String("endpoints", "", "numbers of endpoints at global, rising; empty: 100000,300000,1000000")
	wait := flag.Duration("pause", 0, "how long memory settles, and how long idle CPU is measured; 0: 30s each")
	page := flag.String("page", "", "folder of scale.md, which gets the table and the plot; empty: neither")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	p := full
	if *quick {
		p = smoke
	}
	err := numbers(*agents, &p.agents)
	if err == nil {
		err = numbers(*endpoints, &p.endpoints)
	}
	if *wait > 0 {
		p.settle, p.idle = *wait, *wait
	}
	if err == nil {
		err = run(ctx, *binary, p, *only, *page)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// numbers reads a flag, if it is set.
func numbers(text string, into *[]int) error {
	if text == "" {
		return nil
	}
	*into = nil
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is not a number above 0", field)
		}
		*into = append(*into, n)
	}
	if !slices.IsSorted(*into) {
		return fmt.Errorf("%s: the numbers must rise", text)
	}
	return nil
}

func run(ctx context.Context, binary string, p plan, only, page string) (err error) {
	f := figures{Plan: p, LoadBefore: load()}
	if only == "cluster" {
		c, err := measureCluster(ctx, binary, p)
		fmt.Printf("Measured on %d processors, which the simulated agents and API server shared. "+
			"The load average was %s at the beginning and %s at the end.\n\n%s",
			runtime.NumCPU(), f.LoadBefore, load(), c.table())
		return err
	}
	if only != "global" {
		if f.Fleets, err = measureAgents(ctx, binary, p); err != nil {
			return err
		}
	}
	if only != "agents" {
		if f.Global, err = measureGlobal(ctx, binary, p); err != nil {
			return err
		}
	}
	f.LoadAfter = load()
	table := f.table()
	fmt.Print(table)
	if page == "" {
		return nil
	}
	return f.write(page, table)
}

// durations are samples of one thing.
type durations []time.Duration

func (d durations) quantile(q float64) time.Duration {
	slices.Sort(d)
	return d[min(len(d)-1, int(q*float64(len(d))))]
}
