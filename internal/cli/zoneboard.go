package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/proxima-mesh/proxima/internal/admin"
)

func newZoneBoard(s *settings) *cobra.Command {
	var output string
	var lit bool
	cmd := &cobra.Command{
		Use:   "board",
		Short: "Show what can fail between sites, whether it does now, and what works meanwhile",
		Long: `Board lists the failures that sites are made for. A row says whether it is so now:
yes, no, perhaps (from here it looks as another one does), or unknown (another
control plane, or the nodes, know), and what works meanwhile and what does not.
It is that of the control plane that answers: of global, or of a site.`,
		Example: "  proxima zone board\n  proxima zone board --lit",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			var status admin.Status
			if err := s.call(cmd.Context(), http.MethodGet, admin.StatusPath, nil, &status); err != nil {
				return err
			}
			if status.Federation == nil {
				return errors.New("this control plane stands alone: it has no other sites (proxima docs how-to/zones)")
			}
			var rows []admin.Failure
			for _, f := range status.Federation.Failures {
				if !lit || f.Lit() {
					rows = append(rows, f)
				}
			}
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, rows, output)
			}
			printBoard(s.io.Out, rows)
			return nil
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	cmd.Flags().BoolVar(&lit, "lit", false, "only what is so, or may be")
	return cmd
}

// printBoard prints a paragraph for each row.
func printBoard(out io.Writer, rows []admin.Failure) {
	if len(rows) == 0 {
		fmt.Fprintln(out, "nothing on the board is so")
	}
	for i, f := range rows {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "%s: %s\n", f.Failure, f.State)
		w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
		if len(f.Where) > 0 {
			fmt.Fprintf(w, "  where\t%s\n", clean(whereOf(&f)))
		}
		fmt.Fprintf(w, "  why\t%s\n  works\t%s\n  fails\t%s\n", clean(f.Why), f.Works, f.Fails)
		if f.Look != "" && f.Lit() {
			fmt.Fprintf(w, "  look\t%s\n", f.Look)
		}
		_ = w.Flush()
	}
}

func whereOf(f *admin.Failure) string {
	text := strings.Join(f.Where, ", ")
	if more := f.Count - len(f.Where); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// printLink prints what is measured of a link; nil: nothing is.
func printLink(w io.Writer, l *admin.SyncLink) {
	if l == nil {
		return
	}
	fmt.Fprintf(w, "\nepoch\t%s\nlag of what is sent\t%s\nlag of what is received\t%s\n", orNone(l.Epoch), lagText(l.Sent), lagText(l.Received))
	for _, r := range l.LastRefused {
		fmt.Fprintf(w, "last NACK\t%s %s, %s, %s ago: %s\n", r.Type, orNone(r.Resource), r.Direction, duration.HumanDuration(max(time.Since(r.At), 0)), clean(r.Reason))
	}
}

// lagText of a direction.
func lagText(l *admin.SyncLag) string {
	if l == nil {
		return "not measured"
	}
	text := "no change in the last 10 minutes"
	if l.Samples > 0 {
		text = fmt.Sprintf("p50 %s, p99 %s, of %d", milliseconds(l.P50Seconds), milliseconds(l.P99Seconds), l.Samples)
	}
	if l.WaitingSeconds > 0 {
		text += ", the oldest waits for " + milliseconds(l.WaitingSeconds)
	}
	return text
}

// milliseconds of seconds, with three digits that count.
func milliseconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}

// lagCell of a table: p50 and p99.
func lagCell(l *admin.SyncLag) string {
	if l == nil || l.Samples == 0 {
		return "-"
	}
	return milliseconds(l.P50Seconds) + "/" + milliseconds(l.P99Seconds)
}
