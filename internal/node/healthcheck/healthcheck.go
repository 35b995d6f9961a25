// Package healthcheck serves the healthCheckNodePorts of Services: load
// balancers ask them which nodes have endpoints of a Service of type
// LoadBalancer with externalTrafficPolicy Local.
//
// Enter at [New]; hand [Servers.Update] what the agent has put in place. It
// does not depend on endpoints beyond their number, and never touches the data
// path.
package healthcheck

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// minRetry and maxRetry bound the pause before a port that could not be had is
// tried again; it doubles.
const (
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// Options of Servers. All have defaults.
type Options struct {
	// Healthy reports whether this node's proxy is; nil: always. It may be called
	// by several goroutines at a time.
	Healthy func() bool
	// Addresses to listen on; none: all of this machine.
	Addresses []netip.Addr
	// Listen opens a port; nil: net.Listen.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Logger gets ports that can't be had; nil: silence.
	Logger *slog.Logger
	// Registerer gets the metrics; nil: none.
	Registerer prometheus.Registerer
}

// Servers are the health check servers of a node. Safe for concurrent use.
type Servers struct {
	opts Options
	wake chan struct{} // holds one element while there is work

	mu       sync.Mutex
	services map[proxy.ServiceName]*service
	// owner of each port: of two Services that claim one, the first by name.
	servers map[uint16]*server
}

// service is what is known of one Service.
type service struct {
	port  uint16
	local map[string]int // ready local endpoints, by port name
}

// endpoints are the workloads behind a Service: its ports have the same ones,
// but a named port may be missing in some.
func (s *service) endpoints() int {
	most := 0
	for _, n := range s.local {
		most = max(most, n)
	}
	return most
}

// server is one port that is served, or should be.
type server struct {
	owner     proxy.ServiceName
	listeners []net.Listener
	http      *http.Server
	err       error
	attempts  int
	retryAt   time.Time
}

// New makes servers that serve nothing until Run.
func New(opts Options) (*Servers, error) {
	if opts.Healthy == nil {
		opts.Healthy = func() bool { return true }
	}
	if opts.Listen == nil {
		opts.Listen = new(net.ListenConfig).Listen
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Servers{
		opts: opts, wake: make(chan struct{}, 1),
		services: map[proxy.ServiceName]*service{}, servers: map[uint16]*server{},
	}
	if opts.Registerer != nil {
		err := opts.Registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "proxima", Subsystem: "node", Name: "health_check_node_ports_unserved",
			Help: "Health check node ports that could not be opened.",
		}, func() float64 { return float64(len(s.Failures())) }))
		if err != nil {
			return nil, fmt.Errorf("health check node ports: registering metrics: %w", err)
		}
	}
	return s, nil
}

// Update takes over service ports that are in place now, or gone. It does not
// block; the servers follow in Run.
func (s *Servers) Update(changes []proxy.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	moved := false
	for _, c := range changes {
		moved = s.store(c) || moved
	}
	if moved {
		s.signal()
	}
}

// take reports whether a change concerns which ports are served.
func (s *Servers) store(c proxy.Change) bool {
	known := s.services[c.Name.ServiceName]
	if c.State == nil || c.State.Service.HealthCheckNodePort == 0 {
		if known == nil {
			return false
		}
		if delete(known.local, c.Name.Port); len(known.local) > 0 {
			return false
		}
		delete(s.services, c.Name.ServiceName)
		return true
	}
	port := c.State.Service.HealthCheckNodePort
	if known == nil {
		known = &service{local: map[string]int{}}
		s.services[c.Name.ServiceName] = known
	}
	moved := known.port != port
	known.port = port
	known.local[c.Name.Port] = c.State.LocalReady
	return moved
}

func (s *Servers) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run opens and closes ports until ctx ends, then closes all; it returns nil.
// Call it once.
func (s *Servers) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	defer s.closeAll()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(s.reconcile(ctx, time.Now(), &running))
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// reconcile opens and closes ports, and reports how long nothing is due.
func (s *Servers) reconcile(ctx context.Context, now time.Time, running *sync.WaitGroup) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := s.wanted()
	for port, srv := range s.servers {
		if owner, ok := wanted[port]; !ok || owner != srv.owner {
			srv.close()
			delete(s.servers, port)
		}
	}
	next := time.Hour
	for port, owner := range wanted {
		srv := s.servers[port]
		if srv == nil {
			srv = &server{owner: owner}
			s.servers[port] = srv
		}
		if srv.http == nil && !now.Before(srv.retryAt) {
			s.open(ctx, port, srv, now, running)
		}
		if srv.http == nil {
			next = min(next, srv.retryAt.Sub(now))
		}
	}
	return next
}

func (s *Servers) wanted() map[uint16]proxy.ServiceName {
	out := make(map[uint16]proxy.ServiceName, len(s.services))
	for name, svc := range s.services {
		if other, taken := out[svc.port]; !taken || compare(name, other) < 0 {
			out[svc.port] = name
		}
	}
	return out
}

func compare(a, b proxy.ServiceName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// maxConnections of one port and address. Load balancers ask with a few each.
const maxConnections = 256

// open listens and serves, or plans another attempt.
func (s *Servers) open(ctx context.Context, port uint16, srv *server, now time.Time, running *sync.WaitGroup) {
	hosts := []string{""}
	if len(s.opts.Addresses) > 0 {
		hosts = hosts[:0]
		for _, a := range s.opts.Addresses {
			hosts = append(hosts, a.String())
		}
	}
	srv.err = nil
	for _, host := range hosts {
		l, err := s.opts.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err != nil {
			srv.err = err
			break
		}
		srv.listeners = append(srv.listeners, listener.Limit(l, listener.Config{
			Name: fmt.Sprintf("health check node port %d", port), MaxConnections: maxConnections, Logger: s.opts.Logger,
		}))
	}
	if srv.err != nil {
		srv.close()
		srv.listeners = nil
		srv.retryAt = now.Add(min(minRetry<<min(srv.attempts, 8), maxRetry))
		if srv.attempts++; srv.attempts == 1 && ctx.Err() == nil {
			s.opts.Logger.Warn("health check node port can't be opened, trying again", "service", srv.owner.String(), "port", port,
				"error", srv.err, "hint", "another program on this node uses the port; end it, or change spec.healthCheckNodePort")
		}
		return
	}
	if srv.attempts > 0 {
		s.opts.Logger.Info("health check node port opened", "service", srv.owner.String(), "port", port)
		srv.attempts = 0
	}
	srv.http = listener.HTTPServer(s.handler(srv.owner))
	for _, l := range srv.listeners {
		running.Go(func() { s.serve(srv, port, l) })
	}
}

// serve one listener. A server that ends by itself is opened again.
func (s *Servers) serve(srv *server, port uint16, l net.Listener) {
	if err := srv.http.Serve(l); errors.Is(err, http.ErrServerClosed) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.servers[port] == srv {
		srv.close()
		delete(s.servers, port)
		s.signal()
	}
}

func (srv *server) close() {
	if srv.http != nil {
		_ = srv.http.Close()
	}
	for _, l := range srv.listeners {
		_ = l.Close() // those that are not served yet
	}
}

func (s *Servers) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, srv := range s.servers {
		srv.close()
	}
	s.servers = map[uint16]*server{}
}

// answer is the body, as kube-proxy writes it.
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints int  `json:"localEndpoints"`
	ProxyHealthy   bool `json:"serviceProxyHealthy"`
}

// handler answers any path: 200 while this node has a ready endpoint and a
// healthy proxy, else 503.
func (s *Servers) handler(name proxy.ServiceName) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var a answer
		a.Service.Namespace, a.Service.Name = name.Namespace, name.Name
		s.mu.Lock()
		if svc := s.services[name]; svc != nil {
			a.LocalEndpoints = svc.endpoints()
		}
		s.mu.Unlock()
		a.ProxyHealthy = s.opts.Healthy()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(a.LocalEndpoints))
		if a.LocalEndpoints == 0 || !a.ProxyHealthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(a) // the client went away
	})
}

// Failure is a port that is not served.
type Failure struct {
	Service proxy.ServiceName
	Port    uint16
	Err     error
}

// Failures lists ports that are not served, by port.
func (s *Servers) Failures() []Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Failure
	for port, srv := range s.servers {
		if srv.err != nil {
			out = append(out, Failure{Service: srv.owner, Port: port, Err: srv.err})
		}
	}
	slices.SortFunc(out, func(a, b Failure) int { return cmp.Compare(a.Port, b.Port) })
	return out
}
