package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// doctorCluster prints the problems that the control plane finds. Errors make the exit code 1.
func (s *settings) doctorCluster(ctx context.Context, output string) error {
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	var found admin.Problems
	if err := callJSON(ctx, cfg, http.MethodGet, admin.ProblemsPath, nil, &found); err != nil {
		return explainAPI(cfg, err)
	}
	if output == "json" || output == "yaml" {
		err = printValue(s.io.Out, &found, output)
	} else {
		printProblems(s.io.Out, &found, time.Now())
	}
	if err != nil {
		return err
	}
	for i := range found.Problems {
		if found.Problems[i].Severity == admin.SeverityError {
			return &exitError{code: 1}
		}
	}
	return nil
}

// printProblems grouped by code, those with errors first.
func printProblems(out io.Writer, found *admin.Problems, now time.Time) {
	if found.Partial != "" {
		fmt.Fprintf(out, "%s\n\n", found.Partial)
	}
	if len(found.Problems) == 0 {
		fmt.Fprintln(out, "no problems found")
		return
	}
	meaning := map[string]string{}
	for _, d := range problem.Definitions() {
		meaning[string(d.Code)] = d.Meaning
	}
	var codes []string
	of := map[string][]*admin.Problem{}
	for i := range found.Problems {
		p := &found.Problems[i]
		if of[p.Code] == nil {
			codes = append(codes, p.Code)
		}
		of[p.Code] = append(of[p.Code], p)
	}
	for i, code := range codes {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "%s  %s (%d)\n", of[code][0].Severity, code, len(of[code]))
		if m := meaning[code]; m != "" {
			fmt.Fprintf(out, "  %s\n", m)
		}
		fix := ""
		for _, p := range of[code] {
			head := p.Object()
			if head != "" {
				head += ": "
			}
			since := ""
			if !p.Since.IsZero() {
				since = ", since " + duration.HumanDuration(max(now.Sub(p.Since), 0))
			}
			fmt.Fprintf(out, "  - %s%s%s\n", head, p.Problem, since)
			if p.Fix != "" && p.Fix != fix { // once for all that have the same
				fix = p.Fix
				fmt.Fprintf(out, "    fix: %s\n", fix)
			}
		}
	}
}
