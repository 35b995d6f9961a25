// Package proxima_test polices the repository itself.
package proxima_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/proxima-mesh/proxima/"

// layer of a package. A package imports its own layer and those below it; adapters do
// not import each other. See docs/ARCHITECTURE.md.
type layer int

const (
	api layer = iota
	base
	catalog
	core
	adapter
	app
	command
)

var layers = map[string]layer{
	"api/":      api,
	"heuristic": api,
	"program":   command,
	"examples/": command,
	"cmd/":      command,
	"tools/":    command,
	"test/":     command,
	"bench/":    command,
	"deploy/":   base,

	// types, contracts and helpers that every layer uses
	"internal/addresspool":           base,
	"internal/atomicfile":            base,
	"internal/backoff":               base,
	"internal/blob":                  base,
	"internal/certpem":               base,
	"internal/dns/meshname":          base,
	"internal/docs":                  base,
	"internal/gateway/frame":         base,
	"internal/gateway/proxyproto":    base,
	"internal/gateway/record":        base,
	"internal/gateway/stream":        base,
	"internal/identity/catest":       base,
	"internal/identity/mesh":         base,
	"internal/kernel/cgroup":         base,
	"internal/kernel/conntracktest":  base,
	"internal/kernel/netns":          base,
	"internal/lab/relay":             base,
	"internal/listener":              base,
	"internal/locality":              base,
	"internal/reversecall":           base,
	"internal/machine":               base,
	"internal/payload":               base,
	"internal/planner/rule":          base,
	"internal/problem":               base,
	"internal/proxy":                 base,
	"internal/registry/rawgrpc":      base,
	"internal/release":               base,
	"internal/resource":              base,
	"internal/resource/cached":       base,
	"internal/resource/faulty":       base,
	"internal/resource/reflector":    base,
	"internal/resource/kind":         base,
	"internal/resource/memory":       base,
	"internal/resource/metered":      base,
	"internal/resource/traced":       base,
	"internal/resource/resourcetest": base,
	"internal/ratelimit":             base,
	"internal/recent":                base,
	"internal/scavenge":              base,
	"internal/secretfile":            base,
	"internal/servicetag":            base,
	"internal/sidecar/adstest":       base,
	"internal/sidecar/bootstrap":     base,
	"internal/sidecar/wire":          base,
	"internal/store":                 base,
	"internal/store/expiry":          base,
	"internal/store/faulty":          base,
	"internal/store/group":           base,
	"internal/store/metered":         base,
	"internal/store/outage":          base,
	"internal/store/position":        base,
	"internal/store/storetest":       base,
	"internal/store/watch":           base,
	"internal/tracing":               base,
	"internal/version":               base,
	"internal/wallclock":             base,

	// examples of objects
	"internal/resource/kind/kindtest": base,

	// the state, as tables
	"internal/catalog": catalog,

	// decisions, and controllers that act by the interfaces that they declare
	"internal/cluster":                  core,
	"internal/feed":                     core,
	"internal/feed/cursor":              core,
	"internal/feed/mirror":              core,
	"internal/feed/history":             core,
	"internal/feed/pulsar/claim":        core,
	"internal/feed/redact":              core,
	"internal/feed/seglog":              core,
	"internal/feed/sink":                core,
	"internal/cluster/clustertest":      core,
	"internal/controller/backend":       core,
	"internal/controller/changes":       core,
	"internal/controller/drain":         core,
	"internal/controller/endpoints":     core,
	"internal/controller/endpointslice": core,
	"internal/controller/event":         core,
	"internal/controller/external":      core,
	"internal/controller/garbage":       core,
	"internal/controller/gateway":       core,
	"internal/controller/health":        core,
	"internal/controller/ipam":          core,
	"internal/controller/loadbalancer":  core,
	"internal/controller/loop":          core,
	"internal/controller/mirroring":     core,
	"internal/controller/multicluster":  core,
	"internal/controller/namespace":     core,
	"internal/controller/nodename":      core,
	"internal/controller/policystatus":  core,
	"internal/controller/registered":    core,
	"internal/controller/sliceset":      core,
	"internal/controller/tagged":        core,
	"internal/controller/zoneshift":     core,
	"internal/controller/virtualip":     core,
	"internal/delta":                    core,
	"internal/demand":                   core,
	"internal/diag":                     core,
	"internal/diag/refusal":             core,
	"internal/dns/records":              core,
	"internal/federation":               core,
	"internal/feed/offload":             core,
	"internal/federation/local":         core,
	"internal/federation/observed":      core,
	"internal/federation/secrets":       core,
	"internal/identity/authorities":     core,
	"internal/identity/authority":       core,
	"internal/identity/rotation":        core,
	"internal/node":                     core,
	"internal/node/isolation":           core,
	"internal/plot":                     core,
	"internal/policy":                   core,
	"internal/registry":                 core,
	"internal/registry/registrytest":    core,
	"internal/registry/dubbo":           core,
	"internal/registry/znode":           core,
	"internal/xds/translate":            core,
	"internal/node/membership":          core,
	"internal/node/ranges":              core,
	"internal/planner":                  core,
	"internal/planner/auto":             core,
	"internal/planner/estimate":         core,
	"internal/planner/explain":          core,
	"internal/planner/hint":             core,
	"internal/proxy/choose":             core,
	"internal/proxy/kube":               core,
	"internal/kuma":                     core,
	"internal/sites":                    core,
	"internal/store/backup":             core,
	"internal/summary":                  core,
	"internal/topology":                 core,
	"internal/topology/ruleset":         core,
	"internal/topology/traffic":         core,
	"internal/topology/trafficplan":     core,
	"internal/view/viewtest":            core,
	"internal/view/wire":                core,
	"internal/xds/build":                core,

	// one technology each: a protocol, a database, a kernel interface, files
	"internal/admin":                    adapter,
	"internal/console":                  adapter,
	"internal/apiserver":                adapter,
	"internal/apiserver/kvstorage":      adapter,
	"internal/apiserver/openapi":        adapter,
	"internal/apiserver/quota":          adapter,
	"internal/audit":                    adapter,
	"internal/delta/stream":             adapter,
	"internal/demand/wire":              adapter,
	"internal/dns":                      adapter,
	"internal/dns/capture":              adapter,
	"internal/dns/direct":               adapter,
	"internal/dns/resolvconf":           adapter,
	"internal/federation/stream":        adapter,
	"internal/federation/zones":         adapter,
	"internal/gateway/egress":           adapter,
	"internal/gateway/external":         adapter,
	"internal/gateway/front":            adapter,
	"internal/gateway/gatewaytest":      adapter,
	"internal/gateway/hosts":            adapter,
	"internal/gateway/ingress":          adapter,
	"internal/gateway/outbound":         adapter,
	"internal/gateway/server":           adapter,
	"internal/gateway/site":             adapter,
	"internal/gateway/tunnel":           adapter,
	"internal/identity":                 adapter,
	"internal/identity/access":          adapter,
	"internal/identity/authority/files": adapter,
	"internal/identity/clusterkey":      adapter,
	"internal/identity/spiffe":          adapter,
	"internal/identity/credential":      adapter,
	"internal/identity/issue":           adapter,
	"internal/identity/sealed":          adapter,
	"internal/identity/workload":        adapter,
	"internal/kernel/conntrack":         adapter,
	"internal/kernel/nfnl":              adapter,
	"internal/kernel/sockdiag":          adapter,
	"internal/keyring":                  adapter,
	"internal/kubeclient":               adapter,
	"internal/kubeclient/lease":         adapter,
	"internal/kubeclient/remote":        adapter,
	"internal/kubernetes/extension":     adapter,
	"internal/node/cgroups":             adapter,
	"internal/node/podproxy":            adapter,
	"internal/node/fallback":            adapter,
	"internal/node/fromkube":            adapter,
	"internal/node/fromview":            adapter,
	"internal/node/healthcheck":         adapter,
	"internal/node/local":               adapter,
	"internal/proxy/account":            adapter,
	"internal/proxy/ebpf":               adapter,
	"internal/proxy/iptables":           adapter,
	"internal/proxy/ipvs":               adapter,
	"internal/proxy/nftables":           adapter,
	"internal/proxy/permit":             adapter,
	"internal/proxy/proxytest":          adapter,
	"internal/proxy/userspace":          adapter,
	"internal/feed/pulsar":              adapter,
	"internal/feed/pulsar/pulsartest":   adapter,
	"internal/feed/pulsar/wire":         base,
	"internal/feed/sink/pulsarsink":     adapter,
	"internal/registry/eureka":          adapter,
	"internal/registry/nacos":           adapter,
	"internal/registry/zookeeper":       adapter,
	"internal/sidecar/logsink":          adapter,
	"internal/sidecar/nameserver":       adapter,
	"internal/sidecar/redirect":         adapter,
	"internal/sidecar/relay":            adapter,
	"internal/sidecar/secret":           adapter,
	"internal/sidecar/supervise":        adapter,
	"internal/store/etcd":               adapter,
	"internal/store/memory":             adapter,
	"internal/store/secret":             adapter,
	"internal/store/postgres":           adapter,
	"internal/store/sqlite":             adapter,
	"internal/store/sqlite/faultdisk":   adapter,
	"internal/testkit":                  adapter,
	"internal/tracing/otlp":             adapter,
	"internal/testkit/envoytest":        adapter,
	"internal/testkit/netns":            adapter,
	"internal/view":                     adapter,
	"internal/witness":                  adapter,
	"internal/xds/insight":              adapter,
	"internal/xds/load":                 adapter,
	"internal/xds":                      adapter,
	"internal/workload":                 adapter,

	// wiring of roles
	"internal/app":          app,
	"internal/diag/doctor":  app,
	"internal/diag/finding": app,
	"internal/demo":         app,
	"internal/lab":          app,
	"internal/proxy/modes":  app,
	"internal/sidecar":      app,

	// what is installed
	"internal/kubernetes/inject":    core,
	"internal/kubernetes/manifests": core,

	// commands
	"internal/cli":          command,
	"internal/cli/describe": command,
	"internal/cli/manifest": command,

	"internal/proxy/kernelspace": adapter,
	// An interface, and its fake. The adapter in it is for Windows alone.
	"internal/proxy/kernelspace/hns":         base,
	"internal/proxy/kernelspace/hns/hnstest": base,

	"internal/registry/mirror":            core,
	"internal/registry/mirror/mirrortest": core,
}

// siblings lists the adapters that an adapter may import all the same.
var siblings = map[string][]string{
	// For tests.
	"internal/feed/pulsar/pulsartest": {"internal/feed/pulsar", "internal/store/memory"},
	// Messages are the same, whoever serves them.
	"internal/feed/sink/pulsarsink": {"internal/feed/pulsar"},
	// Answers are in the types of those who give them.
	"internal/admin": {
		"internal/audit", "internal/delta/stream", "internal/identity", "internal/identity/workload", "internal/node/fallback",
		"internal/node/fromkube",
		"internal/node/fromview", "internal/node/local", "internal/proxy/ebpf", "internal/proxy/ipvs", "internal/proxy/permit", "internal/view",
	},
	"internal/apiserver": {
		"internal/apiserver/kvstorage", "internal/apiserver/openapi", "internal/apiserver/quota",
		"internal/identity/access", // what is written, as the policy of writes sees it
	},
	// An egress has a client of tunnels. An ingress has none, so that nothing leaves for
	// another site from there.
	"internal/gateway/egress":   {"internal/gateway/external", "internal/gateway/front", "internal/gateway/server", "internal/gateway/tunnel"},
	"internal/gateway/ingress":  {"internal/gateway/server"},
	"internal/gateway/outbound": {"internal/gateway/external", "internal/gateway/hosts", "internal/gateway/tunnel"},
	"internal/gateway/site": {
		"internal/gateway/egress", "internal/gateway/external", "internal/gateway/ingress", "internal/gateway/outbound",
		"internal/gateway/server", "internal/gateway/tunnel",
	},
	"internal/gateway/gatewaytest": {"internal/gateway/server", "internal/gateway/tunnel"},
	"internal/federation/stream":   {"internal/delta/stream"},
	"internal/federation/zones":    {"internal/federation/stream"},
	"internal/identity/access":     {"internal/identity"},
	"internal/kubeclient/remote":   {"internal/kubeclient"},
	"internal/store/secret":        {"internal/store/memory"},
	"internal/node/fromview":       {"internal/delta/stream"},
	"internal/view":                {"internal/delta/stream"},
	"internal/xds":                 {"internal/delta/stream", "internal/xds/insight"},
	"internal/kernel/conntrack":    {"internal/kernel/nfnl"},
	"internal/dns/capture":         {"internal/kernel/conntrack", "internal/kernel/nfnl"},
	"internal/proxy/nftables":      {"internal/kernel/conntrack", "internal/kernel/nfnl"},
	"internal/proxy/account":       {"internal/kernel/conntrack"},
	"internal/proxy/ebpf":          {"internal/kernel/cgroup", "internal/kernel/netns"},
	"internal/proxy/permit":        {"internal/kernel/nfnl"},
	// The table in front of it.
	"internal/proxy/ipvs":       {"internal/proxy/nftables"},
	"internal/sidecar/redirect": {"internal/kernel/nfnl"},
	"internal/node/podproxy":    {"internal/sidecar/redirect"},
	// iptables-nft keeps its rules in nf_tables, which nfnl reads.
	"internal/proxy/iptables": {"internal/kernel/conntrack", "internal/kernel/nfnl"},
	// The kernel suite makes its network with the test kit, and counts bytes as the agent does.
	"internal/testkit/envoytest": {"internal/testkit"},
	"internal/proxy/proxytest":   {"internal/kernel/conntrack", "internal/proxy/account", "internal/testkit/netns"},
}

// onlyImporters names heavy or peculiar libraries and the packages that may
// import them.
var onlyImporters = map[string][]string{
	"k8s.io/apiserver/pkg/server":   {"internal/apiserver"},
	"k8s.io/apiserver/pkg/registry": {"internal/apiserver"},
	"k8s.io/apiserver/pkg/storage":  {"internal/apiserver", "internal/keyring"},
	"modernc.org/sqlite":            {"internal/store/sqlite"},

	"charm.land/bubbletea":               {"internal/cli"},
	"github.com/charmbracelet":           {"internal/cli"},
	"github.com/Microsoft/hnslib":        {"internal/proxy/kernelspace/hns"},
	"github.com/apache/pulsar-client-go": {"internal/feed/sink/pulsarsink"},
	"github.com/cilium/ebpf":             {"internal/proxy/ebpf"},
	"github.com/jackc/pgx":               {"internal/store/postgres"},
	"github.com/minio/minio-go":          {"internal/blob"},
	"github.com/yuin/goldmark":           {"internal/docs"},
	"go.etcd.io/etcd":                    {"internal/store/etcd"},
	"go.opentelemetry.io/otel":           {"internal/tracing/otlp"},
	"go.opentelemetry.io/proto/otlp":     {"internal/tracing/otlp", "internal/xds/translate", "test/e2e"},
	"github.com/spf13/cobra":             {"internal/cli"},
	"github.com/google/cel-go":           {"internal/planner/rule"},
	"github.com/vishvananda/netlink": {
		"internal/kernel", "internal/proxy", "internal/testkit",
		"bench/accounting", // as the peer
	},
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func TestImportDirection(t *testing.T) {
	for _, p := range listPackages(t) {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours {
			continue // this test
		}
		own, ok := layerOf(name)
		if !ok {
			t.Errorf("%s has no layer: add it to the table, and to docs/ARCHITECTURE.md", name)
			continue
		}
		for _, path := range p.Imports {
			imported, ours := strings.CutPrefix(path, module)
			if !ours {
				checkLibrary(t, name, path)
				continue
			}
			theirs, _ := layerOf(imported)
			switch {
			case theirs > own:
				t.Errorf("%s imports %s: dependencies point from cmd to app to adapters to core to catalog to api", name, imported)
			case own == adapter && theirs == adapter && !slices.Contains(siblings[name], imported):
				t.Errorf("%s imports %s: adapters never import each other, app wires them", name, imported)
			}
		}
	}
}

func checkLibrary(t *testing.T, name, path string) {
	t.Helper()
	for library, rooms := range onlyImporters {
		if path != library && !strings.HasPrefix(path, library+"/") {
			continue
		}
		if !slices.ContainsFunc(rooms, func(r string) bool { return name == r || strings.HasPrefix(name, r+"/") }) {
			t.Errorf("%s imports %s: only %v may", name, path, rooms)
		}
	}
}

// TestEveryPackageIsOnTheMap: docs/ARCHITECTURE.md has a room for each package. The
// first cell of a row names paths; "…/x" is below the first of them, and a path with
// "…" or "/" at its end, or in a cell with "and below", stands for all below it.
func TestEveryPackageIsOnTheMap(t *testing.T) {
	doc, err := os.ReadFile("docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	exact, below := map[string]bool{}, []string{}
	for line := range strings.SplitSeq(string(doc), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || !strings.Contains(cells[1], "`") {
			continue
		}
		first := ""
		for i, path := range strings.Split(cells[1], "`") {
			if i%2 == 0 {
				continue // between two paths
			}
			if name, ok := strings.CutPrefix(path, "…/"); ok {
				path = first + "/" + name
			} else if first == "" {
				first = path
			}
			open := strings.TrimSuffix(strings.TrimSuffix(path, "…"), "/")
			exact[open] = true
			if open != path || strings.Contains(cells[1], "and below") {
				below = append(below, open+"/")
			}
		}
	}
	for _, p := range listPackages(t) {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if ours && !exact[name] && !slices.ContainsFunc(below, func(b string) bool { return strings.HasPrefix(name, b) }) {
			t.Errorf("%s has no room in docs/ARCHITECTURE.md", name)
		}
	}
}

func layerOf(name string) (layer, bool) {
	if l, ok := layers[name]; ok {
		return l, true
	}
	top, _, _ := strings.Cut(name, "/")
	l, ok := layers[top+"/"]
	return l, ok
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []goPackage
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
