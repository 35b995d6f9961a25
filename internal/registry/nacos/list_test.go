package nacos

import (
	"slices"
	"testing"

	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
)

// TestListForms: what is kept of a list is that of its form, and of the newest change.
func TestListForms(t *testing.T) {
	p := registrytest.New(t)
	address := p.Serve(New(p.Core).Serve)
	register := func(c *client, cluster, ip string, healthy bool) {
		t.Helper()
		got := c.ask("InstanceRequest", map[string]any{
			"namespace": "public", "serviceName": "orders", "groupName": "DEFAULT_GROUP", "type": "registerInstance",
			"instance": map[string]any{"ip": ip, "port": 80, "clusterName": cluster, "healthy": healthy, "ephemeral": true},
		})
		if got["success"] != true {
			t.Fatalf("register: %v", got)
		}
	}
	a, b := connect(t, address), connect(t, address)
	a.setUp()
	b.setUp()
	register(a, "east", "10.0.0.1", true)
	register(b, "west", "10.0.0.2", false)
	list := func(cluster string, healthyOnly bool) (ips []string) {
		got := a.ask("ServiceQueryRequest", map[string]any{
			"requestId": "7", "namespace": "public", "serviceName": "orders", "groupName": "DEFAULT_GROUP", "cluster": cluster, "healthyOnly": healthyOnly,
		})
		if got["requestId"] != "7" || got["type"] != "QueryServiceResponse" {
			t.Fatalf("answer %v", got)
		}
		for _, host := range got["serviceInfo"].(map[string]any)["hosts"].([]any) {
			ips = append(ips, host.(map[string]any)["ip"].(string))
		}
		return ips
	}
	p.Eventually("both are listed", func() bool { return len(list("", false)) == 2 })
	for range 2 { // the second time from what is kept
		for _, test := range []struct {
			cluster     string
			healthyOnly bool
			want        []string
		}{{"", false, []string{"10.0.0.1", "10.0.0.2"}}, {"east", false, []string{"10.0.0.1"}}, {"west", false, []string{"10.0.0.2"}}, {"", true, []string{"10.0.0.1"}}} {
			if got := list(test.cluster, test.healthyOnly); !slices.Equal(got, test.want) {
				t.Errorf("cluster %q, healthy only %v: %v, want %v", test.cluster, test.healthyOnly, got, test.want)
			}
		}
	}
	register(b, "west", "10.0.0.2", true)
	p.Eventually("the newest state is listed", func() bool { return len(list("", true)) == 2 })
}
