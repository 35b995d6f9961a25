package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
)

// topViews are what top shows, in the order of their keys.
var topViews = []string{"zones", "services", "nodes", "sites"}

type topFlags struct {
	once, reverse bool
	sort, filter  string
	limit         int
}

func newTop(s *settings) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:     "top [zones|services|nodes|sites]",
		GroupID: "operate",
		Short:   "Show the traffic of zones and Services, and how nodes and sites are, as it changes",
		Long: `Top shows, as it changes: zones with their demand and how much of it stays; Services
with what a plan would make better; nodes and how far their agents are; and sites,
the zones of a global control plane. Figures come from the control plane's own
sums: no other system is needed.

Keys: 1 to 4 or tab choose the view, s the next order, r turns it around, / filters by
name, arrows and page keys scroll, q ends it. With --once, or without a terminal, it
prints a table and ends. NO_COLOR turns colours off.`,
		Example:   "  proxima top\n  proxima top services --sort cost\n  proxima top zones --once",
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: topViews,
		RunE: func(cmd *cobra.Command, args []string) error {
			view := topViews[0]
			if len(args) > 0 {
				view = args[0]
			}
			return s.top(cmd.Context(), &f, view)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.once, "once", false, "print a table and end")
	fl.StringVar(&f.sort, "sort", "", "the order of the first view (default: zones by demand, services by saving, nodes by changes behind, sites by name)")
	fl.BoolVarP(&f.reverse, "reverse", "r", false, "turn the order around")
	fl.StringVar(&f.filter, "filter", "", "only rows whose name contains this")
	fl.IntVar(&f.limit, "limit", 100, "so many rows with --once; at most 1000")
	return cmd
}

func (s *settings) top(ctx context.Context, f *topFlags, view string) error {
	if !slices.Contains(topViews, view) {
		return usagef("%q: choose %s", view, oneOf(topViews))
	}
	if f.limit < 1 || f.limit > 1000 {
		return usagef("--limit %d: 1 to 1000", f.limit)
	}
	if sorts := topSorts[view]; f.sort != "" && !slices.Contains(sorts, f.sort) {
		return usagef("--sort %q: of %s, choose %s", f.sort, view, oneOf(sorts))
	}
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	source := newTopSource(cfg)
	query := topQuery{view: view, filter: f.filter, sort: f.sort, reverse: f.reverse, limit: f.limit}
	if query.sort == "" {
		query.sort = topSorts[view][0]
	}
	if f.once || !isTerminal(s.io.In) || !isTerminal(s.io.Out) {
		table, err := source.fetch(ctx, query)
		if err != nil {
			return explainAPI(cfg, err)
		}
		return table.print(s.io.Out)
	}
	return s.topScreen(ctx, cfg, source, query)
}

// topScreen shows the views until the user ends it.
func (s *settings) topScreen(ctx context.Context, cfg *rest.Config, source *topSource, query topQuery) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options := []tea.ProgramOption{tea.WithContext(ctx), tea.WithInput(s.io.In), tea.WithOutput(s.io.Out), tea.WithFPS(10)}
	if s.io.Env != nil {
		options = append(options, tea.WithEnvironment(s.terminalEnv()))
	}
	program := tea.NewProgram(newTopModel(ctx, source, query), options...)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		source.follow(ctx, unhurriedConfig(cfg), func() { program.Send(topChanged{}) })
	}()
	_, err := program.Run()
	cancel()
	<-followed
	if errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil || errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

// terminalEnv are the variables that say what a terminal can show.
func (s *settings) terminalEnv() []string {
	var out []string
	for _, name := range []string{"TERM", "COLORTERM", "TERM_PROGRAM", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TMUX", "SSH_TTY", "WT_SESSION"} {
		if value, ok := s.io.Env(name); ok {
			out = append(out, name+"="+value)
		}
	}
	return out
}

func unhurriedConfig(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0
	return cfg
}

// topSpare are the columns that a narrow screen leaves out, in this order.
var topSpare = map[string][]string{
	"zones":    {"REGION", "WORST", "COST", "NODES"},
	"services": {"BEST", "ENDPOINTS", "WORST", "COST", "MODE"},
	"nodes":    {"INSTANCE", "SINCE", "VERSION", "REJECTED"},
	"sites":    {"VERSION", "SINCE", "LAG FROM", "ENABLED"},
}

// topTable is a view at a moment.
type topTable struct {
	// head sums it up, columns name the cells of rows.
	head    string
	columns []string
	rows    [][]string
	// first of the rows among total.
	first, total int
	partial      string
	at           time.Time
}

func (t *topTable) print(out io.Writer) error {
	if t.partial != "" {
		fmt.Fprintln(out, clean(t.partial))
	}
	fmt.Fprintln(out, clean(t.head))
	if len(t.rows) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	for _, row := range append([][]string{t.columns}, t.rows...) {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, clean(cell))
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if more := t.total - t.first - len(t.rows); more > 0 {
		fmt.Fprintf(out, "… and %d more: --limit and --filter choose others\n", more)
	}
	return nil
}

// clean a text of what a terminal would obey.
func clean(text string) string {
	for i, r := range text {
		if r < 0x20 || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			out := []rune(text[:i])
			for _, r := range text[i:] {
				if r < 0x20 || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
					r = '�'
				}
				out = append(out, r)
			}
			return string(out)
		}
	}
	return text
}
