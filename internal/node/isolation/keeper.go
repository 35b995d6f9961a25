package isolation

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Config of a Keeper.
type Config struct {
	// Node is the name of this node.
	Node string
	// Mode that refuses; nil: none can. DNS is answered all the same.
	Mode proxy.Isolator
	// Replay returns the whole state of the feed, with what Apply is called with. It is asked
	// for it when meshes have to be kept apart from then on.
	Replay func() node.Update
	// Own returns the addresses of this machine.
	Own    func() []netip.Addr
	Logger *slog.Logger // nil: discard
	// Registerer of metrics; nil: none. Registering twice panics.
	Registerer prometheus.Registerer
}

// Keeper keeps the meshes of a node apart. Make it with New. Its methods are safe for
// concurrent use; those of a nil Keeper, where they say so, answer that there is one mesh.
type Keeper struct {
	cfg  Config
	wake chan struct{}
	// turn is full while the mode is told something, so that it is told in order.
	turn chan struct{}
	// now is what DNS asks for.
	now atomic.Pointer[located]

	mu    sync.Mutex
	state *state
	// pending is what the mode does not know yet; nil: nothing.
	pending *proxy.Isolation
	err     error
	// told is closed when the mode has been told something, or there is nothing to tell.
	told chan struct{}
	// telling: Flush is under way.
	telling bool
}

// New makes a keeper of a node that knows nothing yet.
func New(cfg Config) *Keeper {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	k := &Keeper{
		cfg: cfg, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1), state: newState(cfg.Node), told: make(chan struct{}),
	}
	if cfg.Registerer != nil {
		k.register(cfg.Registerer)
	}
	return k
}

// register the metrics of the keeper.
func (k *Keeper) register(reg prometheus.Registerer) {
	metric := func(name, help string, value func(*Status) float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "proxima", Subsystem: "isolation", Name: name, Help: help,
		}, func() float64 {
			if s := k.Status(); s != nil {
				return value(s)
			}
			return 0
		}))
	}
	metric("sources", "Addresses of workloads of this node that are kept to their mesh; 0: the zone has one mesh.",
		func(s *Status) float64 { return float64(len(s.Sources)) })
	metric("cgroups", "Cgroups of workloads of this node that are kept to their mesh.",
		func(s *Status) float64 { return float64(len(s.Cgroups)) })
	metric("failing", "1 while the mode does not refuse what it should.", func(s *Status) float64 {
		if s.Problem != "" {
			return 1
		}
		return 0
	})
}

// Place makes these all cgroups of workloads of this node. The mode follows as in Apply. One
// of a workload that is not known yet, or not any more, is of the mesh that it was last known
// to be of.
func (k *Keeper) Place(all []Placed) {
	if k == nil || !k.TellsCgroups() {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.place(slices.Clone(all))
	if k.state.active {
		k.relocate()
	}
}

// TellsCgroups reports whether the mode tells connections apart by their cgroups. Of a nil
// Keeper, too.
func (k *Keeper) TellsCgroups() bool {
	return k != nil && k.cfg.Mode != nil && k.cfg.Mode.Isolates().Cgroups
}

// AwaitPlaced returns when connections from a cgroup are kept to the mesh of its workload, or
// when nothing is kept apart, or when ctx ends. Of a nil Keeper, too.
func (k *Keeper) AwaitPlaced(ctx context.Context, path string) error {
	if !k.TellsCgroups() {
		return nil
	}
	for {
		k.mu.Lock()
		in := slices.ContainsFunc(k.state.placed, func(p Placed) bool { return p.Path == path && k.state.cgroups[p.Cgroup].Mesh != "" })
		done := !k.state.active || in && k.pending == nil && !k.telling && k.err == nil
		told := k.told
		k.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-told:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tell whoever waits that something has changed. k.mu is held.
func (k *Keeper) tell() {
	close(k.told)
	k.told = make(chan struct{})
}

// Apply takes an update of the feed over. The mode follows in Run, or by Flush.
func (k *Keeper) Apply(u node.Update) {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.tell()
	active := k.state.activeWith(u)
	switch {
	case !active && !k.state.active:
		k.state.noteMeshes(u)
		if u.Reset { // an earlier process may have left something
			k.add(proxy.Isolation{Reset: true})
		}
		return
	case !active:
		meshes := k.state.meshes
		k.state.clear()
		k.state.meshes = meshes
		k.state.noteMeshes(u)
		k.now.Store(nil)
		k.cfg.Logger.Info("the site has one mesh: nothing is refused any more")
		k.add(proxy.Isolation{Reset: true})
		return
	case !k.state.active && !u.Reset && k.cfg.Replay != nil:
		u = k.cfg.Replay()
		u.Reset = true
	}
	if !k.state.active {
		k.cfg.Logger.Info("the site has several meshes, or one without passthrough: workloads of this node are kept to theirs")
	}
	if k.state.relocates(u) {
		k.readOwn()
	}
	k.add(k.state.apply(u))
	k.publish()
}

func (k *Keeper) readOwn() {
	if k.cfg.Own == nil {
		return
	}
	own := map[netip.Addr]bool{}
	for _, a := range k.cfg.Own() {
		own[a.Unmap().WithZone("")] = true
	}
	k.state.own = own
}

func (k *Keeper) publish() {
	now := k.state.located
	k.now.Store(&now)
}

// relocate works out the sources again.
func (k *Keeper) relocate() {
	was := k.state.located
	k.state.locate()
	k.add(k.state.since(was))
	k.publish()
}

// add to what the mode does not know.
func (k *Keeper) add(change proxy.Isolation) {
	if k.cfg.Mode == nil {
		return
	}
	if k.pending == nil {
		k.pending = &change
	} else {
		merged := merge(*k.pending, change)
		k.pending = &merged
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// merge two changes, the older one first.
func merge(older, newer proxy.Isolation) proxy.Isolation {
	if newer.Reset {
		return newer
	}
	out := newer
	out.Reset = older.Reset
	out.Sources, out.Reach = overlay(older.Sources, newer.Sources), overlay(older.Reach, newer.Reach)
	out.Cgroups = overlay(older.Cgroups, newer.Cgroups)
	return out
}

func overlay[K comparable, V any](older, newer map[K]V) map[K]V {
	out := maps.Clone(older)
	if out == nil {
		return newer
	}
	maps.Copy(out, newer)
	return out
}

// Flush tells the mode what it does not know yet, after what it is being told. After an error it
// is tried again in Run.
func (k *Keeper) Flush() error {
	k.turn <- struct{}{}
	defer func() { <-k.turn }()
	k.mu.Lock()
	change := k.pending
	k.pending, k.telling = nil, change != nil
	k.mu.Unlock()
	if change == nil {
		return nil
	}
	err := k.cfg.Mode.Isolate(*change)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.telling = false
	defer k.tell()
	if k.err = err; err == nil {
		return nil
	}
	if k.pending != nil {
		merged := merge(*change, *k.pending)
		change = &merged
	}
	k.pending = change
	return err
}

// ownPeriod is how often the addresses of the machine are read, while they matter: an
// interface that comes later may have one of them.
const ownPeriod = 30 * time.Second

// Run tells the mode what changes, until ctx ends; it returns nil then. What fails is tried
// again.
func (k *Keeper) Run(ctx context.Context) error {
	retry := backoff.Backoff{Policy: backoff.Policy{First: 100 * time.Millisecond, Last: 30 * time.Second}}
	for {
		timer := time.NewTimer(ownPeriod)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-k.wake:
		case <-timer.C:
			k.refresh()
		}
		timer.Stop()
		for err := k.Flush(); err != nil; err = k.Flush() {
			k.cfg.Logger.Error("meshes are not kept apart as they should be; it is tried again", "error", err)
			if !backoff.Sleep(ctx, retry.Next()) {
				return nil
			}
		}
		retry.Reset()
	}
}

// refresh reads the addresses of the machine again.
func (k *Keeper) refresh() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.state.active {
		return
	}
	was := k.state.own
	if k.readOwn(); !maps.Equal(was, k.state.own) {
		k.relocate()
	}
}

// Viewer is the mesh whose Services a client at an address sees by their names; empty: it
// sees all, as a client that is no workload does. Of a nil Keeper, too.
func (k *Keeper) Viewer(client netip.Addr) string {
	if k == nil {
		return ""
	}
	now := k.now.Load()
	if now == nil {
		return ""
	}
	return now.viewer(client)
}

// Refusal is why a connection from an address of this node to another address is refused;
// empty: it is not, because of meshes. service is the service port that has the destination;
// nil: none has. Of a nil Keeper, too.
func (k *Keeper) Refusal(from, to netip.Addr, service *proxy.PortState) string {
	if k == nil {
		return ""
	}
	now := k.now.Load()
	if now == nil {
		return ""
	}
	from, to = from.Unmap(), to.Unmap()
	mesh := now.of(from)
	switch {
	case mesh == "":
		return ""
	case service != nil && slices.Contains(service.Service.ClusterIPs, to) && !service.Service.Scope.Allows(mesh):
		if mesh == proxy.SeveralMeshes {
			return fmt.Sprintf("workloads of several meshes have the address %s, and the Service is of mesh %s", from, service.Service.Scope.Mesh)
		}
		return fmt.Sprintf("%s is of mesh %s, the Service is of mesh %s", from, mesh, service.Service.Scope.Mesh)
	case service != nil || !now.sources[from].Closed || k.cfg.Mode == nil || !k.cfg.Mode.Isolates().Outside:
		return ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state.refs[proxy.Reach{Mesh: mesh, Addr: to}] > 0 || now.own[to] || to.IsLoopback() || to.IsMulticast() {
		return ""
	}
	return fmt.Sprintf("%s is of mesh %s, which has no passthrough and does not know %s", from, mesh, to)
}

// Status of a Keeper.
type Status struct {
	// Sources are the addresses of workloads of this node, in order.
	Sources []SourceStatus `json:"sources,omitempty"`
	// Cgroups are those of workloads of this node, by their paths. They count before addresses.
	Cgroups []CgroupStatus `json:"cgroups,omitempty"`
	// Node is the mesh of the addresses of the node itself; empty: none.
	Node string `json:"node,omitempty"`
	// Problem is why the mode does not refuse what it should; empty: it does.
	Problem string `json:"problem,omitempty"`
}

// SourceStatus is of which mesh an address is; "*": of several. Closed: its connections to what
// the mesh does not know are to be refused.
type SourceStatus struct {
	Address netip.Addr `json:"address"`
	Mesh    string     `json:"mesh"`
	Closed  bool       `json:"closed,omitempty"`
}

// CgroupStatus is of which mesh a cgroup is. Closed: as in SourceStatus.
type CgroupStatus struct {
	Path     string `json:"path"`
	Workload string `json:"workload"`
	Mesh     string `json:"mesh"`
	Closed   bool   `json:"closed,omitempty"`
}

// Status now, also of a nil Keeper; nil: the site has one mesh, so nothing is refused.
func (k *Keeper) Status() *Status {
	if k == nil {
		return nil
	}
	now := k.now.Load()
	if now == nil {
		return nil
	}
	s := &Status{Node: now.host.Mesh}
	for a, source := range now.sources {
		s.Sources = append(s.Sources, SourceStatus{Address: a, Mesh: source.Mesh, Closed: source.Closed})
	}
	slices.SortFunc(s.Sources, func(a, b SourceStatus) int { return a.Address.Compare(b.Address) })
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.state.placed {
		if source, ok := now.cgroups[p.Cgroup]; ok {
			s.Cgroups = append(s.Cgroups, CgroupStatus{Path: p.Path, Workload: p.Workload.String(), Mesh: source.Mesh, Closed: source.Closed})
		}
	}
	slices.SortFunc(s.Cgroups, func(a, b CgroupStatus) int { return strings.Compare(a.Path, b.Path) })
	if k.err != nil {
		s.Problem = k.err.Error()
	}
	return s
}
