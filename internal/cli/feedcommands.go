package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

func newFeed(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "feed",
		GroupID: "operate",
		Short:   "See the control plane's change feed, and follow it",
	}
	cmd.AddCommand(newFeedStatus(s), newFeedList(s), newFeedTail(s), newFeedCursors(s), newFeedSeek(s), newFeedOffload(s), newFeedVerify(s), newFeedRedact(s), newFeedSink(s))
	return cmd
}

// feedStatus asks how the feed is.
func (s *settings) feedStatus(ctx context.Context) (*admin.FeedStatus, error) {
	cfg, _, err := s.restConfig()
	if err != nil {
		return nil, err
	}
	var out admin.FeedStatus
	return &out, callFeed(ctx, cfg, admin.FeedStatusPath, nil, &out)
}

func newFeedStatus(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show since when the change feed reaches, its size, and where it is kept",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			f, err := s.feedStatus(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, f, output)
			}
			return printFeed(s.io.Out, f)
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

// feedText is a feed in a line.
func feedText(f *admin.FeedStatus) string {
	out := fmt.Sprintf("since %s, %d changes, %s", f.Begins.UTC().Format(time.RFC3339), f.Entries, sizeText(f.Bytes))
	if f.Problem != "" {
		out += ", not written"
	}
	return out
}

func sizeText(bytes int64) string {
	if bytes < 10_000_000 {
		return fmt.Sprintf("%d kB", bytes/1000)
	}
	return fmt.Sprintf("%d MB", bytes/1_000_000)
}

func printFeed(out io.Writer, f *admin.FeedStatus) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintf(w, "begins\t%s, after position %d\n", f.Begins.UTC().Format(time.RFC3339), f.First)
	fmt.Fprintf(w, "ends\tposition %d; the store is at %d\n", f.Complete, f.Revision)
	noun := "segments"
	if f.Segments == 1 {
		noun = "segment"
	}
	fmt.Fprintf(w, "changes\t%d in %d %s, %s\n", f.Entries, f.Segments, noun, sizeText(f.Bytes))
	if f.Problem != "" {
		since := ""
		if f.Since != nil {
			since = " for " + duration.HumanDuration(time.Since(*f.Since))
		}
		fmt.Fprintf(w, "problem\tnot written%s: %s\n", since, f.Problem)
	}
	fmt.Fprintf(w, "\nROOT\tSEGMENTS\tSIZE\tPROBLEM\n")
	for _, r := range f.Roots {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", r.Dir, r.Segments, sizeText(r.Bytes), orNone(r.Problem))
	}
	return w.Flush()
}

func newFeedList(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the segments of the change feed",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			f, err := s.feedStatus(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, f.SegmentList, output)
			}
			return printSegments(s.io.Out, f.SegmentList, output == "wide")
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

func printSegments(out io.Writer, segments []seglog.SegmentInfo, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprint(w, "AFTER\tUP TO\tCHANGES\tSIZE\tOLDEST\tNEWEST\tSTATE\tCOPIES")
	if wide {
		fmt.Fprint(w, "\tSHA-256\tFILES")
	}
	fmt.Fprintln(w)
	for i := range segments {
		g := &segments[i]
		state, oldest, newest := "open", "-", "-"
		if g.Sealed {
			state = "sealed"
		}
		if g.Gap {
			state += ", gap before"
		}
		if g.Entries > 0 {
			oldest, newest = g.Oldest.UTC().Format(time.RFC3339), g.Newest.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%s\t%s\t%s\t%s\t%d", g.After, g.Complete, g.Entries, sizeText(g.Bytes), oldest, newest, state, len(g.Copies))
		if wide {
			fmt.Fprintf(w, "\t%s\t%s", orNone(g.SHA256), strings.Join(g.Copies, ","))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

type tailFlags struct {
	namespace string
	from      string
	output    string
	full      bool
	limit     int
}

func newFeedTail(s *settings) *cobra.Command {
	var t tailFlags
	cmd := &cobra.Command{
		Use:   "tail [KIND [NAME]]",
		Short: "Follow changes as they are made, until interrupted",
		Long: `Tail shows changes as they are committed: of all kinds that you may list, or of one
kind, or one object; in all namespaces, or one. With --from it begins with what
was changed since then. Its JSON has one change in each line.`,
		Example: "  proxima feed tail\n  proxima feed tail endpointslices -n shop --from 1h\n  proxima feed tail services -o json",
		Args:    cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.feedTail(cmd.Context(), t, args)
		},
		ValidArgsFunction: s.completeTarget(1),
	}
	f := cmd.Flags()
	f.StringVarP(&t.namespace, "namespace", "n", "", "namespace (default: all; with a name, the kubeconfig's, else default)")
	f.StringVar(&t.from, "from", "", "begin after "+momentHelp+" (default: now)")
	f.StringVarP(&t.output, "output", "o", "table", "table or json")
	f.BoolVar(&t.full, "full", false, "with -o json: whole objects; with the table: all fields that changed")
	f.IntVar(&t.limit, "count", 0, "end after this many changes; 0: go on until interrupted")
	return cmd
}

func (s *settings) feedTail(ctx context.Context, t tailFlags, args []string) error {
	if t.output != "table" && t.output != "json" {
		return usagef("-o %q: choose table or json", t.output)
	}
	if t.limit < 0 {
		return usagef("--count %d: must not be negative", t.limit)
	}
	if t.from != "" {
		if err := checkMoment("from", t.from); err != nil {
			return err
		}
	}
	c, err := s.connect(t.namespace)
	if err != nil {
		return err
	}
	w := changeWriter{out: s.io.Out, kinds: len(args) == 0, namespaces: t.namespace == "", full: t.full}
	q := url.Values{}
	if len(args) > 0 {
		past, err := parsePast(args, t.namespace, t.namespace != "")
		if err != nil {
			return err
		}
		if w.named = len(past.target.names) == 1; w.named && past.target.kind.Namespaced && past.namespace == "" {
			past.namespace = c.namespace
		}
		q = past.query()
	} else if t.namespace != "" {
		q.Set("namespace", t.namespace)
	}
	if t.full && t.output == "json" {
		q.Set("full", "true")
	}
	err = s.followFeed(ctx, c.cfg, q, t, w)
	if ctx.Err() != nil {
		return nil // interrupted by the user
	}
	return err
}

// followFeed asks for what comes next, again and again.
func (s *settings) followFeed(ctx context.Context, cfg *rest.Config, q url.Values, t tailFlags, w changeWriter) error {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout += admin.FeedTailWait // on top of what an answer may take
	if t.from != "" {
		q.Set("from", t.from)
	}
	shown := 0
	for {
		if t.limit > 0 {
			q.Set("limit", strconv.Itoa(min(t.limit-shown, history.MaxLimit)))
		}
		var a history.Answer
		if err := callFeed(ctx, cfg, admin.FeedTailPath, q, &a); err != nil {
			return err
		}
		for _, note := range a.Notes {
			fmt.Fprintln(s.io.Err, "note: "+note)
		}
		for i := range a.Changes {
			if t.output == "table" {
				w.print(&a.Changes[i])
			} else if err := json.NewEncoder(s.io.Out).Encode(&a.Changes[i]); err != nil {
				return err
			}
		}
		if shown += len(a.Changes); t.limit > 0 && shown >= t.limit {
			return nil
		}
		q.Set("from", strconv.FormatInt(int64(a.Next), 10))
	}
}

// bodyAt is the answer for objects as they were at the moment of --at, and its position.
func (q *query) bodyAt(ctx context.Context, name string) ([]byte, string, error) {
	past := pastTarget{target: target{kind: q.target.kind}, namespace: q.namespace()}
	values := past.query()
	values.Set("at", q.flags.at)
	if name != "" {
		values.Set("name", name)
	}
	if q.flags.selector != "" {
		values.Set("labelSelector", q.flags.selector)
	}
	if q.asTable() {
		values.Set("table", "true")
	}
	resp, err := send(ctx, q.conn.cfg, http.MethodGet, admin.FeedStatePath+"?"+values.Encode(), nil)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return body, resp.Header.Get(admin.PositionHeader), err
}
