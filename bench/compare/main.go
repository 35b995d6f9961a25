// Command compare measures this tree against an earlier commit: both take turns, so that
// what else the machine does meets both alike.
//
//	go run ./bench/compare [-rounds 5] [-smoke] [-only readiness,writes] REVISION
//
// Each round measures the old program, the new one, and the old one again. The section watch runs
// all three at the same time and takes turns change by change. It prints the
// medians of old and new, their ratio, and the spread: the ratio of the medians of the two
// series of old. "worse" stands where the ratio is beyond 5 % and beyond the spread.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// allowed is the ratio of new to old that counts as equal, where the spread is smaller.
const allowed = 1.05

func main() {
	rounds := flag.Int("rounds", 5, "rounds; each measures old, new, old")
	smoke := flag.Bool("smoke", false, "a quick look, whose figures mean nothing")
	only := flag.String("only", "", "names of measurements, comma-separated; empty: all")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "compare: give one revision to compare with, for example: go run ./bench/compare v0.1.0")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Arg(0), *rounds, *smoke, *only); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, revision string, rounds int, smoke bool, only string) error {
	root, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "proxima-compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	checkout := filepath.Join(dir, "tree")
	if _, err := output(ctx, root, "git", "worktree", "add", "--detach", checkout, revision); err != nil {
		return err
	}
	defer func() {
		_, err := output(context.WithoutCancel(ctx), root, "git", "worktree", "remove", "--force", checkout)
		if err != nil {
			fmt.Fprintln(os.Stderr, "compare: the checkout of the old tree stays:", err)
		}
	}()
	before := &tree{root: checkout, bin: filepath.Join(dir, "old"), harness: filepath.Join(dir, "harness")}
	after := &tree{root: root, bin: filepath.Join(dir, "new"), harness: filepath.Join(dir, "harness")}
	chosen := choose(measurements(smoke), only)
	if len(chosen) == 0 {
		return fmt.Errorf("no measurement has a name of %q", only)
	}
	for _, t := range []*tree{before, after} {
		if err := t.build(ctx, chosen, t == after); err != nil {
			return err
		}
	}
	results := newResults()
	if err := results.sizes(before, after); err != nil {
		return err
	}
	err = measure(ctx, chosen, before, after, rounds, results)
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "compare: interrupted; this is what was measured until then")
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	results.print(out)
	return errors.Join(err, out.Flush())
}

// measure all rounds, or those until ctx ends; a measurement that is interrupted counts as far
// as its turns were complete. One that fails is not tried again; the error names all of those.
func measure(ctx context.Context, chosen []measurement, before, after *tree, rounds int, into *results) error {
	var failed []error
	for round := range rounds {
		chosen = slices.DeleteFunc(chosen, func(m measurement) bool {
			if ctx.Err() != nil {
				return false
			}
			fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, rounds, m.name)
			err := m.round(ctx, before, after, into)
			if err != nil && ctx.Err() == nil {
				failed = append(failed, fmt.Errorf("%s: %w", m.name, err))
			}
			return err != nil
		})
	}
	return errors.Join(failed...)
}

// round measures old, new, and old again.
func (m measurement) round(ctx context.Context, before, after *tree, into *results) error {
	if m.together {
		return m.runTogether(ctx, before, after, into)
	}
	for _, turn := range []struct {
		tree   *tree
		series int
	}{{before, oldFirst}, {after, newTree}, {before, oldAgain}} {
		if err := m.run(ctx, turn.tree, into, turn.series); err != nil {
			return err
		}
	}
	return nil
}

func choose(all []measurement, only string) []measurement {
	if only == "" {
		return all
	}
	names := strings.Split(only, ",")
	return slices.DeleteFunc(all, func(m measurement) bool { return !slices.Contains(names, m.name) })
}

// output runs a command and returns what it prints, without the last line break.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends what it started
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
