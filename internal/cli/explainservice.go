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

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag"
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
		Short:   "Say why traffic goes where it goes",
	}
	cmd.AddCommand(newExplainService(s))
	return cmd
}

func newExplainService(s *settings) *cobra.Command {
	var fromZone, fromNode, output string
	cmd := &cobra.Command{
		Use:   "service [NAMESPACE/]NAME",
		Short: "Say which endpoints get a Service's connections, from a zone or a node, and why not the others",
		Long: `Explain service says which endpoints get a Service's connections as seen from a
zone or a node, and why not the others; then how traffic is divided among zones:
the decision of the Service's topology mode, each zone's share and the rule
behind it, what the plan costs, and how many more endpoints would keep a zone's
traffic at home. For a Service that is not planned it says what
proxima.dev/Adaptive would do.`,
		Example: "  proxima explain service web --from-zone zone-a\n  proxima explain service shop/cart --from-node host-7 -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if fromZone != "" && fromNode != "" {
				return usagef("--from-zone and --from-node: give one of them; a node is in a zone already")
			}
			e, err := s.explainService(cmd.Context(), args[0], choose.Node{Name: fromNode, Zone: locality.Zone(fromZone)})
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
	f.StringVar(&fromNode, "from-node", "", "as seen from this node")
	f.StringVarP(&output, "output", "o", "table", "table, wide, json or yaml")
	return cmd
}

// explainService queries the control plane, which has the plans. Servers without that
// path, such as Kubernetes' own, are explained here from their objects.
func (s *settings) explainService(ctx context.Context, name string, from choose.Node) (*diag.Service, error) {
	cfg, namespace, err := s.restConfig()
	if err != nil {
		return nil, err
	}
	if ns, rest, ok := strings.Cut(name, "/"); ok {
		namespace, name = ns, rest
	}
	var known diag.Service
	query := url.Values{"namespace": {namespace}, "name": {name}, "zone": {string(from.Zone)}, "node": {from.Name}}
	switch err := callJSON(ctx, cfg, http.MethodGet, admin.ExplainServicePath+"?"+query.Encode(), nil, &known); {
	case err == nil:
		return &known, nil
	case !errors.Is(err, errNotServed) && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		return nil, explainAPI(cfg, err)
	}
	return explainLocally(ctx, cfg, namespace, name, from)
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
	e := diag.ExplainService(svc, slices, from)
	return &e, nil
}

func printExplanation(out io.Writer, e *diag.Service) error {
	place := "anywhere: give --from-zone or --from-node to see a place's own choice"
	switch {
	case e.Node != "":
		place = fmt.Sprintf("node %s in zone %s", e.Node, orNone(e.Zone))
	case e.Zone != "":
		place = "zone " + string(e.Zone)
	}
	fmt.Fprintf(out, "%s at %s, from %s\n", e.Service, strings.Join(e.Address, ", "), place)
	for _, p := range e.Ports {
		for _, f := range p.Families {
			fmt.Fprintf(out, "\nport %d/%s %s: %s\n  decided by: %s\n", p.Port, p.Protocol, f.Family, f.Outcome, f.Rule)
			if len(f.Endpoints) == 0 {
				continue
			}
			w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "  ENDPOINT\tZONE\tNODE\tSHARE\tWHY")
			for _, ep := range f.Endpoints {
				fmt.Fprintf(w, "  %s\t%s\t%s\t%.0f %%\t%s\n", ep.Address, orNone(ep.Zone), orNone(ep.Node), 100*ep.Share, ep.Why)
			}
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
	if e.Topology != nil {
		fmt.Fprintf(out, "\n%s", e.Topology.Text(e.Zone))
	}
	return nil
}
