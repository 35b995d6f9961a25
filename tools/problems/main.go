// Command problems writes the reference of problem codes and of the doctor's checks
// from the code.
//
//	problems > docs/reference/problems.md
package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/proxima-mesh/proxima/internal/diag/doctor"
	"github.com/proxima-mesh/proxima/internal/problem"
)

func main() {
	if err := write(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "problems:", err)
		os.Exit(1)
	}
}

func write(out io.Writer) error {
	var b strings.Builder
	b.WriteString("# Problems\n\nGenerated from the code by `make gen`. Commands print the code of an error below its text, `proxima doctor -o json` has it as\n" +
		"`code`, and `proxima doctor --cluster` groups what is wrong in a whole control plane by it. A code keeps its meaning from one version to the next; texts and hints do not.\n\n" +
		"| code | meaning | remedy |\n|---|---|---|\n")
	for _, d := range problem.Definitions() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", d.Code, cell(d.Meaning), cell(d.Remedy))
	}
	b.WriteString("\n## Checks of the doctor\n\n`id` in `proxima doctor -o json`. A check without a remedy only reports.\n\n" +
		"| id | what it looks at | remedy |\n|---|---|---|\n")
	for _, c := range doctor.Checks() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.ID, cell(c.Looks), cell(c.Remedy))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
