package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/view/wire"
	"github.com/proxima-mesh/proxima/internal/witness"
)

// clusterFigures are what a control plane takes in a Kubernetes cluster.
type clusterFigures struct {
	World clusterWorld
	// Ready is when it serves, Planned when all plans and conditions are written, of which it used
	// CPU; Memory then, and with all agents.
	Ready, Planned, StartCPU time.Duration
	Memory, WithAgents       float64
	// ConnectCPU per agent.
	ConnectCPU time.Duration
	// StartRequests by verb and resource, and those of a time in which nothing changed.
	StartRequests, IdleRequests map[string]int
	Idle, IdleCPU               time.Duration
	// Changes of one endpoint of a small Service: the time until the last agent has it, CPU and requests of all.
	Changes        int
	Change         time.Duration
	ChangeCPU      time.Duration
	ChangeRequests map[string]int
	// Rolling: all endpoints of the large Service are replaced, slice by slice.
	Steps, Endpoints int
	Rolling          time.Duration
	RollingCPU       time.Duration
	RollingRequests  map[string]int
	RollingMemory    float64
}

// measureCluster runs a control plane with --store kubernetes beside a simulated API server.
func measureCluster(ctx context.Context, binary string, p plan) (f clusterFigures, err error) {
	f.World = p.cluster
	api, err := newClusterAPI()
	if err != nil {
		return f, err
	}
	if err := f.World.fill(api); err != nil {
		return f, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return f, err
	}
	server := &http.Server{Handler: api, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	dir, err := os.MkdirTemp("", "scale-*")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(dir)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "http://" + listener.Addr().String()}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	kubeconfig := filepath.Join(dir, "cluster.kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		return f, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return f, err
	}
	began := time.Now()
	plane, err := start(ctx, binary, filepath.Join(dir, "plane"), "--store", "kubernetes", "--preset", "kube-proxy-replacement",
		"--kubeconfig", kubeconfig, "--api-address", "127.0.0.1:"+ports[0], "--grpc-port", ports[1])
	if err != nil {
		return f, err
	}
	defer plane.kill()
	f.Ready = time.Since(began)
	m := &clusterMeasure{f: &f, plan: p, api: api, plane: plane, dir: dir, grpc: "127.0.0.1:" + ports[1]}
	return f, m.all(ctx, began)
}

// clusterMeasure is one run.
type clusterMeasure struct {
	f     *clusterFigures
	plan  plan
	api   *clusterAPI
	plane *process
	dir   string
	grpc  string
	crowd *crowd
}

func (m *clusterMeasure) all(ctx context.Context, began time.Time) error {
	if err := m.written(ctx); err != nil {
		return err
	}
	f := m.f
	f.Planned, f.StartRequests = time.Since(began), m.api.counted()
	var err error
	if f.StartCPU, err = m.plane.cpu(); err != nil {
		return err
	}
	if f.Memory, err = m.plane.settled(ctx, m.plan.settle); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "ready after %s, planned after %s, CPU %s, %.0f MB\n", f.Ready, f.Planned, f.StartCPU, f.Memory/1e6)
	if m.crowd, err = newCrowd(ctx, m.grpc, filepath.Join(m.plane.dir, "pki")); err != nil {
		return err
	}
	defer m.crowd.end()
	for _, step := range []func(context.Context) error{m.connect, m.idle, m.changes, m.rolling} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// written waits until each Service has a plan and a condition, and nothing is written any more.
func (m *clusterMeasure) written(ctx context.Context) error {
	const calm = 5 // seconds
	var last map[string]int
	for same := 0; same < calm; {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		now := m.writes()
		if same++; !maps.Equal(now, last) || now["post trafficplans"] < m.f.World.services+1 {
			same = 0
		}
		last = now
	}
	return nil
}

// writes so far, but for those of the Lease.
func (m *clusterMeasure) writes() map[string]int {
	out := m.api.counted()
	maps.DeleteFunc(out, func(what string, _ int) bool { return strings.HasSuffix(what, " leases") })
	return out
}

// since are requests after others.
func since(before, after map[string]int) map[string]int {
	out := map[string]int{}
	for what, n := range after {
		if n > before[what] {
			out[what] = n - before[what]
		}
	}
	return out
}

// connect all agents: one of each zone gets everything, the others have it, as agents that were
// started again.
func (m *clusterMeasure) connect(ctx context.Context) error {
	for i := range min(clusterZones, m.f.World.nodes) {
		if err := m.crowd.add(ctx, i); err != nil {
			return err
		}
	}
	if err := m.crowd.wait(ctx, &m.crowd.complete, min(clusterZones, m.f.World.nodes)); err != nil {
		return fmt.Errorf("first state: %w", err)
	}
	m.crowd.share()
	before, err := m.plane.cpu()
	if err != nil {
		return err
	}
	for i := clusterZones; i < m.f.World.nodes; i++ {
		if err := m.crowd.add(ctx, i); err != nil {
			return err
		}
	}
	if err := m.crowd.wait(ctx, &m.crowd.complete, m.f.World.nodes); err != nil {
		return fmt.Errorf("state of all: %w", err)
	}
	after, err := m.plane.cpu()
	if err != nil {
		return err
	}
	m.f.ConnectCPU = (after - before) / time.Duration(max(1, m.f.World.nodes-clusterZones))
	m.f.WithAgents, err = m.plane.settled(ctx, m.plan.settle)
	fmt.Fprintf(os.Stderr, "%d agents: %.0f MB, CPU %s each\n", m.f.World.nodes, m.f.WithAgents/1e6, m.f.ConnectCPU)
	return err
}

func (m *clusterMeasure) idle(ctx context.Context) error {
	before, requests := time.Duration(0), m.api.counted()
	before, err := m.plane.cpu()
	if err != nil {
		return err
	}
	if err := pause(ctx, m.plan.idle); err != nil {
		return err
	}
	after, err := m.plane.cpu()
	m.f.Idle, m.f.IdleCPU, m.f.IdleRequests = m.plan.idle, after-before, since(requests, m.api.counted())
	fmt.Fprintf(os.Stderr, "idle %s: CPU %s, %v\n", m.f.Idle, m.f.IdleCPU, m.f.IdleRequests)
	return err
}

// changes of one endpoint at a time: it gets another address, or goes, so that plans change, too.
func (m *clusterMeasure) changes(ctx context.Context) error {
	before, err := m.plane.cpu()
	if err != nil {
		return err
	}
	requests := m.writes()
	var times durations
	for i := range m.plan.changes {
		s := m.f.World.slice(0, i)
		if s.Endpoints[0].Addresses = []string{fmt.Sprintf("10.99.0.%d", i)}; i%2 == 1 {
			s.Endpoints = s.Endpoints[1:]
		}
		began := time.Now()
		if err := m.change(ctx, s.Name, func() error { return m.api.put("endpointslices", s) }); err != nil {
			return err
		}
		times = append(times, time.Since(began))
	}
	if err := m.settle(ctx); err != nil {
		return err
	}
	after, err := m.plane.cpu()
	m.f.Changes, m.f.Change, m.f.ChangeCPU = m.plan.changes, times.quantile(0.5), after-before
	m.f.ChangeRequests = since(requests, m.writes())
	fmt.Fprintf(os.Stderr, "%d changes: %s, CPU %s, %v\n", m.f.Changes, m.f.Change, m.f.ChangeCPU, m.f.ChangeRequests)
	return err
}

// change something, and wait until all agents have another version of a slice.
func (m *clusterMeasure) change(ctx context.Context, slice string, how func() error) error {
	m.crowd.expect(slice)
	if err := how(); err != nil {
		return err
	}
	return m.crowd.wait(ctx, &m.crowd.changed, m.f.World.nodes)
}

// settle waits until plans and conditions are written.
func (m *clusterMeasure) settle(ctx context.Context) error {
	const calm = 3 // seconds
	var last map[string]int
	for same := 0; same < calm; same++ {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		if now := m.writes(); !maps.Equal(now, last) {
			same, last = 0, now
		}
	}
	return nil
}

// rolling replaces the endpoints of the large Service, a slice every 100 ms.
func (m *clusterMeasure) rolling(ctx context.Context) error {
	const every = 100 * time.Millisecond
	w := &m.f.World
	before, err := m.plane.cpu()
	if err != nil {
		return err
	}
	requests, began := m.writes(), time.Now()
	peak := 0.0
	for i := w.services; i < w.slices()-1; i++ {
		if err := m.api.put("endpointslices", w.slice(1, i)); err != nil {
			return err
		}
		now, err := m.plane.memory()
		if err != nil {
			return err
		}
		peak = max(peak, now)
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
	last := w.slice(1, w.slices()-1)
	if err := m.change(ctx, last.Name, func() error { return m.api.put("endpointslices", last) }); err != nil {
		return err
	}
	m.f.Rolling = time.Since(began)
	if err := m.settle(ctx); err != nil {
		return err
	}
	after, err := m.plane.cpu()
	m.f.Steps, m.f.Endpoints = w.slices()-w.services, w.large
	m.f.RollingCPU, m.f.RollingRequests, m.f.RollingMemory = after-before, since(requests, m.writes()), peak
	return err
}

// crowd are agents in a cluster: each has the streams of its view, and its heartbeat, over one
// connection with a certificate of its own. It keeps no objects.
type crowd struct {
	server    string
	authority *identity.Authority
	stop      context.CancelFunc
	ctx       context.Context
	running   sync.WaitGroup
	failed    chan error

	complete, changed atomic.Int64
	moved             chan struct{}
	// expected is the slice whose change is counted.
	expected atomic.Pointer[string]

	mu sync.Mutex
	// leaders of zones get everything; cursors are what they have, by zone and type.
	leaders map[string]*crowdAgent
	cursors map[string]map[string]string
}

func newCrowd(ctx context.Context, server, pki string) (*crowd, error) {
	authority, err := identity.Open(pki)
	if err != nil {
		return nil, err
	}
	c := &crowd{
		server: server, authority: authority, failed: make(chan error, 1), moved: make(chan struct{}, 1),
		leaders: map[string]*crowdAgent{}, cursors: map[string]map[string]string{},
	}
	c.ctx, c.stop = context.WithCancel(ctx)
	return c, nil
}

func (c *crowd) end() {
	c.stop()
	c.running.Wait()
}

// crowdAgent is one of them.
type crowdAgent struct {
	crowd *crowd
	zone  string
	leads bool

	mu        sync.Mutex
	fresh     map[string]bool
	positions map[string]string
	versions  map[string]map[string]string // of those that lead
	seen      string                       // the expected slice whose change was seen
}

// add an agent by the number of its node.
func (c *crowd) add(ctx context.Context, i int) error {
	subject, err := identity.SubjectFor(identity.Node, nodeName(i))
	if err != nil {
		return err
	}
	pair, err := c.authority.IssueClient(subject, time.Hour)
	if err != nil {
		return err
	}
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+c.server, append(stream.DialOptions(),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: c.authority.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{certificate},
		})),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Minute, Timeout: 30 * time.Second, PermitWithoutStream: true}),
	)...)
	if err != nil {
		return err
	}
	a := &crowdAgent{
		crowd: c, zone: zoneOfNode(i), fresh: map[string]bool{}, positions: map[string]string{}, versions: map[string]map[string]string{},
	}
	c.mu.Lock()
	if c.leaders[a.zone] == nil {
		a.leads, c.leaders[a.zone] = true, a
	}
	c.mu.Unlock()
	log := slog.New(slog.DiscardHandler)
	view := stream.NewClient(stream.ClientConfig{
		Conn: conn, Method: "/" + wire.GRPCService + "/" + wire.Method, Types: viewTypes,
		Node: &core.Node{Id: nodeName(i), Locality: &core.Locality{Zone: a.zone}}, Follower: a, Log: log,
	})
	beat := witness.NewClient(witness.ClientConfig{Conn: conn, Node: nodeName(i), Logger: log})
	for _, run := range []func(context.Context) error{view.Run, beat.Run} {
		c.running.Go(func() { _ = run(c.ctx) }) // it is tried again until then
	}
	c.running.Go(func() {
		<-c.ctx.Done()
		_ = conn.Close()
	})
	return ctx.Err()
}

// share what the leaders have with the agents that follow.
func (c *crowd) share() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for zone, a := range c.leaders {
		a.mu.Lock()
		c.cursors[zone] = map[string]string{}
		for typ, position := range a.positions {
			c.cursors[zone][typ] = delta.Cursor(position, a.versions[typ])
		}
		a.mu.Unlock()
	}
}

// expect a change of a slice from now on.
func (c *crowd) expect(slice string) {
	name := wire.ResourceName(clusterNamespace, slice)
	c.changed.Store(0)
	c.expected.Store(&name)
}

func (c *crowd) wait(ctx context.Context, count *atomic.Int64, n int) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	for count.Load() < int64(n) {
		select {
		case <-c.moved:
		case <-late.C:
			return fmt.Errorf("%d of %d agents within %s", count.Load(), n, patience)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Have implements stream.Follower.
func (a *crowdAgent) Have(typ string, cursor bool) map[string]string {
	a.crowd.mu.Lock()
	defer a.crowd.mu.Unlock()
	have := a.crowd.cursors[a.zone][typ]
	switch {
	case have == "":
		return nil
	case cursor:
		return map[string]string{"": have}
	}
	// After a cut, as on a busy machine: what its zone's leader has now.
	leader := a.crowd.leaders[a.zone]
	if leader != a {
		leader.mu.Lock()
		defer leader.mu.Unlock()
	}
	return maps.Clone(leader.versions[typ])
}

// Connected implements stream.Follower.
func (a *crowdAgent) Connected(metadata.MD) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.fresh) == len(viewTypes) {
		a.crowd.complete.Add(-1)
	}
	clear(a.fresh)
}

// Receive implements stream.Follower.
func (a *crowdAgent) Receive(r *stream.Response) {
	c := a.crowd
	a.mu.Lock()
	if a.leads {
		if a.versions[r.Type] == nil {
			a.versions[r.Type] = map[string]string{}
		}
		for _, one := range r.Resources {
			a.versions[r.Type][one.GetName()] = one.GetVersion()
		}
		for _, name := range r.Removed {
			delete(a.versions[r.Type], name)
		}
	}
	expected := c.expected.Load()
	saw := func() {
		if expected != nil && a.seen != *expected {
			a.seen = *expected
			c.changed.Add(1)
		}
	}
	if r.Type == wire.SliceType {
		for _, one := range r.Resources {
			if expected != nil && one.GetName() == *expected {
				saw()
			}
		}
	}
	if r.Position != "" {
		a.positions[r.Type] = r.Position
		if !a.fresh[r.Type] {
			if a.fresh[r.Type] = true; len(a.fresh) == len(viewTypes) {
				c.complete.Add(1)
				saw() // a stream that is new has whatever changed before
			}
		}
	}
	a.mu.Unlock()
	r.Accept()
	select {
	case c.moved <- struct{}{}:
	default:
	}
}

// table of the figures, in Markdown.
func (f clusterFigures) table() string {
	var b strings.Builder
	w := f.World
	fmt.Fprintf(&b, "A control plane with `--store kubernetes` in a cluster of %d nodes in %d zones, "+
		"%d Services with %d endpoints in all, of which one has %d, "+
		"and a pod for each endpoint:\n\n| quantity | value |\n|---|---|\n", w.nodes, clusterZones, w.services+1, w.endpoints(), w.large)
	row := func(what, format string, values ...any) {
		fmt.Fprintf(&b, "| %s | %s |\n", what, fmt.Sprintf(format, values...))
	}
	row("memory, all Services planned", "%.0f MB", f.Memory/1e6)
	row(fmt.Sprintf("memory, with the streams of %d agents", w.nodes), "%.0f MB", f.WithAgents/1e6)
	row("start until it serves; until all plans and conditions are written", "%.1f s; %.1f s", f.Ready.Seconds(), f.Planned.Seconds())
	row("CPU until then", "%.1f s", f.StartCPU.Seconds())
	row("requests until then", "%s", requestText(f.StartRequests))
	row("CPU for an agent that connects and has the state", "%.1f ms", milliseconds(f.ConnectCPU))
	row(fmt.Sprintf("idle for %s: CPU; requests", f.Idle), "%.1f s; %s", f.IdleCPU.Seconds(), requestText(f.IdleRequests))
	row("one endpoint changes: until the last agent has it, median", "%s", f.Change.Round(time.Millisecond))
	row(fmt.Sprintf("%d such changes: CPU; requests", f.Changes), "%.1f s; %s", f.ChangeCPU.Seconds(), requestText(f.ChangeRequests))
	row(fmt.Sprintf("%d endpoints are replaced in %d updates of slices: until the last agent has the last one", f.Endpoints, f.Steps),
		"%.1f s", f.Rolling.Seconds())
	row("CPU; requests; highest memory meanwhile", "%.1f s; %s; %.0f MB",
		f.RollingCPU.Seconds(), requestText(f.RollingRequests), f.RollingMemory/1e6)
	b.WriteString("\n")
	return b.String()
}

// requestText of requests by verb and resource.
func requestText(requests map[string]int) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(requests)) {
		parts = append(parts, fmt.Sprintf("%d %s", requests[what], what))
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, ", ")
}
