//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/ebpf"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

const (
	// layerTransaction is the most that a short transaction through the layer may take, as a multiple of a direct
	// one on the same node.
	layerTransaction = 1.01
	layerAlone       = 1.03
	// layerCold and layerChange are the most that a first state and one change may cost, beyond the mode below.
	layerCold   = 100e-3
	layerChange = 20e-6
	// layerRounds of transactions are measured for each round of other paths: the limit is closer to 1 than the noise of a few
	// dozen rounds.
	layerRounds = 8
)

// empty is a mode that carries nothing, below a layer that is measured alone.
type empty struct{}

func (empty) Name() string                                { return "none" }
func (empty) Apply(context.Context, []proxy.Change) error { return nil }
func (empty) Close(context.Context) error                 { return nil }

// cgroups of threads, below one that this process is in meanwhile.
type threads struct {
	top, root string
	all       []string
}

func newThreads(names ...string) (_ *threads, err error) {
	top, err := cgroup.Root()
	if err != nil {
		return nil, err
	}
	t := &threads{top: top, root: filepath.Join(top, "proxima-bench-"+strconv.Itoa(os.Getpid()))}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if err := os.Mkdir(t.root, 0o755); err != nil {
		return nil, err
	}
	for _, name := range append(names, "rest") {
		dir := filepath.Join(t.root, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		t.all = append(t.all, dir)
		if err := os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte("threaded"), 0); err != nil {
			return nil, err
		}
	}
	own := []byte(strconv.Itoa(os.Getpid()))
	for _, dir := range []string{t.root, t.all[len(t.all)-1]} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), own, 0); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *threads) close() {
	_ = os.WriteFile(filepath.Join(t.top, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	for _, dir := range t.all {
		_ = os.Remove(dir)
	}
	_ = os.Remove(t.root)
}

// in runs f with its thread in the i-th cgroup; the last is that of all else.
func (t *threads) in(i int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	move := func(i int) error {
		return os.WriteFile(filepath.Join(t.all[i], "cgroup.threads"), []byte(strconv.Itoa(unix.Gettid())), 0)
	}
	if err := move(i); err != nil {
		return err
	}
	return errors.Join(f(), move(len(t.all)-1))
}

// host is a machine whose workloads are its own addresses.
type host struct {
	*netns.NS
	listener int
	done     chan struct{}
}

func newHost(ctx context.Context, name string, v6 bool, cpu int) (_ *host, err error) {
	h := &host{listener: -1}
	if h.NS, err = netns.New(name); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	if err := serveRange(ctx, h.NS); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"addr", "add", workloads.Addr().Next().String() + "/32", "dev", "lo"}, {"route", "add", "default", "dev", "lo"},
		{"addr", "add", "fd07::1/128", "dev", "lo"}, {"-6", "route", "add", "local", "fd10::/16", "dev", "lo"}, {"-6", "route", "add", "default", "dev", "lo"},
	} {
		if _, err := h.Output(ctx, "ip", args...); err != nil {
			return nil, err
		}
	}
	return h, h.serve(v6, cpu)
}

// serve as a road's server does, on one thread.
func (h *host) serve(v6 bool, cpu int) error {
	err := h.Do(func() (err error) {
		domain, at := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: endpointPort})
		if v6 {
			domain, at = unix.AF_INET6, &unix.SockaddrInet6{Port: endpointPort}
		}
		if h.listener, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.Bind(h.listener, at), unix.Listen(h.listener, 128))
	})
	if err != nil {
		return err
	}
	h.done = make(chan struct{})
	go func() {
		defer close(h.done)
		_ = onCPU(cpu, func() error { return repeatAll(h.listener) })
	}()
	return nil
}

func (h *host) close() {
	if h.listener >= 0 {
		_ = unix.Shutdown(h.listener, unix.SHUT_RDWR)
		if h.done != nil {
			<-h.done
		}
		_ = unix.Close(h.listener)
	}
	_ = h.Close()
}

// layer above a mode, for the i-th cgroup. Its pins are in a bpffs of its own.
type layer struct {
	*ebpf.Mode
	pins string
}

func newLayer(t *threads, i int, below proxy.Mode) (_ *layer, err error) {
	l := &layer{}
	if l.pins, err = os.MkdirTemp("", "proxima-bench-"); err != nil {
		return nil, err
	}
	if err = unix.Mount("bpf", l.pins, "bpf", 0, ""); err == nil {
		l.Mode, err = ebpf.New(ebpf.Options{Cgroup: t.all[i], BPFFS: l.pins}, below)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *layer) close() {
	if l.Mode != nil {
		_ = l.Close(context.Background())
	}
	_ = unix.Unmount(l.pins, unix.MNT_DETACH)
	_ = os.Remove(l.pins)
}

// apply a whole state, and see that the layer has it.
func (l *layer) apply(ctx context.Context, services []proxy.Change) (time.Duration, error) {
	begin := time.Now()
	if err := l.Apply(ctx, services); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	if s := l.Status(); s.Passing != "" || s.Translated < len(services) {
		return 0, fmt.Errorf("the layer translates %d of %d addresses: %s", s.Translated, len(services), s.Passing)
	}
	return took, nil
}

// The same services by IPv6.
func vip6(i int) netip.Addr {
	i += 256
	return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x96, 14: byte(i >> 8), 15: byte(i)})
}

func endpoint6(i, k int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x10, 3: byte(k), 14: byte(i >> 8), 15: byte(i)}), endpointPort)
}

func all6(n int) []proxy.Change {
	out := all(n)
	for i := range out {
		s := out[i].State
		s.Service.ClusterIPs = []netip.Addr{vip6(i)}
		s.IPv6, s.IPv4 = s.IPv4, proxy.Choice{}
		for k := range s.IPv6.Cluster {
			s.IPv6.Cluster[k].Addr = endpoint6(i, k)
		}
	}
	return out
}

// ebpf measures the layer above nftables, and alone: client and server on one machine and one processor, a service
// of its own each round.
func (b *bench) ebpf(ctx context.Context) error {
	n := b.services[len(b.services)-1]
	b.section("eBPF layer: client and server on the same node and one processor, a service of its own each round")
	if err := ebpf.Check(ebpf.Options{}); err != nil {
		b.note("left out: %v", err)
		return nil
	}
	t, err := newThreads("layered", "alone")
	if err != nil {
		b.note("left out: %v", err)
		return nil
	}
	defer t.close()
	for _, v6 := range []bool{false, true} {
		if err := b.layerPath(ctx, t, n, v6); err != nil {
			return err
		}
	}
	return b.layerProgramming(ctx, t, n)
}

// layerPath compares short transactions.
func (b *bench) layerPath(ctx context.Context, t *threads, n int, v6 bool) error {
	cpu, err := lastCPU()
	if err != nil {
		return err
	}
	family, services := "IPv4", all(n)
	if v6 {
		family, services = "IPv6", all6(n)
	}
	tracked, err := newHost(ctx, "pmus-tracked", v6, cpu)
	if err != nil {
		return err
	}
	defer tracked.close()
	bare, err := newHost(ctx, "pmus-bare", v6, cpu)
	if err != nil {
		return err
	}
	defer bare.close()
	below, err := nftables.New(nftables.Options{Namespace: tracked.Fd()})
	if err != nil {
		return err
	}
	layered, err := newLayer(t, 0, below)
	if err != nil {
		return errors.Join(err, below.Close(ctx))
	}
	defer layered.close()
	alone, err := newLayer(t, 1, empty{})
	if err != nil {
		return err
	}
	defer alone.close()
	for _, l := range []*layer{layered, alone} {
		if _, err := l.apply(ctx, services); err != nil {
			return err
		}
	}
	const rest = 2
	sides := []struct {
		host   *host
		cgroup int
		direct bool
	}{{tracked, rest, true}, {tracked, 0, false}, {tracked, rest, false}, {bare, rest, true}, {bare, 1, false}}
	whole := make([][]float64, len(sides))
	for round := -1; round < b.rounds*layerRounds; round++ { // the first one warms up
		i := (round + 1) * 7919 % n
		for turn := range sides {
			// Every other round goes backwards, so that a processor that becomes slower during a round favours no side.
			k := (round + 1 + turn) % len(sides)
			if round%2 == 0 {
				k = len(sides) - 1 - k
			}
			s := sides[k]
			to := at(vip(i))
			switch {
			case v6 && s.direct:
				to = endpoint6(i, 0)
			case v6:
				to = at(vip6(i))
			case s.direct:
				to = endpoint(i, 0)
			}
			var w []time.Duration
			err := t.in(s.cgroup, func() error {
				return s.host.Do(func() error {
					return onCPU(cpu, func() (err error) {
						_, w, err = transactions(b.batch, to)
						return err
					})
				})
			})
			if err != nil {
				return err
			}
			if round >= 0 {
				whole[k] = append(whole[k], middle(w))
			}
		}
	}
	const direct, layer, nft, bareDirect, bareLayer = 0, 1, 2, 3, 4
	b.add(row{family + ", layer above nftables: short transaction", n, seconds, whole[layer], "direct, same node", whole[direct], ratioAtMost(layerTransaction)})
	b.add(row{family + ", layer above nftables: short transaction", n, seconds, whole[layer], "direct, no netfilter", whole[bareDirect], nil})
	b.add(row{family + ", nftables: short transaction", n, seconds, whole[nft], "direct, same node", whole[direct], nil})
	b.add(row{family + ", nftables: short transaction", n, seconds, whole[nft], "direct, no netfilter", whole[bareDirect], nil})
	b.add(row{family + ", layer, no netfilter: short transaction", n, seconds, whole[bareLayer], "direct, no netfilter", whole[bareDirect], ratioAtMost(layerAlone)})
	return nil
}

// layerProgramming is what the layer adds to the mode below.
func (b *bench) layerProgramming(ctx context.Context, t *threads, n int) error {
	services := all(n)
	var cold []float64
	var l *layer
	for range b.installs {
		if l != nil {
			l.close()
		}
		var err error
		if l, err = newLayer(t, 0, empty{}); err != nil {
			return err
		}
		runtime.GC()
		took, err := l.apply(ctx, services)
		if err != nil {
			l.close()
			return err
		}
		cold = append(cold, took.Seconds())
	}
	defer l.close()
	b.add(row{"layer: all services, 3 endpoints each", n, seconds, cold, "", nil, atMost(layerCold)})
	for _, c := range []struct {
		what  string
		steps [2]proxy.Change
	}{
		{"layer: one endpoint replaced", [2]proxy.Change{change(n/2, endpointsOf(n/2, 1, 4)), change(n/2, endpointsOf(n/2, 0, 3))}},
		{"layer: a service added, removed", [2]proxy.Change{change(n, endpointsOf(n, 0, 3)), removal(n)}},
	} {
		var ours []float64
		for range b.changes {
			var batch []time.Duration
			for k := range 200 {
				begin := time.Now()
				if err := l.Apply(ctx, []proxy.Change{c.steps[k%2]}); err != nil {
					return err
				}
				batch = append(batch, time.Since(begin))
			}
			ours = append(ours, middle(batch))
		}
		b.add(row{c.what, n, seconds, ours, "", nil, atMost(layerChange)})
	}
	return nil
}
