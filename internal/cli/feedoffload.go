package cli

import (
	"context"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// callLong is call without a bound on the time that it takes.
func (s *settings) callLong(ctx context.Context, path string, out any) error {
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0
	return explainFeed(cfg, callJSON(ctx, cfg, http.MethodPost, path, nil, out))
}

func newFeedOffload(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "offload",
		Short: "Copy the change feed to the place of --feed-offload now",
		Long: `Offload seals the segment that is being written, and copies what the place of --feed-offload
lacks. Each copy is compared by its checksum. Without the command that is done when a segment
is full, or an hour old.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var done admin.FeedOffloaded
			if err := s.callLong(cmd.Context(), admin.FeedOffloadPath, &done); err != nil {
				return err
			}
			fmt.Fprintf(s.io.Out, "%d segments offloaded\n", done.Segments)
			return nil
		},
	}
}

func newFeedVerify(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Check the checksums of the change feed",
		Long: `Verify reads all sealed segments of the change feed, each copy of them, and those at the place of
--feed-offload, and checks their checksums. It fails if one is damaged, and names it. The segment
that is being written is not read.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var found feed.Verification
			if err := s.callLong(cmd.Context(), admin.FeedVerifyPath, &found); err != nil {
				return err
			}
			for _, problem := range found.Problems {
				fmt.Fprintln(s.io.Out, problem)
			}
			if n := len(found.Problems); n > 0 {
				return &problem.Error{
					Code: problem.FeedDamaged, Err: fmt.Errorf("%d of %d segments are damaged", n, found.Local+found.Offloaded),
					Hint: "readers use another copy where there is one: delete the damaged file and restart the control plane, and it is copied again; without another copy its changes are lost, and readers go on behind them",
				}
			}
			fmt.Fprintf(s.io.Out, "%d local and %d offloaded segments are whole\n", found.Local, found.Offloaded)
			return nil
		},
	}
}
