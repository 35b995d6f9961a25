package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// momentHelp says how flags take a point in time.
const momentHelp = "a time as in 2026-01-31T15:04:05Z, a duration before now as in 2h, or a position of the change feed"

type historyFlags struct {
	namespace     string
	allNamespaces bool
	since         string
	limit         int
	output        string
	full          bool
}

func newHistory(s *settings) *cobra.Command {
	var h historyFlags
	cmd := &cobra.Command{
		Use:     "history KIND [NAME|NAMESPACE/NAME] | KIND/NAME",
		GroupID: "objects",
		Short:   "Show what changed objects, when, and who did it",
		Long: `History reads the change feed of the control plane. It shows each change of an
object, or of all objects of a kind in the namespace: the time, the position in
the feed, the operation, who made it, and the fields that changed. An object that
was deleted and created again has several lives; all are shown. Who may get an
object may see its history. Of Secrets it shows that a value changed, not the value.

The feed begins when it is first turned on, and keeps as much as --feed-retention
of the control plane allows.`,
		Example: "  proxima history service web\n  proxima history endpointslices --since 1h\n  proxima history dataplane shop/web-1 -o yaml --full",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.history(cmd.Context(), h, args)
		},
		ValidArgsFunction: s.completeTarget(1),
	}
	f := cmd.Flags()
	addNamespaceFlag(f, &h.namespace)
	f.BoolVarP(&h.allNamespaces, "all-namespaces", "A", false, "all namespaces")
	f.StringVar(&h.since, "since", "", "changes after "+momentHelp)
	f.IntVar(&h.limit, "limit", history.DefaultLimit, fmt.Sprintf("the newest changes, at most; up to %d", history.MaxLimit))
	f.StringVarP(&h.output, "output", "o", "table", "table, json or yaml")
	f.BoolVar(&h.full, "full", false, "whole objects, as they were after each change; with the table, all fields that changed")
	return cmd
}

// pastTarget is what history and feed tail are asked about.
type pastTarget struct {
	target    target
	namespace string
}

// parsePast reads KIND, KIND NAME, KIND NAMESPACE/NAME or KIND/NAME. namespace is that of the flags and the kubeconfig; empty: all.
func parsePast(args []string, namespace string, chosen bool) (pastTarget, error) {
	if len(args) == 2 {
		if ns, name, joined := strings.Cut(args[1], "/"); joined && !strings.Contains(args[0], "/") {
			if chosen && ns != namespace {
				return pastTarget{}, usagef("%s and another namespace in -n or -A: choose one", args[1])
			}
			args, namespace = []string{args[0], name}, ns
		}
	}
	targets, err := parseTargets(args)
	if err != nil {
		return pastTarget{}, err
	}
	if len(targets) > 1 || len(targets[0].names) > 1 {
		return pastTarget{}, usagef("%s: one kind, and one name at most", strings.Join(args, " "))
	}
	out := pastTarget{targets[0], namespace}
	if !out.target.kind.Namespaced {
		out.namespace = ""
	}
	return out, nil
}

func (p *pastTarget) query() url.Values {
	q := url.Values{"resource": {p.target.kind.Resource}}
	if g := p.target.kind.GVK.Group; g != "" {
		q.Set("group", g)
	}
	if p.namespace != "" {
		q.Set("namespace", p.namespace)
	}
	if len(p.target.names) == 1 {
		q.Set("name", p.target.names[0])
	}
	return q
}

// checkMoment reports a mistake in a flag before anything is sent.
func checkMoment(flag, text string) error {
	if _, err := history.ParseMoment(text, time.Now()); err != nil {
		return usagef("--%s %w", flag, err)
	}
	return nil
}

func (s *settings) history(ctx context.Context, h historyFlags, args []string) error {
	switch h.output {
	case "table", "json", "yaml":
	default:
		return usagef("-o %q: choose table, json or yaml", h.output)
	}
	if h.limit < 1 || h.limit > history.MaxLimit {
		return usagef("--limit %d: 1 to %d", h.limit, history.MaxLimit)
	}
	if h.since != "" {
		if err := checkMoment("since", h.since); err != nil {
			return err
		}
	}
	c, err := s.connect(h.namespace)
	if err != nil {
		return err
	}
	namespace := c.namespace
	if h.allNamespaces {
		namespace = ""
	}
	t, err := parsePast(args, namespace, h.allNamespaces || h.namespace != "")
	if err != nil {
		return err
	}
	if h.allNamespaces && len(t.target.names) > 0 && t.target.kind.Namespaced {
		return usagef("a name goes without -A")
	}
	q := t.query()
	q.Set("limit", strconv.Itoa(h.limit))
	if h.since != "" {
		q.Set("since", h.since)
	}
	if h.full && h.output != "table" {
		q.Set("full", "true")
	}
	var answer history.Answer
	if err := callFeed(ctx, c.cfg, admin.FeedHistoryPath, q, &answer); err != nil {
		return err
	}
	if h.output != "table" {
		return printValue(s.io.Out, answer, h.output)
	}
	w := changeWriter{out: s.io.Out, named: len(t.target.names) == 1, full: h.full, namespaces: t.namespace == ""}
	for i := range answer.Changes {
		w.print(&answer.Changes[i])
	}
	s.noteHistory(&answer, h)
	return nil
}

// noteHistory says on standard error what an answer lacks.
func (s *settings) noteHistory(a *history.Answer, h historyFlags) {
	begins := fmt.Sprintf("the change feed begins at %s", a.Begins.UTC().Format(time.RFC3339))
	early := false
	if m, err := history.ParseMoment(h.since, time.Now()); h.since != "" && err == nil {
		early = m.Position != 0 && m.Position < a.First || m.Position == 0 && m.Time.Before(a.Begins)
	}
	switch {
	case len(a.Changes) == 0 && h.since == "":
		fmt.Fprintf(s.io.Err, "No changes found; %s.\n", begins)
	case len(a.Changes) == 0:
		fmt.Fprintf(s.io.Err, "No changes found since %s; %s.\n", h.since, begins)
	case a.More:
		fmt.Fprintf(s.io.Err, "There are older changes: raise --limit, or see -o json.\n")
	}
	if early && len(a.Changes) > 0 {
		fmt.Fprintf(s.io.Err, "%s: to keep more from now on, start the control plane with a greater --feed-retention.\n", begins)
	}
	for _, note := range a.Notes {
		fmt.Fprintln(s.io.Err, "note: "+note)
	}
}

// callFeed asks a path of the change feed.
func callFeed(ctx context.Context, cfg *rest.Config, path string, q url.Values, out any) error {
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	return explainFeed(cfg, callJSON(ctx, cfg, http.MethodGet, path, nil, out))
}

// explainFeed adds what to do about a refusal by the change feed.
func explainFeed(cfg *rest.Config, err error) error {
	switch {
	case apierrors.IsMethodNotSupported(err):
		return &problem.Error{Code: problem.FeedOff, Err: err, Hint: "see \"proxima status\" and \"proxima docs how-to/history\""}
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return &problem.Error{Code: problem.FeedExpired, Err: err, Hint: "see since when it reaches with \"proxima feed status\""}
	}
	return explainAPI(cfg, err)
}

// changeWriter prints changes as text: a line for each, and its fields below.
type changeWriter struct {
	out io.Writer
	// named: all changes are of one object, whose name is left out. namespaces are shown, kinds are.
	named, namespaces, kinds bool
	// full: all fields.
	full bool
}

// maxFields of a change that are shown without --full.
const maxFields = 12

func (w changeWriter) print(c *history.Change) {
	line := fmt.Sprintf("%s  %d  %s", c.Time.UTC().Format("2006-01-02T15:04:05.000Z"), c.Position, c.Operation)
	if !w.named {
		name := c.Name
		if w.namespaces && c.Namespace != "" {
			name = c.Namespace + "/" + name
		}
		if w.kinds {
			name = c.Resource + " " + name
		}
		line += "  " + name
	}
	fmt.Fprintf(w.out, "%s  by %s\n", line, whoOf(c))
	shown := 0
	for i := range c.Fields {
		if shown++; shown > maxFields && !w.full {
			fmt.Fprintf(w.out, "    … and %d more: --full\n", len(c.Fields)-maxFields)
			break
		}
		fmt.Fprintln(w.out, "    "+fieldText(&c.Fields[i]))
	}
	if c.Problem != "" {
		fmt.Fprintln(w.out, "    "+c.Problem)
	}
}

// whoOf a change made it, and how.
func whoOf(c *history.Change) string {
	who := cmp.Or(c.User, "an unknown user")
	if part := partOf(c.User); part != "" {
		who = "the control plane"
		if c.Manager == "" {
			who += " (" + part + ")"
		}
	}
	if c.Manager != "" {
		who += " (" + c.Manager + ")"
	}
	if r := c.Registry; r != nil {
		who += ", registered through " + r.Protocol
		if r.By != "" {
			who += " by " + r.By
		}
	}
	return who
}

// partOf the control plane that writes as a user; empty: it is none.
func partOf(user string) string {
	if part, ok := strings.CutPrefix(user, "system:proxima:"); ok {
		return part
	}
	if user == "system:apiserver" {
		return "apiserver"
	}
	return ""
}

// maxValue is how much of a value is shown.
const maxValue = 120

func fieldText(f *history.Field) string {
	switch {
	case f.Hidden:
		return f.Path + ": changed (the value is not shown)"
	case f.From == nil:
		return "+ " + f.Path + ": " + valueText(f.To)
	case f.To == nil:
		return "- " + f.Path + ": " + valueText(f.From)
	}
	return f.Path + ": " + valueText(f.From) + " -> " + valueText(f.To)
}

// valueText is a value in one line; a plain string is shown without quotes.
func valueText(raw json.RawMessage) string {
	text := string(raw)
	var s string
	if json.Unmarshal(raw, &s) == nil && s != "" && strconv.Quote(s) == `"`+s+`"` {
		text = s
	}
	if runes := []rune(text); len(runes) > maxValue {
		text = string(runes[:maxValue]) + "…"
	}
	return text
}
