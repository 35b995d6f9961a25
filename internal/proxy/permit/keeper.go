// Package permit lets only those clients connect to workloads of a node that permissions allow, by
// their addresses: for workloads without a proxy, which would know more of a client.
//
// Enter at New; hand workloads of the feed to Keeper.Apply, and run Keeper.Run, which programs the
// kernel. It owns the tables proxima-permissions of nftables, one per family, beside every mode's own:
// they are the same in all kernel modes, and stay when the agent ends. Cleanup removes them. It knows no
// policies: what a permission amounts to is decided by the control plane.
package permit

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// TableName of the tables.
const TableName = "proxima-permissions"

// period in which the keeper looks whether its tables are there still.
const period = 10 * time.Second

// Config of a Keeper.
type Config struct {
	// Node is the name of this node.
	Node string
	// Namespace is a file descriptor of the network namespace to work in; 0: that of the thread that
	// calls New.
	Namespace int
	Logger    *slog.Logger // nil: discard
	// Unable says why permissions are not enforced on this node; empty: they are. Then the kernel is left
	// alone, and the keeper only knows which ports are not guarded.
	Unable string
}

// Keeper keeps clients from workloads of a node. Make it with New. Its methods are safe for concurrent
// use.
type Keeper struct {
	log    *slog.Logger
	node   string
	unable string
	kernel *kernel // nil: unable
	wake   chan struct{}

	mu sync.Mutex
	// known are workloads with guarded ports here, or in a set.
	known map[proxy.ServiceName]*proxy.Workload
	want  desired
	// complete: a feed has delivered a whole state.
	complete bool
	err      error
	// counts of ports that are guarded, and the sum of those of all that ever were.
	counts map[guarded]*counts
	total  counts
}

// counts of packets that begin connections.
type counts struct{ asked, refused uint64 }

// desired is what the tables should have. It changes by the workloads that change.
type desired struct {
	// sets count the workloads at an address, by the ID of a set.
	sets map[string]map[netip.Addr]int
	// ports are guarded, at the addresses of workloads of this node. Several workloads may have one, such
	// as those that a program registered by two protocols: the first by name counts.
	ports map[guarded]map[proxy.ServiceName]proxy.GuardedPort
	// changed since the kernel was programmed.
	changedSets  map[string]map[netip.Addr]struct{}
	changedPorts map[guarded]struct{}
}

// guarded is a port at an address.
type guarded struct {
	addr     netip.Addr
	protocol proxy.Protocol
	port     uint16
}

// New makes a keeper of a node that knows no workload yet. It opens a socket, and fails where the kernel
// has no nf_tables, or the process must not use it, unless it is Unable. Close frees the socket.
func New(cfg Config) (*Keeper, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	k := &Keeper{
		log: cfg.Logger, node: cfg.Node, unable: cfg.Unable, wake: make(chan struct{}, 1), known: map[proxy.ServiceName]*proxy.Workload{},
		want: newDesired(), counts: map[guarded]*counts{},
	}
	if k.unable != "" {
		return k, nil
	}
	var err error
	k.kernel, err = openKernel(cfg.Namespace)
	if err != nil {
		return nil, err
	}
	return k, nil
}

func newDesired() desired {
	return desired{
		sets: map[string]map[netip.Addr]int{}, ports: map[guarded]map[proxy.ServiceName]proxy.GuardedPort{},
		changedSets: map[string]map[netip.Addr]struct{}{}, changedPorts: map[guarded]struct{}{},
	}
}

// Apply takes workloads over; nil: it has gone. With reset they are all there are. It returns at once.
func (k *Keeper) Apply(reset bool, workloads map[proxy.ServiceName]*proxy.Workload) {
	if !reset && len(workloads) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if reset {
		k.complete = true
		for name := range k.known {
			if workloads[name] == nil {
				k.set(name, nil)
			}
		}
	}
	for name, w := range workloads {
		k.set(name, w)
	}
	k.signal()
}

func (k *Keeper) signal() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *Keeper) set(name proxy.ServiceName, w *proxy.Workload) {
	if old := k.known[name]; old != nil {
		k.want.note(old, old.Node == k.node, -1)
		delete(k.known, name)
	}
	if w == nil || len(w.Sets) == 0 && (len(w.Ports) == 0 || w.Node != k.node) {
		return
	}
	k.known[name] = w
	k.want.note(w, w.Node == k.node, +1)
}

// note a workload, or take it back.
func (d *desired) note(w *proxy.Workload, here bool, by int) {
	for _, addr := range w.Addrs {
		for _, id := range w.Sets {
			if d.sets[id] == nil {
				d.sets[id] = map[netip.Addr]int{}
			}
			if d.changedSets[id] == nil {
				d.changedSets[id] = map[netip.Addr]struct{}{}
			}
			d.changedSets[id][addr] = struct{}{}
			if d.sets[id][addr] += by; d.sets[id][addr] == 0 {
				if delete(d.sets[id], addr); len(d.sets[id]) == 0 {
					delete(d.sets, id)
				}
			}
		}
		if !here {
			continue
		}
		for _, p := range w.Ports {
			at := guarded{addr, p.Protocol, p.Port}
			d.changedPorts[at] = struct{}{}
			if by < 0 {
				if delete(d.ports[at], w.Name); len(d.ports[at]) == 0 {
					delete(d.ports, at)
				}
				continue
			}
			if d.ports[at] == nil {
				d.ports[at] = map[proxy.ServiceName]proxy.GuardedPort{}
			}
			d.ports[at][w.Name] = p
		}
	}
}

// port is what holds for a guarded one.
func (d *desired) port(at guarded) (p proxy.GuardedPort, ok bool) {
	var first proxy.ServiceName
	for name, one := range d.ports[at] {
		if !ok || name.String() < first.String() {
			first, p, ok = name, one, true
		}
	}
	return p, ok
}

// Run programs the kernel until ctx ends, and returns nil then. It is called once, and leaves the tables
// as they are.
func (k *Keeper) Run(ctx context.Context) error {
	retry := backoff.Backoff{Policy: backoff.Policy{First: 100 * time.Millisecond, Last: 30 * time.Second}}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		case <-ticker.C:
		}
		if err := k.Flush(); err != nil {
			k.log.Error("permissions are not enforced on this node as they should be; it is tried again", "error", err)
			if !backoff.Sleep(ctx, retry.Next()) {
				return nil
			}
			k.signal()
			continue
		}
		retry.Reset()
	}
}

// Flush programs what changed, and everything where the tables are gone. Until a whole state was applied
// it does nothing, so that what an earlier process left counts.
func (k *Keeper) Flush() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.complete {
		return nil
	}
	if k.kernel != nil {
		k.count()
		k.err = k.kernel.program(&k.want)
	}
	if k.err == nil {
		k.want.changedSets, k.want.changedPorts = map[string]map[netip.Addr]struct{}{}, map[guarded]struct{}{}
	}
	return k.err
}

// count reads the kernel's counters. What cannot be read now is read later.
func (k *Keeper) count() {
	if k.kernel == nil {
		return
	}
	err := k.kernel.count(func(g guarded, asked, refused uint64) {
		c := k.counts[g]
		if c == nil {
			c = &counts{}
			k.counts[g] = c
		}
		for _, c := range []*counts{c, &k.total} {
			c.asked, c.refused = c.asked+asked, c.refused+refused
		}
	})
	if err != nil {
		k.log.Debug("connections to guarded ports are not counted now", "error", err)
	}
	for g := range k.counts {
		if _, ok := k.want.ports[g]; !ok {
			delete(k.counts, g)
		}
	}
}

// Close frees the socket. The tables stay.
func (k *Keeper) Close() error {
	if k.kernel == nil {
		return nil
	}
	return k.kernel.close()
}

// Status of a Keeper.
type Status struct {
	// Ports of workloads of this node that only some clients may connect to.
	Ports int `json:"ports"`
	// Unable says why they are not guarded on this node, and will not be; empty: they are.
	Unable string `json:"unable,omitempty"`
	// Problem why they are not guarded as they should be; empty: they are.
	Problem string `json:"problem,omitempty"`
	// Admitted and Refused are the packets that began, or would have begun, connections to guarded ports
	// since the agent started, also those that are sent again; those of the node itself are not among them.
	// Of TCP they are SYNs, of UDP datagrams of flows that have no answer yet.
	Admitted uint64 `json:"admitted"`
	Refused  uint64 `json:"refused"`
	// Refusing are ports that have refused, those with the most first, at most 10.
	Refusing []Refusing `json:"refusing,omitempty"`
}

// Refusing is a port that has refused clients.
type Refusing struct {
	Address  netip.AddrPort `json:"address"`
	Protocol proxy.Protocol `json:"protocol"`
	Refused  uint64         `json:"refused"`
}

// maxRefusing ports of a Status.
const maxRefusing = 10

// Status takes a snapshot, with counters that are read now.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count()
	s := Status{Ports: len(k.want.ports), Unable: k.unable, Admitted: k.total.asked - min(k.total.asked, k.total.refused), Refused: k.total.refused}
	if k.err != nil {
		s.Problem = k.err.Error()
	}
	for g, c := range k.counts {
		if c.refused > 0 {
			s.Refusing = append(s.Refusing, Refusing{netip.AddrPortFrom(g.addr, g.port), g.protocol, c.refused})
		}
	}
	slices.SortFunc(s.Refusing, func(a, b Refusing) int {
		return cmp.Or(cmp.Compare(b.Refused, a.Refused), a.Address.Compare(b.Address), cmp.Compare(a.Protocol, b.Protocol))
	})
	s.Refusing = s.Refusing[:min(len(s.Refusing), maxRefusing)]
	return s
}

// Decide what becomes of a new connection to a port of a workload of this node; guarded: only some
// clients may make one.
func (k *Keeper) Decide(from netip.Addr, to netip.AddrPort, protocol proxy.Protocol) (admitted, isGuarded bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	from = from.Unmap()
	p, ok := k.want.port(guarded{to.Addr().Unmap(), protocol, to.Port()})
	if !ok {
		return true, false
	}
	in := func(all []proxy.Callers) bool {
		for _, c := range all {
			if c.Set != "" && k.want.sets[c.Set][from] == 0 {
				continue
			}
			if c.Ranges == nil {
				return true
			}
			for _, r := range c.Ranges {
				if r.Contains(from) {
					return true
				}
			}
		}
		return false
	}
	return !in(p.Deny) && (in(p.Allow) || !p.Refuse), true
}
