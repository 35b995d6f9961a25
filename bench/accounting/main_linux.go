package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/account"
)

// sizes of a run.
type sizes struct {
	flows, rounds, peerRounds  int
	packetRounds, packetSeries int
}

var (
	full  = sizes{flows: 100_000, rounds: 5, peerRounds: 3, packetRounds: 31, packetSeries: 100_000}
	smoke = sizes{flows: 2_000, rounds: 1, peerRounds: 1, packetRounds: 2, packetSeries: 5_000}
)

func main() {
	quick := flag.Bool("smoke", false, "only show that it works; the figures mean nothing")
	flag.Parse()
	s := full
	if *quick {
		s = smoke
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := s.run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "accounting:", err)
		os.Exit(1)
	}
}

func (s sizes) run(ctx context.Context, out io.Writer) error {
	for _, part := range []struct {
		translated int
		goal       float64 // percent of a core
	}{{s.flows, 0.75}, {s.flows / 4, 0.3}} {
		if err := s.measure(ctx, out, part.translated, part.goal); err != nil {
			return err
		}
	}
	return s.packets(ctx, out)
}

const (
	virtual, plain, endpoint = "10.96.0.1", "10.9.0.2", "10.9.0.1"
	servicePort              = 80
	// portsPerClient source ports, beginning at firstPort.
	portsPerClient, firstPort = 50_000, 10_000
)

// table is a namespace with flows.
type table struct {
	ns *netns.NS
	fd int // raw socket
}

// newTable has so many flows to the virtual address, the others are not translated.
func newTable(ctx context.Context, flows, translated int) (t *table, err error) {
	t = &table{}
	if t.ns, err = netns.New("accounting"); err != nil {
		return nil, err
	}
	lo := []string{virtual, plain, endpoint}
	for i := 0; i <= flows/portsPerClient; i++ {
		lo = append(lo, client(i).String())
	}
	for _, a := range lo {
		if err := t.ns.AddAddr("lo", netip.PrefixFrom(netip.MustParseAddr(a), 32)); err != nil {
			return nil, err
		}
	}
	for _, rule := range [][]string{
		{"-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-d", virtual, "--dport", "80", "-j", "DNAT", "--to-destination", endpoint + ":8080"},
		{"-t", "filter", "-A", "INPUT", "-p", "tcp", "-d", "10.9.0.0/16", "-j", "DROP"}, // no answer ends a flow
	} {
		if out, err := t.ns.Output(ctx, "iptables-legacy", append([]string{"-w"}, rule...)...); err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
	}
	if _, err := conntrack.NewReader(t.ns.Fd()).Accounting(); err != nil {
		return nil, err
	}
	if err := t.ns.SetSysctl("net.netfilter.nf_conntrack_tcp_timeout_syn_sent", "3600"); err != nil {
		return nil, err
	}
	err = t.ns.Do(func() (err error) {
		t.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		return nil, err
	}
	return t, t.fill(flows, translated)
}

func client(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 8, 0, byte(1 + i)}) }

// fill sends a SYN for each flow.
func (t *table) fill(flows, translated int) error {
	for i := range flows {
		to := netip.MustParseAddr(plain)
		if i < translated {
			to = netip.MustParseAddr(virtual)
		}
		packet := syn(client(i/portsPerClient), to, uint16(firstPort+i%portsPerClient))
		if err := unix.Sendto(t.fd, packet, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
			return fmt.Errorf("packet %d: %w", i, err)
		}
	}
	return nil
}

// syn is an IPv4 packet (RFC 791) with the SYN of a TCP connection (RFC 9293). The kernel
// fills in the length and checksum of the IP header.
func syn(from, to netip.Addr, port uint16) []byte {
	b := make([]byte, 40)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_TCP
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	binary.BigEndian.PutUint16(b[20:], port)
	binary.BigEndian.PutUint16(b[22:], servicePort)
	b[32], b[33], b[34] = 0x50, 0x02, 0xff
	sum := uint32(unix.IPPROTO_TCP + 20)
	for i := 12; i < 40; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(b[36:], ^uint16(sum))
	return b
}

func (t *table) close() error { return errors.Join(unix.Close(t.fd), t.ns.Close()) }

func (s sizes) measure(ctx context.Context, out io.Writer, translated int, goal float64) error {
	t, err := newTable(ctx, s.flows, translated)
	if err != nil {
		return err
	}
	defer func() { _ = t.close() }() // nothing is left of it
	reader := conntrack.NewReader(t.ns.Fd())
	before := heap()
	ledger := account.NewLedger([2]uint64{1, 3}, directory())
	add := func(e *conntrack.Entry) { ledger.Add(e, true) }
	dump := func() (conntrack.Dump, error) {
		ledger.Begin(1)
		d, err := reader.Dump(ctx, 0, add)
		ledger.End(d.Whole, nil)
		return d, err
	}
	first, err := dump()
	if err != nil {
		return err
	}
	if first.Flows != translated {
		return fmt.Errorf("%d flows were read, not %d", first.Flows, translated)
	}
	kept := heap() - before
	var cpu, peer []time.Duration
	var allocs uint64
	for round := range s.rounds {
		was := mallocs()
		d, err := dump()
		if err != nil {
			return err
		}
		allocs += mallocs() - was
		cpu = append(cpu, d.CPU)
		if round < s.peerRounds {
			p, err := t.peer()
			if err != nil {
				return err
			}
			peer = append(peer, p)
		}
	}
	used, theirs := median(cpu), median(peer)
	period := max(account.Period, 100*used)
	fmt.Fprintf(out, "%d flows, %d of them translated, load average %s\n", s.flows, translated, load())
	fmt.Fprintf(out, "  a reading: %.0f ms of processor time, %.2f %% of a core (goal %.2f), %.2f µs per translated flow\n",
		used.Seconds()*1e3, 100*used.Seconds()/period.Seconds(), goal, used.Seconds()*1e6/float64(translated))
	fmt.Fprintf(out, "  vishvananda/netlink: %.0f ms, %.2f times as much\n", theirs.Seconds()*1e3, theirs.Seconds()/used.Seconds())
	fmt.Fprintf(out, "  heap: %.1f MiB per 100,000 translated flows (goal 10); allocations of a reading: %.1f\n",
		float64(kept)/(1<<20)*100_000/float64(translated), float64(allocs)/float64(s.rounds))
	runtime.KeepAlive(ledger)
	return nil
}

// peer reads the table with the library, and returns the processor time.
func (t *table) peer() (used time.Duration, err error) {
	err = t.ns.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer h.Close()
		var a, b unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &a); err != nil {
			return err
		}
		flows, err := h.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &b); err != nil {
			return err
		}
		used = time.Duration(b.Utime.Nano() + b.Stime.Nano() - a.Utime.Nano() - a.Stime.Nano())
		if len(flows) == 0 {
			return errors.New("the library read nothing")
		}
		return nil
	})
	return used, err
}

func directory() *account.Directory {
	d := account.NewDirectory(func(netip.Addr) bool { return true })
	port := proxy.PortName{ServiceName: proxy.ServiceName{Namespace: "ns", Name: "web"}}
	d.Update([]proxy.Change{{Name: port, State: &proxy.PortState{
		Name: port, Port: proxy.Port{Protocol: proxy.TCP, Port: servicePort},
		Service: &proxy.Service{Name: port.ServiceName, ClusterIPs: []netip.Addr{netip.MustParseAddr(virtual)}},
		IPv4:    proxy.Choice{Cluster: []proxy.Target{{Addr: netip.MustParseAddrPort(endpoint + ":8080"), Weight: 1, Zone: "a"}}},
	}}})
	return d
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil || len(text) < 4 {
		return "?"
	}
	return string(text[:4])
}
