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
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/diag/doctor"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func newExplain(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "explain",
		GroupID: "operate",
		Short:   "Say why traffic goes where it goes, and why it is refused",
	}
	cmd.AddCommand(newExplainService(s), newExplainConnection(s))
	return cmd
}

func newExplainService(s *settings) *cobra.Command {
	var fromZone, fromNode, mesh, output string
	cmd := &cobra.Command{
		Use:   "service [NAMESPACE/]NAME",
		Short: "Say which endpoints get a Service's connections, from a zone or a node, and why not the others",
		Long: `Explain service says which endpoints get a Service's connections as seen from a
zone or a node, and why not the others; what leaves the zone, to which other
zones and by which gateways, and why a connection of this machine failed on that
way lately; by which registry protocol an endpoint was registered, since when, by
whom, and which instance of the control plane has its session; then how traffic is divided among zones:
the decision of the Service's topology mode, each zone's share and the rule
behind it, what the plan costs, and how many more endpoints would keep a zone's
traffic at home. For a Service that is not planned it says what
proxima.dev/Adaptive would do.

Names that clients use are taken, too: web.shop.svc.clusterset.local of an
imported Service; web_shop_svc_8080.mesh and backend.mesh, as the workloads of
a mesh resolve them.`,
		Example: "  proxima explain service web --from-zone zone-a\n  proxima explain service shop/cart --from-node host-7 -o json\n  proxima explain service web.shop.svc.clusterset.local\n  proxima explain service backend.mesh",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if fromZone != "" && fromNode != "" {
				return usagef("--from-zone and --from-node: give one of them; a node is in a zone already")
			}
			e, err := s.explainService(cmd.Context(), args[0], mesh, choose.Node{Name: fromNode, Zone: locality.Zone(fromZone)})
			if err != nil {
				return err
			}
			switch output {
			case "json", "yaml":
				return printValue(s.io.Out, e, output)
			case "table", "wide":
				return printExplanation(s.io.Out, e)
			}
			return usagef("-o %q: choose table, wide, json or yaml", output)
		},
	}
	f := cmd.Flags()
	f.StringVar(&fromZone, "from-zone", "", "as seen from this zone")
	f.StringVar(&mesh, "mesh", "", "of a name below mesh: the mesh of the client, if several have the name")
	f.StringVar(&fromNode, "from-node", "", "as seen from this node")
	f.StringVarP(&output, "output", "o", "table", "table, wide, json or yaml")
	return cmd
}

// explainService queries the control plane, which has the plans. Servers without that
// path, such as Kubernetes' own, are explained here from their objects.
func (s *settings) explainService(ctx context.Context, name, mesh string, from choose.Node) (*diag.Service, error) {
	cfg, namespace, err := s.restConfig()
	if err != nil {
		return nil, err
	}
	if host, ok := hostBelowMesh(name); ok {
		return s.explainMeshName(ctx, cfg, host, mesh, from)
	}
	if namespace, name, err = parseServiceName(namespace, name); err != nil {
		return nil, err
	}
	return s.explainNamed(ctx, cfg, namespace, name, from)
}

func (s *settings) explainNamed(ctx context.Context, cfg *rest.Config, namespace, name string, from choose.Node) (*diag.Service, error) {
	var known diag.Service
	query := url.Values{"namespace": {namespace}, "name": {name}, "zone": {string(from.Zone)}, "node": {from.Name}}
	switch err := callJSON(ctx, cfg, http.MethodGet, admin.ExplainServicePath+"?"+query.Encode(), nil, &known); {
	case err == nil:
		s.addFailures(ctx, &known, from)
		return &known, nil
	case !errors.Is(err, errNotServed) && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		return nil, explainAPI(cfg, err)
	}
	return explainLocally(ctx, cfg, namespace, name, from)
}

// parseServiceName reads NAME, NAMESPACE/NAME, and DNS names of Services. A name below
// clusterset.local is that of the Service that has its virtual IPs.
func parseServiceName(namespace, name string) (ns, service string, err error) {
	if ns, rest, ok := strings.Cut(name, "/"); ok {
		return ns, rest, nil
	}
	labels := strings.SplitN(strings.TrimSuffix(name, "."), ".", 3)
	switch {
	case len(labels) == 1:
		return namespace, name, nil
	case len(labels) < 3 || labels[2] != "svc" && !strings.HasPrefix(labels[2], "svc."):
		return "", "", usagef("%q: give NAMESPACE/NAME, or a DNS name as web.shop.%s", name, mcs.ServiceDomain)
	case labels[2] == mcs.ServiceDomain:
		return labels[1], mcs.DerivedServiceName(labels[1], labels[0]), nil
	}
	return labels[1], labels[0], nil
}

// addFailures adds why connections of this machine to other sites failed lately, which its
// agent knows, if the question is about this machine.
func (s *settings) addFailures(ctx context.Context, e *diag.Service, from choose.Node) {
	agent := thisAgent{s}.State(ctx)
	if agent.Err != nil || agent.Status.Tunnel == nil || from.Name != "" && from.Name != agent.Status.Agent.Node.Name {
		return
	}
	for i := range e.Ports {
		beyond := e.Ports[i].Elsewhere
		if beyond == nil {
			continue
		}
		for _, f := range agent.Status.Tunnel.Failures {
			if f.Service == beyond.ServerName && doctor.Recent(f) {
				beyond.Failure = &diag.Failure{At: f.At, Count: f.Count, Reason: f.Reason, Error: f.Error}
			}
		}
	}
}

func explainLocally(ctx context.Context, cfg *rest.Config, namespace, name string, from choose.Node) (*diag.Service, error) {
	client, err := kubeclient.New(cfg, kind.All())
	if err != nil {
		return nil, err
	}
	if from.Name != "" {
		obj, err := client.Get(ctx, kind.Node, resource.Key{Name: from.Name})
		if err != nil {
			return nil, explainAPI(cfg, err)
		}
		from.Zone = locality.ZoneOf(obj.(*corev1.Node).Labels)
	}
	obj, err := client.Get(ctx, kind.Service, resource.Key{Namespace: namespace, Name: name})
	if err != nil {
		return nil, explainAPI(cfg, err)
	}
	svc, ok := kube.ServiceOf(obj.(*corev1.Service))
	if !ok {
		return nil, fmt.Errorf("service %s/%s has no virtual IP that an agent carries: it is headless, an external name, or another proxy's", namespace, name)
	}
	list, _, err := client.List(ctx, kind.EndpointSlice, resource.ListOptions{
		Namespace: namespace, Labels: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: name}),
	})
	if err != nil {
		return nil, explainAPI(cfg, err)
	}
	var slices []*proxy.Slice
	for _, obj := range list {
		if slice, ok := kube.SliceOf(obj.(*discoveryv1.EndpointSlice)); ok {
			slices = append(slices, slice)
		}
	}
	e := diag.ExplainService(svc, slices, from, nil, nil)
	return &e, nil
}

// printMesh says who may use a Service, where there is more than one mesh.
func printMesh(out io.Writer, e *diag.Service) {
	if e.Mesh == "" {
		return
	}
	of := "mesh " + e.Mesh
	if len(e.Exported) > 0 {
		of += " and, as it is exported, of " + strings.Join(e.Exported, ", ")
	}
	fmt.Fprintf(out, "for workloads of %s: those of other meshes do not resolve its names, and are refused at its cluster addresses\n", of)
	for i, w := range e.Refused {
		if i == maxRefusedShown {
			fmt.Fprintf(out, "  and to %d more\n", len(e.Refused)-i)
			break
		}
		fmt.Fprintf(out, "  refused to %s on this node\n", w)
	}
}

// maxRefusedShown workloads of a node.
const maxRefusedShown = 10

func printExplanation(out io.Writer, e *diag.Service) error {
	place := "anywhere: give --from-zone or --from-node to see a place's own choice"
	switch {
	case e.Node != "":
		place = fmt.Sprintf("node %s in zone %s", e.Node, orNone(e.Zone))
	case e.Zone != "":
		place = "zone " + string(e.Zone)
	}
	name, at := e.Service, e.Address
	if e.ImportOf != "" {
		name = fmt.Sprintf("%s (Service %s)", e.ImportOf, e.Service)
	}
	if m := e.MeshName; m != nil {
		name, at = fmt.Sprintf("%s of mesh %s, %s", m.Name, m.Mesh, name), m.Addresses
	}
	fmt.Fprintf(out, "%s at %s, from %s\n", name, strings.Join(at, ", "), place)
	if m := e.MeshName; m != nil && m.UnusedSince != nil {
		fmt.Fprintf(out, "nothing has answered by this name for %s; its addresses are kept for an hour\n", duration.HumanDuration(time.Since(*m.UnusedSince)))
	}
	if len(e.Hosts) > 0 {
		fmt.Fprintf(out, "also by %s, for workloads of its mesh that ask an agent\n", strings.Join(e.Hosts, ", "))
	}
	for _, text := range e.NotEnforced {
		fmt.Fprintf(out, "does not hold: %s\n", text)
	}
	printMesh(out, e)
	if e.History != "" {
		fmt.Fprintf(out, "it has no endpoints; what became of them: %s\n", e.History)
	}
	for _, p := range e.Ports {
		for _, f := range p.Families {
			fmt.Fprintf(out, "\nport %d/%s %s: %s\n  decided by: %s\n", p.Port, p.Protocol, f.Family, f.Outcome, f.Rule)
			if len(f.Endpoints) == 0 {
				continue
			}
			w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "  ENDPOINT\tZONE\tNODE\tSHARE\tWHY")
			for _, ep := range f.Endpoints {
				fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\n", ep.Address, orNone(ep.Zone), orNone(ep.Node), percentOf(ep.Share), ep.Why)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			if err := printRegistrations(out, f.Endpoints); err != nil {
				return err
			}
		}
		printRouting(out, &p)
		if err := printElsewhere(out, &p); err != nil {
			return err
		}
	}
	printGuards(out, e.Guards)
	for _, l := range e.Limits {
		fmt.Fprintln(out, l)
	}
	if e.Topology != nil {
		fmt.Fprintf(out, "\n%s", e.Topology.Text(e.Zone))
	}
	return nil
}

// printRegistrations says by which registry protocol endpoints came, and who keeps them alive.
func printRegistrations(out io.Writer, endpoints []diag.Endpoint) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	first := true
	for _, e := range endpoints {
		if e.Registered == nil {
			continue
		}
		if first {
			fmt.Fprintln(w, "  REGISTERED\tDATAPLANE\tFOR\tBY")
			first = false
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", e.Address, e.Registered.Dataplane, duration.HumanDuration(time.Since(e.Registered.Since)), e.Registered)
	}
	return w.Flush()
}

// printRouting says which route and policy count for clients without a sidecar.
func printRouting(out io.Writer, p *diag.Port) {
	if p.Route != "" {
		fmt.Fprintf(out, "  without a sidecar TCPRoute %s divides connections:\n", p.Route)
		for _, b := range p.Backends {
			name := b.Service
			if name == "" {
				name = "a backend that cannot be used"
			}
			fmt.Fprintf(out, "    %d to %s, %d endpoints\n", b.Weight, name, b.Endpoints)
		}
	}
	if p.Policy != "" {
		fmt.Fprintf(out, "  without a sidecar BackendPolicy %s counts\n", p.Policy)
	}
	if p.SourceHash {
		fmt.Fprintln(out, "  a client's address decides about its endpoint, on nodes in mode nftables or userspace")
	}
}

// maxGuardsShown endpoints.
const maxGuardsShown = 20

// printGuards says which permissions decide at the nodes of endpoints without a sidecar.
func printGuards(out io.Writer, all []diag.Guard) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(out, "\nwho may connect to endpoints without a sidecar is decided at their nodes:")
	for i, g := range all {
		if i == maxGuardsShown {
			fmt.Fprintf(out, "  and at %d more\n", len(all)-i)
			break
		}
		by := strings.Join(g.Policies, ", ")
		if by == "" {
			by = "nothing, anybody may"
		}
		fmt.Fprintf(out, "  %s of %s at node %s: by %s\n", g.Endpoint, g.Workload, orNone(g.Node), by)
		for _, text := range g.Ignored {
			fmt.Fprintf(out, "    no effect: %s\n", text)
		}
	}
}

// printElsewhere prints the way of a port's connections out of this site.
func printElsewhere(out io.Writer, p *diag.Port) error {
	e := p.Elsewhere
	if e == nil {
		return nil
	}
	share := 0.0
	for _, f := range p.Families {
		share = max(share, f.Elsewhere)
	}
	fmt.Fprintf(out, "  out of this zone: %.0f %%: %s\n  way: %s\n", 100*share, e.Why, e.Way())
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	if len(e.Sites) > 0 {
		fmt.Fprintln(w, "  ZONE\tINSTANCES\tSHARE\tINGRESSES")
	}
	for _, s := range e.Sites {
		var ingresses []string
		for _, g := range s.Ingresses {
			ingresses = append(ingresses, fmt.Sprintf("%s (%s)", g.Name, g.Address))
		}
		fmt.Fprintf(w, "  %s\t%d\t%.0f %%\t%s\n", s.Name, s.Instances, 100*share*s.Share, strings.Join(ingresses, ", "))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if f := e.Failure; f != nil {
		fmt.Fprintf(out, "  last failure on this machine, %s ago, one of %d: %s\n", duration.HumanDuration(time.Since(f.At)), f.Count, f.Error)
	}
	return nil
}

// percentOf a share: with a digit after the point where it is small, as that of a workload of
// little weight.
func percentOf(share float64) string {
	if p := 100 * share; p > 0 && p < 10 {
		return fmt.Sprintf("%.1f %%", p)
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}
