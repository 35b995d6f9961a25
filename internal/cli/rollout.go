package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
)

type rolloutFlags struct {
	namespace, output string
	watch             bool
	timeout           time.Duration
}

func newRollout(s *settings) *cobra.Command {
	var r rolloutFlags
	cmd := &cobra.Command{
		Use:     "rollout REVISION|KIND/NAME",
		GroupID: "operate",
		Short:   "Show how far a change got: committed, sent, confirmed by which agents",
		Long: `Rollout shows how far a change got on its way to the agents. A change is a
revision of the store, as "proxima apply -o json" and metadata.resourceVersion of
objects have it; KIND/NAME is the newest change of an object.

An agent confirms a change when it has taken it over. With --watch the command
waits until all agents that follow have, and exits with 1 after --timeout.`,
		Example: "  proxima rollout service/web --watch --timeout 10s\n  proxima rollout 4711",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return s.rollout(cmd.Context(), &r, args[0]) },
	}
	f := cmd.Flags()
	addNamespaceFlag(f, &r.namespace)
	addOutputFlag(f, &r.output)
	f.BoolVarP(&r.watch, "watch", "w", false, "wait until all agents have confirmed it")
	f.DurationVar(&r.timeout, "timeout", 30*time.Second, "how long --watch waits; on the command line only")
	_ = f.SetAnnotation("timeout", commandLineOnly, nil) // it means something else to other commands
	return cmd
}

// rolloutEvery is the time between two questions of --watch.
const rolloutEvery = 200 * time.Millisecond

func (s *settings) rollout(ctx context.Context, r *rolloutFlags, what string) error {
	if err := checkFormat(r.output); err != nil {
		return err
	}
	if r.timeout <= 0 {
		return usagef("--timeout %s: more than 0", r.timeout)
	}
	cfg, namespace, err := s.restConfig()
	if err != nil {
		return err
	}
	if r.namespace != "" {
		namespace = r.namespace
	}
	revision, err := revisionOf(ctx, cfg, namespace, what)
	if err != nil {
		return err
	}
	now, err := s.awaitRollout(ctx, cfg, r, revision)
	if err != nil {
		return err
	}
	if r.output == "json" || r.output == "yaml" {
		err = printValue(s.io.Out, now, r.output)
	} else {
		printRollout(s.io.Out, now)
	}
	if err == nil && r.watch && !now.Done() {
		err = &problem.Error{
			Code: problem.RolloutIncomplete, Err: fmt.Errorf("revision %d has not reached all agents within %s: %d of %d have confirmed it", revision, r.timeout, now.Confirmed, now.Agents),
			Hint: "see the agents that are named, or wait longer with --timeout",
		}
	}
	return err
}

// awaitRollout asks once or, with --watch, until it is done or its time is over.
func (s *settings) awaitRollout(ctx context.Context, cfg *rest.Config, r *rolloutFlags, revision uint64) (*admin.Rollout, error) {
	until := time.Now().Add(r.timeout)
	for {
		now := new(admin.Rollout)
		if err := callJSON(ctx, cfg, http.MethodGet, admin.ChangesPath+strconv.FormatUint(revision, 10), nil, now); err != nil {
			return nil, explainAPI(cfg, err)
		}
		if !r.watch || now.Done() || !time.Now().Before(until) {
			return now, nil
		}
		if !backoff.Sleep(ctx, min(rolloutEvery, time.Until(until))) {
			return nil, ctx.Err()
		}
	}
}

// revisionOf what a user names: a number, or the newest change of an object.
func revisionOf(ctx context.Context, cfg *rest.Config, namespace, what string) (uint64, error) {
	if !strings.Contains(what, "/") {
		n, err := strconv.ParseUint(what, 10, 64)
		if err != nil || n == 0 {
			return 0, usagef("%q: use a revision, or KIND/NAME", what)
		}
		return n, nil
	}
	targets, err := parseTargets([]string{what})
	if err != nil {
		return 0, err
	}
	d := targets[0].kind
	key := resource.Key{Name: targets[0].names[0]}
	if d.Namespaced {
		key.Namespace = namespace
	}
	client, err := kubeclient.New(cfg, []*resource.Descriptor{d})
	if err != nil {
		return 0, err
	}
	obj, err := client.Get(ctx, d, key)
	if err != nil {
		return 0, explainAPI(cfg, err)
	}
	n, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s has the resource version %q, which is no revision of a store of Proxima's", what, obj.GetResourceVersion())
	}
	return n, nil
}

func printRollout(out io.Writer, r *admin.Rollout) {
	committed := "committed"
	if !r.Committed {
		committed = fmt.Sprintf("not committed: the newest revision is %d", r.Newest)
	}
	fmt.Fprintf(out, "revision %d: %s; sent to %d and confirmed by %d of %d agents\n", r.Revision, committed, r.Sent, r.Confirmed, r.Agents)
	if r.Committed && !r.Viewed {
		fmt.Fprintln(out, "the views that agents follow do not have it yet")
	}
	slowest := r.Slowest
	if !r.Committed || !r.Viewed { // none can have it
		slowest = nil
	}
	for _, a := range slowest {
		state := "has not been sent all of it"
		if a.Sent {
			state = "was sent it and has not confirmed it"
		}
		fmt.Fprintf(out, "  node %s%s %s, %d changes behind, connected for %s\n", a.Node, atInstance(a.Instance), state, a.Behind, duration.HumanDuration(max(time.Since(a.Since), 0)))
	}
	for _, a := range r.Rejecting {
		fmt.Fprintf(out, "  node %s%s refused a part of its view: %s\n", a.Node, atInstance(a.Instance), a.Rejected)
	}
	for _, name := range r.SilentInstances {
		fmt.Fprintf(out, "  instance %s of the control plane does not say how far its agents are\n", name)
	}
}

func atInstance(name string) string {
	if name == "" {
		return ""
	}
	return " at " + name
}
