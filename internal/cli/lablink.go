package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// qualityFlags are those of the quality of a path.
type qualityFlags struct {
	delay time.Duration
	loss  string
}

func (q *qualityFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVar(&q.delay, "delay", 0, "delay in each direction, up to 5s: a round trip takes twice as long")
	f.StringVar(&q.loss, "loss", "0", "packets that are lost in each direction, in percent, as 0.1%")
	for _, name := range []string{"delay", "loss"} {
		_ = f.SetAnnotation(name, commandLineOnly, nil) // the flag is there
	}
}

func (q *qualityFlags) parse() (lab.Quality, error) {
	percent, err := strconv.ParseFloat(strings.TrimSuffix(q.loss, "%"), 64)
	if err != nil || !(percent >= 0 && percent <= 100) {
		return lab.Quality{}, usagef("--loss %s: give percent from 0 to 100, as 0.1%%", q.loss)
	}
	if q.delay < 0 {
		return lab.Quality{}, usagef("--delay %s: it cannot be negative", q.delay)
	}
	return lab.Quality{Delay: q.delay, Loss: percent / 100}, nil
}

func newLabLink(s *settings, name *string) *cobra.Command {
	var q qualityFlags
	var reset bool
	cmd := &cobra.Command{
		Use:   "link ZONE|MACHINE ZONE|MACHINE --delay DURATION --loss PERCENT",
		Short: "Give the path between two zones, or machines of different zones, a delay and a loss of packets",
		Long: `Link delays every packet between two places, and loses some: two zones, a zone and global, or two
machines of different zones. It replaces what an earlier "link" of the two has set; --reset, or a delay and a loss
of 0, ends it. A process of the lab relays the packets; when it dies, the path is as before.`,
		Example:           "  proxima lab link zone-a zone-b --delay 20ms --loss 0.1%\n  proxima lab link zone-a zone-b --reset",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeLab(name, true, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			quality, err := q.parse()
			if err != nil {
				return err
			}
			switch given := cmd.Flags().Changed("delay") || cmd.Flags().Changed("loss"); {
			case reset && given:
				return usagef("--reset ends delay and loss: give it alone")
			case !reset && !given:
				return usagef("give --delay, --loss or --reset")
			}
			return withLab(*name, func(l *lab.Lab) error {
				if err := l.Link(cmd.Context(), args[0], args[1], quality); err != nil {
					return &problem.Error{Code: problem.Usage, Err: err}
				}
				if quality == (lab.Quality{}) {
					fmt.Fprintf(s.io.Err, "the path between %s and %s has no delay and no loss\n", args[0], args[1])
				} else {
					fmt.Fprintf(s.io.Err, "the path between %s and %s has a delay of %s and a loss of %s%% in each direction\n",
						args[0], args[1], quality.Delay, strings.TrimSuffix(q.loss, "%"))
				}
				return nil
			})
		},
	}
	q.add(cmd)
	cmd.Flags().BoolVar(&reset, "reset", false, "end delay and loss")
	_ = cmd.Flags().SetAnnotation("reset", commandLineOnly, nil)
	return cmd
}

// newLabRelay is the process that "lab link" starts.
func newLabRelay(s *settings) *cobra.Command {
	var q qualityFlags
	var device string
	cmd := &cobra.Command{
		Use:    "relay",
		Short:  "Relay the packets of a path",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			quality, err := q.parse()
			if err != nil {
				return err
			}
			return lab.Relay(cmd.Context(), device, quality, func() { fmt.Fprintf(s.io.Out, "ready device=%s\n", device) })
		},
	}
	q.add(cmd)
	cmd.Flags().StringVar(&device, "device", "", "name of the device")
	_ = cmd.Flags().SetAnnotation("device", commandLineOnly, nil)
	return cmd
}
