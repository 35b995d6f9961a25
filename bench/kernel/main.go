//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/netns"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/iptables"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

const servicePort = 80

var (
	workloads = netip.MustParsePrefix("10.7.0.0/16")
	ranges    = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	// backends of every service; they are addresses of the namespace itself.
	backends = []netip.AddrPort{at("10.7.0.1"), at("10.7.0.2"), at("10.7.0.3")}
	spare    = at("10.7.0.4")
)

func at(addr string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(addr), 8080) }

func vip(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}) }

// sizes of a run.
type sizes struct {
	services []int
	installs int // rounds of cold installs
	changes  int
	batches  int // of connections, of each side in turns
}

func main() {
	smoke := flag.Bool("smoke", false, "only show that it works")
	flag.Parse()
	s := sizes{services: []int{1000, 10_000}, installs: 5, changes: 200, batches: 20}
	if *smoke {
		s = sizes{services: []int{50}, installs: 1, changes: 5, batches: 1}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, s, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench/kernel:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s sizes, out io.Writer) error {
	if err := netns.Available(); err != nil {
		return err
	}
	if s.services[0] == 0 {
		return errors.New("no services")
	}
	fmt.Fprintf(out, "%-32s %9s %12s %12s %8s\n", "", "services", "Proxima", "kube-proxy's", "ratio")
	for _, n := range s.services {
		if err := compare(ctx, s, n, out); err != nil {
			return fmt.Errorf("nftables, %d services: %w", n, err)
		}
	}
	for _, n := range s.services {
		if err := firstAndLast(ctx, s, n, out); err != nil {
			return fmt.Errorf("iptables, %d services: %w", n, err)
		}
	}
	return nil
}

// line prints medians of two sides and their ratio.
func line(out io.Writer, what string, services int, ours, theirs []time.Duration) {
	a, b := median(ours), median(theirs)
	fmt.Fprintf(out, "%-32s %9d %12s %12s %8.3f\n", what, services, short(a), short(b), float64(a)/float64(b))
}

func short(d time.Duration) time.Duration { return d.Round(max(d/1000, 10*time.Nanosecond)) }

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// machine is a namespace with the backends in it.
type machine struct {
	*netns.NS
	listeners []net.Listener
}

func newMachine(ctx context.Context, name string) (*machine, error) {
	ns, err := netns.New(name)
	if err != nil {
		return nil, err
	}
	m := &machine{NS: ns}
	for _, b := range append([]netip.AddrPort{spare}, backends...) {
		if err := ns.AddAddr("lo", netip.PrefixFrom(b.Addr(), 32)); err != nil {
			m.close()
			return nil, err
		}
		ln, err := ns.Listen("tcp", b.String())
		if err != nil {
			m.close()
			return nil, err
		}
		m.listeners = append(m.listeners, ln)
		go repeat(ln)
	}
	// The kernel looks for a route before it translates.
	if _, err := ns.Output(ctx, "ip", "route", "add", "default", "dev", "lo"); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *machine) close() {
	for _, ln := range m.listeners {
		_ = ln.Close()
	}
	_ = m.Close()
}

// repeat what clients say.
func repeat(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}()
	}
}

func state(i int, to []netip.AddrPort) *proxy.PortState {
	port := proxy.Port{Name: "p", Protocol: proxy.TCP, Port: servicePort}
	name := proxy.ServiceName{Namespace: "default", Name: fmt.Sprint("s", i)}
	s := &proxy.PortState{
		Name: proxy.PortName{ServiceName: name, Port: "p"}, Port: port,
		Service: &proxy.Service{Name: name, ClusterIPs: []netip.Addr{vip(i)}, Ports: []proxy.Port{port}},
	}
	for _, e := range to {
		s.IPv4.Cluster = append(s.IPv4.Cluster, proxy.Target{Addr: e, Weight: 1})
	}
	return s
}

func change(i int, to []netip.AddrPort) proxy.Change {
	s := state(i, to)
	return proxy.Change{Name: s.Name, State: s}
}

func all(n int) []proxy.Change {
	out := make([]proxy.Change, n)
	for i := range out {
		out[i] = change(i, backends)
	}
	return out
}

func newNftables(m *machine) (*nftables.Mode, error) {
	return nftables.New(nftables.Options{Namespace: m.Fd(), ServiceCIDRs: ranges, WorkloadCIDRs: []netip.Prefix{workloads}})
}

// nft runs a transaction and returns how long that took, process and all.
func nft(ctx context.Context, m *machine, text string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	var complaint strings.Builder
	cmd.Stdin, cmd.Stderr = strings.NewReader(text), &complaint
	begin := time.Now()
	err := m.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return 0, fmt.Errorf("nft: %w: %.500s", err, complaint.String())
	}
	return time.Since(begin), nil
}

// sides are two machines with the same services: ours, and kube-proxy's layout.
type sides struct {
	ours, theirs *machine
	mode         *nftables.Mode
}

func (s *sides) close() {
	if s.mode != nil {
		_ = s.mode.Close(context.Background())
	}
	for _, m := range []*machine{s.ours, s.theirs} {
		if m != nil {
			m.close()
		}
	}
}

// install all services on two new machines; ours has been programmed when Apply
// returns.
func install(ctx context.Context, n int) (s *sides, ours, theirs time.Duration, err error) {
	s = &sides{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.ours, err = newMachine(ctx, "pmus-ours"); err != nil {
		return s, 0, 0, err
	}
	if s.theirs, err = newMachine(ctx, "pmus-theirs"); err != nil {
		return s, 0, 0, err
	}
	changes, text := all(n), layoutOf(n)
	begin := time.Now()
	if s.mode, err = newNftables(s.ours); err == nil {
		err = s.mode.Apply(ctx, changes)
	}
	if err != nil {
		return s, 0, 0, err
	}
	ours = time.Since(begin)
	theirs, err = nft(ctx, s.theirs, text)
	return s, ours, theirs, err
}

func compare(ctx context.Context, size sizes, n int, out io.Writer) error {
	// Of the largest, kube-proxy's layout takes a minute and more.
	rounds := max(1, size.installs*1000/max(n, 1000))
	var ours, theirs []time.Duration
	for round := range rounds {
		runtime.GC()
		s, a, b, err := install(ctx, n)
		if err != nil {
			return err
		}
		ours, theirs = append(ours, a), append(theirs, b)
		if round < rounds-1 {
			s.close()
			continue
		}
		defer s.close()
		line(out, "nftables: cold install", n, ours, theirs)
		if err := changes(ctx, s, max(5, size.changes*1000/max(n, 1000)), n, out); err != nil {
			return err
		}
		return traffic(size, s, n, out)
	}
	return nil
}

// changes replaces one endpoint of one service at a time.
func changes(ctx context.Context, s *sides, rounds, n int, out io.Writer) error {
	var ours, theirs []time.Duration
	for i := range rounds {
		service, from, to := n/2, backends[0], spare
		if i%2 == 1 {
			from, to = to, from
		}
		c := change(service, append([]netip.AddrPort{to}, backends[1:]...))
		slices.SortFunc(c.State.IPv4.Cluster, func(a, b proxy.Target) int { return a.Addr.Compare(b.Addr) })
		begin := time.Now()
		if err := s.mode.Apply(ctx, []proxy.Change{c}); err != nil {
			return err
		}
		ours = append(ours, time.Since(begin))
		took, err := nft(ctx, s.theirs, layoutChange(service, from, to))
		if err != nil {
			return err
		}
		theirs = append(theirs, took)
	}
	line(out, "nftables: one endpoint replaced", n, ours, theirs)
	return nil
}

// traffic in turns: connect(2) alone, and with one exchange.
func traffic(size sizes, s *sides, n int, out io.Writer) error {
	for _, c := range []struct {
		what     string
		exchange bool
	}{{"nftables: connect", false}, {"nftables: short transaction", true}} {
		var ours, theirs []time.Duration
		for i := range size.batches {
			to := netip.AddrPortFrom(vip((i*7919)%n), servicePort)
			for _, side := range []struct {
				m  *machine
				to *[]time.Duration
			}{{s.ours, &ours}, {s.theirs, &theirs}} {
				took, err := connects(side.m, to, 200, c.exchange)
				if err != nil {
					return err
				}
				*side.to = append(*side.to, took...)
			}
		}
		line(out, c.what, n, ours, theirs)
	}
	return nil
}

// connects times connections one after another, with or without an exchange.
func connects(m *machine, to netip.AddrPort, n int, exchange bool) ([]time.Duration, error) {
	out := make([]time.Duration, 0, n)
	err := m.Do(func() error {
		for range n {
			took, err := connect(to, exchange)
			if err != nil {
				return fmt.Errorf("%s: %w", to, err)
			}
			out = append(out, took)
		}
		return nil
	})
	return out, err
}

func connect(to netip.AddrPort, exchange bool) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	// No TIME_WAIT: ports are few.
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	begin := time.Now()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		return 0, err
	}
	if exchange {
		buf := []byte{1}
		if _, err := unix.Write(fd, buf); err != nil {
			return 0, err
		}
		if _, err := unix.Read(fd, buf); err != nil {
			return 0, err
		}
	}
	return time.Since(begin), nil
}

// firstAndLast of many services in iptables mode, in turns.
func firstAndLast(ctx context.Context, size sizes, n int, out io.Writer) error {
	m, err := newMachine(ctx, "pmus-iptables")
	if err != nil {
		return err
	}
	defer m.close()
	mode, err := iptables.New(iptables.Options{ServiceCIDRs: ranges, WorkloadCIDRs: []netip.Prefix{workloads}, Inside: m.Do})
	if err != nil {
		return err
	}
	defer func() { _ = mode.Close(context.WithoutCancel(ctx)) }()
	if err := mode.Apply(ctx, all(n)); err != nil {
		return err
	}
	var took [2][]time.Duration
	for range size.batches {
		for i, service := range []int{0, n - 1} {
			batch, err := connects(m, netip.AddrPortFrom(vip(service), servicePort), 200, false)
			if err != nil {
				return err
			}
			took[i] = append(took[i], batch...)
		}
	}
	a, b := median(took[0]), median(took[1])
	fmt.Fprintf(out, "%-32s %9d %12s %12s %8.3f  (last, first)\n", "iptables: connect, last / first", n, short(b), short(a), float64(b)/float64(a))
	return nil
}
