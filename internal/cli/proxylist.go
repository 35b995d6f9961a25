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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/version"
	"github.com/proxima-mesh/proxima/internal/xds"
)

// proxyRow is a proxy, as its insight has it.
type proxyRow struct {
	// Namespace of the Dataplane; "*": it is a gateway's, of this Role.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Role      string `json:"role,omitempty"`
	// Zone of its control plane; empty: the one that is asked.
	Zone   string    `json:"zone,omitempty"`
	Online bool      `json:"online"`
	Since  time.Time `json:"since,omitzero"`
	// Instance that it is, or was, connected to.
	Instance string `json:"instance,omitempty"`
	// Behind are the types of which it has not answered a response for 10 s.
	Behind []string `json:"behind,omitempty"`
	// Rejected resources.
	Rejected []v1alpha1.RejectedResource `json:"rejected,omitempty"`
	Versions v1alpha1.ProxyVersions      `json:"versions"`
	// Restart: its supervisor is older than the control plane.
	Restart bool `json:"restartNeeded,omitempty"`
	// Expiry of its certificate.
	Expiry time.Time `json:"certificateExpiry,omitzero"`
}

func newProxyList(s *settings) *cobra.Command {
	var namespace, output string
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the proxies of workloads and gateways: who is connected, behind, or in need of a restart",
		Long: `List shows the proxies of Dataplanes, and gRPC programs, as their DataplaneInsights
have them, and ingresses and egresses, of all namespaces, as */NAME; at a global
control plane those of all zones. A proxy is behind if it has not answered what it was
sent for 10 s, and needs a restart if its supervisor, or the process of a gateway, is
older than the control plane: "proxima run" started again starts the new one.`,
		Example: "  proxima proxy list\n  proxima proxy list -A -o wide", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			rows, err := s.proxyRows(cmd.Context(), namespace, all)
			if err != nil {
				return err
			}
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, rows, output)
			}
			if len(rows) == 0 {
				fmt.Fprintln(s.io.Err, "No proxies found: no workload or gateway has one that has been connected (proxima run --sidecar starts one).")
				return nil
			}
			return printProxyRows(s.io.Out, rows, all, output == "wide", time.Now())
		},
	}
	addNamespaceFlag(cmd.Flags(), &namespace)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "all namespaces")
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

// proxyRows of a namespace, in order.
func (s *settings) proxyRows(ctx context.Context, namespace string, all bool) ([]proxyRow, error) {
	c, err := s.connect(namespace)
	if err != nil {
		return nil, err
	}
	api := "/apis/" + v1alpha1.SchemeGroupVersion.String()
	path := api
	if !all {
		path += "/namespaces/" + c.namespace
	}
	var list v1alpha1.DataplaneInsightList
	if err := s.call(ctx, http.MethodGet, path+"/dataplaneinsights", nil, &list); err != nil {
		return nil, err
	}
	var ingresses v1alpha1.ZoneIngressInsightList
	var egresses v1alpha1.ZoneEgressInsightList
	// A cluster may not serve them, or not to this user.
	_ = s.call(ctx, http.MethodGet, api+"/zoneingressinsights", nil, &ingresses)
	_ = s.call(ctx, http.MethodGet, api+"/zoneegressinsights", nil, &egresses)
	versions := s.controlPlanes(ctx)
	rows := []proxyRow{}
	for i := range list.Items {
		rows = append(rows, rowOf(&list.Items[i].ObjectMeta, "", &list.Items[i].Status, versions))
	}
	for i := range ingresses.Items {
		rows = append(rows, rowOf(&ingresses.Items[i].ObjectMeta, "ingress", &ingresses.Items[i].Status, versions))
	}
	for i := range egresses.Items {
		rows = append(rows, rowOf(&egresses.Items[i].ObjectMeta, "egress", &egresses.Items[i].Status, versions))
	}
	slices.SortFunc(rows, func(a, b proxyRow) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Zone, b.Zone), strings.Compare(a.Name, b.Name))
	})
	return rows, nil
}

// controlPlanes are the versions of control planes by zone, that of the one that is asked by "".
// Those that do not say are left out.
func (s *settings) controlPlanes(ctx context.Context) map[string]string {
	out := map[string]string{}
	var status admin.Status
	if s.call(ctx, http.MethodGet, admin.StatusPath, nil, &status) == nil {
		out[""] = status.Version.Version
	}
	var zones v1alpha1.ZoneInsightList
	if s.call(ctx, http.MethodGet, "/apis/"+v1alpha1.SchemeGroupVersion.String()+"/zoneinsights", nil, &zones) == nil {
		for i := range zones.Items {
			if n := len(zones.Items[i].Status.Subscriptions); n > 0 {
				out[zones.Items[i].Name] = zones.Items[i].Status.Subscriptions[n-1].Version
			}
		}
	}
	return out
}

// rowOf an insight. role is that of a gateway; empty: it is of a Dataplane.
func rowOf(of *metav1.ObjectMeta, role string, i *v1alpha1.ClientInsightStatus, versions map[string]string) proxyRow {
	r := proxyRow{Namespace: of.Namespace, Name: of.Name, Role: role, Online: i.Online, Rejected: i.Rejected}
	if role != "" {
		r.Namespace = xds.GatewayNamespace
	}
	if of.Labels[v1alpha1.LabelOrigin] == v1alpha1.OriginZone {
		r.Zone = of.Labels[v1alpha1.LabelZone]
	}
	if v := i.Versions; v != nil {
		r.Versions = *v
	}
	own := r.Versions.Supervisor
	if role != "" && own == "" {
		own = r.Versions.Version // without Envoy it is of this program
	}
	r.Restart = version.Older(own, cmp.Or(versions[r.Zone], versions[""]))
	if c := i.Certificate; c != nil {
		r.Expiry = c.Expiry.Time
	}
	n := len(i.Subscriptions)
	if n == 0 {
		return r
	}
	last := &i.Subscriptions[n-1]
	r.Since, r.Instance = last.ConnectTime.Time, last.Instance
	if last.DisconnectTime != nil {
		r.Since = last.DisconnectTime.Time
	}
	for _, t := range last.Resources {
		if r.Online && t.Sent > t.Acknowledged+t.Rejected {
			r.Behind = append(r.Behind, t.Type)
		}
	}
	return r
}

func printProxyRows(out io.Writer, rows []proxyRow, namespaces, wide bool, now time.Time) error {
	zones := slices.ContainsFunc(rows, func(r proxyRow) bool { return r.Zone != "" })
	gateways := slices.ContainsFunc(rows, func(r proxyRow) bool { return r.Role != "" })
	w := tabwriter.NewWriter(out, 6, 4, 3, ' ', 0)
	line := func(r []string) { fmt.Fprintln(w, strings.Join(r, "\t")) }
	var head []string
	if namespaces {
		head = append(head, "NAMESPACE")
	}
	head = append(head, "NAME")
	if gateways {
		head = append(head, "ROLE")
	}
	if zones {
		head = append(head, "ZONE")
	}
	head = append(head, "CONNECTED", "CONFIG", "VERSION", "SUPERVISOR", "CERTIFICATE")
	if wide {
		head = append(head, "PROGRAM", "INSTANCE")
	}
	line(head)
	for i := range rows {
		r := &rows[i]
		var cells []string
		if namespaces {
			cells = append(cells, r.Namespace)
		}
		name := r.Name
		if r.Role != "" && !namespaces {
			name = r.Namespace + "/" + name // as other commands want it
		}
		cells = append(cells, name)
		if gateways {
			cells = append(cells, orNone(r.Role))
		}
		if zones {
			cells = append(cells, orNone(r.Zone))
		}
		cells = append(cells, connectedText(r, now), configText(r), orNone(r.Versions.Version), supervisorText(r), expiryText(r.Expiry, now))
		if wide {
			cells = append(cells, orNone(r.Versions.Proxy), orNone(r.Instance))
		}
		line(cells)
	}
	return w.Flush()
}

func connectedText(r *proxyRow, now time.Time) string {
	switch age := duration.HumanDuration(max(now.Sub(r.Since), 0)); {
	case r.Since.IsZero():
		return "never"
	case r.Online:
		return "for " + age
	default:
		return "no, since " + age
	}
}

func configText(r *proxyRow) string {
	switch {
	case len(r.Rejected) > 0:
		return strconv.Itoa(len(r.Rejected)) + " rejected"
	case len(r.Behind) > 0:
		return "behind: " + strings.Join(r.Behind, ",")
	case !r.Online:
		return "as it was"
	}
	return "accepted"
}

func supervisorText(r *proxyRow) string {
	if r.Restart {
		return strings.TrimSpace(r.Versions.Supervisor + " (restart needed)")
	}
	return orNone(r.Versions.Supervisor)
}

func expiryText(at, now time.Time) string {
	switch {
	case at.IsZero():
		return "<none>"
	case !now.Before(at):
		return "expired " + duration.HumanDuration(now.Sub(at)) + " ago"
	}
	return "for " + duration.HumanDuration(at.Sub(now))
}
