package nacos

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// checkRig is a server whose checks run when the test says so.
type checkRig struct {
	*registrytest.Plane
	t      *testing.T
	server *Server
	checks *checks
}

func newCheckRig(t *testing.T) *checkRig {
	p := registrytest.New(t)
	s := New(p.Core)
	return &checkRig{p, t, s, newChecks(s)}
}

// put a form to the server, and return the status.
func (r *checkRig) put(method, path string, pairs ...string) int {
	r.t.Helper()
	form := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	req := httptest.NewRequestWithContext(r.t.Context(), method, path+"?"+form.Encode(), nil)
	req.RemoteAddr = "127.0.0.1:1"
	w := httptest.NewRecorder()
	r.server.ServeHTTP(w, req)
	return w.Code
}

// service of the name, as the controller of registered names makes it.
func (r *checkRig) service() {
	r.t.Helper()
	if _, err := r.Client.Create(r.t.Context(), kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pay"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}); err != nil {
		r.t.Fatal(err)
	}
}

var pay = registry.Service{Namespace: "default", Name: "pay"}

// healthy reports what clients see of the instance at a port.
func (r *checkRig) healthy(port int) bool {
	r.t.Helper()
	for _, in := range r.Index.Listing(pay, "").Instances {
		if int(in.Port) == port {
			return in.Healthy
		}
	}
	r.t.Fatalf("no instance at port %d", port)
	return false
}

// rounds of checks; then the instance at a port is healthy, or not.
func (r *checkRig) rounds(n int, port int, want bool, what string) {
	r.t.Helper()
	for range n {
		r.checks.learn(pay)
		r.checks.round(r.t.Context())
	}
	// What a round wrote is in the tables a moment later; that nothing was written, at once.
	r.Eventually(what, func() bool { return r.healthy(port) == want })
}

// Persistent instances are checked by a connection, or by HTTP as their cluster says; others are not.
func TestHealthChecks(t *testing.T) {
	r := newCheckRig(t)
	status := atomic.Int32{}
	status.Store(http.StatusServiceUnavailable)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/health" {
			t.Errorf("asked for %s", req.URL.Path)
		}
		w.WriteHeader(int(status.Load()))
	}))
	defer web.Close()
	port := web.Listener.Addr().(*net.TCPAddr).Port
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := gone.Addr().(*net.TCPAddr).Port
	_ = gone.Close()
	register := func(ip string, port int, pairs ...string) {
		t.Helper()
		form := append([]string{"serviceName", "pay", "ip", ip, "port", strconv.Itoa(port), "ephemeral", "false"}, pairs...)
		if code := r.put("POST", "/nacos/v1/ns/instance", form...); code != http.StatusOK {
			t.Fatalf("register %s:%d: %d", ip, port, code)
		}
	}
	register("127.0.0.1", port)
	register("127.0.0.1", dead)
	if code := r.put("POST", "/nacos/v1/ns/instance", "serviceName", "pay", "ip", "169.254.169.254", "port", "80", "ephemeral", "false"); code != http.StatusBadRequest {
		t.Errorf("register a link-local address: %d", code)
	}
	if mayCheck(netip.MustParseAddr("169.254.169.254")) || mayCheck(netip.MustParseAddr("fe80::1")) {
		t.Error("link-local addresses are checked")
	}
	if code := r.put("PUT", "/nacos/v1/ns/cluster", "serviceName", "pay", "clusterName", "DEFAULT", "healthChecker", `{"type":"NONE"}`); code != http.StatusBadRequest {
		t.Errorf("the check of a service that is not there: %d", code)
	}
	r.service()
	r.Eventually("they are listed", func() bool { return len(r.Index.Listing(pay, "").Instances) == 2 && r.server.serviceObject(pay) != nil })

	r.rounds(1, dead, false, "one that refuses connections is unhealthy at once")
	if !r.healthy(port) {
		t.Error("one that takes connections is unhealthy")
	}
	register("127.0.0.1", dead, "healthy", "true")
	for _, d := range r.Dataplanes() {
		if in, err := registry.Parse(d); err != nil || int(in.Port) == dead && in.Healthy {
			t.Errorf("a client that registers again says that it is healthy: %v", err)
		}
	}
	if code := r.put("PUT", "/nacos/v1/ns/health/instance", "serviceName", "pay", "ip", "127.0.0.1", "port", strconv.Itoa(dead), "healthy", "true"); code != http.StatusBadRequest {
		t.Errorf("set the health of an instance that is checked: %d", code)
	}

	check := func(text string, want int, pairs ...string) {
		t.Helper()
		form := append([]string{"serviceName", "pay", "clusterName", "DEFAULT", "healthChecker", text}, pairs...)
		if code := r.put("PUT", "/nacos/v1/ns/cluster", form...); code != want {
			t.Errorf("health checker %s: %d, want %d", text, code, want)
		}
	}
	for _, bad := range []string{`{"type":"MYSQL"}`, `{"type":"HTTP","path":"x"}`, `{"type":"HTTP","path":"/a b"}`, `{"type":"HTTP","path":"/","headers":"a:b"}`, `{`} {
		check(bad, http.StatusBadRequest)
	}
	check(`{"type":"HTTP","path":"/health"}`, http.StatusBadRequest, "useInstancePort4Check", "false")
	check(`{"type":"HTTP","path":"/health"}`, http.StatusOK)
	r.Eventually("the check is known", func() bool { return r.server.checkOf(pay, "DEFAULT").Type == checkHTTP })
	r.rounds(checkTimes-1, port, true, "the first answers do not count")
	r.rounds(1, port, false, "a status that is not expected, three times")
	status.Store(http.StatusOK)
	r.rounds(checkTimes, port, true, "the expected status, three times")
	check(`{"type":"tcp"}`, http.StatusOK, "useInstancePort4Check", "false", "checkPort", strconv.Itoa(port))
	r.Eventually("the check is known", func() bool { return r.server.checkOf(pay, "DEFAULT").Port == uint16(port) })
	r.rounds(checkTimes, dead, true, "a port for all instances")

	check(`{"type":"NONE"}`, http.StatusOK)
	r.Eventually("the check is known", func() bool { return r.server.checkOf(pay, "DEFAULT").Type == checkNone })
	if code := r.put("PUT", "/nacos/v1/ns/health/instance", "serviceName", "pay", "ip", "127.0.0.1", "port", strconv.Itoa(port), "healthy", "false"); code != http.StatusOK {
		t.Errorf("set the health of an instance that is not checked: %d", code)
	}
	r.rounds(checkTimes, port, false, "its client's word")
}

// Below the threshold of its service, clients are told that all instances are healthy.
func TestProtectThreshold(t *testing.T) {
	r := newCheckRig(t)
	r.service()
	for port, healthy := range map[string]string{"1": "true", "2": "false", "3": "false"} {
		r.put("POST", "/nacos/v1/ns/instance", "serviceName", "pay", "ip", "10.1.0.9", "port", port, "ephemeral", "false", "healthy", healthy)
	}
	r.Eventually("they are listed", func() bool { return len(r.Index.Listing(pay, "").Instances) == 3 && r.server.serviceObject(pay) != nil })
	count := func() int { return len(r.server.infoOf(r.Index.Listing(pay, ""), "", true).Hosts) }
	if n := count(); n != 1 {
		t.Errorf("%d healthy instances without a threshold", n)
	}
	if code := r.put("PUT", "/nacos/v1/ns/service", "serviceName", "pay", "protectThreshold", "0.5"); code != http.StatusOK {
		t.Fatal(code)
	}
	r.Eventually("all are healthy", func() bool { return count() == 3 })
	if code := r.put("PUT", "/nacos/v1/ns/service", "serviceName", "pay", "protectThreshold", "0.2"); code != http.StatusOK {
		t.Fatal(code)
	}
	r.Eventually("the healthy one is enough", func() bool { return count() == 1 })
}
