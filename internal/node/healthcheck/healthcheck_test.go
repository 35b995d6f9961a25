package healthcheck

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ports gives listeners on free ports in the place of those asked for, and says
// when it did.
type ports struct {
	mu     sync.Mutex
	real   map[string]string
	fail   map[string]error
	opened chan string
}

func newPorts() *ports {
	return &ports{real: map[string]string{}, fail: map[string]error{}, opened: make(chan string, 16)}
}

func (p *ports) listen(_ context.Context, _, address string) (net.Listener, error) {
	_, port, _ := net.SplitHostPort(address)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.fail[port]; err != nil {
		p.opened <- "failed " + port
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		p.real[port] = l.Addr().String()
		p.opened <- port
	}
	return l, err
}

func (p *ports) address(port int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.real[strconv.Itoa(port)]
}

func change(svc, port string, health uint16, local int) proxy.Change {
	name := proxy.ServiceName{Namespace: "shop", Name: svc}
	return proxy.Change{Name: proxy.PortName{ServiceName: name, Port: port}, State: &proxy.PortState{
		Service: &proxy.Service{Name: name, HealthCheckNodePort: health}, LocalReady: local,
	}}
}

type reply struct {
	Status  int
	Weight  string
	Type    string
	Service string
	Local   int
	Healthy bool
}

func get(t *testing.T, address string) reply {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + address + "/any/path")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var body struct {
		Service             struct{ Namespace, Name string }
		LocalEndpoints      int
		ServiceProxyHealthy bool
	}
	if err := json.Unmarshal(data, &body); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return reply{
		Status: resp.StatusCode, Weight: resp.Header.Get("X-Load-Balancing-Endpoint-Weight"), Type: resp.Header.Get("Content-Type"),
		Service: body.Service.Namespace + "/" + body.Service.Name, Local: body.LocalEndpoints, Healthy: body.ServiceProxyHealthy,
	}
}

func start(t *testing.T, opts Options) *Servers {
	t.Helper()
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestAnswers(t *testing.T) {
	p := newPorts()
	var healthy atomic.Bool
	healthy.Store(true)
	s := start(t, Options{Listen: p.listen, Healthy: healthy.Load})
	s.Update([]proxy.Change{change("web", "http", 32000, 2), change("web", "https", 32000, 1), change("plain", "http", 0, 5)})
	<-p.opened
	expect := func(want reply) {
		t.Helper()
		want.Type, want.Service, want.Weight = "application/json", "shop/web", strconv.Itoa(want.Local)
		if diff := cmp.Diff(want, get(t, p.address(32000))); diff != "" {
			t.Error(diff)
		}
	}
	expect(reply{Status: 200, Local: 2, Healthy: true})
	healthy.Store(false)
	expect(reply{Status: 503, Local: 2})
	healthy.Store(true)
	s.Update([]proxy.Change{change("web", "http", 32000, 0)})
	expect(reply{Status: 200, Local: 1, Healthy: true})
	s.Update([]proxy.Change{change("web", "https", 32000, 0)})
	expect(reply{Status: 503, Healthy: true})
}

func TestPortsComeAndGo(t *testing.T) {
	p := newPorts()
	s := start(t, Options{Listen: p.listen})
	s.Update([]proxy.Change{change("web", "http", 32000, 1)})
	<-p.opened
	before := p.address(32000)
	s.Update([]proxy.Change{change("web", "http", 32001, 1)})
	if port := <-p.opened; port != "32001" {
		t.Fatalf("opened %s", port)
	}
	if c, err := net.Dial("tcp", before); err == nil {
		_ = c.Close()
		t.Error("the old port is still open")
	}
	// The Service is gone with its last port; a second port name had kept it.
	s.Update([]proxy.Change{change("web", "x", 32001, 1)})
	s.Update([]proxy.Change{{Name: change("web", "http", 0, 0).Name}})
	if got := get(t, p.address(32001)); got.Status != 200 {
		t.Errorf("one port is left: %+v", got)
	}
	address := p.address(32001)
	s.Update([]proxy.Change{{Name: change("web", "x", 0, 0).Name}, change("next", "http", 32002, 1)})
	<-p.opened // the next one is open, so the round is over
	if c, err := net.Dial("tcp", address); err == nil {
		_ = c.Close()
		t.Error("the port of a Service that is gone is still open")
	}
}

func TestPortInUse(t *testing.T) {
	p := newPorts()
	p.fail["32000"] = errors.New("address already in use")
	s := start(t, Options{Listen: p.listen})
	s.Update([]proxy.Change{change("web", "http", 32000, 1)})
	<-p.opened
	// The next one is opened all the same, and afterwards the failure is on record.
	s.Update([]proxy.Change{change("other", "http", 32001, 1)})
	for port := range p.opened {
		if port == "32001" {
			break
		}
	}
	failures := s.Failures()
	if len(failures) != 1 || failures[0].Port != 32000 || failures[0].Service.Name != "web" {
		t.Fatalf("failures: %v", failures)
	}
	p.mu.Lock()
	delete(p.fail, "32000")
	p.mu.Unlock()
	for port := range p.opened { // within a second or two
		if port == "32000" {
			break
		}
	}
	if got := get(t, p.address(32000)); got.Status != 200 {
		t.Errorf("after a retry: %+v", got)
	}
}

// TestOwner: of two Services that claim a port the first by name has it, and the
// other one takes over.
func TestOwner(t *testing.T) {
	p := newPorts()
	s := start(t, Options{Listen: p.listen, Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	s.Update([]proxy.Change{change("b", "http", 32000, 1), change("a", "http", 32000, 3)})
	<-p.opened
	if got := get(t, p.address(32000)); got.Service != "shop/a" || got.Local != 3 {
		t.Errorf("%+v", got)
	}
	s.Update([]proxy.Change{{Name: change("a", "http", 0, 0).Name}})
	<-p.opened
	if got := get(t, p.address(32000)); got.Service != "shop/b" {
		t.Errorf("%+v", got)
	}
}
