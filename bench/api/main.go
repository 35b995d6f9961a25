// Command api measures a control plane through its API: a real process, real
// clients over TLS, each on a connection of its own.
//
//	go run ./bench/api [-smoke] [-only writes,watch,endpoints,crowd,plans,up,viewers] [-binary bin/proxima]
//
// Each line has the figure and the goal. It exits with 1 if something did not
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
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// sizes of a run.
type sizes struct {
	creates   int // objects in one measurement of writes
	changes   int // changes that are watched
	slices    int // of 100 endpoints
	idle      int // watchers that get nothing
	slow      int // watchers that never read what they get
	services  int // planned Services
	starts    int // of the process
	idleAfter time.Duration

	viewedServices, zones int // that viewers look at
	viewedFor             int // seconds
	questions             int // of each kind
}

var (
	full  = sizes{creates: 4000, changes: 2000, slices: 1000, idle: 1000, slow: 100, services: 2000, starts: 7, idleAfter: 15 * time.Second, viewedServices: 10_000, zones: 100, viewedFor: 30, questions: 40}
	smoke = sizes{creates: 40, changes: 20, slices: 10, idle: 20, slow: 2, services: 20, starts: 1, idleAfter: time.Second, viewedServices: 20, zones: 3, viewedFor: 1, questions: 2}
)

// bench is one run of the program.
type bench struct {
	sizes
	binary   string
	postgres string   // URL of a server; empty: a throw-away one is started
	env      []string // of the processes that are started, beside that of this one
	out      *tabwriter.Writer
}

// section measures one thing and prints its lines.
type section struct {
	name string
	run  func(*bench, context.Context) error
}

var sections = []section{
	{"writes", (*bench).writes},
	{"watch", (*bench).watch},
	{"endpoints", (*bench).endpoints},
	{"crowd", (*bench).crowd},
	{"plans", (*bench).plans},
	{"up", (*bench).up},
	{"viewers", (*bench).viewers},
}

func main() {
	quick := flag.Bool("smoke", false, "a quick look, whose figures mean nothing")
	only := flag.String("only", "", "sections to run, comma-separated: writes, watch, endpoints, crowd, plans, up, viewers; empty: all")
	binary := flag.String("binary", "bin/proxima", "the program to measure, built as \"make build\" does; the section watch takes several, separated by commas")
	postgres := flag.String("postgres", "", "URL of a PostgreSQL server; empty: one is started on this machine if it can be")
	settle := flag.Duration("settle", 0, "pause before memory is read; 15m: the history of changes is as in a control plane that runs for long (0: 15s)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b := &bench{sizes: full, binary: *binary, postgres: *postgres}
	if *quick {
		b.sizes = smoke
	}
	if *settle > 0 {
		b.idleAfter = *settle
	}
	if err := b.run(ctx, os.Stdout, *only); err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, out io.Writer, only string) error {
	b.out = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	b.row("what", "measured", "goal", "")
	var errs []error
	for _, s := range sections {
		if only != "" && !slices.Contains(strings.Split(only, ","), s.name) {
			continue
		}
		if err := s.run(b, ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
		if err := b.out.Flush(); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// row prints one line of the table.
func (b *bench) row(what, measured, goal, verdict string) {
	fmt.Fprintf(b.out, "%s\t%s\t%s\t%s\n", what, measured, goal, verdict)
}

// atMost prints a figure that should not be above its goal, atLeast one that
// should not be below; a goal of 0 is none.
func (b *bench) atMost(what string, value, goal float64, format string) {
	b.compare(what, value, goal, "≤ ", format, value <= goal)
}

func (b *bench) atLeast(what string, value, goal float64, format string) {
	b.compare(what, value, goal, "≥ ", format, value >= goal)
}

func (b *bench) compare(what string, value, goal float64, sign, format string, good bool) {
	if goal == 0 {
		b.row(what, fmt.Sprintf(format, value), "", "")
		return
	}
	verdict := "ok"
	if !good {
		verdict = "MISSED"
	}
	b.row(what, fmt.Sprintf(format, value), sign+fmt.Sprintf(format, goal), verdict)
}

// durations are samples of one thing.
type durations []time.Duration

// quantile in milliseconds; the samples are sorted by it.
func (d durations) quantile(q float64) float64 {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return float64(d[min(len(d)-1, int(q*float64(len(d))))]) / float64(time.Millisecond)
}
