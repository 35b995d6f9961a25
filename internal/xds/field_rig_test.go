package xds_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcsv1beta1 "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// stage is one real Envoy that is the client of Services, and the proxy of ports of a workload.
type stage struct {
	*plane
	proxy *envoytest.Proxy
	// ports of the Envoy that lead to a port of a Service, by the Service's name.
	ports map[string]int32
	// in are ports of the workload, by their names.
	in        map[string]int32
	dir       string
	cert, key string
	collector *collector
	tries     *tries
}

// tries counts requests by what they say of themselves.
type tries struct {
	mu   sync.Mutex
	n    map[string]int
	last int
	sick string
}

// is sets the endpoint whose /health is 503; empty: none.
func (c *tries) is(sick string) { c.mu.Lock(); defer c.mu.Unlock(); c.sick = sick }

func (c *tries) isSick(name string) bool { c.mu.Lock(); defer c.mu.Unlock(); return c.sick == name }

// first reports whether a request with this key is one of the first n.
func (c *tries) first(key string, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[key]++
	return c.n[key] <= n
}

func (c *tries) key() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	return fmt.Sprint("k", c.last)
}

func (c *tries) of(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[key]
}

// endpoint is an HTTP server that says its name, and behaves as the path says:
//
//	/slow?ms=N           answers after N ms
//	/drip                answers a byte every 20 ms, for a second
//	/stall               answers a byte, and the rest after a second
//	/fail/N?key=K&code=C answers C to the first N requests of this key; after=N, ms=N
//	                     are how long this, and the answer of a later one, take
//	/reset/N?key=K       closes the connection of the first N requests of this key
//	/bad/NAME/C          answers C if it has this name
//	/late/NAME/N         answers after N ms if it has this name
//	/kb/N                answers N kB
//	/health              answers 503 while it is sick
//	/echo                answers what it was asked
func (c *tries) endpoint(t testing.TB, name string) int32 {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.serve(name, w, r) }))
	t.Cleanup(s.Close)
	return int32(s.Listener.Addr().(*net.TCPAddr).Port)
}

func (c *tries) serve(name string, w http.ResponseWriter, r *http.Request) {
	wait := func(d time.Duration) {
		select {
		case <-r.Context().Done():
		case <-time.After(d):
		}
	}
	ms := func(text string) time.Duration {
		n, _ := strconv.Atoi(text)
		return time.Duration(n) * time.Millisecond
	}
	q := r.URL.Query()
	part := strings.Split(r.URL.Path+"///", "/")
	w.Header().Set("served-by", name)
	switch part[1] {
	case "slow":
		wait(ms(q.Get("ms")))
	case "drip":
		for range 50 {
			_, _ = io.WriteString(w, ".")
			w.(http.Flusher).Flush()
			wait(20 * time.Millisecond)
		}
	case "stall":
		_, _ = io.WriteString(w, ".")
		w.(http.Flusher).Flush()
		wait(time.Second)
	case "fail":
		n, _ := strconv.Atoi(part[2])
		if c.first(q.Get("key"), n) {
			wait(ms(q.Get("after")))
			code, _ := strconv.Atoi(q.Get("code"))
			w.WriteHeader(code)
			return
		}
		wait(ms(q.Get("ms")))
	case "reset":
		n, _ := strconv.Atoi(part[2])
		if c.first(q.Get("key"), n) {
			panic(http.ErrAbortHandler)
		}
	case "bad":
		if part[2] == name {
			code, _ := strconv.Atoi(part[3])
			w.WriteHeader(code)
			return
		}
	case "late":
		if part[2] == name {
			wait(ms(part[3]))
		}
	case "kb":
		n, _ := strconv.Atoi(part[2])
		_, _ = w.Write(bytes.Repeat([]byte("k"), n*1024))
		return
	case "health":
		if c.isSick(name) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
	case "mirrored":
		c.first("mirrored to "+name, 0)
	case "echo":
		w.Header().Set("gone", "soon")
		_ = json.NewEncoder(w).Encode(echo{Name: name, URI: r.RequestURI, Host: r.Host, Method: r.Method, Header: r.Header})
		return
	}
	_, _ = io.WriteString(w, name)
}

// echo is what a request to /echo was like.
type echo struct {
	Name, URI, Host, Method string
	Header                  http.Header
}

// grpcEndpoint is a gRPC server of the health service. It fails with the code of the metadata
// "code" the first calls of a "key", as many as "fail" says, and answers after "ms"; it
// fails all calls whose "bad" is its name. The health service "up" is serving.
func (c *tries) grpcEndpoint(t testing.TB, name string) int32 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		of := func(key string) string { return strings.Join(md.Get(key), "") }
		if ms, _ := strconv.Atoi(of("ms")); ms > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(ms) * time.Millisecond):
			}
		}
		if of("bad") == name {
			return nil, status.Error(codes.Unavailable, "as asked")
		}
		n, _ := strconv.Atoi(of("fail"))
		if n > 0 && c.first(of("key"), n) { // without headers: a proxy can try again what has not begun
			code, _ := strconv.Atoi(of("code"))
			return nil, status.Error(codes.Code(code), "as asked")
		}
		if err := grpc.SetHeader(ctx, metadata.Pairs("served-by", name, "saw-added", of("added"))); err != nil {
			return nil, err
		}
		return h(ctx, r)
	}))
	h := health.NewServer()
	for service, state := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		"up": healthpb.HealthCheckResponse_SERVING, "only-" + name: healthpb.HealthCheckResponse_SERVING,
	} {
		h.SetServingStatus(service, state)
	}
	healthpb.RegisterHealthServer(s, h)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return int32(l.Addr().(*net.TCPAddr).Port)
}

// full is a port whose server takes no connection: its queue is full, so that those who connect
// wait.
func full(t testing.TB) int32 {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := int32(name.(*syscall.SockaddrInet4).Port)
	for range 2 { // what the queue has room for
		c, err := (&net.Dialer{Timeout: 100 * time.Millisecond}).DialContext(t.Context(), "tcp", fmt.Sprint("127.0.0.1:", port))
		if err != nil {
			break
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	return port
}

// closed is a port where nobody listens.
func closed(t testing.TB) int32 {
	t.Helper()
	return freePort(t)
}

// at is an endpoint of a Service, in a zone.
type at struct {
	port int32
	zone string
	// hint: the endpoint is for clients of its zone.
	hint bool
}

// endpointsOf a Service, each on a port of its own.
func endpointsOf(service string, all ...at) []resource.Object {
	var out []resource.Object
	for i, e := range all {
		s := slice(service, "main", e.port, e.zone, fmt.Sprintf("%s-%d=127.0.0.1", service, i))
		s.Name = fmt.Sprintf("%s-%d", service, i)
		if e.hint {
			s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: e.zone}}}
		}
		out = append(out, s)
	}
	return out
}

// newStage starts an Envoy of a version. Its Services are:
//
//	web, canary: an HTTP server each      many, pair: m1, m2, m3, as HTTP and as TCP
//	api: the gRPC servers g1 and g2       full: nobody takes connections
//	half: m1, and a port without a server zones: za in the client's zone, zb in another
//	shared: an import                     secured, securedtcp: ports of the workload itself
//	trio: ta, tb, tc in zones a, b, c     racks: ra in the client's rack, rb in none
func newStage(t *testing.T, binary string) *stage {
	t.Helper()
	c := &tries{n: map[string]int{}}
	m := []at{{port: c.endpoint(t, "m1"), zone: "a"}, {port: c.endpoint(t, "m2"), zone: "a"}, {port: c.endpoint(t, "m3"), zone: "a"}}
	web, canary := at{port: c.endpoint(t, "web"), zone: "a"}, at{port: c.endpoint(t, "canary"), zone: "a"}
	app, grpcApp := c.endpoint(t, "app"), c.grpcEndpoint(t, "app")
	s := &stage{
		ports: map[string]int32{}, tries: c, dir: envoytest.Dir(t), collector: newCollector(t),
		in: map[string]int32{"http": freePort(t), "tcp": freePort(t), "grpc": freePort(t), "full": freePort(t)},
	}
	workload := func(name, protocol string, target int32) meshv1alpha1.DataplanePort {
		p := meshv1alpha1.DataplanePort{Name: name, Port: s.in[name], TargetPort: &target, Tags: map[string]string{"part": name}}
		if protocol != "" {
			p.AppProtocol = &protocol
		}
		return p
	}
	d := dataplane("client-1", "127.0.0.1", workload("http", "http", app), workload("tcp", "", app), workload("grpc", "grpc", grpcApp),
		workload("full", "http", full(t)))
	d.Labels = map[string]string{"app": "client", "rack": "r1"}
	racked := dataplane("racks-0", "127.0.0.1")
	racked.Labels = map[string]string{"rack": "r1"}
	objects := []resource.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "a"}}},
		strict("Permissive"), d, racked,
	}
	services := map[string]struct {
		protocol  string
		endpoints []at
	}{
		"web": {"http", []at{web}}, "canary": {"http", []at{canary}}, "many": {"http", m}, "pair": {"", m}, "bytes": {"", []at{web}},
		"api":  {"grpc", []at{{port: c.grpcEndpoint(t, "g1"), zone: "a"}, {port: c.grpcEndpoint(t, "g2"), zone: "a"}}},
		"half": {"", []at{m[0], {port: closed(t), zone: "a"}}}, "full": {"http", []at{{port: full(t), zone: "a"}}},
		"zones":   {"http", []at{{c.endpoint(t, "za"), "a", true}, {c.endpoint(t, "zb"), "b", true}}},
		"secured": {"http", []at{{port: s.in["http"], zone: "a"}}}, "securedtcp": {"", []at{{port: s.in["tcp"], zone: "a"}}},
		"shared": {"http", []at{canary}}, "racks": {"http", []at{{port: c.endpoint(t, "ra"), zone: "a"}, {port: c.endpoint(t, "rb"), zone: "a"}}},
		"trio": {"http", []at{{port: c.endpoint(t, "ta"), zone: "a"}, {port: c.endpoint(t, "tb"), zone: "b"}, {port: c.endpoint(t, "tc"), zone: "c"}}},
	}
	for i, name := range slices.Sorted(maps.Keys(services)) {
		of := services[name]
		s.ports[name] = freePort(t)
		d.Spec.Proxy.Outbound = append(d.Spec.Proxy.Outbound, meshv1alpha1.DataplaneOutbound{Port: s.ports[name], Service: name, ServicePort: 80})
		object := service(name, netip.AddrFrom4([4]byte{10, 96, 0, byte(10 + i)}).String(), port("main", 80, of.protocol))
		if name == "shared" {
			object.Labels = map[string]string{mcsv1beta1.LabelServiceName: "imported"}
			objects = append(objects, &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "imported"},
				Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, Ports: []mcsv1beta1.ServicePort{{Name: "main", Port: 80}}}})
		}
		objects = append(append(objects, object), endpointsOf(name, of.endpoints...)...)
	}
	for _, o := range objects {
		if e, ok := o.(*discoveryv1.EndpointSlice); ok && strings.HasPrefix(e.Name, "secured") {
			e.Endpoints[0].TargetRef.Name = "client-1"
		}
	}
	s.ports["spare"] = freePort(t)
	s.plane = newPlane(t, objects...)
	s.cert, s.key = s.identity(s.dir, "shop", "default")
	s.proxy = envoytest.StartWith(t, binary, s.dir, bootstrap(s.plane, s.dir, "default/shop/client-1", s.cert, s.key, nil),
		"--concurrency", "1", "--disable-hot-restart", "--log-level", "warning", "--file-flush-interval-msec", "50",
		"--drain-time-s", "1", "--drain-strategy", "immediate")
	s.proxy.WaitReady()
	return s
}

// reply is what one request is answered; Status 0: it failed.
type reply struct {
	Status int
	Body   string
	Header http.Header
	Took   time.Duration
}

func (r reply) String() string {
	return fmt.Sprintf("%d %.60q after %s", r.Status, r.Body, r.Took.Round(time.Millisecond))
}

// get on a connection of its own; headers are names and values in turn. A name ":method" or
// ":authority" is of the request itself.
func (s *stage) get(port int32, path string, headers ...string) reply {
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		switch headers[i] {
		case ":method":
			request.Method = headers[i+1]
		case ":authority":
			request.Host = headers[i+1]
		default:
			request.Header.Set(headers[i], headers[i+1])
		}
	}
	c := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	start := time.Now()
	response, err := c.Do(request)
	if err != nil {
		return reply{Body: err.Error(), Took: time.Since(start)}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	out := reply{Status: response.StatusCode, Body: string(text), Header: response.Header, Took: time.Since(start)}
	if err != nil {
		out.Status, out.Body = 0, err.Error()
	}
	return out
}

// to a Service.
func (s *stage) to(service, path string, headers ...string) reply {
	return s.get(s.ports[service], path, headers...)
}

// together sends requests to a Service at the same time, and counts the answers by status.
func (s *stage) together(n int, port int32, path func(i int) string) map[int]int {
	out := map[int]int{}
	for _, r := range s.replies(n, port, path) {
		out[r.Status]++
	}
	return out
}

// replies to requests that are sent at the same time.
func (s *stage) replies(n int, port int32, path func(i int) string) []reply {
	out := make([]reply, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { out[i] = s.get(port, path(i)) })
	}
	all.Wait()
	return out
}

// bodies of n requests, in their order.
func (s *stage) bodies(n int, port int32, path string, headers func(i int) []string) []string {
	var out []string
	for i := range n {
		var h []string
		if headers != nil {
			h = headers(i)
		}
		r := s.get(port, path, h...)
		if r.Status != http.StatusOK {
			r.Body = fmt.Sprint(r.Status)
		}
		out = append(out, r.Body)
	}
	return out
}

// call the health service at a port, with metadata of names and values in turn.
func (s *stage) call(port int32, pairs ...string) (code codes.Code, header metadata.MD) {
	conn, err := grpc.NewClient(fmt.Sprint("127.0.0.1:", port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(s.t.Context(), pairs...), 5*time.Second)
	defer cancel()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header))
	return status.Code(err), header
}

// echo of a request that must be answered; nil if it is not.
func (s *stage) echo(service, path string, headers ...string) *echo {
	r := s.to(service, path, headers...)
	var out echo
	if r.Status != http.StatusOK || json.Unmarshal([]byte(r.Body), &out) != nil {
		return nil
	}
	return &out
}

// handshake with a port of the workload as a client of the mesh does it.
func (s *stage) handshake(port int32, change func(*tls.Config)) (tls.ConnectionState, error) {
	pair, err := tls.LoadX509KeyPair(s.cert, s.key)
	if err != nil {
		s.t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, NextProtos: []string{"proxima"}} //nolint:gosec // the server is known
	change(config)
	c, err := (&tls.Dialer{Config: config}).DialContext(s.t.Context(), "tcp", fmt.Sprint("127.0.0.1:", port))
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer c.Close()
	return c.(*tls.Conn).ConnectionState(), nil
}

// stat is the sum of the statistics whose names match.
func (s *stage) stat(filter string) float64 {
	sum := 0.0
	for _, v := range s.proxy.Stats(filter) {
		sum += v
	}
	return sum
}

// file of the Envoy's folder.
func (s *stage) file(name string) string {
	text, err := os.ReadFile(s.dir + "/" + name)
	if err != nil {
		return ""
	}
	return string(text)
}
