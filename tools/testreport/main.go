// Command testreport runs the tests and says what matters: failures with their
// output, every skipped test with its reason, the slowest packages, and one
// closing line of counts.
//
//	testreport [-timeout 25m] [-p 2] [-modules test/a,bench/b] -- ./...
//
// Modules beside the main one are tested as a whole, each in its own folder.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
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
	passed, failed, skipped int
}

func main() {
	timeout := flag.Duration("timeout", 20*time.Minute, "limit of one package's tests")
	parallel := flag.Int("p", 2, "packages at a time")
	modules := flag.String("modules", "", "folders of further modules, separated by commas")
	flag.Parse()
	args := []string{"test", "-race", "-json", "-vet=off", fmt.Sprintf("-timeout=%s", *timeout), fmt.Sprintf("-p=%d", *parallel)}
	r := &report{output: map[testName][]string{}}
	fine := r.run(".", append(slices.Clone(args), flag.Args()...))
	for dir := range strings.SplitSeq(*modules, ",") {
		if dir != "" {
			fine = r.run(dir, append(slices.Clone(args), "./...")) && fine
		}
	}
	r.close(os.Stdout)
	if !fine || r.failed > 0 {
		os.Exit(1)
	}
}

// run the tests of one module.
func (r *report) run(dir string, args []string) bool {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		return false
	}
	r.read(stdout)
	err = cmd.Wait()
	if err != nil && r.failed == 0 {
		fmt.Printf("=== FAILED go test in %s: %v\n", dir, err)
		r.failed++
	}
	return err == nil
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
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		r.skipped++
		r.skips = append(r.skips, fmt.Sprintf("%s %s: %s", short(e.Package), e.Test, reason(r.output[name])))
	case "fail":
		r.failed++
		fmt.Printf("\n=== FAILED %s %s\n%s", short(e.Package), e.Test, strings.Join(r.output[name], ""))
	}
}

func (r *report) endPackage(e event) {
	if e.Action == "fail" {
		fmt.Printf("\n=== FAILED package %s\n%s", e.Package, strings.Join(r.output[testName{e.Package, ""}], ""))
		r.failed++
		return
	}
	if e.Action == "pass" {
		fmt.Printf("ok   %-60s %6.1fs\n", short(e.Package), e.Elapsed)
		if e.Elapsed > 20 {
			r.slow = append(r.slow, fmt.Sprintf("%s %.0fs", short(e.Package), e.Elapsed))
		}
	}
}

// reason a test gave for skipping itself.
func reason(output []string) string {
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		if _, after, ok := strings.Cut(line, ".go:"); ok {
			if _, text, ok := strings.Cut(after, ": "); ok {
				return text
			}
		}
		return line
	}
	return "no reason given"
}

func short(pkg string) string {
	return strings.TrimPrefix(pkg, "github.com/proxima-mesh/proxima/")
}

func (r *report) close(w io.Writer) {
	slices.Sort(r.skips)
	fmt.Fprintf(w, "\nskipped tests: %d\n", r.skipped)
	for _, s := range r.skips {
		fmt.Fprintln(w, "  "+s)
	}
	if len(r.slow) > 0 {
		fmt.Fprintln(w, "slow packages: "+strings.Join(r.slow, ", "))
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}
