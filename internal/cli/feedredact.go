package cli

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/redact"
)

type redactFlags struct {
	namespace   string
	field       string
	keepCurrent bool
	list        bool
	output      string
}

func newFeedRedact(s *settings) *cobra.Command {
	var f redactFlags
	cmd := &cobra.Command{
		Use:   "redact KIND NAME --field PATH | redact --list",
		Short: "Replace a value by its hash in the change feed",
		Long: `Redact replaces what an object had in a field, at any time up to now, by a hash, in all segments
of the change feed: at all roots, at the place of --feed-offload, and in copies that come back
later. The hash has a key of its own: it tells whether two values were equal, and cannot be
guessed from short ones. What cannot be text, such as a number, is removed. Checksums are made
anew; "feed verify" and "audit verify" go on to succeed. It cannot be undone.

The object itself is not changed. If it has a value in the field now, change it first, or say
--keep-current.

Not reached: backups, what webhooks and Pulsar topics were sent, files that were copied by hand,
and for some minutes the history of the store.`,
		Example: "  proxima feed redact configmap app -n shop --field 'data[\"app.conf\"]'\n  proxima feed redact --list",
		Args:    cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.list {
				return s.listRedactions(cmd, f, args)
			}
			return s.redact(cmd, f, args)
		},
		ValidArgsFunction: s.completeTarget(1),
	}
	flags := cmd.Flags()
	addNamespaceFlag(flags, &f.namespace)
	flags.StringVar(&f.field, "field", "", "path of the field, as history shows it: spec.ports[0].name or data[\"app.conf\"]")
	flags.BoolVar(&f.keepCurrent, "keep-current", false, "redact the past, though the object has a value in the field now; that one stays")
	flags.BoolVar(&f.list, "list", false, "list what was redacted, and what is outstanding")
	flags.StringVarP(&f.output, "output", "o", "table", "with --list: table, json or yaml")
	return cmd
}

// redactions are asked at their path. There is no bound on the time that it takes.
func (s *settings) redactions(cmd *cobra.Command, method, query string, out any) error {
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0
	return explainFeed(cfg, callJSON(cmd.Context(), cfg, method, admin.FeedRedactionsPath+query, nil, out))
}

func (s *settings) redact(cmd *cobra.Command, f redactFlags, args []string) error {
	if f.field == "" {
		return usagef("--field: required, as in --field spec.ports[0].name")
	}
	if _, err := history.ParsePath(f.field); err != nil {
		return usagef("--field: %w", err)
	}
	if len(args) == 0 {
		return usagef("want a KIND and a NAME")
	}
	c, err := s.connect(f.namespace)
	if err != nil {
		return err
	}
	t, err := parsePast(args, c.namespace, f.namespace != "")
	if err != nil {
		return err
	}
	if len(t.target.names) != 1 {
		return usagef("%s: want the NAME of one object", strings.Join(args, " "))
	}
	q := t.query()
	q.Set("field", f.field)
	q.Set("keepCurrent", strconv.FormatBool(f.keepCurrent))
	var done redact.Status
	if err := s.redactions(cmd, http.MethodPost, "?"+q.Encode(), &done); err != nil {
		return err
	}
	what := done.Request.String()
	for _, problem := range done.Outstanding {
		fmt.Fprintln(s.io.Err, problem)
	}
	if done.Done && done.Replaced == 0 {
		fmt.Fprintf(s.io.Err, "No value of %s is in the change feed.\n", what)
	}
	if done.KeepCurrent {
		fmt.Fprintln(s.io.Err, "A value that the object has now stays, and goes into the change feed with its next change.")
	}
	fmt.Fprintln(s.io.Err, "Not reached: backups, what webhooks and Pulsar topics were sent, copies made by hand; the history of the store forgets within minutes.")
	if !done.Done {
		return fmt.Errorf("redaction %s of %s is outstanding, and is tried again; see \"proxima feed redact --list\"", done.ID, what)
	}
	if !done.Everywhere() {
		fmt.Fprintln(s.io.Err, "Other instances follow within a minute; see \"proxima feed redact --list\".")
	}
	fmt.Fprintf(s.io.Out, "redaction %s: %s is redacted at this instance of the control plane\n", done.ID, what)
	return nil
}

func (s *settings) listRedactions(cmd *cobra.Command, f redactFlags, args []string) error {
	if err := checkFormat(f.output); err != nil {
		return err
	}
	if len(args) > 0 || f.field != "" || f.keepCurrent {
		return usagef("--list goes alone")
	}
	all := []redact.Status{}
	if err := s.redactions(cmd, http.MethodGet, "", &all); err != nil {
		return err
	}
	if f.output == "json" || f.output == "yaml" {
		return printValue(s.io.Out, all, f.output)
	}
	if len(all) == 0 {
		fmt.Fprintln(s.io.Err, "No redactions found.")
		return nil
	}
	return printRedactions(s.io.Out, all)
}

func printRedactions(out io.Writer, all []redact.Status) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tWHAT\tUP TO\tAGE\tBY\tSTATE")
	for i := range all {
		r := &all[i]
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", r.ID, r.String(), r.UpTo, duration.HumanDuration(time.Since(r.Created)), orNone(r.By), redactionState(r))
	}
	return w.Flush()
}

// redactionState says where a redaction is done, and where it is not.
func redactionState(r *redact.Status) string {
	outstanding := func(why []string) string { return "outstanding: " + strings.Join(why, "; ") }
	switch {
	case r.Everywhere():
		return "done"
	case len(r.Instances) == 0:
		return outstanding(r.Outstanding)
	}
	var parts []string
	for i := range r.Instances {
		n := &r.Instances[i]
		state := "done"
		if !n.Done {
			state = outstanding(n.Outstanding)
			if silent := time.Since(n.Reported); silent > redactionSilence {
				state += " (it has not reported for " + duration.HumanDuration(silent) + ")"
			}
		}
		parts = append(parts, n.Name+" "+state)
	}
	return strings.Join(parts, ", ")
}

// redactionSilence is after how long it is said that an instance does not report: it does each hour.
const redactionSilence = 2 * time.Hour
