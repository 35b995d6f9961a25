package supervise

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"context"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// TestCheck: what is missing, too old or no Envoy is refused, with the fix.
func TestCheck(t *testing.T) {
	path, v, err := Check(t.Context(), envoytest.Binary(t))
	if err != nil || v.String() != envoytest.Newest {
		t.Errorf("%s: %s, %v", path, v, err)
	}
	if Oldest.String() != envoytest.Oldest {
		t.Errorf("%s is supported, and %s tested", Oldest, envoytest.Oldest)
	}
	dir := t.TempDir()
	program := func(name, output string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("#!/bin/sh\necho '"+output+"'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for name, want := range map[string]string{
		filepath.Join(dir, "none"): "no such program",
		program("old", "old  version: abc/1.36.9/Clean/RELEASE/BoringSSL"): "1.37.0 is the oldest",
		program("other", "something else"):                                 "does not say a version",
	} {
		_, _, err := Check(t.Context(), name)
		if p, _ := problem.Of(err); err == nil || !strings.Contains(err.Error(), want) || p.Code != problem.EnvoyUnusable || !strings.Contains(p.Hint, "--envoy") {
			t.Errorf("%s: %v, hint %q", name, err, p.Hint)
		}
	}
}

// TestCheckOnce: a binary is asked once, another one again.
func TestCheckOnce(t *testing.T) {
	dir := t.TempDir()
	program, asked, file := filepath.Join(dir, "envoy"), filepath.Join(dir, "asked"), filepath.Join(dir, "version")
	install := func(version string) {
		t.Helper()
		script := "#!/bin/sh\necho x >> " + asked + "\necho '  version: abc/" + version + "/Clean/RELEASE/BoringSSL'\n"
		if err := errors.Join(os.WriteFile(program+".new", []byte(script), 0o700), os.Rename(program+".new", program)); err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []string{"1.38.0", "1.38.1"} {
		install(version)
		for range 2 {
			if _, v, err := CheckOnce(t.Context(), program, file); err != nil || v.String() != version {
				t.Errorf("%s, %v, want %s", v, err, version)
			}
		}
	}
	if text, err := os.ReadFile(asked); err != nil || strings.Count(string(text), "x") != 2 {
		t.Errorf("asked %q, %v, want twice", text, err)
	}
	install("1.30.0")
	if _, _, err := CheckOnce(t.Context(), program, file); err == nil {
		t.Error("an old one is used, as the one before it was new")
	}
}

func TestParseProbe(t *testing.T) {
	for text, want := range map[string]string{
		"http:8080/healthz": "/probe/http/8080/healthz", "https:8443/": "/probe/https/8443/", "http:80": "/probe/http/80/",
		"grpc:9000/shop.Cart": "/probe/grpc/9000/shop.Cart", "grpc:9000": "/probe/grpc/9000", "tcp:5432": "/probe/tcp/5432",
	} {
		if p, err := ParseProbe(text); err != nil || p.URLPath() != want {
			t.Errorf("%s: %s, %v, want %s", text, p.URLPath(), err, want)
		}
	}
	for _, text := range []string{"", "http:0/x", "http:x", "udp:53", "tcp:80/x", "http:99999/"} {
		if p, err := ParseProbe(text); err == nil {
			t.Errorf("%q: %+v", text, p)
		}
	}
}

// TestHealth: /ready is the proxy's, a probe the workload's; only what was declared is asked.
func TestHealth(t *testing.T) {
	well := true
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" || !well {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer app.Close()
	secure := httptest.NewTLSServer(app.Config.Handler)
	defer secure.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, state := grpc.NewServer(), health.NewServer()
	healthv1.RegisterHealthServer(server, state)
	state.SetServingStatus("shop.Cart", healthv1.HealthCheckResponse_SERVING)
	state.SetServingStatus("shop.Down", healthv1.HealthCheckResponse_NOT_SERVING)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	port := func(address string) string {
		if u, err := url.Parse(address); err == nil && u.Host != "" {
			address = u.Host
		}
		_, p, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	web, tls, rpc := port(app.URL), port(secure.URL), port(l.Addr().String())
	var unready error
	var probes []Probe
	h := &Health{Address: "127.0.0.1", Probes: func() []Probe { return probes }, Ready: func(context.Context) error { return unready }}
	for _, text := range []string{
		"http:" + web + "/healthz", "https:" + tls + "/healthz", "grpc:" + rpc, "grpc:" + rpc + "/shop.Cart", "grpc:" + rpc + "/shop.Down",
		"tcp:" + rpc, "tcp:1",
	} {
		p, err := ParseProbe(text)
		if err != nil {
			t.Fatal(err)
		}
		probes = append(probes, p)
	}
	get := func(path string) int {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code
	}
	for path, want := range map[string]int{
		"/ready": 200, "/probe/http/" + web + "/healthz": 200, "/probe/https/" + tls + "/healthz": 200, "/probe/grpc/" + rpc: 200,
		"/probe/grpc/" + rpc + "/shop.Cart": 200, "/probe/grpc/" + rpc + "/shop.Down": 503, "/probe/tcp/" + rpc: 200, "/probe/tcp/1": 503,
		"/probe/http/" + web + "/secret": 404, "/probe/tcp/22": 404,
	} {
		if got := get(path); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	well, unready = false, errors.New("draining")
	if got := get("/probe/http/" + web + "/healthz"); got != 503 {
		t.Errorf("an application that fails: %d", got)
	}
	if got := get("/ready"); got != 503 {
		t.Errorf("a proxy that does not serve: %d", got)
	}
}

// TestMetrics: pages become one, in which each name is once, and applications can be told apart.
func TestMetrics(t *testing.T) {
	page := func(n int) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", textFormat)
			_, _ = fmt.Fprintf(w, "# HELP requests_total Requests.\n# TYPE requests_total counter\nrequests_total{path=\"/\"} %d\nrequests_total{} 7\n"+
				"# TYPE took_seconds histogram\ntook_seconds_bucket{le=\"+Inf\"} 1\ntook_seconds_sum 1\ntook_seconds_count 1\nplain 3\n", n)
		}))
	}
	one, two := page(1), page(2)
	defer one.Close()
	defer two.Close()
	m := &Metrics{
		Admin: NewAdmin(filepath.Join(t.TempDir(), "none")), Own: func() string { return "own 1\n" },
		Apps: []App{{"one", one.URL}, {"two", two.URL}, {"away", "http://127.0.0.1:1/metrics"}},
	}
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	want := `own 1
# HELP proxima_sidecar_application_up Whether metrics of an application could be collected.
# TYPE proxima_sidecar_application_up gauge
proxima_sidecar_application_up{mesh_application="one"} 1
proxima_sidecar_application_up{mesh_application="two"} 1
proxima_sidecar_application_up{mesh_application="away"} 0
# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{mesh_application="one",path="/"} 1
requests_total{mesh_application="one"} 7
requests_total{mesh_application="two",path="/"} 2
requests_total{mesh_application="two"} 7
# TYPE took_seconds histogram
took_seconds_bucket{mesh_application="one",le="+Inf"} 1
took_seconds_sum{mesh_application="one"} 1
took_seconds_count{mesh_application="one"} 1
took_seconds_bucket{mesh_application="two",le="+Inf"} 1
took_seconds_sum{mesh_application="two"} 1
took_seconds_count{mesh_application="two"} 1
plain{mesh_application="one"} 3
plain{mesh_application="two"} 3
`
	if got := w.Body.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestStartTime tells a process from an earlier one of the same number.
func TestStartTime(t *testing.T) {
	own, err := startTime(os.Getpid())
	if err != nil || own == 0 {
		t.Errorf("%d, %v", own, err)
	}
	dir := t.TempDir()
	e := New(Config{StateDir: dir})
	for name, text := range map[string]string{
		"nonsense": "{", "of an earlier boot": `{"pid":` + strconv.Itoa(os.Getpid()) + `,"started":1}`, "init": `{"pid":1,"started":1}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, processFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if p := e.adopt(); p != nil {
			t.Errorf("%s: process %d is adopted", name, p.PID)
		}
	}
}

func FuzzFamilies(f *testing.F) {
	f.Add("# TYPE a counter\na{b=\"c\"} 1\na 2\n", "x")
	f.Fuzz(func(_ *testing.T, page, app string) {
		var out families
		out.add([]byte(page), app)
		_, _ = out.WriteTo(new(strings.Builder))
	})
}
