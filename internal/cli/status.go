package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/controller/nodename"
	"github.com/proxima-mesh/proxima/internal/diag/doctor"
	"github.com/proxima-mesh/proxima/internal/diag/finding"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy/ipvs"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// overview is what status shows; its JSON is stable.
type overview struct {
	Server       string            `json:"server"`
	ControlPlane *admin.Status     `json:"controlPlane,omitempty"`
	Nodes        []nodeLine        `json:"nodes"`
	Agent        *admin.NodeStatus `json:"agent,omitempty"`
	// AgentError is why this machine's agent says nothing, if there is one.
	AgentError string `json:"agentError,omitempty"`
	// Problems that need attention, each with its remedy.
	Problems []string `json:"problems"`
}

type nodeLine struct {
	Name  string `json:"name"`
	Zone  string `json:"zone,omitempty"`
	Ready string `json:"ready"`
	// Suspect: it probably does not answer any more; its endpoints are used last.
	Suspect bool `json:"suspect,omitempty"`
	// Cordoned: it takes no new workloads.
	Cordoned bool `json:"cordoned,omitempty"`
	// Drain is Draining or Drained; empty: it is in use.
	Drain string `json:"drain,omitempty"`
	// Version of the agent, as it announced it.
	Version string `json:"version,omitempty"`
	// Following: the agent's stream is open, at an instance of the control plane.
	Following bool `json:"following"`
	// Unknown: it may be open at an instance that does not answer.
	Unknown bool `json:"followingUnknown,omitempty"`
	// Instance that has the stream; empty: the one that was asked.
	Instance string `json:"instance,omitempty"`
	// Behind counts changes that the agent has not confirmed.
	Behind uint64 `json:"behind"`
	// Conflict: a second machine tries to use the name of this node.
	Conflict string `json:"conflict,omitempty"`
}

func newStatus(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "status",
		GroupID: "operate",
		Short:   "Show how the control plane, the agents and this machine's agent are",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			o, err := s.overview(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, o, output)
			}
			return o.print(s.io.Out)
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

// overview queries this machine's agent and the control plane at the same time. That
// one of them can't be reached is a problem to show, not a reason to show nothing.
func (s *settings) overview(ctx context.Context) (*overview, error) {
	o := &overview{Nodes: []nodeLine{}, Problems: []string{}}
	cfg, _, configErr := s.restConfig()
	var planeErr error
	agent := doctor.Meanwhile(ctx, thisAgent{s}, func(ctx context.Context) {
		if configErr == nil {
			planeErr = o.askControlPlane(ctx, cfg)
		}
	})
	o.addAgent(agent)
	switch {
	case configErr == nil && planeErr == nil:
	case isNoKubeconfig(configErr) && agent.API() != "":
		o.Server = agent.API() // the control plane is another machine's
	case agent.Absent():
		return nil, cmp.Or(configErr, planeErr)
	case configErr != nil:
		o.problem("%v", configErr)
	default:
		o.problem("control plane: %v", planeErr)
	}
	o.findProblems()
	return o, nil
}

func (o *overview) askControlPlane(ctx context.Context, cfg *rest.Config) error {
	o.Server = cfg.Host
	var status admin.Status
	if err := callJSON(ctx, cfg, http.MethodGet, admin.StatusPath, nil, &status); err != nil {
		if context.Cause(ctx) != nil {
			return fmt.Errorf("%s does not answer", cfg.Host)
		}
		return explainAPI(cfg, err)
	}
	o.ControlPlane = &status
	if status.Preset != "" {
		return nil // Nodes are in the API of the cluster, which this is not
	}
	return o.addNodes(ctx, cfg)
}

// addAgent takes what this machine's agent says, or why it says nothing.
func (o *overview) addAgent(agent doctor.AgentState) {
	o.Agent = agent.Status
	switch {
	case agent.Err == nil:
	case !agent.Absent():
		o.AgentError = agent.Err.Error()
		o.problem("this machine: %v: %s", agent.Err, problem.HintOf(agent.Err, "see its log"))
	case agent.Joined != nil:
		o.AgentError = agent.Err.Error()
		o.problem("this machine's agent is not running, though it has joined %s: start it with %s", agent.Joined.Server, agent.StartCommand())
	}
}

func (o *overview) addNodes(ctx context.Context, cfg *rest.Config) error {
	client, err := kubeclient.New(cfg, []*resource.Descriptor{kind.Node})
	if err != nil {
		return err
	}
	nodes, _, err := client.List(ctx, kind.Node, resource.ListOptions{})
	if err != nil {
		return explainAPI(cfg, err)
	}
	for _, obj := range nodes {
		n := obj.(*corev1.Node)
		line := nodeLine{Name: n.Name, Zone: n.Labels[corev1.LabelTopologyZone], Ready: "Unknown", Conflict: nodename.Of(n)}
		line.Cordoned, line.Drain = n.Spec.Unschedulable, kind.DrainOf(n).State()
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				line.Ready = string(c.Status)
			}
		}
		line.Suspect = slices.ContainsFunc(o.ControlPlane.Suspects, func(s admin.SuspectNode) bool { return s.Node == n.Name })
		for _, a := range o.ControlPlane.Agents {
			if a.Node != n.Name {
				continue
			}
			line.Following, line.Behind, line.Version, line.Instance = true, a.Behind, a.Version, a.Instance
		}
		line.Unknown = !line.Following && len(o.ControlPlane.SilentInstances) > 0
		o.Nodes = append(o.Nodes, line)
	}
	return nil
}

func (o *overview) problem(format string, args ...any) {
	o.Problems = append(o.Problems, fmt.Sprintf(format, args...))
}

// found adds what the API calls problems, too.
func (o *overview) found(all []admin.Problem) {
	for i := range all {
		o.Problems = append(o.Problems, finding.Text(all[i]))
	}
}

func (o *overview) findProblems() {
	if o.ControlPlane != nil {
		o.found(finding.Finder{ProbePort: defaultProbePort}.OfStatus(o.ControlPlane))
	}
	for i := range o.Nodes {
		n := &o.Nodes[i]
		o.found(finding.Node(n.Name, n.Ready, n.Drain != "", n.Conflict, time.Time{}))
	}
	if o.Agent == nil {
		return
	}
	if w := o.Agent.Waiting; w != "" {
		o.problem("this machine's agent waits, and serves nothing yet: %s", w)
	}
	if v := o.Agent.View; v != nil && !v.Connected {
		serves := "serves its last state"
		if f := o.Agent.Fallback; f != nil && f.Direct {
			serves = "follows the cluster's API, without plans"
		}
		o.problem("this machine's agent has no stream to the control plane, and %s: %s", serves, v.LastError)
	}
	if f := o.Agent.Fallback; f != nil && !f.Alone.IsZero() && f.LastError != "" {
		o.problem("this machine's agent cannot follow the cluster's API in place of the control plane: %s", f.LastError)
	}
	if c := o.Agent.Certificate; c != nil && c.Problem != "" {
		o.problem("%s; fix: %s", c.Problem, c.Fix)
	}
	// Without a connection it cannot be otherwise.
	if m := o.Agent.Membership; m != nil && o.Agent.View != nil && o.Agent.View.Connected {
		for _, text := range []string{m.Problem, m.Conflict} {
			if text != "" {
				o.problem("this machine's agent: %s", text)
			}
		}
	}
	if c := o.Agent.Cluster; c != nil && !c.Synced {
		o.problem("this machine's agent has not read the Kubernetes API yet: %s", c.LastError)
	}
	for _, f := range o.Agent.Unsaved {
		o.problem("this machine's agent cannot write %s since %s: %s: it goes on with what it has in memory, and a restart would begin with what is on disk: %s",
			f.File, f.Since.Local().Format(time.DateTime), f.Error, finding.FixDisk)
	}
	if text := doctor.TunnelProblem(o.Agent.Tunnel); text != "" {
		o.problem("%s", text)
	}
	if i := o.Agent.Isolation; i != nil && i.Problem != "" {
		o.problem("this machine's agent does not keep meshes apart: %s", i.Problem)
	}
	if text, _ := doctor.PermissionProblem(o.Agent.Permissions); text != "" {
		o.problem("%s", text)
	}
	if p := o.Agent.ModeProblem; p != "" {
		o.problem("this machine's agent, mode %s: %s", o.Agent.Agent.Mode, p)
	}
	for _, f := range o.Agent.HealthCheckNodePorts {
		o.problem("health check node port %s", f)
	}
	for _, p := range o.Agent.Agent.Pending {
		if p.Error != "" {
			o.problem("service port %s is not served here: %s %s", p.Port, p.Error, p.Hint)
		}
	}
}

// rangeText is the usage of a range in words.
func rangeText(u ipam.Usage) string {
	text := fmt.Sprintf("%s, %d of %d taken", u.Range, u.Taken, u.Size)
	if u.StaticBand > 0 {
		text += fmt.Sprintf("; the first %d are handed out last", u.StaticBand)
	}
	return text
}

func (o *overview) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	if cp := o.ControlPlane; cp != nil {
		fmt.Fprintf(w, "control plane\t%s, %s, up %s\n", o.Server, cp.Version.Version, duration.HumanDuration(time.Since(cp.Started)))
		if cp.Preset != "" {
			fmt.Fprintf(w, "cluster\t%s, preset %s\n", cp.Store.Epoch, cp.Preset)
			if cp.Preset != string(app.PresetPlannerOnly) && cp.Preset != string(app.PresetGlobal) {
				fmt.Fprintf(w, "agents\t%d follow their view here\n", len(cp.Agents))
			}
		} else {
			fmt.Fprintf(w, "store\t%s, revision %d, %d kB\n", strings.TrimSuffix(cp.Store.Name, ":"), cp.Store.Revision, cp.Store.Bytes/1000)
		}
		if cp.Feed != nil {
			fmt.Fprintf(w, "change feed\t%s\n", feedText(cp.Feed))
		}
		if t := cp.Traces; t != nil {
			fmt.Fprintf(w, "traces\t%s\n", tracesText(t))
		}
		printFederation(w, cp.Federation)
		printLit(w, cp.Federation)
	}
	// A global control plane has no nodes, and nothing that they route by.
	if cp := o.ControlPlane; cp != nil && cp.Role != "global" {
		c := cp.Catalog.Objects
		fmt.Fprintf(w, "catalog\t%d services, %d slices, %d dataplanes, %d pods, %d nodes\n",
			c["services"], c["endpointslices"], c["dataplanes"], c["pods"], c["nodes"])
		fmt.Fprintf(w, "demand\t%d of %d nodes report, %d service ports with traffic\n", cp.Demand.Reporting, cp.Demand.Nodes, cp.Demand.Ports)
		for i, u := range cp.Ranges {
			what := "service range"
			if i == len(cp.Ranges)-1 {
				what = "node ports"
			}
			fmt.Fprintf(w, "%s\t%s\n", what, rangeText(u))
		}
		if p := cp.Proxies; p != nil && p.Connected > 0 {
			fmt.Fprintf(w, "proxies\t%d follow, %d behind, %d reject a resource\n", p.Connected, p.Behind, p.Rejecting)
		}
		if p := cp.Pulsar; p != nil {
			topics := ""
			if p.Topics > 0 {
				topics = fmt.Sprintf(", %d topics are of this instance", p.Topics)
			}
			fmt.Fprintf(w, "pulsar\t%s, %d consumers of at most %d, %d subscriptions%s\n", p.Address, p.Consumers, p.MaxConsumers, p.Subscriptions, topics)
		}
		if len(cp.TopologyModes) > 0 {
			fmt.Fprintf(w, "topology modes\t%s\n", modesText(cp.TopologyModes))
		}
	}
	if cp := o.ControlPlane; cp != nil && len(cp.Everywhere) > 0 {
		fmt.Fprintf(w, "register anywhere\tnodes %s: their credentials register workloads in every namespace\n", strings.Join(cp.Everywhere, ", "))
	}
	if a := o.Agent; a != nil {
		view := "connected"
		switch {
		case a.Waiting != "":
			view = "waiting"
		case a.Cluster != nil:
			view = "following a Kubernetes API"
		case a.Fallback != nil && a.Fallback.Direct:
			view = "following the cluster's API in place of the control plane"
		case a.View == nil || !a.View.Connected:
			view = "not connected"
		}
		if cp := o.ControlPlane; cp == nil && o.Server != "" {
			fmt.Fprintf(w, "control plane\t%s\n", o.Server)
		}
		fmt.Fprintf(w, "this machine\tnode %s, zone %s, mode %s, %d service ports, %d endpoints, %s\n",
			a.Agent.Node.Name, orNone(a.Agent.Node.Zone), a.Agent.Mode, a.Agent.Ports, a.Agent.Endpoints, view)
		if s := a.IPVS; s != nil {
			fmt.Fprintf(w, "IPVS\t%s\n", ipvsText(s))
		}
		if l := a.Layer; l != nil {
			fmt.Fprintf(w, "eBPF layer\t%s\n", l)
		}
		if e := a.LayerEstimate; e != nil {
			fmt.Fprintf(w, "eBPF layer\t%s\n", e)
		}
		if c := a.Capture; c != nil {
			fmt.Fprintf(w, "DNS capture\tport 53 of %s, %d questions so far\n", doctor.Captured(c), c.Questions)
		}
	}
	if o.Agent == nil && o.AgentError != "" {
		fmt.Fprintf(w, "this machine\t%s\n", o.AgentError)
	}
	if len(o.Nodes) > 0 {
		fmt.Fprintf(w, "\nNODE\tZONE\tREADY\tVERSION\tFOLLOWING\tBEHIND\n")
		for _, n := range o.Nodes {
			ready := n.Ready
			if n.Suspect {
				ready += ", suspect"
			}
			switch {
			case n.Drain != "":
				ready += ", " + strings.ToLower(n.Drain)
			case n.Cordoned:
				ready += ", cordoned"
			}
			following := strconv.FormatBool(n.Following)
			if n.Unknown {
				following = "unknown"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\n", n.Name, orNone(n.Zone), ready, orNone(n.Version), following, n.Behind)
		}
	}
	if cp := o.ControlPlane; cp != nil {
		printDrains(w, cp.Drains)
		printShifts(w, cp.Shifts)
		printZonesOf(w, cp.Federation)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	o.printLimits(out)
	if len(o.Problems) == 0 {
		fmt.Fprintln(out, "\nno problems found")
		return nil
	}
	fmt.Fprintln(out, "\nproblems:")
	for _, p := range o.Problems {
		fmt.Fprintln(out, "  - "+strings.TrimSpace(p))
	}
	return nil
}

// printDrains lists the nodes that are out of use, and how to put them back.
func printDrains(w io.Writer, drains []admin.DrainedNode) {
	if len(drains) > 0 {
		fmt.Fprintf(w, "\nOUT OF USE\tSTATE\tSINCE\tBY\tEND IT WITH\n")
	}
	for _, d := range drains {
		since := ""
		if !d.Since.IsZero() {
			since = duration.HumanDuration(max(time.Since(d.Since), 0)) + " ago"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", d.Node, strings.ToLower(d.State), cmp.Or(since, "unknown"), cmp.Or(d.By, "unknown"), d.Undo)
	}
}

// printShifts lists the zones and nodes that are taken out for a time.
func printShifts(w io.Writer, shifts []admin.ZoneShift) {
	if len(shifts) > 0 {
		fmt.Fprintf(w, "\nSHIFTED OUT\tSTATE\tLEFT\tREASON\tEND IT WITH\n")
	}
	for i := range shifts {
		z := &shifts[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", z.Target(), z.State, duration.HumanDuration(max(time.Until(z.Until), 0)), z.Reason, z.Undo)
	}
}

func orNone[T ~string](s T) string {
	if s == "" {
		return "<none>"
	}
	return string(s)
}

// ipvsText says what IPVS has, or why it has nothing.
func ipvsText(s *ipvs.Status) string {
	if s.Instead != "" {
		return fmt.Sprintf("mode %s runs in its place: %s", s.Instead, s.Why)
	}
	scheduler := s.Scheduler
	if scheduler == "" {
		scheduler = "rr, or wrr where weights differ"
	}
	text := fmt.Sprintf("%d services, %d destinations, scheduler %s", s.Services, s.Destinations, scheduler)
	if s.Draining > 0 {
		text += fmt.Sprintf("; %d services have destinations that end when they are idle", s.Draining)
	}
	if s.Repaired > 0 {
		text += fmt.Sprintf("; %d changes of other programs repaired", s.Repaired)
	}
	if s.WithoutPlan != "" {
		text += "; " + s.WithoutPlan
	}
	return text
}

// modesText says how many Services have which topology mode, and what chose it.
func modesText(counts []topology.ModeCount) string {
	chosenBy := map[topology.Level]string{
		topology.LevelService: "named by the Service", topology.LevelNamespace: "default of the namespace",
		topology.LevelMesh: "default of the mesh", topology.LevelControlPlane: "default of the control plane",
	}
	var parts []string
	for _, c := range counts {
		mode := c.Mode
		if mode == "" {
			mode = "none"
		}
		part := fmt.Sprintf("%s: %d", mode, c.Services)
		if by := chosenBy[c.Level]; by != "" {
			part += " (" + by + ")"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// maxLimitsShown of the agent's mode.
const maxLimitsShown = 20

// printLimits says what the agent's mode does not do of service ports. It is no problem of the agent.
func (o *overview) printLimits(out io.Writer) {
	if o.Agent == nil {
		return
	}
	for i, l := range o.Agent.Limits {
		if i == maxLimitsShown {
			fmt.Fprintf(out, "mode %s: %d more; -o json has all\n", o.Agent.Agent.Mode, len(o.Agent.Limits)-i)
			return
		}
		fmt.Fprintf(out, "mode %s does not do all of service port %s\n", o.Agent.Agent.Mode, l)
	}
}
