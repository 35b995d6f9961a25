package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/topology"
)

const (
	// shiftWait bounds the wait for the control plane to put a shift into effect.
	shiftWait = 10 * time.Second
	// shiftPoll is the time between two looks at it.
	shiftPoll = 100 * time.Millisecond
	// rounding of loads that are equal.
	rounding = 1e-6
)

type shiftFlags struct {
	node               string
	lasts              time.Duration
	reason             string
	dryRun, force, end bool
	output             string
}

func newZoneShift(s *settings) *cobra.Command {
	var f shiftFlags
	cmd := &cobra.Command{
		Use:   "shift [ZONE]",
		Short: "Take a topology zone or a node out of its Services for a time",
		Long: `Shift takes the endpoints of a topology zone, or of a node, out of their Services
for a time: new connections go to endpoints elsewhere, open ones stay, and clients
there are served from elsewhere. Nothing is stopped. It ends by itself.

It shows which Services that concerns, how much more their other endpoints get, and
which plans would load one endpoint above its limit; --dry-run shows that alone.

It is refused if a Service would have no endpoint elsewhere, unless --force: then
these endpoints go on serving it, as they do in any case when all others fail.

Run it again to change the time or the reason; --end ends it before its time. The
state is an object of kind ZoneShift, which expires whether or not this command runs.`,
		Example: `  proxima zone shift zone-a --for 2h --reason "cooling fails" --dry-run
  proxima zone shift zone-a --for 2h --reason "cooling fails"
  proxima zone shift --node host-7 --for 30m --reason "noisy disk"
  proxima zone shift zone-a --end`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := f.spec(args)
			if err != nil {
				return err
			}
			return s.shift(cmd.Context(), spec, f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.node, "node", "", "take out a node in place of a zone; on the command line only")
	flags.DurationVar(&f.lasts, "for", 0, "time after which it ends by itself, at most 168h; on the command line only")
	flags.StringVar(&f.reason, "reason", "", "why, for other people; on the command line only")
	flags.BoolVar(&f.force, "force", false, "also if a Service has no endpoint elsewhere; on the command line only")
	flags.BoolVar(&f.dryRun, "dry-run", false, "show what would move, and whether it would be refused; change nothing; on the command line only")
	flags.BoolVar(&f.end, "end", false, "end it now; on the command line only")
	for _, name := range []string{"node", "for", "reason", "force", "dry-run", "end"} { // they mean something else to other commands
		_ = flags.SetAnnotation(name, commandLineOnly, nil)
	}
	addOutputFlag(flags, &f.output)
	return cmd
}

// spec of the ZoneShift that the flags describe; its end is set later.
func (f *shiftFlags) spec(args []string) (spec mesh.ZoneShiftSpec, err error) {
	if err := checkFormat(f.output); err != nil {
		return spec, err
	}
	spec = mesh.ZoneShiftSpec{Node: f.node, Reason: f.reason, Force: f.force}
	if len(args) > 0 {
		spec.Zone = args[0]
	}
	switch {
	case (spec.Zone == "") == (spec.Node == ""):
		return spec, usagef("name a zone, or a node by --node, and not both")
	case f.end && (f.dryRun || f.force || f.lasts != 0 || f.reason != ""):
		return spec, usagef("--end goes with no other flag than --node")
	case f.end:
	case f.lasts < 0 || f.lasts > mesh.MaxZoneShift:
		return spec, usagef("--for %s: more than 0, at most %s", f.lasts, mesh.MaxZoneShift)
	case f.dryRun:
	case f.lasts == 0:
		return spec, usagef("say for how long: --for 2h")
	case f.reason == "":
		return spec, usagef("say why, for those who look for the cause: --reason TEXT")
	}
	return spec, nil
}

func (s *settings) shift(ctx context.Context, spec mesh.ZoneShiftSpec, f shiftFlags) error {
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	client, err := kubeclient.New(cfg, []*resource.Descriptor{kind.ZoneShift})
	if err != nil {
		return err
	}
	there, err := shiftsOf(ctx, client, &spec)
	if err != nil {
		return explainShift(cfg, err)
	}
	if f.end {
		return s.endShift(ctx, cfg, client, &spec, there)
	}
	var effect admin.ShiftAnswer
	if len(there) == 0 || !kind.ShiftInEffect(there[0]) { // nothing moves when one is extended
		query := url.Values{"zone": {spec.Zone}, "node": {spec.Node}}
		if err := callJSON(ctx, cfg, http.MethodGet, admin.ShiftPath+"?"+query.Encode(), nil, &effect); err != nil {
			return explainShift(cfg, err)
		}
		if err := s.printEffect(&effect, f); err != nil {
			return err
		}
	}
	if f.dryRun {
		return s.dryShift(&effect, &spec, there, f.force)
	}
	spec.Until = metav1.NewTime(time.Now().Add(f.lasts).Truncate(time.Second))
	z, err := writeShift(ctx, client, spec, there)
	if err != nil {
		return explainShift(cfg, err)
	}
	if z, err = awaitShift(ctx, client, z); err != nil {
		return explainShift(cfg, err)
	}
	return s.sayShift(z)
}

// shiftsOf are the ZoneShifts of the same zone or node.
func shiftsOf(ctx context.Context, client resource.Client, spec *mesh.ZoneShiftSpec) (out []*mesh.ZoneShift, err error) {
	list, _, err := client.List(ctx, kind.ZoneShift, resource.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, obj := range list {
		if z := obj.(*mesh.ZoneShift); z.Spec.Zone == spec.Zone && z.Spec.Node == spec.Node {
			out = append(out, z)
		}
	}
	return out, nil
}

// writeShift makes a ZoneShift, or changes the one that is there.
func writeShift(ctx context.Context, client resource.Client, spec mesh.ZoneShiftSpec, there []*mesh.ZoneShift) (*mesh.ZoneShift, error) {
	var obj resource.Object
	var err error
	if len(there) > 0 {
		next := there[0].DeepCopyObject().(*mesh.ZoneShift)
		next.Spec = spec
		obj, err = client.Update(ctx, kind.ZoneShift, next)
	} else {
		obj, err = client.Create(ctx, kind.ZoneShift, &mesh.ZoneShift{ObjectMeta: metav1.ObjectMeta{Name: shiftName(&spec)}, Spec: spec})
	}
	if err != nil {
		return nil, err
	}
	return obj.(*mesh.ZoneShift), nil
}

// shiftName is zone-NAME or node-NAME. Names of zones may have other characters than names
// of objects; such a one ends with a hash of the zone's.
func shiftName(spec *mesh.ZoneShiftSpec) string {
	name := "zone-" + spec.Zone
	if spec.Node != "" {
		name = "node-" + spec.Node
	}
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "zone-" + hex.EncodeToString(sum[:8])
}

// awaitShift waits until the control plane has decided.
func awaitShift(ctx context.Context, client resource.Client, z *mesh.ZoneShift) (*mesh.ZoneShift, error) {
	ctx, cancel := context.WithTimeout(ctx, shiftWait)
	defer cancel()
	for {
		c := meta.FindStatusCondition(z.Status.Conditions, mesh.ZoneShiftActive)
		if c != nil && (c.Status == metav1.ConditionTrue || c.ObservedGeneration == z.Generation) {
			return z, nil
		}
		select {
		case <-ctx.Done():
			return z, nil // said so by its state
		case <-time.After(shiftPoll):
		}
		obj, err := client.Get(ctx, kind.ZoneShift, resource.KeyOf(z))
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return z, nil
		case err != nil:
			return nil, err
		}
		z = obj.(*mesh.ZoneShift)
	}
}

func (s *settings) sayShift(z *mesh.ZoneShift) error {
	target, undo := kind.ShiftTarget(&z.Spec), kind.ShiftUndo(&z.Spec)
	switch kind.ShiftState(z) {
	case mesh.ZoneShiftInEffect:
		fmt.Fprintf(s.io.Err, "%s is out until %s (%s): new connections go to %s of %s only where no other one is ready; open ones stay\n\"%s\" ends it\n",
			target, z.Spec.Until.Local().Format("2006-01-02 15:04:05"), duration.HumanDuration(time.Until(z.Spec.Until.Time).Round(time.Second)),
			countOf(int(z.Status.Endpoints), "endpoint"), countOf(int(z.Status.Services), "Service"), undo)
		return nil
	case mesh.ZoneShiftLastEndpoints:
		c := meta.FindStatusCondition(z.Status.Conditions, mesh.ZoneShiftActive)
		return &problem.Error{Code: problem.LastEndpoint, Err: errors.New(c.Message), Hint: "run it again with --force, or \"" + undo + "\""}
	}
	return &problem.Error{
		Code: problem.ShiftPending, Err: fmt.Errorf("%s is not out yet: the control plane has not decided within %s", target, shiftWait),
		Hint: "\"proxima status\" says when it is; \"" + undo + "\" takes it back",
	}
}

func (s *settings) endShift(ctx context.Context, cfg *rest.Config, client resource.Client, spec *mesh.ZoneShiftSpec, there []*mesh.ZoneShift) error {
	was := false
	for _, z := range there {
		was = was || kind.ShiftInEffect(z)
		if err := client.Delete(ctx, kind.ZoneShift, resource.KeyOf(z), resource.Preconditions{}); err != nil && !apierrors.IsNotFound(err) {
			return explainShift(cfg, err)
		}
	}
	if was {
		fmt.Fprintf(s.io.Err, "%s is in use again\n", kind.ShiftTarget(spec))
	} else {
		fmt.Fprintf(s.io.Err, "%s was not out\n", kind.ShiftTarget(spec))
	}
	return nil
}

func explainShift(cfg *rest.Config, err error) error {
	switch {
	case errors.Is(err, errNotServed):
		return fmt.Errorf("%w; topology zones and nodes are taken out by the control plane of their site, not at global", err)
	case apierrors.HasStatusCause(err, mesh.CauseLastEndpoints):
		return &problem.Error{Code: problem.LastEndpoint, Err: err, Hint: "start another instance elsewhere, or use --force: these endpoints go on serving those Services"}
	}
	return explainAPI(cfg, err)
}

// printEffect shows what moves.
func (s *settings) printEffect(e *admin.ShiftAnswer, f shiftFlags) error {
	if f.output == "json" || f.output == "yaml" {
		return printValue(s.io.Out, e, f.output)
	}
	if len(e.Services) == 0 {
		return nil
	}
	plans := map[string]*topology.Simulated{}
	for i := range e.Plans.Services {
		p := &e.Plans.Services[i]
		if was := plans[p.Service]; was == nil || p.After.Worst > was.After.Worst {
			plans[p.Service] = p
		}
	}
	w := tabwriter.NewWriter(s.io.Out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "SERVICE\tOUT\tLEFT\tEACH GETS\tBUSIEST\tIN ZONE\tNOTE")
	for i := range e.Services {
		one := &e.Services[i]
		each, busiest, inZone, note := "-", "-", "-", ""
		if one.Left > 0 {
			each = fmt.Sprintf("%.2f×", float64(one.Out+one.Left)/float64(one.Left))
		}
		if p := plans[one.Name]; p != nil {
			busiest = fmt.Sprintf("%.2f× → %.2f×", p.Before.Worst, p.After.Worst)
			inZone = fmt.Sprintf("%.0f %% → %.0f %%", 100*p.Before.InZone, 100*p.After.InZone)
			if p.After.Worst > p.Plan.Limit*(1+rounding) {
				note = fmt.Sprintf("over its limit of %.2f×", p.Plan.Limit)
			}
		}
		if one.Last {
			note = "no endpoint elsewhere: these go on serving it"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\n", one.Name, one.Out, one.Left, each, busiest, inZone, cmp.Or(note, "-"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(s.io.Out, "EACH GETS is relative to now, BUSIEST to the mean of all endpoints in use.\n")
	return err
}

// dryShift says what would become of it.
func (s *settings) dryShift(e *admin.ShiftAnswer, spec *mesh.ZoneShiftSpec, there []*mesh.ZoneShift, force bool) error {
	target := kind.ShiftTarget(spec)
	if last := e.LastEndpoints(); len(last) > 0 && !force {
		return &problem.Error{
			Code: problem.LastEndpoint,
			Err:  fmt.Errorf("it would be refused: outside %s there is no endpoint of Service %s", target, strings.Join(last, ", ")),
			Hint: "start another instance elsewhere, or use --force: these endpoints go on serving those Services",
		}
	}
	if len(there) > 0 && kind.ShiftInEffect(there[0]) {
		fmt.Fprintf(s.io.Err, "nothing was changed: %s is out already, until %s\n", target, there[0].Spec.Until.Local().Format("2006-01-02 15:04:05"))
		return nil
	}
	fmt.Fprintf(s.io.Err, "nothing was changed: without --dry-run %s of %s in %s would be out\n",
		countOf(e.Endpoints, "endpoint"), countOf(len(e.Services), "Service"), target)
	return nil
}
