package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/cli/describe"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/version"
)

// dataplanePath of a question that is for the proxies of Dataplanes alone: NAMESPACE/NAME, or the
// name of one in the kubeconfig's namespace.
func (s *settings) dataplanePath(path, zone, who string) (string, error) {
	if !strings.Contains(who, "/") {
		c, err := s.connect("")
		if err != nil {
			return "", err
		}
		who = c.namespace + "/" + who
	}
	return proxyPath(path, zone, who)
}

// proxyStatus is what of the supervisor's state is shown.
type proxyStatus struct {
	Ready    string `json:"ready"`
	Draining bool   `json:"draining"`
	Problem  string `json:"problem"`
	// Refused connections past the proxy, by port.
	Refused map[string]uint64 `json:"refused"`
	Envoy   struct {
		PID      int `json:"pid"`
		Restarts int `json:"restarts"`
	} `json:"envoy"`
	Identity *struct {
		ID       string    `json:"id"`
		NotAfter time.Time `json:"notAfter"`
	} `json:"identity"`
	Relay struct {
		Counters struct {
			Forgotten int `json:"forgotten"`
		} `json:"counters"`
	} `json:"relay"`
}

func printProxyState(out io.Writer, p *admin.ProxyState) error {
	now := time.Now()
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(w, name+":\t"+format+"\n", args...) }
	if name, gateway := strings.CutPrefix(p.Dataplane, "*/"); gateway {
		row("Gateway", "%s (all meshes, zone %s)", name, p.Zone)
	} else {
		row("Dataplane", "%s (mesh %s, zone %s)", p.Dataplane, p.Mesh, p.Zone)
	}
	row("Proxy", "%s %s (%s)", orNone(p.Program), p.Version, p.Kind)
	row("Connected", "to %s from %s, for %s", p.Instance, p.Peer, duration.HumanDuration(max(now.Sub(p.Since), 0)))
	if p.Supervisor != "" {
		restart := ""
		if version.Older(p.Supervisor, p.ControlPlane) {
			restart = ": older than the control plane (" + p.ControlPlane + "); start the workload again"
		}
		row("Supervisor", "%s%s", p.Supervisor, restart)
	}
	if len(p.Own) == 0 {
		row("Ready", "unknown: %s", p.Reason)
	} else {
		var own proxyStatus
		if err := json.Unmarshal(p.Own, &own); err != nil {
			return fmt.Errorf("read the supervisor's answer: %w", err)
		}
		ready := "yes"
		if own.Ready != "true" {
			ready = "no: " + own.Ready
		}
		row("Ready", "%s", ready)
		row("Envoy", "process %d, started again %d times", own.Envoy.PID, own.Envoy.Restarts)
		if i := own.Identity; i != nil {
			row("Certificate", "%s, valid %s", cmp.Or(i.ID, "that of its node"), expiryText(i.NotAfter, now))
		}
		for _, port := range slices.Sorted(maps.Keys(own.Refused)) {
			if n := own.Refused[port]; n > 0 {
				row("Refused", "%d connections to port %s, in mode Strict, that this machine translated: they cannot pass the sidecar", n, port)
			}
		}
		if own.Problem != "" {
			row("Renewal", "fails: %s", describe.OneLine(own.Problem))
		}
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, "TYPE\tRESOURCES\tSENT\tACCEPTED\tREJECTED\tUNANSWERED")
	for _, t := range p.Types {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\n", t.Type, t.Resources, t.Sent, t.Acknowledged, t.Rejected, t.Unanswered)
	}
	if len(p.Rejected) > 0 {
		fmt.Fprintln(w)
		fmt.Fprintln(w, "REJECTED\tNAME\tWHY")
		for _, r := range p.Rejected {
			fmt.Fprintf(w, "%s\t%s\t%s\n", r.Type, r.Name, describe.OneLine(r.Reason))
		}
	}
	return w.Flush()
}

func newProxyStatus(s *settings) *cobra.Command {
	var zone, output string
	cmd := &cobra.Command{
		Use:     "status [NAMESPACE/]NAME",
		Short:   "Show the proxy of a Dataplane: its connection, its certificate, and what it has accepted",
		Example: "  proxima proxy status shop/web-1\n  proxima proxy status shop/web-1 --zone east -o json", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := s.dataplanePath(admin.ProxyStatusPath, zone, args[0])
			if err != nil {
				return err
			}
			return s.answered(cmd.Context(), path, output, func(raw json.RawMessage) error {
				return decoded(raw, func(p *admin.ProxyState) error { return printProxyState(s.io.Out, p) })
			})
		},
	}
	addZoneFlag(cmd, &zone)
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

// answered gets an answer, and prints it as json or yaml, or by table.
func (s *settings) answered(ctx context.Context, path, output string, table func(json.RawMessage) error) error {
	if err := checkFormat(output); err != nil {
		return err
	}
	var raw json.RawMessage
	if err := s.call(ctx, http.MethodGet, path, nil, &raw); err != nil {
		return err
	}
	if output == "json" || output == "yaml" {
		return printValue(s.io.Out, raw, output)
	}
	return table(raw)
}

func decoded[T any](raw json.RawMessage, use func(*T) error) error {
	var value T
	if err := json.Unmarshal(raw, &value); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return use(&value)
}

// printDifference lists what differs; all: everything.
func printDifference(out io.Writer, d *admin.ProxyDifference, all bool) error {
	same := 0
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "TYPE\tNAME\tSENT\tHELD\tSTATE")
	for _, r := range d.Resources {
		if r.State == admin.ProxySame {
			if same++; !all {
				continue
			}
		}
		state := r.State
		if r.Reason != "" {
			state += ": " + describe.OneLine(r.Reason)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.Type, r.Name, orNone(shortVersion(r.Sent)), orNone(shortVersion(r.Held)), state)
	}
	if same == len(d.Resources) && !all {
		_, err := fmt.Fprintf(out, "%s holds all %d resources as they were sent.\n", d.Dataplane, same)
		return err
	}
	if err := w.Flush(); err != nil || all {
		return err
	}
	_, err := fmt.Fprintf(out, "%d others are the same (-o wide lists them).\n", same)
	return err
}

// shortVersion of a content hash.
func shortVersion(v string) string { return v[:min(len(v), 12)] }

// envoyDump is a configuration dump of Envoy (envoy.admin.v3).
type envoyDump struct {
	Configs []json.RawMessage `json:"configs"`
}

// dumped is a resource in a dump, whatever its type.
type dumped struct {
	typ, name, version, updated, state string
}

// printEnvoyDump lists the resources of a dump.
func printEnvoyDump(out io.Writer, dump *envoyDump) error {
	var all []dumped
	for _, section := range dump.Configs {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(section, &fields); err != nil {
			return fmt.Errorf("read the dump: %w", err)
		}
		for name, list := range fields {
			all = append(all, dumpedIn(name, list)...)
		}
	}
	slices.SortFunc(all, func(a, b dumped) int { return cmp.Or(strings.Compare(a.typ, b.typ), strings.Compare(a.name, b.name)) })
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "TYPE\tNAME\tVERSION\tUPDATED\tSTATE")
	for _, d := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", d.typ, orNone(d.name), orNone(shortVersion(d.version)), orNone(d.updated), d.state)
	}
	return w.Flush()
}

// dumpTypes are the lists of a dump, with the field that has the resource.
var dumpTypes = map[string]struct{ typ, field, state string }{
	"static_clusters":          {"Cluster", "cluster", "static"},
	"dynamic_active_clusters":  {"Cluster", "cluster", "active"},
	"dynamic_warming_clusters": {"Cluster", "cluster", "warming"},
	"static_listeners":         {"Listener", "listener", "static"},
	"dynamic_listeners":        {"Listener", "listener", "active"},
	"static_route_configs":     {"Route", "route_config", "static"},
	"dynamic_route_configs":    {"Route", "route_config", "active"},
	"static_endpoint_configs":  {"Endpoints", "endpoint_config", "static"},
	"dynamic_endpoint_configs": {"Endpoints", "endpoint_config", "active"},
	"static_secrets":           {"Secret", "secret", "static"},
	"dynamic_active_secrets":   {"Secret", "secret", "active"},
	"dynamic_warming_secrets":  {"Secret", "secret", "warming"},
}

func dumpedIn(list string, raw json.RawMessage) []dumped {
	of, ok := dumpTypes[list]
	if !ok {
		return nil
	}
	type entry struct {
		Name    string `json:"name"`
		Version string `json:"version_info"`
		Updated string `json:"last_updated"`
		Error   *struct {
			Details string `json:"details"`
		} `json:"error_state"`
	}
	type named struct {
		Name    string `json:"name"`
		Cluster string `json:"cluster_name"`
	}
	var items []map[string]json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		return nil
	}
	var out []dumped
	for _, item := range items {
		whole, _ := json.Marshal(item) // it was JSON
		var e entry
		if json.Unmarshal(whole, &e) != nil {
			continue
		}
		d := dumped{typ: of.typ, name: e.Name, version: e.Version, updated: e.Updated, state: of.state}
		if e.Error != nil && e.Error.Details != "" {
			d.state = "rejected: " + describe.OneLine(e.Error.Details)
		}
		body := item[of.field]
		if of.typ == "Listener" && list == "dynamic_listeners" { // which has one for each state
			for _, state := range []string{"active_state", "warming_state", "draining_state"} {
				var inner map[string]json.RawMessage
				var at entry
				if json.Unmarshal(item[state], &inner) == nil && json.Unmarshal(item[state], &at) == nil && inner != nil {
					d.version, d.updated, body = at.Version, at.Updated, inner["listener"]
					if e.Error == nil {
						d.state = strings.TrimSuffix(state, "_state")
					}
					break
				}
			}
		}
		var n named
		if json.Unmarshal(body, &n) == nil && d.name == "" {
			d.name = cmp.Or(n.Name, n.Cluster)
		}
		out = append(out, d)
	}
	return out
}

// envoyClusters is the answer of Envoy's /clusters?format=json (envoy.admin.v3.Clusters).
type envoyClusters struct {
	Clusters []envoyCluster `json:"cluster_statuses"`
}

type envoyCluster struct {
	Name  string      `json:"name"`
	Hosts []envoyHost `json:"host_statuses"`
}

type envoyHost struct {
	Address struct {
		Socket *struct {
			Address string `json:"address"`
			Port    int    `json:"port_value"`
		} `json:"socket_address"`
		Pipe *struct {
			Path string `json:"path"`
		} `json:"pipe"`
	} `json:"address"`
	Stats []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"stats"`
	Health   map[string]any `json:"health_status"`
	Weight   int            `json:"weight"`
	Priority int            `json:"priority"`
	Locality struct {
		Zone string `json:"zone"`
	} `json:"locality"`
}

func (h *envoyHost) address() string {
	switch {
	case h.Address.Socket != nil:
		return net.JoinHostPort(h.Address.Socket.Address, strconv.Itoa(h.Address.Socket.Port))
	case h.Address.Pipe != nil:
		return h.Address.Pipe.Path
	}
	return "<unknown>"
}

// stat of a host; 0 is left out of Envoy's JSON.
func (h *envoyHost) stat(name string) string {
	for _, s := range h.Stats {
		if s.Name == name {
			return cmp.Or(s.Value, "0")
		}
	}
	return "0"
}

// health are the reasons for which it is not used, else healthy.
func (h *envoyHost) health() string {
	var bad []string
	for name, value := range h.Health {
		if name == "eds_health_status" {
			if text := fmt.Sprint(value); text != "HEALTHY" && text != "UNKNOWN" {
				bad = append(bad, strings.ToLower(text))
			}
		} else if value == true {
			bad = append(bad, strings.ReplaceAll(name, "_", " "))
		}
	}
	if len(bad) == 0 {
		return "healthy"
	}
	slices.Sort(bad)
	return strings.Join(bad, ", ")
}

func printEnvoyClusters(out io.Writer, c *envoyClusters) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "CLUSTER\tENDPOINT\tZONE\tPRIORITY\tWEIGHT\tHEALTH\tCONNECTIONS\tREQUESTS\tERRORS")
	slices.SortFunc(c.Clusters, func(a, b envoyCluster) int { return strings.Compare(a.Name, b.Name) })
	for _, cluster := range c.Clusters {
		for i := range cluster.Hosts {
			h := &cluster.Hosts[i]
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", cluster.Name, h.address(), orNone(h.Locality.Zone), h.Priority,
				h.Weight, h.health(), h.stat("cx_active"), h.stat("rq_total"), h.stat("rq_error"))
		}
		if len(cluster.Hosts) == 0 {
			fmt.Fprintf(w, "%s\t<none>\t\t\t\t\t\t\t\n", cluster.Name)
		}
	}
	return w.Flush()
}

func newProxyLogging(s *settings) *cobra.Command {
	var zone, level string
	cmd := &cobra.Command{
		Use:   "logging [NAMESPACE/]NAME [--level LEVEL|LOGGER=LEVEL]",
		Short: "Print the log levels of a Dataplane's Envoy, or change them until it starts again",
		Example: "  proxima proxy logging shop/web-1\n  proxima proxy logging shop/web-1 --level upstream=debug\n" +
			"  proxima proxy logging shop/web-1 --level warning", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := s.dataplanePath(admin.ProxyLoggingPath, zone, args[0])
			if err != nil {
				return err
			}
			method := http.MethodGet
			if level != "" {
				method = http.MethodPost
				path += "&" + url.Values{"level": {level}}.Encode()
			}
			return s.copyAnswer(cmd.Context(), method, path)
		},
	}
	addZoneFlag(cmd, &zone)
	cmd.Flags().StringVar(&level, "level", "", "set the level of all loggers (trace, debug, info, warning, error, critical, off), or of one, as in upstream=debug")
	_ = cmd.Flags().SetAnnotation("level", commandLineOnly, nil) // the flag is there
	return cmd
}

func newProxyCheck(s *settings) *cobra.Command {
	var envoy string
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Have an Envoy check a bootstrap or another configuration file",
		Long: `Check runs "envoy --mode validate" on a file, YAML or JSON, as "proxima proxy
bootstrap" prints it: files that it names have to be there. It exits with 1, and
Envoy's reason, if the file is wrong.`,
		Example: "  proxima proxy check envoy.json\n  proxima proxy check bootstrap.yaml --envoy /usr/local/bin/envoy", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.checkEnvoy(cmd.Context(), envoy, args[0])
		},
	}
	cmd.Flags().StringVar(&envoy, "envoy", "envoy", "Envoy that checks: a path, or a name in $PATH")
	return cmd
}

func (s *settings) checkEnvoy(ctx context.Context, envoy, file string) error {
	if _, err := os.Stat(file); err != nil {
		return usagef("%w", err)
	}
	path, err := exec.LookPath(envoy)
	if err != nil {
		return &problem.Error{
			Code: problem.SidecarUnavailable, Op: "check", Object: file, Err: err, Hint: "install Envoy 1.37 or newer, or name it with --envoy",
		}
	}
	file, err = filepath.Abs(file)
	if err != nil {
		return err
	}
	text, err := exec.CommandContext(ctx, path, "--mode", "validate", "-c", file, "--log-level", "error", "--log-format", "%v").CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return &problem.Error{
			Code: problem.Usage, Op: "check", Object: file, Err: errors.New(describe.OneLine(strings.TrimSpace(string(text)))),
			Hint: "change the file as Envoy says",
		}
	case err != nil:
		return fmt.Errorf("run %s: %w", path, err)
	}
	_, err = fmt.Fprintf(s.io.Out, "%s is a configuration of Envoy\n", file)
	return err
}
