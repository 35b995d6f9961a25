package workload

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// note a line in the file that all processes of a test write to.
func note(file, line string) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}

// proxied is a command that notes what happens to it.
func proxied() {
	file := os.Getenv("WORKLOAD_TEST_NOTES")
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	note(file, "command starts")
	<-signals
	note(file, "command ends")
	os.Exit(0)
}

// fakeSidecar is this binary in the place of proxima-sidecar.
func fakeSidecar(dir string) {
	file := filepath.Join(dir, "notes")
	if _, err := os.Stat(filepath.Join(dir, "broken")); err == nil {
		fmt.Fprintln(os.Stderr, "no Envoy")
		os.Exit(1)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	socket := filepath.Join(dir, "control.sock")
	_ = os.Remove(socket) // of the one before
	l, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(filepath.Join(dir, "unready")); err == nil {
			http.Error(w, "it waits for something", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/drain", func(http.ResponseWriter, *http.Request) { note(file, "proxy drains") })
	go func() { _ = http.Serve(l, mux) }() //nolint:gosec // a test's server
	note(file, fmt.Sprint("proxy starts ", os.Getpid()))
	if _, err := os.Stat(filepath.Join(dir, "slow")); err == nil {
		<-signals
		os.Exit(0)
	}
	fmt.Println("ready node=x")
	<-signals
	note(file, "proxy ends")
	os.Exit(0)
}

// proxyRig is a workload with a stand-in for proxima-sidecar.
func proxyRig(t *testing.T) (dir string, cfg Config, client interface{ get() *v1alpha1.Dataplane }, signals chan os.Signal) {
	t.Helper()
	dir, err := os.MkdirTemp("", "proxy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg, c := config(t, "proxied", "")
	cfg.Env = append(cfg.Env, "WORKLOAD_TEST_NOTES="+filepath.Join(dir, "notes"))
	signals = make(chan os.Signal)
	cfg.Signals = signals
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	cfg.Proxy = &Sidecar{
		Path: os.Args[0], Args: []string{"fake-sidecar", dir}, Control: filepath.Join(dir, "control.sock"), Output: os.Stderr, Logger: cfg.Logger,
	}
	return dir, cfg, getter{t, func() (*v1alpha1.Dataplane, error) { return get(c) }}, signals
}

type getter struct {
	t   *testing.T
	ask func() (*v1alpha1.Dataplane, error)
}

func (g getter) get() *v1alpha1.Dataplane {
	dp, err := g.ask()
	if err != nil {
		return &v1alpha1.Dataplane{}
	}
	return dp
}

func ready(dp *v1alpha1.Dataplane) (status, message string) {
	for _, c := range dp.Status.Conditions {
		if c.Type == v1alpha1.DataplaneReady {
			return string(c.Status), c.Message
		}
	}
	return "", ""
}

// notes without process IDs.
func notes(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "notes"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		out = append(out, strings.Join(fields[:2], " "))
	}
	return strings.Join(out, ", ")
}

// TestProxyOrder: the proxy serves before the command starts, drains before the command is told to end, and
// ends after it; the workload is ready while both are. A supervisor that crashes is started again.
func TestProxyOrder(t *testing.T) {
	dir, cfg, client, signals := proxyRig(t)
	var done sync.WaitGroup
	done.Go(func() {
		if code, err := Run(t.Context(), cfg); err != nil || code != 0 {
			t.Errorf("Run = %d, %v", code, err)
		}
	})
	is := func(status, message string) {
		t.Helper()
		testkit.Eventually(t, "ready is "+status, func() bool {
			s, m := ready(client.get())
			return s == status && strings.Contains(m, message)
		})
	}
	is("True", "")
	if err := os.WriteFile(filepath.Join(dir, "unready"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	is("False", "proxy: it waits for something")
	if err := os.Remove(filepath.Join(dir, "unready")); err != nil {
		t.Fatal(err)
	}
	is("True", "")
	cfg.Proxy.(*Sidecar).mu.Lock()
	first := cfg.Proxy.(*Sidecar).process
	cfg.Proxy.(*Sidecar).mu.Unlock()
	if err := first.process.Kill(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "another supervisor runs", func() bool { return strings.Count(notes(t, dir), "proxy starts") == 2 })
	is("True", "")
	signals <- syscall.SIGTERM
	done.Wait()
	const want = "proxy starts, command starts, proxy starts, proxy drains, command ends, proxy ends"
	if got := notes(t, dir); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestProxyFails: without a proxy the command is not started.
func TestProxyFails(t *testing.T) {
	dir, cfg, client, _ := proxyRig(t)
	if err := os.WriteFile(filepath.Join(dir, "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "the sidecar did not start") {
		t.Errorf("Run: %v", err)
	}
	if got := notes(t, dir); got != "" || client.get().Name != "" {
		t.Errorf("%s; dataplane %q", got, client.get().Name)
	}
}

// TestProxyWaits: a signal ends the wait for a proxy that has no configuration yet.
func TestProxyWaits(t *testing.T) {
	dir, cfg, _, signals := proxyRig(t)
	if err := os.WriteFile(filepath.Join(dir, "slow"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var done sync.WaitGroup
	done.Go(func() {
		if code, err := Run(ctx, cfg); err != nil || code != 128+int(syscall.SIGTERM) {
			t.Errorf("Run = %d, %v", code, err)
		}
	})
	testkit.Eventually(t, "the proxy starts", func() bool { return notes(t, dir) == "proxy starts" })
	signals <- syscall.SIGTERM
	done.Wait()
	if got := notes(t, dir); got != "proxy starts" {
		t.Errorf("%s", got)
	}
}
