package kube_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	_ "k8s.io/kubernetes/pkg/features" // registers its gates
)

// Gates of Kubernetes that concern what Proxima does, by their names.
var (
	concerns = regexp.MustCompile(`Service|Endpoint|KubeProxy|NFTables|IPTables|IPVS|WinDSR|WinOverlay|Topology|LoadBalancer|NodePort|TrafficDistribution|MultiCIDR|AllocatorDualWrite|IPCIDR|HostnameOverride|ExternalIPs`)
	others   = regexp.MustCompile(`ServiceAccount|AllocatedPodsEndpoint`)
)

// TestGates finds each feature gate of Services on the page that says what it is here.
func TestGates(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/upstream.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for gate := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		if name := string(gate); concerns.MatchString(name) && !others.MatchString(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) < 15 {
		t.Fatalf("only %d gates: %v", len(names), names)
	}
	for _, name := range names {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/reference/upstream.md lacks the gate %s", name)
		}
	}
}
