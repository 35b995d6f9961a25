package sidecar

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"

	"github.com/proxima-mesh/proxima/internal/dns/resolvconf"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/sidecar/adstest"
	"github.com/proxima-mesh/proxima/internal/sidecar/redirect"
	"github.com/proxima-mesh/proxima/internal/sidecar/supervise"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

const (
	nodeID = "default/shop/web-1"
	webID  = "spiffe://default.mesh/ns/shop/sa/web"
)

// world is what is around a supervisor: an agent's Workload API, a control plane, an Envoy.
type world struct {
	t       *testing.T
	dir     string
	envoy   string
	cp      *adstest.Server
	server  string // address of the control plane
	config  *tls.Config
	ca      *catest.CA
	stop    func() // the control plane
	address string // of a listener that leads to "web"
	args    []string
	run     func(*exec.Cmd) error // starts the supervisor
}

// agent serves one certificate.
type agent struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	response *workload.X509SVIDResponse
}

func (a *agent) FetchX509SVID(_ *workload.X509SVIDRequest, s grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	if err := s.Send(a.response); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: envoytest.Dir(t), envoy: envoytest.Binary(t), cp: adstest.New(t), run: (*exec.Cmd).Start}
	ca := catest.New(t, "ca", nil, nil)
	w.ca = ca
	leaf := func(edit func(*x509.Certificate)) *catest.CA {
		return catest.New(t, "", ca, func(c *x509.Certificate) {
			c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature
			edit(c)
		})
	}
	server := leaf(func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })
	uri, err := url.Parse(webID)
	if err != nil {
		t.Fatal(err)
	}
	web := leaf(func(c *x509.Certificate) { c.URIs = []*url.URL{uri} })
	key, err := x509.MarshalPKCS8PrivateKey(web.Key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(w.dir, "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	api := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(api, &agent{response: &workload.X509SVIDResponse{
		Svids: []*workload.X509SVID{{SpiffeId: webID, X509Svid: web.Cert.Raw, X509SvidKey: key, Bundle: ca.Cert.Raw}},
	}})
	go func() { _ = api.Serve(l) }() // its end is Stop
	t.Cleanup(api.Stop)

	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	authorities := filepath.Join(w.dir, "ca.pem")
	if err := os.WriteFile(authorities, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	w.address = free(t)
	w.cp.Set(wire.Endpoint, "web", "1", adstest.Endpoints(t, "web", adstest.Echo(t, "web")))
	w.cp.Set(wire.Cluster, "web", "1", adstest.Cluster("web", "web"))
	w.cp.Set(wire.Listener, "out|web", "1", adstest.Listener(t, "out|web", w.address, "web"))
	w.config = &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{server.Cert.Raw}, PrivateKey: server.Key}},
		ClientCAs:    pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	w.server, w.stop = w.cp.Start("127.0.0.1:0", w.config)
	w.args = []string{
		"--node-id", nodeID, "--cluster", "shop/web", "--dir", filepath.Join(w.dir, "s"), "--server", w.server, "--server-ca-file", authorities,
		"--spiffe-socket", filepath.Join(w.dir, "agent.sock"), "--concurrency", "1", "--drain", "100ms",
		"--metrics-address", free(t), "--health-address", free(t),
	}
	return w
}

func free(t *testing.T) string { return fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t)) }

func (w *world) arg(name string) string {
	for i, a := range w.args {
		if a == name {
			return w.args[i+1]
		}
	}
	w.t.Fatalf("no %s", name)
	return ""
}

// supervisor is a running program. Its output is in a file, which Envoy may keep open.
type supervisor struct {
	w    *world
	cmd  *exec.Cmd
	done chan error
}

func (w *world) start() *supervisor {
	w.t.Helper()
	log, err := os.OpenFile(filepath.Join(w.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	defer log.Close()
	s := &supervisor{w: w, done: make(chan error, 1)}
	s.cmd = exec.Command(testkit.Sidecar(w.t), append([]string{"--envoy", w.envoy}, w.args...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := w.run(s.cmd); err != nil {
		w.t.Fatal(err)
	}
	go func() { s.done <- s.cmd.Wait() }()
	w.t.Cleanup(func() {
		s.end()
		if w.t.Failed() {
			text, _ := os.ReadFile(filepath.Join(w.dir, "log")) // for the reader of a failure
			w.t.Logf("--- log\n%s", text)
		}
	})
	return s
}

// end the supervisor and its Envoy, if they run.
func (s *supervisor) end() {
	status, err := s.ask()
	_ = s.cmd.Process.Kill() // it may have ended
	if err == nil && status.Envoy.PID > 1 {
		_ = syscall.Kill(status.Envoy.PID, syscall.SIGKILL)
	}
}

func (s *supervisor) kill() {
	s.w.t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		s.w.t.Fatal(err)
	}
	<-s.done
}

func (s *supervisor) ask() (Status, error) {
	var out Status
	client := envoytest.AdminClient(filepath.Join(s.w.arg("--dir"), "control.sock"))
	resp, err := client.Get("http://x/status")
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	return out, json.NewDecoder(resp.Body).Decode(&out)
}

// await a state of the supervisor.
func (s *supervisor) await(what string, holds func(Status) bool) Status {
	s.w.t.Helper()
	var last Status
	testkit.Eventually(s.w.t, what, func() bool {
		status, err := s.ask()
		last = status
		return err == nil && holds(status)
	})
	return last
}

func (w *world) serves(want string) {
	w.t.Helper()
	testkit.Eventually(w.t, "it serves "+want, func() bool { return adstest.Ask(w.address, 3*time.Second) == want })
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestLife: start, crash of Envoy, crash of the supervisor, a start with everything dead, an end.
func TestLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.start()
	w.serves("web")
	first := s.await("ready", func(s Status) bool { return s.Ready == "true" && s.Identity != nil })
	if first.Identity.ID != webID || !first.Relay.Upstream.Connected || first.Relay.Resources[wire.Listener] != 1 {
		t.Errorf("%+v", first)
	}
	onDisk := func(version string) {
		t.Helper()
		testkit.Eventually(t, "the configuration is on disk", func() bool {
			data, err := os.ReadFile(filepath.Join(w.arg("--dir"), "state"))
			r := wire.NewResource(wire.Endpoint, "web", version, nil)
			return err == nil && bytes.Contains(data, r.Raw[:2+len(version)]) // the field of the version
		})
	}
	onDisk("1")
	for _, path := range []string{"xds.sock", "control.sock", "state", "identity/identity.json", "envoy/admin.sock"} {
		info, err := os.Stat(filepath.Join(w.arg("--dir"), path))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	if code, body := get(t, "http://"+w.arg("--metrics-address")+"/metrics"); code != 200 ||
		!strings.Contains(body, "proxima_sidecar_upstream_connected 1") || !strings.Contains(body, "envoy_cluster_upstream_cx_total") {
		t.Errorf("metrics: %d\n%s", code, body)
	}
	if code, body := get(t, "http://"+w.arg("--health-address")+"/ready"); code != 200 {
		t.Errorf("ready: %d %s", code, body)
	}

	// Envoy crashes.
	if err := syscall.Kill(first.Envoy.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := s.await("another Envoy", func(s Status) bool { return s.Envoy.Restarts == 1 && s.Ready == "true" })
	w.serves("web")

	// The supervisor crashes: traffic goes on, and the next one adopts Envoy.
	s.kill()
	w.serves("web")
	s = w.start()
	third := s.await("Envoy is adopted", func(s Status) bool { return s.Ready == "true" && s.Relay.Envoys == 1 && s.Relay.Upstream.Connected })
	if third.Envoy.PID != second.Envoy.PID || third.Envoy.Restarts != 0 {
		t.Errorf("Envoy is %+v, and was %+v", third.Envoy, second.Envoy)
	}
	w.cp.Set(wire.Endpoint, "web", "2", adstest.Endpoints(t, "web", adstest.Echo(t, "other")))
	w.serves("other")
	onDisk("2")

	// Everything dies, and the machine's part starts again.
	w.stop()
	s.kill()
	if err := syscall.Kill(third.Envoy.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	s = w.start()
	w.serves("other")
	t.Logf("serving %s after everything died", time.Since(begin).Round(time.Millisecond))
	last := s.await("ready", func(s Status) bool { return s.Ready == "true" })

	// It ends, and takes Envoy with it.
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-s.done; err != nil {
		t.Errorf("its end: %v", err)
	}
	if alive(last.Envoy.PID) {
		t.Error("Envoy runs still")
	}
	text, err := os.ReadFile(filepath.Join(w.dir, "log"))
	if err != nil || !strings.Contains(string(text), "ready node="+nodeID) {
		t.Errorf("no line that it is ready: %v", err)
	}
}

// alive reports whether a process runs; init may not have reaped one that has ended.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// TestHotRestart: another binary takes over under traffic, and nothing fails.
func TestHotRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	binary := filepath.Join(w.dir, "envoy-copy")
	if err := exec.Command("cp", w.envoy, binary).Run(); err != nil {
		t.Fatal(err)
	}
	w.envoy = binary
	s := w.start()
	w.serves("web")
	first := s.await("ready", func(s Status) bool { return s.Ready == "true" })

	ctx, stop := context.WithCancel(t.Context())
	var calls, failed atomic.Int64
	var traffic sync.WaitGroup
	for range 2 {
		traffic.Go(func() {
			for ctx.Err() == nil {
				calls.Add(1)
				if adstest.Ask(w.address, 5*time.Second) != "web" {
					failed.Add(1)
				}
				time.Sleep(time.Millisecond) // leaves the machine to others
			}
		})
	}
	if err := os.Chtimes(binary, time.Now(), time.Now()); err != nil {
		t.Fatal(err)
	}
	second := s.await("another Envoy has taken over", func(s Status) bool { return s.Envoy.Epoch == 1 && s.Ready == "true" })
	testkit.Eventually(t, "the first Envoy has ended", func() bool { return !alive(first.Envoy.PID) })
	w.cp.Set(wire.Endpoint, "web", "2", adstest.Endpoints(t, "web", adstest.Echo(t, "web")))
	s.await("the new one follows", func(s Status) bool { return s.Relay.Envoys == 1 })
	stop()
	traffic.Wait()
	t.Logf("%d connections, %d failed; process %d → %d", calls.Load(), failed.Load(), first.Envoy.PID, second.Envoy.PID)
	if failed.Load() > 0 || calls.Load() < 100 {
		t.Errorf("%d of %d connections failed", failed.Load(), calls.Load())
	}
}

// TestMemory: the supervisor stays small, also after many pushes.
func TestMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.start()
	w.serves("web")
	for i := range 300 {
		version := strconv.Itoa(i + 2)
		w.cp.Set(wire.Endpoint, "web", version, adstest.Endpoints(t, "web", "127.0.0.1:"+strconv.Itoa(1+i)))
	}
	s.await("all is accepted", func(s Status) bool { return s.Relay.Acknowledged >= 303 })
	const limit = 15 << 10 // kB
	kilobytes := 0
	testkit.Eventually(t, "memory is given back", func() bool {
		kilobytes = resident(t, s.cmd.Process.Pid)
		return kilobytes <= limit
	})
	t.Logf("%d kB resident", kilobytes)
}

func resident(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRedirect: in a network namespace the workload's connections pass the proxy, which runs as
// another user, while proxy and supervisor connect directly. The rules stay over a crash, and go with
// the proxy.
func TestRedirect(t *testing.T) {
	t.Parallel()
	pod, peer := netns.New(t, "pod"), netns.New(t, "peer")
	netns.Connect(pod, peer, [2]string{"198.51.100.2/24", "198.51.100.1/24"})
	w := newWorld(t)
	for _, dir := range []string{w.dir, filepath.Join(w.dir, "bin")} {
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(w.dir, "bin", "envoy") // for a user that may not read the cache
	if out, err := exec.Command("cp", w.envoy, binary).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.envoy, w.run = binary, pod.Start
	listen := func(ns *netns.NS, address string) net.Listener {
		t.Helper()
		l, err := ns.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	adstest.EchoOn(t, listen(peer, "198.51.100.1:8080"), "peer")
	l, c := adstest.Passthrough(t, "out-virtual", "0.0.0.0:15001", "passthrough")
	w.cp.Set(wire.Cluster, "passthrough", "1", c)
	w.cp.Set(wire.Listener, "out-virtual", "1", l)
	// The control plane is at the peer: the supervisor's own connections must not be led to Envoy.
	w.cp.Serve(listen(peer, "198.51.100.1:15010"), w.peerConfig())
	w.args = append(w.args, "--server", "198.51.100.1:15010", "--redirect", "netns")
	s := w.start()
	s.await("it serves", func(s Status) bool { return s.Ready == "true" })
	ask := func() (answer string) {
		t.Helper()
		if err := pod.Do(func() error { answer = adstest.Ask("198.51.100.1:8080", 3*time.Second); return nil }); err != nil {
			t.Fatal(err)
		}
		return answer
	}
	passed := func() bool {
		admin := supervise.NewAdmin(filepath.Join(w.arg("--dir"), "envoy", "admin.sock"))
		_, text, err := admin.Do(t.Context(), http.MethodGet, "/stats?filter=^cluster.passthrough.upstream_cx_total")
		return err == nil && !strings.HasSuffix(strings.TrimSpace(string(text)), ": 0") && strings.Contains(string(text), ": ")
	}
	testkit.Eventually(t, "connections pass the proxy", func() bool { return ask() == "peer" && passed() })
	status := s.await("connected", func(s Status) bool { return s.Relay.Upstream.Connected })
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", status.Envoy.PID)); err != nil ||
		!strings.Contains(string(text), fmt.Sprintf("Uid:\t%d", redirect.ProxyUser)) {
		t.Errorf("Envoy's user: %v\n%s", err, text)
	}
	// Rules stay while everything is down: nothing passes the proxy by.
	s.kill()
	if err := syscall.Kill(status.Envoy.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "Envoy is gone", func() bool { return !alive(status.Envoy.PID) })
	if got := ask(); got != "" {
		t.Errorf("without a proxy %q answers", got)
	}
	s = w.start()
	testkit.Eventually(t, "connections pass the proxy again", func() bool { return ask() == "peer" })
	s.await("it serves", func(s Status) bool { return s.Ready == "true" })
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-s.done; err != nil {
		t.Errorf("its end: %v", err)
	}
	if got := ask(); got != "peer" {
		t.Errorf("after the end of the proxy %q answers", got)
	}
}

// peerConfig is the control plane's, at the peer's address.
func (w *world) peerConfig() *tls.Config {
	w.t.Helper()
	leaf := catest.New(w.t, "", w.ca, func(c *x509.Certificate) {
		c.IsCA, c.KeyUsage, c.IPAddresses = false, x509.KeyUsageDigitalSignature, []net.IP{net.IPv4(198, 51, 100, 1)}
	})
	config := w.config.Clone()
	config.Certificates = []tls.Certificate{{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}}
	return config
}

// TestSmall: what makes the program large is not linked into it.
func TestSmall(t *testing.T) {
	info, err := os.Stat(testkit.Sidecar(t))
	if err != nil {
		t.Fatal(err)
	}
	const limit = 14_000_000
	t.Logf("%d bytes", info.Size())
	if info.Size() > limit {
		t.Errorf("the program has %d bytes, at most %d are allowed", info.Size(), limit)
	}
	cmd := exec.Command("go", "list", "-tags=grpcnotrace", "-deps", "./cmd/proxima-sidecar")
	cmd.Dir = testkit.Root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	// Generated messages, clients of Kubernetes, and what needs them; templates, which make the linker keep
	// all methods.
	banned := []string{
		"github.com/envoyproxy/", "github.com/spiffe/", "github.com/spf13/", "github.com/prometheus/", "k8s.io/api", "k8s.io/client-go", "k8s.io/klog",
		"github.com/proxima-mesh/proxima/api/", "github.com/proxima-mesh/proxima/internal/app", "github.com/proxima-mesh/proxima/internal/resource",
		"github.com/proxima-mesh/proxima/internal/identity", "sigs.k8s.io/",
		"text/template", "html/template", "golang.org/x/net/trace",
	}
	for path := range strings.Lines(string(out)) {
		for _, b := range banned {
			if strings.HasPrefix(path, b) {
				t.Errorf("it imports %s", strings.TrimSpace(path))
			}
		}
	}
}

// TestResolvConf: the file that agents keep is where the supervisor looks for it.
func TestResolvConf(t *testing.T) {
	if resolvConfBackup != resolvconf.Backup {
		t.Errorf("%s, and agents keep %s", resolvConfBackup, resolvconf.Backup)
	}
}

// TestUsage: mistakes name the flag.
func TestUsage(t *testing.T) {
	good := []string{"--node-id", "a/b/c", "--dir", "/tmp/x", "--server", "a:1", "--server-ca-file", "f", "--spiffe-socket", "/s"}
	if _, err := parse(good, io.Discard); err != nil {
		t.Error(err)
	}
	for want, args := range map[string][]string{
		"--node-id is needed": good[2:], "--server is needed": append(good[:4:4], good[6:]...), "HOST:PORT": append(good, "--server", "a"),
		"--applications": append(good, "--applications", "x"), "probe": append(good, "--probes", "udp:1"),
		"want netns": append(good, "--redirect", "x"), "--exclude-outbound": append(good, "--redirect", "netns", "--exclude-outbound", "x"),
		"use a shorter one": append(good, "--dir", "/tmp/"+strings.Repeat("x", 100)), "no arguments": append(good, "x"),
	} {
		if _, err := parse(args, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	t.Setenv("PROXIMA_SIDECAR_CONCURRENCY", "7")
	if o, err := parse(good, io.Discard); err != nil || o.Concurrency != 7 {
		t.Errorf("%d, %v", o.Concurrency, err)
	}
}
