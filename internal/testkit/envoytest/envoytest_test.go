package envoytest_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

const direct = `
admin: {address: {pipe: {path: %q}}}
static_resources:
  listeners:
  - name: hello
    address: {socket_address: {address: 127.0.0.1, port_value: %d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: hello
          route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: "/"}, direct_response: {status: 200, body: {inline_string: hello}}}]}]}
          http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
`

// TestRealEnvoy: the Envoy that tests get is a real one, which serves and says what it did.
func TestRealEnvoy(t *testing.T) {
	dir := envoytest.Dir(t)
	port := testkit.FreePort(t)
	proxy := envoytest.Start(t, dir, fmt.Sprintf(direct, envoytest.AdminSocket(dir), port))
	proxy.WaitReady()
	response, err := http.Get("http://" + net.JoinHostPort("127.0.0.1", fmt.Sprint(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); string(body) != "hello" {
		t.Fatalf("the answer is %q", body)
	}
	proxy.Await("one request counted", func() bool {
		return proxy.Stats("http.hello.downstream_rq_completed")["http.hello.downstream_rq_completed"] == 1
	})
	if _, info, err := proxy.Admin(http.MethodGet, "/server_info"); err != nil || !strings.Contains(info, "/"+envoytest.Newest+"/") {
		t.Fatalf("not the version that tests are to run (%v): %s", err, info)
	}
}

// TestValidate: a mistake is found, and named.
func TestValidate(t *testing.T) {
	good := fmt.Sprintf(direct, "/tmp/unused.sock", 10000)
	if err := envoytest.Validate(t, good); err != nil {
		t.Fatal(err)
	}
	err := envoytest.Validate(t, strings.ReplaceAll(good, "stat_prefix: hello", "stat_prefix: ''"))
	if err == nil || !strings.Contains(err.Error(), "StatPrefix") {
		t.Fatalf("an empty stat_prefix passed, or was not named: %v", err)
	}
}
