package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/proxima-mesh/proxima/internal/admin"
)

func newFeedCursors(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "cursors",
		Short: "List how far the subscribers of the change feed have come",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			cfg, _, err := s.restConfig()
			if err != nil {
				return err
			}
			all := []admin.FeedCursor{}
			if err := callFeed(cmd.Context(), cfg, admin.FeedCursorsPath, nil, &all); err != nil {
				return err
			}
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, all, output)
			}
			if len(all) == 0 {
				fmt.Fprintln(s.io.Err, "No cursors found.")
				return nil
			}
			return printCursors(s.io.Out, all)
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

func printCursors(out io.Writer, all []admin.FeedCursor) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tTYPE\tMARK\tACKED APART\tACTIVE\tSTATE")
	for i := range all {
		c := &all[i]
		state := "ok"
		if c.Expired {
			state = "expired"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\n", c.Name, c.Type, c.Mark, len(c.Acked), duration.HumanDuration(time.Since(c.Active)), state)
	}
	return w.Flush()
}

func newFeedSeek(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "seek CURSOR MOMENT",
		Short: "Set a subscriber of the change feed to another position",
		Long: `Seek sets a cursor: its subscriber is sent what follows the moment, again or not at
all. The moment is ` + momentHelp + `.
Who has the cursor open loses it, and opens it again.`,
		Example: "  proxima feed seek billing 2h\n  proxima feed seek billing 4127",
		Args:    cobra.ExactArgs(2),
		RunE:    func(cmd *cobra.Command, args []string) error { return s.feedSeek(cmd.Context(), args[0], args[1]) },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

func (s *settings) feedSeek(ctx context.Context, name, to string) error {
	if err := checkMoment("moment", to); err != nil {
		return err
	}
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	var out admin.FeedCursor
	if err := explainFeed(cfg, callJSON(ctx, cfg, http.MethodPost, admin.FeedSeekPath, admin.SeekRequest{Name: name, To: to}, &out)); err != nil {
		return err
	}
	fmt.Fprintf(s.io.Out, "cursor %s goes on after position %d\n", out.Name, out.Mark)
	return nil
}
