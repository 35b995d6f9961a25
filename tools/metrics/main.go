// Command metrics writes the reference of our metrics from the source code: every
// prometheus.…Opts and prometheus.NewDesc below internal, also those in helper
// functions, once per call.
//
//	metrics > docs/reference/metrics.md
package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	root := "internal"
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	all, err := collect(root)
	if err == nil {
		err = write(os.Stdout, all)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "metrics:", err)
		os.Exit(1)
	}
}

// metric is one family of time series.
type metric struct {
	name, kind, help string
	labels           []string
	pkg              string // that defines it, without its prefix
}

// collect reads the metrics of all packages below a folder, by name.
func collect(root string) ([]metric, error) {
	packages, err := parse(root)
	if err != nil {
		return nil, err
	}
	var all []metric
	for _, p := range packages {
		found, err := p.metrics()
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, func(a, b metric) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.pkg, b.pkg)) })
	return all, nil
}

func write(out io.Writer, all []metric) error {
	var b strings.Builder
	b.WriteString(
		"# Metrics\n\nGenerated from the code by `make gen`. The control plane serves its metrics at `/metrics` of the API port (with those of\n" +
			"Kubernetes' API server, `apiserver_…`, which are documented there), an agent at `/metrics` of its metrics port.\n\n" +
			"| metric | type | labels | meaning |\n|---|---|---|---|\n",
	)
	for _, m := range all {
		labels := "none"
		if len(m.labels) > 0 {
			labels = "`" + strings.Join(m.labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, m.kind, labels, strings.ReplaceAll(m.help, "|", "\\|"))
	}
	_, err := io.WriteString(out, b.String())
	return err
}
