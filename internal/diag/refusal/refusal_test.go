package refusal

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const statistics = `# TYPE envoy_permission_deny_rbac_denied counter
envoy_permission_deny_rbac_denied{} 2
envoy_permission_allow_rbac_allowed{} 9
envoy_permission_deny_rbac_shadow_denied{} 5
envoy_http_rbac_denied{envoy_rbac_http_prefix="permission_allow",envoy_http_conn_manager_prefix="in"} 3
envoy_http_rbac_shadow_denied{envoy_rbac_http_prefix="permission_allow",envoy_http_conn_manager_prefix="in"} 8
envoy_http_rbac_denied{envoy_rbac_http_prefix="other",envoy_http_conn_manager_prefix="in"} 8
envoy_listener_ssl_connection_error{envoy_listener_address="10.0.0.1_8080"} 4
envoy_listener_ssl_fail_verify_no_cert{envoy_listener_address="10.0.0.1_8080"} 1
envoy_listener_ssl_connection_error{envoy_listener_address="[fd00__1]_9090"} 1
envoy_listener_ssl_connection_error{envoy_listener_address="admin"} 1
envoy_cluster_upstream_cx_none_healthy{envoy_cluster_name="blackhole"} 6
envoy_cluster_upstream_cx_none_healthy{envoy_cluster_name="shop/api:80"} 7
envoy_listener_ssl_connection_error{envoy_listener_address="10.0.0.1_7070"} NaN
not a sample
`

// TestRead: each cause is counted, with the port where it is known, and what refuses nothing is not.
func TestRead(t *testing.T) {
	got := Read([]byte(statistics), []byte(`{"refused": {"8080": 2, "9090": 0}}`))
	want := []Count{{Bypass, 8080, 2}, {Outside, 0, 6}, {Permission, 0, 5}, {Plain, 8080, 5}, {Plain, 9090, 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := Read(nil, []byte("no JSON")); got != nil {
		t.Errorf("of nothing: %v", got)
	}
}

// TestSince: what is new counts, and all of it after a restart.
func TestSince(t *testing.T) {
	before := []Count{{Permission, 0, 5}, {Plain, 80, 3}, {Bypass, 80, 9}}
	now := []Count{{Permission, 0, 5}, {Plain, 80, 4}, {Bypass, 80, 2}, {Outside, 0, 1}}
	want := []Count{{Plain, 80, 1}, {Bypass, 80, 2}, {Outside, 0, 1}}
	if diff := cmp.Diff(want, Since(before, now)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(statistics), []byte(`{"refused": {"80": 1}}`))
	f.Add([]byte("envoy_listener_ssl_connection_error{envoy_listener_address=\"_\"} 1"), []byte(`{"refused": null}`))
	f.Fuzz(func(t *testing.T, statistics, state []byte) {
		all := Read(statistics, state)
		for _, c := range all {
			if c.Count == 0 {
				t.Errorf("%+v", c)
			}
		}
		if since := Since(all, all); len(since) > 0 {
			t.Errorf("since itself: %v", since)
		}
	})
}
