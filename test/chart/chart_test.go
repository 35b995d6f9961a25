package chart_test

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
)

const folder = "../../deploy/helm/proxima"

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// cases are values, as YAML, that between them reach every branch of the templates.
var cases = map[string]string{
	"defaults":               ``,
	"planner-only":           `{preset: planner-only, createNamespace: true, controlPlane: {replicas: 2, topologyMode: Disabled}}`,
	"kube-proxy-replacement": `{preset: kube-proxy-replacement, apiServer: "https://192.0.2.1:6443"}`,
	"zone": `
preset: zone
apiServer: "https://192.0.2.1:6443"
createNamespace: true
zone: {name: east, global: "192.0.2.2:6444", tokenSecret: other}
crds: {multicluster: false, keep: false}`,
	"gateways": `
preset: zone
apiServer: "https://192.0.2.1:6443"
zone: {name: east, global: "192.0.2.2:6444"}
sidecar: {enabled: true, envoyImage: registry.example/envoy@sha256:1}
ingress: {engine: envoy}
egress: {engine: envoy, replicas: 1, resources: {}}`,
	"global":         `{preset: global, crds: {install: false}}`,
	"one instance":   `{preset: global, controlPlane: {replicas: 1}}`,
	"no webhook":     `{preset: kube-proxy-replacement, apiServer: "https://192.0.2.1:6443", webhook: {enabled: false}}`,
	"everything set": everything,
	"ipvs":           `{preset: kube-proxy-replacement, apiServer: "https://192.0.2.1:6443", agent: {mode: ipvs}}`,
	"ebpf":           `{preset: kube-proxy-replacement, apiServer: "https://192.0.2.1:6443", agent: {mode: ebpf, cgroupDir: /sys/fs/cgroup/unified}, sidecar: {enabled: true, envoyImage: registry.example/envoy@sha256:1}}`,
}

const everything = `
preset: kube-proxy-replacement
apiServer: "https://[2001:db8::1]:6443"
image: {repository: registry.example/p, tag: v9, pullPolicy: Always, pullSecrets: [one, two]}
controlPlane:
  replicas: 5
  logLevel: debug
  extraArgs: [--audit-log=none, "--quoted=a \"b\" c"]
  resources: {requests: {cpu: 1, memory: 2Gi}, limits: {memory: 3Gi}}
  nodeSelector: {a: b, c: d}
  tolerations: [{key: a, operator: Exists, effect: NoSchedule}, {key: b, value: c}]
  priorityClassName: mine
  service: {type: LoadBalancer, annotations: {example.com/a: "true"}}
agent:
  server: 192.0.2.7:6443
  mode: nftables
  directAfter: 1m30s
  workloadCIDRs: [10.244.0.0/16, "fd00:10::/56"]
  logLevel: warn
  host: 127.0.0.1
  extraArgs: [--accounting=off]
  resources: {}
  nodeSelector: {}
  stateDir: /srv/proxima
aggregatedAPI: {enabled: true}
`

func values(t *testing.T, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// byHelm renders the chart with Helm, by kind and name.
func byHelm(t *testing.T, text string) (map[string]any, error) {
	t.Helper()
	c := load(t)
	v, err := chartutil.ToRenderValues(c, values(t, text),
		chartutil.ReleaseOptions{Name: "proxima", Namespace: manifests.Namespace, IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, v)
	if err != nil {
		return nil, err
	}
	var stream strings.Builder
	for name, text := range files {
		if path.Ext(name) == ".yaml" {
			stream.WriteString("\n---\n" + text)
		}
	}
	return objects(t, stream.String()), nil
}

func byUs(t *testing.T, text string) (map[string]any, error) {
	t.Helper()
	all, err := manifests.Render(manifests.Options{Values: []byte(text), Service: "Helm", AppVersion: load(t).Metadata.AppVersion})
	if err != nil {
		return nil, err
	}
	return objects(t, manifests.Join(all)), nil
}

func objects(t *testing.T, stream string) map[string]any {
	t.Helper()
	out := map[string]any{}
	for doc := range strings.SplitSeq("\n"+stream, "\n---\n") {
		obj := values(t, doc)
		if len(obj) == 0 {
			continue
		}
		meta := obj["metadata"].(map[string]any)
		namespace, _ := meta["namespace"].(string)
		key := obj["kind"].(string) + " " + namespace + "/" + meta["name"].(string)
		if _, twice := out[key]; twice {
			t.Errorf("%s is there twice", key)
		}
		out[key] = obj
	}
	return out
}

// TestSameAsHelm: both make the same of the same values.
func TestSameAsHelm(t *testing.T) {
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			want, err := byHelm(t, text)
			if err != nil {
				t.Fatal(err)
			}
			got, err := byUs(t, text)
			if err != nil {
				t.Fatal(err)
			}
			if len(want) < 4 {
				t.Fatalf("Helm renders %d objects", len(want))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("objects (-Helm +proxima install kubernetes):\n%s", diff)
			}
		})
	}
}

// TestLayerMounts: with mode ebpf the agent has the node's cgroups, its bpffs and the capabilities for programs,
// and in other modes it has none of them.
func TestLayerMounts(t *testing.T) {
	for _, name := range []string{"ebpf", "kube-proxy-replacement"} {
		all, err := byHelm(t, cases[name])
		if err != nil {
			t.Fatal(err)
		}
		agent, ok := all["DaemonSet "+manifests.Namespace+"/proxima-agent"]
		if !ok {
			t.Fatalf("%s: no agent among %v", name, slices.Sorted(maps.Keys(all)))
		}
		text, err := yaml.Marshal(agent)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"--cgroup=/run/cgroup", "mountPath: /run/cgroup", "mountPath: /sys/fs/bpf", "path: /sys/fs/cgroup/unified", "- BPF", "- PERFMON"} {
			if got, want := strings.Contains(string(text), part), name == "ebpf"; got != want {
				t.Errorf("%s: %q is there: %v, want %v", name, part, got, want)
			}
		}
	}
}

// TestSameMistakes: what one refuses the other refuses.
func TestSameMistakes(t *testing.T) {
	for name, text := range map[string]string{
		"preset":        `{preset: everything}`,
		"unknown value": `{controlPlane: {replica: 2}}`,
		"type":          `{controlPlane: {replicas: two}}`,
		"form":          `{agent: {directAfter: soon}}`,
		"no API server": `{preset: kube-proxy-replacement}`,
		"no zone":       `{preset: zone, apiServer: "https://a"}`,
		"no global":     `{preset: zone, apiServer: "https://a", zone: {name: a}}`,
		"no xDS":        `{preset: zone, apiServer: "https://a", zone: {name: a, global: b}, egress: {engine: envoy}}`,
		"engine":        `{preset: zone, apiServer: "https://a", zone: {name: a, global: b}, ingress: {engine: nginx}}`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := byHelm(t, text); err == nil {
				t.Error("Helm accepts it")
			}
			if _, err := byUs(t, text); err == nil {
				t.Error("proxima install kubernetes accepts it")
			}
		})
	}
}

// TestLint: Helm's linter has nothing to say but that a chart could have an icon.
func TestLint(t *testing.T) {
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			for _, m := range lint.All(folder, values(t, text), manifests.Namespace, true).Messages {
				if m.Severity == support.InfoSev && strings.Contains(m.Err.Error(), "icon") {
					continue
				}
				t.Error(m)
			}
		})
	}
}
