package cli

import (
	"encoding/json"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/kubernetes/extension"
	"github.com/proxima-mesh/proxima/internal/kubernetes/inject"
)

// kubernetesFlags are those of a control plane with --store kubernetes.
type kubernetesFlags struct {
	preset          string
	namespace       string
	agents          string
	gateways        string
	extension       string
	aggregate       bool
	aggregateAgents bool
	sidecar         sidecarFlags
}

// sidecarFlags are those of the injection of sidecars.
type sidecarFlags struct{ image, envoy, server, pull, resources string }

func (x *sidecarFlags) add(f *pflag.FlagSet) {
	f.StringVar(&x.image, "sidecar-image", "", "with --preset zone or kube-proxy-replacement: image of proxima-sidecar, whose program is added to Pods that are to have a sidecar; empty: Pods stay as they are. It goes with --extension-service and --sidecar-envoy-image")
	f.StringVar(&x.envoy, "sidecar-envoy-image", "", "image of Envoy in sidecars, 1.37 or newer, unmodified")
	f.StringVar(&x.server, "sidecar-server", "", "address (HOST:PORT) of xDS for sidecars in Pods (default: Service proxima of the control plane's namespace, and --xds-port)")
	f.StringVar(&x.pull, "sidecar-pull-policy", "", "when the images of sidecars are pulled: Always, IfNotPresent or Never (default: as Kubernetes decides)")
	f.StringVar(&x.resources, "sidecar-resources", "", "resources of the containers of sidecars, as JSON of a container's resources")
}

// config of the injection; nil: there is none.
func (x *sidecarFlags) config(k *kubernetesFlags) (*inject.Config, error) {
	if x.image == "" {
		return nil, nil //nolint:nilnil // as the comment says
	}
	served := k.preset == string(app.PresetZone) || k.preset == string(app.PresetKubeProxyReplacement)
	if !served || k.extension == "" || x.envoy == "" {
		return nil, usagef("--sidecar-image goes with --preset zone or kube-proxy-replacement, --extension-service and --sidecar-envoy-image")
	}
	c := &inject.Config{Image: x.image, Envoy: x.envoy, Server: x.server, PullPolicy: corev1.PullPolicy(x.pull)}
	if x.resources != "" {
		d := json.NewDecoder(strings.NewReader(x.resources))
		d.DisallowUnknownFields()
		if err := d.Decode(&c.Resources); err != nil {
			return nil, usagef("--sidecar-resources: %w", err)
		}
	}
	return c, nil
}

func (k *kubernetesFlags) add(f *pflag.FlagSet) {
	f.StringVar(&k.preset, "preset", "", "what a control plane with --store kubernetes does: planner-only reads the cluster, plans in memory and answers simulate, explain and status; kube-proxy-replacement plans, and serves the agents that take kube-proxy's place; zone is that as one zone of several, with --role zone; global is the control plane of the zones, with --role global")
	f.StringVar(&k.namespace, "own-namespace", "", "namespace of the control plane's own objects in the cluster: its Lease, and the Secret and ConfigMap of its authority (default: that of the pod, else "+access.SystemNamespace+")")
	f.StringVar(&k.agents, "agent-service-account", "proxima-agent", "service account of the agents in the cluster, in that namespace: no other one's tokens are taken")
	f.StringVar(&k.gateways, "gateway-service-account", "proxima-gateway", "with --preset zone: service account of the gateways in the cluster, as --agent-service-account")
	f.StringVar(&k.extension, "extension-service", "", "Service in that namespace by which the API server of the cluster calls this control plane, on the port of --api-address, to validate objects; empty: it does not call")
	f.BoolVar(&k.aggregate, "aggregated-api", false, "answer status, explain and simulate at the API server of the cluster, too (group "+extension.GroupVersion.Group+"), to whom the roles of the cluster allow; it goes with --extension-service")
	f.BoolVar(&k.aggregateAgents, "agents-by-aggregated-api", false, "give agents certificates by the aggregated API alone, so that the roles of the cluster decide which agents join and renew; it goes with --aggregated-api")
	k.sidecar.add(f)
}

// apply completes the configuration.
func (k *kubernetesFlags) apply(s *settings, cfg *app.ControlPlaneConfig) error {
	cfg.Preset = app.Preset(k.preset)
	switch {
	case cfg.Store != app.StoreKubernetes && k.preset != "":
		return usagef("--preset %s goes with --store kubernetes, and this is --store %s", k.preset, cfg.Store)
	case cfg.Store != app.StoreKubernetes:
		return nil
	case !slices.Contains([]app.Preset{app.PresetPlannerOnly, app.PresetKubeProxyReplacement, app.PresetZone, app.PresetGlobal}, cfg.Preset):
		return usagef("--preset %q: with --store kubernetes choose planner-only, kube-proxy-replacement, zone or global", k.preset)
	case (cfg.Preset == app.PresetZone) != (cfg.Role == app.RoleZone), (cfg.Preset == app.PresetGlobal) != (cfg.Role == app.RoleGlobal):
		return usagef("--role %s --preset %s: with --store kubernetes, --role zone and --preset zone go together, "+
			"and --role global and --preset global; other presets stand alone", cfg.Role, k.preset)
	case cfg.ClusterKeyFile != "" || len(cfg.ClusterKeyCommand) > 0:
		return usagef("--cluster-key-file and --cluster-key-command: with --store kubernetes replicas share their authority by a Secret")
	case cfg.ExternalIPRanges != nil:
		return usagef("--external-ip-ranges: with --store kubernetes the API server of the cluster admits Services; its admission plugin DenyServiceExternalIPs, or a policy of its own, restricts them")
	case cfg.Pulsar.Port != 0:
		return usagef("--pulsar-port: with --store kubernetes each replica has positions of its own, which clients of Pulsar cannot go on from at another; use \"proxima feed sink add pulsar\"")
	case cfg.TLSCertFile != "":
		return usagef("--tls-cert-file: with --store kubernetes browsers do not reach this control plane, but the API server of the cluster; \"proxima console\" uses the kubeconfig")
	case cfg.DNSAddress != "":
		return usagef("--dns-address: with --store kubernetes the cluster's own DNS answers names")
	}
	if cfg.Traces.Endpoint != "" && (cfg.Preset == app.PresetPlannerOnly || cfg.Preset == app.PresetGlobal) {
		return usagef("--otlp-endpoint: --preset %s has no agents that changes get to; it goes with kube-proxy-replacement and zone", k.preset)
	}
	if k.extension != "" && cfg.Preset == app.PresetPlannerOnly {
		return usagef("--extension-service: planner-only has no kinds of its own in the cluster, and is not called by its API server")
	}
	if k.aggregate && k.extension == "" {
		return usagef("--aggregated-api: the API server calls it by a Service: give --extension-service, too")
	}
	if k.aggregateAgents && !k.aggregate {
		return usagef("--agents-by-aggregated-api: there is none: give --aggregated-api, too")
	}
	cfg.ExtensionService, cfg.AggregatedAPI, cfg.AgentsByAggregatedAPI = k.extension, k.aggregate, k.aggregateAgents
	cfg.Namespace, cfg.AgentServiceAccount, cfg.GatewayServiceAccount = k.namespace, k.agents, k.gateways
	if cfg.Namespace == "" {
		cfg.Namespace = podNamespace()
	}
	var err error
	if cfg.Injection, err = k.sidecar.config(k); err != nil {
		return err
	}
	if cfg.Injection != nil && cfg.XDSPort == 0 {
		return usagef("--sidecar-image: sidecars get their configuration at --xds-port, which is off")
	}
	cfg.Cluster, err = app.ClusterREST(s.kubeconfig)
	return err
}

// podNamespace is that of the service account that this process runs as.
func podNamespace() string {
	// Where kubelet mounts it (k8s.io/client-go, rest.InClusterConfig).
	data, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if name := strings.TrimSpace(string(data)); err == nil && name != "" {
		return name
	}
	return access.SystemNamespace
}
