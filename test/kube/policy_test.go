package kube_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// gatewayAPI installs the definitions of the Gateway API that this module builds with. A cluster has
// them from whoever runs it, not from the chart.
func (b *bench) gatewayAPI() {
	b.t.Helper()
	out, err := exec.CommandContext(b.t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, name := range []string{"httproutes", "grpcroutes", "tcproutes", "referencegrants"} {
		path := filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "standard", "gateway.networking.k8s.io_"+name+".yaml")
		b.kubectl("", "apply", "--server-side", "-f", path)
		b.kubectl("", "wait", "--for=condition=Established", "--timeout=60s", "crd/"+name+".gateway.networking.k8s.io")
	}
}

// trafficPolicies of global: one of each kind, by resource and name.
func trafficPolicies() [][2]string {
	return [][2]string{
		{"trafficpermissions", "common"}, {"backendpolicies", "common"}, {"workloadpolicies", "common"}, {"proxypatches", "common"},
		{"httproutes", "common"}, {"grpcroutes", "common"}, {"tcproutes", "common"}, {"referencegrants", "common"},
	}
}

// trafficObjects are they, with a note, and a route of a Gateway, which stays where it is.
func trafficObjects(note string) string {
	of := func(group, kind, spec string) string {
		return fmt.Sprintf("---\napiVersion: %s\nkind: %s\nmetadata: {name: common, namespace: shop, annotations: {note: %s}}\nspec: %s\n", group, kind, note, spec)
	}
	const ours, theirs = "mesh.proxima.dev/v1alpha1", "gateway.networking.k8s.io/v1"
	const parent = `parentRefs: [{group: "", kind: Service, name: from-east, port: 80}]`
	return of(ours, "TrafficPermission", "{selector: {matchLabels: {app: web}}, allow: [{from: [{namespaces: [shop]}]}]}") +
		of(ours, "BackendPolicy", "{targetRefs: [{kind: Service, name: from-east}], timeout: {connect: 2s}}") +
		of(ours, "WorkloadPolicy", "{selector: {matchLabels: {app: web}}, limits: {connections: 1000}}") +
		of(ours, "ProxyPatch", "{selector: {matchLabels: {app: web}}, patches: [{type: NetworkFilter, match: {name: x}, op: Remove}]}") +
		of(theirs, "HTTPRoute", "{"+parent+", rules: [{backendRefs: [{name: from-east, port: 80}]}]}") +
		of(theirs, "GRPCRoute", "{"+parent+", rules: [{backendRefs: [{name: from-east, port: 80}]}]}") +
		of(theirs, "TCPRoute", "{"+parent+", rules: [{backendRefs: [{name: from-east, port: 80}]}]}") +
		of(theirs, "ReferenceGrant", `{from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: web}], to: [{group: "", kind: Service}]}`) +
		fmt.Sprintf("---\napiVersion: %s\nkind: HTTPRoute\nmetadata: {name: door, namespace: shop}\nspec: {parentRefs: [{name: door}]}\n", theirs)
}

// routeRefusals: of the kinds of the Gateway API the webhook is asked about copies alone.
func (g *globalCluster) routeRefusals() {
	g.t.Helper()
	const route = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: forged, namespace: shop%s}\nspec: {parentRefs: [{name: door}]}\n"
	g.kubectl(fmt.Sprintf(route, ""), "create", "-f", "-")
	g.kubectl("", "--namespace", "shop", "delete", "httproute", "forged")
	_, err := g.run(fmt.Sprintf(route, ", labels: {mesh.proxima.dev/origin: zone, mesh.proxima.dev/zone: west}"), testkit.Kubectl(g.t), "create", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), "are set by control planes: leave them out") {
		g.t.Errorf("a route with the labels of a copy: %v", err)
	}
}
