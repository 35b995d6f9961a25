package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// elsewhere are metrics of alerts that a standalone control plane and an agent in the mode
// userspace do not have, and who has them.
var elsewhere = map[string]string{
	"proxima_nftables_repairs_total": "the mode nftables",
	"proxima_iptables_repairs_total": "the mode iptables",
	"proxima_global_connected":       "the control plane of a zone",
	"proxima_global_held_deletions":  "the control plane of a zone",
	"proxima_zone_held_deletions":    "a global control plane",
	"proxima_cluster_vacant":         "a control plane of several instances",
	"proxima_mesh_certificates":      "an agent with workloads of a mesh with mTLS",
}

// TestAlertsSeeSeries: each metric of the alerts is served with the labels, and values of labels,
// that they select by: an alert that selects nothing never fires.
func TestAlertsSeeSeries(t *testing.T) {
	p := startPlane(t)
	n := p.startNode("n1", "zone-a")
	p.startNode("n2", "zone-b")
	p.apply(webService)
	p.startBackendOn("web-1", "n1")
	p.startBackendOn("web-2", "n2")
	awaitAnswers(t, p.vip("web"), "web-1", "web-2")
	if _, err := n.lookup("web.default.svc.cluster.local."); err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	text, err := os.ReadFile(filepath.Join(testkit.Root(t), "deploy", "prometheus", "alerts.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(p.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	for _, r := range rules.Groups[0].Rules {
		for _, s := range testkit.Selectors(t, r.Expr) {
			if elsewhere[s.Metric] != "" {
				continue
			}
			testkit.Eventually(t, r.Alert+": a series of "+s.Metric, func() bool {
				return selects(scrape(t, client, p.config().Host+"/metrics"), s) || selects(scrape(t, http.DefaultClient, n.metricsURL()), s)
			})
		}
	}
}

var seriesLine = regexp.MustCompile(`^([\w:]+)(?:\{(.*)\})? \S+$`)

// selects reports whether one of the series that were scraped is what a selector wants.
func selects(scraped string, s testkit.Selector) bool {
	label := regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
	for line := range strings.Lines(scraped) {
		found := seriesLine.FindStringSubmatch(strings.TrimSpace(line))
		if found == nil || found[1] != s.Metric {
			continue
		}
		labels := map[string]string{}
		for _, l := range label.FindAllStringSubmatch(found[2], -1) {
			labels[l[1]] = l[2]
		}
		if s.Matches(labels) {
			return true
		}
	}
	return false
}
