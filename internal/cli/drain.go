package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/controller/drain"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// drainPoll is the time between two questions for the progress of a drain.
const drainPoll = time.Second

type drainFlags struct {
	timeout       time.Duration
	force, dryRun bool
	all           bool
	output        string
}

func newNodeDrain(s *settings) *cobra.Command {
	var f drainFlags
	cmd := &cobra.Command{
		Use:   "drain NAME",
		Short: "Take a node's workloads out of their Services, and wait until its machine can be rebooted",
		Long: `Drain takes the workloads of a node out of their Services: new connections go to
other nodes, open ones stay, and the node takes no new workloads. It waits until
each workload has no open connection or its time (drainSeconds) is over, and exits
with 0 once a reboot interrupts nothing. With --timeout it gives up waiting, says
what is in the way, and exits with 1; the node stays drained.

The state is on the Node, so that the command may be interrupted and run again, on
any machine: it goes on where it was. The node stays drained over reboots, until
"proxima node undrain NAME".

It is refused if a Service would have no ready endpoint, unless --force: then the
endpoints of the drained node go on serving the Service until the machine is gone.

TCP connections are counted by the node's agent. Where it does not answer, and for
UDP, drainSeconds alone counts.`,
		Example: "  proxima node drain host-7 && ssh host-7 reboot\n  proxima node drain host-7 --dry-run",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(f.output); err != nil {
				return err
			}
			if f.timeout < 0 {
				return usagef("--timeout %s: must not be negative", f.timeout)
			}
			return s.drain(cmd.Context(), args[0], f)
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&f.timeout, "timeout", 0, "time to wait, after which the command exits with 1; the node stays drained (default: as long as it takes); on the command line only")
	flags.BoolVar(&f.force, "force", false, "also if a Service loses its last endpoint by it; on the command line only")
	flags.BoolVar(&f.dryRun, "dry-run", false, "show what would be taken out, and whether it would be refused; change nothing; on the command line only")
	flags.BoolVar(&f.all, "all-connections", false, "wait until no connection is open, also when drainSeconds are over")
	for _, name := range []string{"timeout", "force", "dry-run"} { // they mean something else to other commands
		_ = flags.SetAnnotation(name, commandLineOnly, nil)
	}
	addOutputFlag(flags, &f.output)
	return cmd
}

func newNodeUndrain(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "undrain NAME",
		Short: "Put a drained node back into use",
		Long: `Undrain takes back what "proxima node drain" did: the node's workloads get
connections again, and it takes new ones, unless it was cordoned before. A taint
that another program set stays, and is named.`,
		Example: "  proxima node undrain host-7",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			return s.undrain(cmd.Context(), args[0], output)
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

func (s *settings) undrain(ctx context.Context, name, output string) error {
	var answer admin.UndrainAnswer
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	if err := callJSON(ctx, cfg, http.MethodPost, admin.UndrainPath, admin.DrainRequest{Name: name}, &answer); err != nil {
		return explainDrain(cfg, err)
	}
	if output == "json" || output == "yaml" {
		if err := printValue(s.io.Out, answer, output); err != nil {
			return err
		}
	}
	switch {
	case answer.State != drain.InUse:
		key, _, _ := strings.Cut(answer.Taint, "=")
		key, _, _ = strings.Cut(key, ":")
		return &problem.Error{
			Code: problem.NodeNotDrained,
			Err:  fmt.Errorf("node %s stays drained by the taint %s, which \"proxima node drain\" did not set", name, answer.Taint),
			Hint: fmt.Sprintf("remove it: kubectl taint node %s %s:NoExecute-", name, key),
		}
	case !answer.Changed:
		fmt.Fprintf(s.io.Err, "node %s was not drained\n", name)
	default:
		fmt.Fprintf(s.io.Err, "node %s is in use again: its workloads get connections once they are ready\n", name)
	}
	if answer.Cordoned {
		fmt.Fprintf(s.io.Err, "it is cordoned, and takes no new workloads: \"kubectl uncordon %s\" ends that\n", name)
	}
	return nil
}

func (s *settings) drain(ctx context.Context, name string, f drainFlags) error {
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	var p drain.Progress
	request := admin.DrainRequest{Name: name, Force: f.force, DryRun: f.dryRun}
	if err := callJSON(ctx, cfg, http.MethodPost, admin.DrainPath, request, &p); err != nil {
		return explainDrain(cfg, err)
	}
	if f.dryRun {
		return s.dryDrain(&p, f)
	}
	fmt.Fprintf(s.io.Err, "node %s: new connections to its %s go to other nodes\n", name, countOf(len(p.Workloads), "workload"))
	shown := drainLines{out: s.io.Err}
	shown.print(&p)
	for !f.done(&p) {
		select {
		case <-ctx.Done():
		case <-time.After(drainPoll):
		}
		if ctx.Err() != nil {
			return s.notDrained(&p, f, ctx.Err())
		}
		var next drain.Progress
		path := admin.DrainPath + "?" + url.Values{"name": {name}}.Encode()
		switch err := callJSON(ctx, cfg, http.MethodGet, path, nil, &next); {
		case err == nil:
			p = next
			shown.print(&p)
		case ctx.Err() != nil: // reported above
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return explainAPI(cfg, err)
		default:
			fmt.Fprintf(s.io.Err, "the control plane did not say how far it is, and is asked again: %v\n", err)
		}
		if p.State == drain.InUse {
			return &problem.Error{
				Code: problem.NodeNotDrained, Err: fmt.Errorf("node %s was undrained by another user or program meanwhile", name),
				Hint: "drain it again",
			}
		}
	}
	if err := s.printProgress(&p, f.output); err != nil {
		return err
	}
	fmt.Fprintf(s.io.Err, "node %s is drained: %s\nit stays drained until \"proxima node undrain %s\"\n", name, p.Summary(), name)
	return nil
}

// done reports whether there is nothing more to wait for.
func (f drainFlags) done(p *drain.Progress) bool {
	return p.State == drain.Drained && (!f.all || p.Cut == 0)
}

func (s *settings) printProgress(p *drain.Progress, output string) error {
	if output == "json" || output == "yaml" {
		return printValue(s.io.Out, p, output)
	}
	return nil
}

// notDrained is the error of a command that was ended before the node was drained.
func (s *settings) notDrained(p *drain.Progress, f drainFlags, cause error) error {
	if err := s.printProgress(p, f.output); err != nil {
		return err
	}
	why := p.Waiting
	if len(why) == 0 && p.Cut > 0 {
		why = []string{countOf(p.Cut, "open connection")}
	}
	when := "when the command was interrupted"
	if errors.Is(cause, context.DeadlineExceeded) {
		when = "after " + f.timeout.String()
	}
	return &problem.Error{
		Code: problem.NodeNotDrained,
		Err:  fmt.Errorf("do not reboot node %s yet: %s: %s", p.Node, when, strings.Join(why, "; ")),
		Hint: fmt.Sprintf("the drain goes on: run \"proxima node drain %s\" again to wait, or \"proxima node undrain %s\" to end it", p.Node, p.Node),
	}
}

// explainDrain explains a refusal to drain.
func explainDrain(cfg *rest.Config, err error) error {
	switch {
	case errors.Is(err, errNotServed):
		return fmt.Errorf("%w; nodes are drained by the control plane of their zone, not at global; those of a Kubernetes cluster by \"kubectl drain\"", err)
	case apierrors.IsConflict(err) && strings.Contains(err.Error(), "--force"):
		return &problem.Error{
			Code: problem.LastEndpoint, Err: err,
			Hint: "start another instance on another node, or drain with --force: until the machine is gone its endpoints go on serving those Services",
		}
	}
	return explainAPI(cfg, err)
}

// dryDrain shows what a drain would find.
func (s *settings) dryDrain(p *drain.Progress, f drainFlags) error {
	if f.output == "json" || f.output == "yaml" {
		if err := printValue(s.io.Out, p, f.output); err != nil {
			return err
		}
	} else {
		w := tabwriter.NewWriter(s.io.Out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "KIND\tNAMESPACE\tNAME\tSERVICES\tCONNECTIONS\tDRAIN")
		for i := range p.Workloads {
			wl := &p.Workloads[i]
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%ds\n", wl.Kind, wl.Namespace, wl.Name, orNone(strings.Join(wl.Services, ",")),
				connections(wl), wl.SecondsLeft)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if len(p.LastEndpoints) > 0 && !f.force && p.State == drain.InUse {
		return &problem.Error{
			Code: problem.LastEndpoint,
			Err:  fmt.Errorf("it would be refused: no other node has an endpoint of Service %s", strings.Join(p.LastEndpoints, ", ")),
			Hint: "start another instance on another node, or drain with --force",
		}
	}
	fmt.Fprintf(s.io.Err, "nothing was changed: without --dry-run node %s would be drained\n", p.Node)
	return nil
}

func connections(w *drain.Workload) string {
	if w.Connections == nil {
		return "unknown"
	}
	return fmt.Sprint(*w.Connections)
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// drainLines prints the progress of a drain: a line when a workload's connections change or
// it is done, and every ten seconds that it has left.
type drainLines struct {
	out       io.Writer
	last      map[string]string
	uncounted string
}

func (l *drainLines) print(p *drain.Progress) {
	if p.Uncounted != "" && p.Uncounted != l.uncounted {
		fmt.Fprintf(l.out, "open connections cannot be counted, so drainSeconds count: %s\n", p.Uncounted)
	}
	l.uncounted = p.Uncounted
	now := make(map[string]string, len(p.Workloads))
	for i := range p.Workloads {
		w := &p.Workloads[i]
		state := "open connections unknown"
		if w.Connections != nil {
			state = countOf(*w.Connections, "open connection")
		}
		key := fmt.Sprintf("%s, %d", state, w.SecondsLeft/10)
		if w.Done {
			state += ", done"
			key = state
		} else {
			state += fmt.Sprintf(", %d s left", w.SecondsLeft)
		}
		now[w.String()] = key
		if l.last[w.String()] != key {
			fmt.Fprintf(l.out, "  %s: %s\n", w, state)
		}
	}
	l.last = now
}
