// Command testreport runs the tests and prints a summary: failures with their
// output, every skipped test with its reason, the slowest packages and tests, and one
// closing line of counts.
//
//	testreport [-timeout 25m] [-p 3] [-again 3] [-modules test/a,bench/b] [-plain bench/b] -- ./...
//
// Modules other than the main one are tested as a whole, each in its own folder; those of -plain without the race
// detector, as what they run is built so anyway, and what is slow there is the compilation of their libraries.
//
// SQLite is C code in Go, which the race detector makes four times slower, and a parser of YAML ten times; they are compiled
// without. Files of tests are in memory where /dev/shm has the space, but for the long versions: what is synced there costs nothing,
// and what a power cut leaves is tested on a file system of our own.
//
// Some tests are pressed for time, upstream's among them, and a busy machine fails
// them. If no more than -again tests fail, they run once more, with nothing else
// running; those that pass then are listed as "passed only alone", never as passed. A
// data race or a panic is not forgiven.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// event is a line of "go test -json" (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Elapsed    float64
	Output     string
}

type testName struct{ pkg, test string }

type report struct {
	output                  map[testName][]string
	skips                   []string
	slow                    []string
	tests                   []timedTest // that took long
	passed, failed, skipped int
	failures                []failure
	racy                    map[string]bool // packages with a data race or a panic
	plain                   []string        // modules that are tested without the race detector
}

// timedTest is a test that took long, with the time that it waited for others of its package.
type timedTest struct {
	testName
	seconds float64
}

// slowTest is the time, in seconds, from which on a test is slow; maxSlow of them are shown.
const (
	slowTest = 10
	maxSlow  = 25
)

// failure is a test of a module that failed, with its parents and its package.
type failure struct {
	dir string
	testName
}

func main() {
	timeout := flag.Duration("timeout", 20*time.Minute, "limit of one package's tests")
	parallel := flag.Int("p", 3, "packages at a time, more than there are processors, as some wait")
	again := flag.Int("again", 3, "run failed tests once more, alone, if they are no more than this")
	modules := flag.String("modules", "", "folders of further modules, separated by commas")
	plain := flag.String("plain", "", "those of them that are tested without the race detector")
	flag.Parse()
	cleanUp := func() {}
	if os.Getenv("PROXIMA_SOAK") == "" { // the long versions write for hours
		var err error
		if cleanUp, err = filesInMemory("/dev/shm"); err != nil {
			fmt.Fprintln(os.Stderr, "testreport:", err)
			os.Exit(1)
		}
	}
	args := []string{"test", "-race", "-gcflags=modernc.org/...=-race=false", "-gcflags=go.yaml.in/...=-race=false", "-json", "-vet=off", fmt.Sprintf("-timeout=%s", *timeout)}
	parallelArgs := append(slices.Clone(args), fmt.Sprintf("-p=%d", *parallel))
	r := newReport(strings.Split(*plain, ",")...)
	fine := r.run(".", append(slices.Clone(parallelArgs), flag.Args()...))
	for dir := range strings.SplitSeq(*modules, ",") {
		if dir != "" {
			fine = r.run(dir, append(slices.Clone(parallelArgs), "./...")) && fine
		}
	}
	var forgiven []string
	if !fine || r.failed > 0 {
		forgiven, fine = r.again(*again, append(args, "-count=1"))
	}
	r.close(os.Stdout, forgiven)
	cleanUp()
	if !fine {
		os.Exit(1)
	}
}

// memoryNeeded is what must be free, in bytes, for tests to have their files in memory.
const memoryNeeded = 8 << 30

// filesInMemory gives tests a folder for temporary files in one that is in memory, if it has the space. What go builds is kept out of
// it.
func filesInMemory(memory string) (cleanUp func(), err error) {
	var space unix.Statfs_t
	if err := unix.Statfs(memory, &space); err != nil || space.Type != unix.TMPFS_MAGIC || space.Bavail*uint64(space.Bsize) < memoryNeeded {
		return func() {}, nil
	}
	if os.Getenv("GOTMPDIR") == "" {
		if err := os.Setenv("GOTMPDIR", os.TempDir()); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp(memory, "t") // short, as paths of sockets are
	if err != nil {
		return nil, err
	}
	// Tests run programs as other users.
	return func() { _ = os.RemoveAll(dir) }, errors.Join(os.Chmod(dir, 0o777|os.ModeSticky), os.Setenv("TMPDIR", dir))
}

func newReport(plain ...string) *report {
	return &report{output: map[testName][]string{}, racy: map[string]bool{}, plain: plain}
}

// run the tests of one module.
func (r *report) run(dir string, args []string) bool {
	cgo := "CGO_ENABLED=1"
	if slices.Contains(r.plain, dir) {
		cgo = "CGO_ENABLED=0"
		args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "-race" || strings.HasPrefix(a, "-gcflags") })
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), cgo)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		r.failed++
		return false
	}
	known := len(r.failures)
	r.read(stdout)
	for i := range r.failures[known:] {
		r.failures[known+i].dir = dir
	}
	err = cmd.Wait()
	if err != nil && r.failed == 0 {
		fmt.Printf("=== FAILED go test in %s: %v\n", dir, err)
		r.failed++
	}
	return err == nil
}

// again runs what failed once more, one test at a time, and says which tests
// passed then and whether that mends everything.
func (r *report) again(most int, args []string) (forgiven []string, fine bool) {
	tests, ok := r.forgivable()
	if !ok || len(tests) > most {
		return nil, false
	}
	fine = true
	for _, t := range tests {
		fmt.Printf("\n=== ONCE MORE, ALONE: %s %s\n", short(t.pkg), t.test)
		second := newReport(r.plain...)
		if !second.run(t.dir, append(slices.Clone(args), "-run=^"+t.test+"$", t.pkg)) || second.failed > 0 {
			fine = false
			continue
		}
		forgiven = append(forgiven, short(t.pkg)+" "+t.test)
	}
	return forgiven, fine
}

// forgivable lists the tests to run again. Everything that failed must be a test or
// follow from one.
func (r *report) forgivable() ([]failure, bool) {
	var tops []failure
	inPackage := map[string]bool{}
	for _, f := range r.failures {
		if f.test != "" && !strings.Contains(f.test, "/") {
			tops = append(tops, f)
			inPackage[f.pkg] = true
		}
	}
	for _, f := range r.failures {
		if r.racy[f.pkg] || !inPackage[f.pkg] {
			return nil, false
		}
	}
	return tops, len(tops) > 0 && len(r.failures) == r.failed
}

func (r *report) read(in io.Reader) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Println(lines.Text())
			continue
		}
		r.take(e)
	}
}

func (r *report) take(e event) {
	name := testName{e.Package, e.Test}
	switch e.Action {
	case "output":
		r.output[name] = append(r.output[name], e.Output)
		if strings.Contains(e.Output, "WARNING: DATA RACE") || strings.HasPrefix(e.Output, "panic: ") ||
			strings.HasPrefix(e.Output, "fatal error: ") {
			r.racy[e.Package] = true
		}
	case "build-output":
		fmt.Print(e.Output)
	case "build-fail":
		r.failed++
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
		} else {
			r.endTest(e, name)
		}
		delete(r.output, name)
	}
}

func (r *report) endTest(e event, name testName) {
	if e.Elapsed >= slowTest && !strings.Contains(e.Test, "/") {
		r.tests = append(r.tests, timedTest{name, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		r.skipped++
		r.skips = append(r.skips, fmt.Sprintf("%s %s: %s", short(e.Package), e.Test, r.reason(name)))
	case "fail":
		r.fail(name)
		fmt.Printf("\n=== FAILED %s %s\n%s", short(e.Package), e.Test, strings.Join(r.output[name], ""))
	}
}

func (r *report) endPackage(e event) {
	if e.Action == "fail" {
		fmt.Printf("\n=== FAILED package %s\n%s", e.Package, strings.Join(r.output[testName{e.Package, ""}], ""))
		r.fail(testName{e.Package, ""})
		return
	}
	if e.Action == "pass" {
		fmt.Printf("ok   %-60s %6.1fs\n", short(e.Package), e.Elapsed)
		if e.Elapsed > 20 {
			r.slow = append(r.slow, fmt.Sprintf("%s %.0fs", short(e.Package), e.Elapsed))
		}
	}
}

func (r *report) fail(name testName) {
	r.failed++
	r.failures = append(r.failures, failure{testName: name})
}

// reason a test gave for skipping itself, or else what a test around it said before.
func (r *report) reason(name testName) string {
	for {
		if text := said(r.output[name]); text != "" {
			return text
		}
		around := strings.LastIndexByte(name.test, '/')
		if around < 0 {
			return "no reason given"
		}
		name.test = name.test[:around]
	}
}

// said is the first thing that a test logged; empty: nothing.
func said(output []string) string {
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		if _, after, ok := strings.Cut(line, ".go:"); ok {
			_, text, _ := strings.Cut(after, ":")
			if text = strings.TrimSpace(text); text == "" {
				continue
			}
			return text
		}
		return line
	}
	return ""
}

func short(pkg string) string {
	return strings.TrimPrefix(pkg, "github.com/proxima-mesh/proxima/")
}

func (r *report) close(w io.Writer, forgiven []string) {
	slices.Sort(r.skips)
	fmt.Fprintf(w, "\nskipped tests: %d\n", r.skipped)
	for _, s := range r.skips {
		fmt.Fprintln(w, "  "+s)
	}
	if len(r.slow) > 0 {
		fmt.Fprintln(w, "slow packages: "+strings.Join(r.slow, ", "))
	}
	if len(r.tests) > 0 {
		slices.SortFunc(r.tests, func(a, b timedTest) int { return cmp.Compare(b.seconds, a.seconds) })
		fmt.Fprintln(w, "slow tests, with what they waited for others of their package:")
		for _, s := range r.tests[:min(len(r.tests), maxSlow)] {
			fmt.Fprintf(w, "  %4.0fs %s %s\n", s.seconds, short(s.pkg), s.test)
		}
	}
	if len(forgiven) > 0 {
		fmt.Fprintf(w, "passed only alone: %d\n  %s\n", len(forgiven), strings.Join(forgiven, "\n  "))
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}
