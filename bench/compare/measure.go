package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// tree is one of the two sources, and what was built of it.
type tree struct {
	root string
	// bin holds the program and the test binaries of this tree.
	bin string
	// harness holds programs of the new tree that measure the program of either tree.
	harness string
}

// measurement is one benchmark, or one section of a program that measures.
type measurement struct {
	name string
	// packages that hold the benchmark: the first one that exists in a tree. The names are
	// those of the tree of now, then earlier ones.
	packages []string
	// process says that the package starts the program of a tree, named by PROXIMA_BIN. The new
	// tree's benchmark measures both.
	process bool
	pattern string
	time    string
	// section of bench/api, in place of a benchmark.
	section string
	// together says that the section measures the programs of all series at the same time.
	together bool
	smoke    bool
}

func measurements(smoke bool) []measurement {
	all := []measurement{
		{name: "readiness", packages: []string{"test/e2e"}, process: true, pattern: "^BenchmarkReadiness$", time: "60x"},
		{name: "writes", section: "writes"},
		{name: "watch", section: "watch", together: true},
		{name: "endpoints", section: "endpoints"},
		{name: "plans", section: "plans"},
		{name: "up", section: "up"},
		{name: "sqlite", packages: []string{"internal/store/sqlite"}, pattern: "BenchmarkCommit", time: "1s"},
		{name: "slices", packages: []string{"internal/controller/endpointslice"}, pattern: "BenchmarkOneEndpointChange", time: "1s"},
		{name: "planner", packages: []string{"internal/planner"}, pattern: "BenchmarkSolve", time: "1s"},
		{name: "choice", packages: []string{"internal/proxy/choose"}, pattern: "^BenchmarkSlices$", time: "1s"},
		{name: "agent", packages: []string{"internal/node"}, pattern: "^BenchmarkOneSlice$", time: "1s"},
		{name: "userspace", packages: []string{"internal/proxy/userspace"}, pattern: "^BenchmarkPath$", time: "1s"},
		{
			name:     "nftables",
			packages: []string{"internal/proxy/nftables"},
			pattern:  "BenchmarkChange|BenchmarkColdStart|BenchmarkWarmRestart",
			time:     "20x",
		},
		{name: "iptables", packages: []string{"internal/proxy/iptables"}, pattern: "BenchmarkChange", time: "20x"},
		{name: "dns", packages: []string{"internal/dns", "internal/node/dns"}, pattern: "Benchmark", time: "1s"},
	}
	for i := range all {
		all[i].smoke = smoke
		if smoke && all[i].time != "" {
			all[i].time = "2x"
		}
	}
	return all
}

// build compiles what the measurements need. The new tree makes the harness, too.
func (t *tree) build(ctx context.Context, all []measurement, harness bool) error {
	for _, dir := range []string{t.bin, t.harness} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	err := t.compile(ctx, "build", "-ldflags", "-s -w", "-o", filepath.Join(t.bin, "proxima"), "./cmd/proxima")
	if err != nil {
		return err
	}
	if harness {
		if err := t.compile(ctx, "build", "-o", filepath.Join(t.harness, "api"), "./bench/api"); err != nil {
			return err
		}
	}
	for _, m := range all {
		if m.section != "" || m.process && !harness {
			continue
		}
		dir := t.bin
		if m.process {
			dir = t.harness
		}
		pkg, err := t.find(m)
		if err != nil {
			return err
		}
		if err := t.compile(ctx, "test", "-c", "-o", filepath.Join(dir, m.name+".test"), "./"+pkg); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) compile(ctx context.Context, args ...string) error {
	fmt.Fprintf(os.Stderr, "%s: go %s\n", filepath.Base(t.bin), strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = t.root, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	return cmd.Run()
}

// find the package of a measurement in this tree.
func (t *tree) find(m measurement) (string, error) {
	for _, pkg := range m.packages {
		if _, err := os.Stat(filepath.Join(t.root, pkg)); err == nil {
			return pkg, nil
		}
	}
	return "", fmt.Errorf("%s: none of %s is in %s", m.name, strings.Join(m.packages, ", "), t.root)
}

// run measures a tree once.
func (m measurement) run(ctx context.Context, t *tree, into *results, series int) error {
	program := t.program()
	if m.section != "" {
		out, err := m.runSection(ctx, t, program)
		if err != nil {
			return err
		}
		into.addTable(m.name, out, series)
		return nil
	}
	dir, root := t.bin, t.root
	pkg, err := t.find(m)
	if err != nil {
		return err
	}
	if m.process {
		dir = t.harness
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, m.name+".test"), "-test.run", "^$", "-test.bench", m.pattern, "-test.benchtime", m.time)
	cmd.Dir = filepath.Join(root, pkg)
	cmd.Env = append(os.Environ(), "PROXIMA_BIN="+program)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	into.addBenchmarks(m.name, string(out), series)
	return nil
}

// program of this tree.
func (t *tree) program() string { return filepath.Join(t.bin, "proxima") }

// runSection of bench/api, and return its table. programs are separated by commas.
func (m measurement) runSection(ctx context.Context, t *tree, programs string) (string, error) {
	args := []string{"-only", m.section, "-binary", programs}
	if m.smoke {
		args = append(args, "-smoke")
	}
	return output(ctx, t.root, filepath.Join(t.harness, "api"), args...)
}

// programPrefix marks the rows of one of several programs.
var programPrefix = regexp.MustCompile(`^program (\d+): `)

// runTogether measures the programs of the series at the same time.
func (m measurement) runTogether(ctx context.Context, before, after *tree, into *results) error {
	programs := [allSeries]string{oldFirst: before.program(), newTree: after.program(), oldAgain: before.program()}
	out, err := m.runSection(ctx, after, strings.Join(programs[:], ","))
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		match := programPrefix.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		n, err := strconv.Atoi(match[1])
		if err != nil || n < 1 || n > allSeries {
			return fmt.Errorf("a row of an unknown program: %q", line)
		}
		into.addTable(m.name, strings.TrimPrefix(line, match[0]), n-1)
	}
	return nil
}
