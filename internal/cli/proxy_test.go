package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
)

// table compares a table, of which the number of spaces does not matter.
func table(t *testing.T, got, want string) {
	t.Helper()
	squeeze := func(s string) string {
		var lines []string
		for line := range strings.Lines(s) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return strings.TrimSpace(strings.Join(lines, "\n"))
	}
	if g, w := squeeze(got), squeeze(want); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

func TestProxyRows(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	insight := func(name string, edit func(*v1alpha1.DataplaneInsight)) v1alpha1.DataplaneInsight {
		i := v1alpha1.DataplaneInsight{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		i.Status.Online = true
		i.Status.Versions = &v1alpha1.ProxyVersions{Proxy: "envoy", Version: "1.40.0", Supervisor: "v1.2.0"}
		i.Status.Certificate = &v1alpha1.CertificateInsight{Expiry: metav1.NewTime(now.Add(20 * time.Hour))}
		i.Status.Subscriptions = []v1alpha1.Subscription{{Instance: "cp-1", ConnectTime: metav1.NewMicroTime(now.Add(-3 * time.Hour)), Resources: []v1alpha1.ResourceSync{
			{Type: "Cluster", Sent: 3, Acknowledged: 2, Rejected: 1}, {Type: "Listener", Sent: 1, Acknowledged: 1},
		}}}
		edit(&i)
		return i
	}
	versions := map[string]string{"": "v1.2.0", "east": "v1.3.0"}
	var rows []proxyRow
	for _, i := range []v1alpha1.DataplaneInsight{
		insight("a", func(*v1alpha1.DataplaneInsight) {}),
		insight("b", func(i *v1alpha1.DataplaneInsight) { i.Status.Subscriptions[0].Resources[1].Sent = 2 }),
		insight("c", func(i *v1alpha1.DataplaneInsight) {
			end := metav1.NewMicroTime(now.Add(-time.Minute))
			i.Status.Online, i.Status.Subscriptions[0].DisconnectTime = false, &end
			i.Status.Certificate.Expiry = metav1.NewTime(now.Add(-time.Hour))
		}),
		insight("d", func(i *v1alpha1.DataplaneInsight) {
			i.Labels = map[string]string{v1alpha1.LabelOrigin: v1alpha1.OriginZone, v1alpha1.LabelZone: "east"}
			i.Status.Rejected = []v1alpha1.RejectedResource{{Type: "Cluster", Name: "x"}}
		}),
		{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e"}},
	} {
		rows = append(rows, rowOf(&i.ObjectMeta, "", &i.Status, versions))
	}
	var out strings.Builder
	if err := printProxyRows(&out, rows, true, true, now); err != nil {
		t.Fatal(err)
	}
	table(t, out.String(), `
NAMESPACE NAME ZONE CONNECTED CONFIG VERSION SUPERVISOR CERTIFICATE PROGRAM INSTANCE
shop a <none> for 3h accepted 1.40.0 v1.2.0 for 20h envoy cp-1
shop b <none> for 3h behind: Listener 1.40.0 v1.2.0 for 20h envoy cp-1
shop c <none> no, since 60s as it was 1.40.0 v1.2.0 expired 60m ago envoy cp-1
shop d east for 3h 1 rejected 1.40.0 v1.2.0 (restart needed) for 20h envoy cp-1
shop e <none> never as it was <none> <none> <none> <none> <none>`)

	// Gateways have a role, and are named as other commands want them.
	gateway := rows[0]
	own := v1alpha1.ClientInsightStatus{Online: true, Versions: &v1alpha1.ProxyVersions{Proxy: "proxima", Version: "v1.1.0"}}
	rows = []proxyRow{gateway, rowOf(&metav1.ObjectMeta{Name: "in-1"}, "ingress", &own, versions)}
	out.Reset()
	if err := printProxyRows(&out, rows, false, false, now); err != nil {
		t.Fatal(err)
	}
	table(t, out.String(), `
NAME ROLE CONNECTED CONFIG VERSION SUPERVISOR CERTIFICATE
a <none> for 3h accepted 1.40.0 v1.2.0 for 20h
*/in-1 ingress never accepted v1.1.0 (restart needed) <none>`)
}

// TestEnvoyAnswers: tables of what Envoy answers, in the form of its admin interface.
func TestEnvoyAnswers(t *testing.T) {
	var out strings.Builder
	err := decoded(json.RawMessage(`{"configs": [
	{"@type": "x.ClustersConfigDump", "version_info": "1", "static_clusters": [{"cluster": {"name": "xds"}, "last_updated": "2026-11-26T11:00:00Z"}],
	 "dynamic_warming_clusters": [{"version_info": "aaaaaaaaaaaaaaaa", "cluster": {"name": "shop/api:80"}}]},
	{"@type": "x.EndpointsConfigDump", "dynamic_endpoint_configs": [{"version_info": "b", "endpoint_config": {"cluster_name": "shop/api:80"}}]},
	{"@type": "x.ListenersConfigDump", "dynamic_listeners": [
	 {"name": "out|10.96.0.1:80", "active_state": {"version_info": "c", "listener": {"name": "out|10.96.0.1:80"}, "last_updated": "2026-11-26T11:00:01Z"}},
	 {"name": "bad", "error_state": {"details": "no\nsuch filter"}}]},
	{"@type": "x.SecretsConfigDump", "dynamic_active_secrets": [{"name": "identity", "secret": {"name": "identity"}}]}]}`),
		func(d *envoyDump) error { return printEnvoyDump(&out, d) })
	if err != nil {
		t.Fatal(err)
	}
	table(t, out.String(), `
TYPE NAME VERSION UPDATED STATE
Cluster shop/api:80 aaaaaaaaaaaa <none> warming
Cluster xds <none> 2026-11-26T11:00:00Z static
Endpoints shop/api:80 b <none> active
Listener bad <none> <none> rejected: no such filter
Listener out|10.96.0.1:80 c 2026-11-26T11:00:01Z active
Secret identity <none> <none> active`)

	out.Reset()
	err = decoded(json.RawMessage(`{"cluster_statuses": [{"name": "web"}, {"name": "api", "host_statuses": [
	 {"address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}}, "stats": [{"name": "cx_active", "value": "2"}, {"name": "rq_total", "value": "9"}, {"name": "rq_error"}],
	  "health_status": {"eds_health_status": "HEALTHY"}, "weight": 3, "locality": {"zone": "a"}},
	 {"address": {"socket_address": {"address": "fd00::1", "port_value": 80}}, "health_status": {"eds_health_status": "DEGRADED", "failed_outlier_check": true}, "weight": 1, "priority": 1}]}]}`),
		func(c *envoyClusters) error { return printEnvoyClusters(&out, c) })
	if err != nil {
		t.Fatal(err)
	}
	table(t, out.String(), `
CLUSTER ENDPOINT ZONE PRIORITY WEIGHT HEALTH CONNECTIONS REQUESTS ERRORS
api 10.0.0.1:80 a 0 3 healthy 2 9 0
api [fd00::1]:80 <none> 1 1 degraded, failed outlier check 0 0 0
web <none>`)
}

func TestProxyDifference(t *testing.T) {
	d := &admin.ProxyDifference{Dataplane: "shop/web-1", Resources: []admin.ProxyComparison{{Type: "Cluster", Name: "a", Sent: "1", Held: "1", State: admin.ProxySame}}}
	var out strings.Builder
	if err := printDifference(&out, d, false); err != nil || out.String() != "shop/web-1 holds all 1 resources as they were sent.\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	d.Resources = append(d.Resources, admin.ProxyComparison{Type: "Listener", Name: "b", Sent: "2", State: admin.ProxyRejected, Reason: "no\nway"})
	for all, want := range map[bool]string{
		false: "TYPE NAME SENT HELD STATE\nListener b 2 <none> rejected: no way\n1 others are the same (-o wide lists them).",
		true:  "TYPE NAME SENT HELD STATE\nCluster a 1 1 same\nListener b 2 <none> rejected: no way",
	} {
		out.Reset()
		if err := printDifference(&out, d, all); err != nil {
			t.Fatal(err)
		}
		table(t, out.String(), want)
	}
}

func TestProxyState(t *testing.T) {
	state := &admin.ProxyState{
		Dataplane: "shop/web-1", Mesh: "default", Zone: "east", Instance: "cp-1", ControlPlane: "v1.3.0", Kind: "sidecar", Program: "envoy", Version: "1.40.0",
		Supervisor: "v1.2.0", Peer: "10.0.0.1:5", Since: time.Now().Add(-time.Hour),
		Types: []admin.ProxyType{{Type: "Cluster", Resources: 2, Sent: 3, Acknowledged: 2, Rejected: 1}},
		Own:   json.RawMessage(`{"ready":"true","envoy":{"pid":7,"restarts":1},"problem":"no agent"}`),
	}
	var out strings.Builder
	if err := printProxyState(&out, state); err != nil {
		t.Fatal(err)
	}
	table(t, out.String(), `
Dataplane: shop/web-1 (mesh default, zone east)
Proxy: envoy 1.40.0 (sidecar)
Connected: to cp-1 from 10.0.0.1:5, for 60m
Supervisor: v1.2.0: older than the control plane (v1.3.0); start the workload again
Ready: yes
Envoy: process 7, started again 1 times
Renewal: fails: no agent

TYPE RESOURCES SENT ACCEPTED REJECTED UNANSWERED
Cluster 2 3 2 1 0`)
	for who, want := range map[string]string{"a/b": admin.ProxyStatusPath + "?name=b&namespace=a", "/b": "", "a/": "", "a/b/c": ""} {
		if got, err := new(settings).dataplanePath(admin.ProxyStatusPath, "", who); got != want || (want == "") != (err != nil) {
			t.Errorf("%q: %q, %v; want %q", who, got, err, want)
		}
	}
}
