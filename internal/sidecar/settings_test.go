package sidecar

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/sidecar/adstest"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// raw is a message whose encoding is a body.
func raw(body []byte) proto.Message {
	m := &emptypb.Empty{}
	m.ProtoReflect().SetUnknown(body)
	return m
}

// send settings to the supervisor.
func (w *world) send(version string, s wire.SupervisorSettings) {
	w.t.Helper()
	w.cp.Set(wire.Settings, wire.SettingsName, version, raw(s.Append(nil)))
}

// clientOf a server with mutual TLS, as a workload with this SPIFFE ID; "": without a certificate.
func (w *world) clientOf(id string) *http.Client {
	w.t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(w.ca.Cert)
	config := &tls.Config{RootCAs: pool, VerifyConnection: func(c tls.ConnectionState) error {
		if got := c.PeerCertificates[0].URIs[0].String(); got != webID {
			return fmt.Errorf("the server is %s", got)
		}
		return nil
	}, InsecureSkipVerify: true} // its certificate has no host name
	if id != "" {
		uri, err := url.Parse(id)
		if err != nil {
			w.t.Fatal(err)
		}
		c := catest.New(w.t, "", w.ca, func(c *x509.Certificate) {
			c.IsCA, c.KeyUsage, c.URIs = false, x509.KeyUsageDigitalSignature, []*url.URL{uri}
		})
		config.Certificates = []tls.Certificate{{Certificate: [][]byte{c.Cert.Raw}, PrivateKey: c.Key}}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
}

// fetch a page; the code is 0 if that fails.
func fetch(c *http.Client, url string) (int, string) {
	resp, err := c.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body) // a part of a page fails the comparison
	return resp.StatusCode, string(body)
}

func portOf(t *testing.T, address string) uint16 {
	t.Helper()
	n, err := strconv.ParseUint(address[strings.LastIndex(address, ":")+1:], 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(n)
}

// TestSettings: metrics and probes follow what the control plane says, without a restart, and from the
// disk after one without a control plane. What cannot be used is refused, and changes nothing.
func TestSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	app := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stats":
			rw.Header().Set("Content-Type", "text/plain; version=0.0.4")
			_, _ = io.WriteString(rw, "orders_total 5\n")
		case "/healthz":
		default:
			http.NotFound(rw, r)
		}
	}))
	t.Cleanup(app.Close)
	appPort := portOf(t, app.URL)
	s := w.start()
	w.serves("web")
	s.await("it serves", func(s Status) bool { return s.Ready == "true" && s.Relay.Upstream.Connected })
	health := "http://" + w.arg("--health-address")
	if code, _ := get(t, health+"/live"); code != http.StatusNotFound {
		t.Errorf("a probe that nobody declared: %d", code)
	}

	moved := free(t)
	one := wire.SupervisorSettings{
		Metrics: &wire.MetricsSettings{
			Port: portOf(t, moved), Path: "/all", Include: "^(envoy_cluster|proxima)_", Exclude: "upstream_cx_total$",
			Apps: []wire.AppSettings{{Name: "shop", Port: appPort, Path: "/stats"}},
		},
		Probes: []wire.ProbeSettings{
			{Path: "/live", Kind: "http", Port: appPort, Target: "/healthz"}, {Path: "/gone", Kind: "http", Port: appPort},
			{Path: "/open", Kind: "tcp", Port: appPort}, {Path: "/closed", Kind: "tcp", Port: portOf(t, free(t))},
		},
	}
	w.send("1", one)
	shown := func() {
		t.Helper()
		s.await("metrics are at the port of the settings", func(s Status) bool { return s.Metrics == moved })
		code, page := get(t, "http://"+moved+"/all")
		for text, want := range map[string]bool{
			"\norders_total 5\n": true, "proxima_sidecar_application_up{mesh_application=\"shop\"} 1": true,
			"proxima_sidecar_upstream_connected": true, "\nenvoy_cluster_upstream_rq": true,
			"envoy_cluster_upstream_cx_total": false, "\nenvoy_server_": false, "\nenvoy_listener_": false,
		} {
			if strings.Contains(page, text) != want {
				t.Errorf("%q is on the page: %v", text, !want)
			}
		}
		if other, _ := get(t, "http://"+moved+"/metrics"); code != 200 || other != http.StatusNotFound {
			t.Errorf("path of the settings %d, another one %d", code, other)
		}
		if code, _ := fetch(http.DefaultClient, "http://"+w.arg("--metrics-address")+"/metrics"); code != 0 {
			t.Error("the former port is listened on still")
		}
		for path, want := range map[string]int{"/live": 200, "/gone": 503, "/open": 200, "/closed": 503, "/other": 404} {
			if code, body := get(t, health+path); code != want {
				t.Errorf("probe %s: %d %s, want %d", path, code, body, want)
			}
		}
	}
	shown()

	// A refused change keeps what is there.
	bad := one
	bad.Metrics = &wire.MetricsSettings{Include: "("}
	w.send("2", bad)
	w.cp.Await(t.Context(), "settings are refused by name", func(cp *adstest.Server) bool {
		return len(cp.Nacks) > 0 && cp.Nacks[0].TypeURL == wire.Settings && strings.Contains(cp.Nacks[0].Message, "metrics.include")
	})
	shown()

	// A port that is taken is tried again; metrics stay where they were.
	taken := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(taken.Close)
	busy := one
	busy.Metrics = &wire.MetricsSettings{Port: portOf(t, taken.URL)}
	w.send("3", busy)
	s.await("a taken port is reported", func(s Status) bool { return s.Metrics == moved && s.MetricsProblem != "" })

	// Everything dies, and the machine's part starts again.
	w.send("4", one)
	first := s.await("it is as before", func(s Status) bool { return s.MetricsProblem == "" && s.Metrics == moved })
	testkit.Eventually(t, "settings are on disk", func() bool {
		data, err := os.ReadFile(filepath.Join(w.arg("--dir"), "state"))
		r := wire.NewResource(wire.Settings, wire.SettingsName, "4", one.Append(nil))
		return err == nil && strings.Contains(string(data), string(r.Raw))
	})
	w.stop()
	s.kill()
	if err := syscall.Kill(first.Envoy.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s = w.start()
	w.serves("web")
	shown()
	s.end()
}

// TestMetricsByMTLS: with mtls metrics are for workloads of the mesh alone.
func TestMetricsByMTLS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.start()
	w.serves("web")
	at, plain := w.arg("--metrics-address"), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	protected := wire.SupervisorSettings{Metrics: &wire.MetricsSettings{MTLS: true}}
	held := wire.NewResource(wire.Settings, wire.SettingsName, "1", protected.Append(nil))
	w.send("1", protected)
	testkit.Eventually(t, "a workload of the mesh gets metrics", func() bool {
		code, page := fetch(w.clientOf("spiffe://default.mesh/ns/ops/sa/prometheus"), "https://"+at+"/metrics")
		return code == 200 && strings.Contains(page, "proxima_sidecar_upstream_connected")
	})
	for name, code := range map[string]int{
		"in plain text":         func() int { c, _ := fetch(http.DefaultClient, "http://"+at+"/metrics"); return c }(),
		"without a certificate": func() int { c, _ := fetch(w.clientOf(""), "https://"+at+"/metrics"); return c }(),
		"of another mesh": func() int {
			c, _ := fetch(w.clientOf("spiffe://other.mesh/ns/ops/sa/prometheus"), "https://"+at+"/metrics")
			return c
		}(),
	} {
		if code == 200 {
			t.Errorf("a client %s gets metrics", name)
		}
	}
	// After a start they are never shown in plain text, not even for a moment.
	testkit.Eventually(t, "settings are on disk", func() bool {
		data, err := os.ReadFile(filepath.Join(w.arg("--dir"), "state"))
		return err == nil && strings.Contains(string(data), string(held.Raw))
	})
	s.kill()
	s = w.start()
	testkit.Eventually(t, "a workload of the mesh gets metrics again", func() bool {
		if code, _ := fetch(plain, "http://"+at+"/metrics"); code == 200 {
			t.Fatal("metrics are shown in plain text")
		}
		code, _ := fetch(w.clientOf("spiffe://default.mesh/ns/ops/sa/prometheus"), "https://"+at+"/metrics")
		return code == 200
	})
	w.cp.Set(wire.Settings, wire.SettingsName, "", nil)
	testkit.Eventually(t, "without settings metrics are in plain text", func() bool {
		code, _ := fetch(plain, "http://"+at+"/metrics")
		return code == 200
	})
	s.end()
}
