package iptables_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/iptables"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

const benchServices = 10000

// benchState is the i-th of many services, with three endpoints that exist, or one.
func benchState(i int, endpoints ...string) *proxy.PortState {
	port := proxy.Port{Name: "p", Protocol: proxy.TCP, Port: 80}
	svc := proxy.ServiceName{Namespace: "default", Name: fmt.Sprint("s", i)}
	s := &proxy.PortState{
		Name: proxy.PortName{ServiceName: svc, Port: "p"}, Port: port,
		Service: &proxy.Service{Name: svc, ClusterIPs: []netip.Addr{benchVIP(i)}, Ports: []proxy.Port{port}},
	}
	for _, e := range endpoints {
		s.IPv4.Cluster = append(s.IPv4.Cluster, proxy.Target{Addr: netip.MustParseAddrPort(e), Weight: 1})
	}
	return s
}

func benchVIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}) }

var benchEndpoints = []string{"10.7.0.1:8080", "10.7.0.2:8080", "10.7.0.3:8080"}

func benchAll(n int) []proxy.Change {
	out := make([]proxy.Change, n)
	for i := range out {
		s := benchState(i, benchEndpoints...)
		out[i] = proxy.Change{Name: s.Name, State: s}
	}
	return out
}

// benchNode is a machine with its endpoints on itself.
func benchNode(b *testing.B) *netns.NS {
	ns := netns.New(b, "pipt-bench")
	for _, e := range benchEndpoints {
		ap := netip.MustParseAddrPort(e)
		ns.Addr("lo", ap.Addr().String()+"/32")
		ln, err := ns.Listen("tcp", e)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
	}
	ns.Run("ip", "route", "add", "default", "dev", "lo")
	return ns
}

func benchMode(b *testing.B, v iptables.Variant, ns *netns.NS) *iptables.Mode {
	m, err := iptables.New(iptables.Options{
		Variant: v, ServiceCIDRs: prefixes("10.96.0.0/16"), WorkloadCIDRs: prefixes("10.0.0.0/8"), Inside: ns.Do, CheckInterval: -1,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = m.Close(context.Background()) })
	return m
}

func forVariants(b *testing.B, f func(b *testing.B, v iptables.Variant)) {
	for _, v := range variants {
		b.Run(string(v), func(b *testing.B) { f(b, v) })
	}
}

// BenchmarkInstall programs all services into an empty kernel; BenchmarkRestart
// finds them there.
func BenchmarkInstall(b *testing.B) {
	forVariants(b, func(b *testing.B, v iptables.Variant) {
		for b.Loop() {
			b.StopTimer()
			m := benchMode(b, v, benchNode(b))
			all := benchAll(benchServices)
			b.StartTimer()
			if err := m.Apply(b.Context(), all); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkRestart(b *testing.B) {
	forVariants(b, func(b *testing.B, v iptables.Variant) {
		ns := benchNode(b)
		all := benchAll(benchServices)
		if err := benchMode(b, v, ns).Apply(b.Context(), all); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if err := benchMode(b, v, ns).Apply(b.Context(), all); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkChange(b *testing.B) {
	forVariants(b, func(b *testing.B, v iptables.Variant) {
		for _, services := range []int{100, benchServices} {
			ns := benchNode(b)
			m := benchMode(b, v, ns)
			if err := m.Apply(b.Context(), benchAll(services)); err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("endpoint/%d", services), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					s := benchState(i%services, benchEndpoints[i/services%2:]...)
					s.IPv4.Cluster = s.IPv4.Cluster[:2-i%2]
					if err := m.Apply(b.Context(), []proxy.Change{{Name: s.Name, State: s}}); err != nil {
						b.Fatal(err)
					}
				}
			})
			// What the command alone takes for one rule of another program: the floor.
			b.Run(fmt.Sprintf("bare/%d", services), func(b *testing.B) {
				for b.Loop() {
					restore(b, v, ns, "*nat\n-A INPUT -p udp -j ACCEPT\nCOMMIT\n")
				}
			})
			b.Run(fmt.Sprintf("service/%d", services), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					s := benchState(20000+i, benchEndpoints...)
					if err := m.Apply(b.Context(), []proxy.Change{{Name: s.Name, State: s}}); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(fmt.Sprintf("counts/%d", services), func(b *testing.B) {
				for b.Loop() {
					for range m.Counts() {
						break
					}
				}
			})
		}
	})
}

// BenchmarkConnect compares, in turns, the first and the last of many services
// with one service alone, and with the linear layout that kube-proxy has.
func BenchmarkConnect(b *testing.B) {
	forVariants(b, func(b *testing.B, v iptables.Variant) {
		many, one, linear := benchNode(b), benchNode(b), benchNode(b)
		if err := benchMode(b, v, many).Apply(b.Context(), benchAll(benchServices)); err != nil {
			b.Fatal(err)
		}
		if err := benchMode(b, v, one).Apply(b.Context(), benchAll(1)); err != nil {
			b.Fatal(err)
		}
		restoreLinear(b, v, linear)
		places := []struct {
			name string
			ns   *netns.NS
			at   netip.Addr
		}{
			{"direct", one, netip.MustParseAddr("10.7.0.1")},
			{"alone", one, benchVIP(0)},
			{"first", many, benchVIP(0)},
			{"middle", many, benchVIP(benchServices / 2)},
			{"last", many, benchVIP(benchServices - 1)},
			{"linear-first", linear, benchVIP(0)},
			{"linear-last", linear, benchVIP(benchServices - 1)},
		}
		took := make([][]time.Duration, len(places))
		for range 20 {
			for i, p := range places {
				took[i] = append(took[i], connects(b, p.ns, p.at, 200)...)
			}
		}
		alone := median(took[1])
		b.ReportMetric(float64(median(took[4]))/float64(median(took[2])), "last/first")
		for i, p := range places {
			b.ReportMetric(float64(median(took[i]).Nanoseconds())/1000, p.name+"-µs")
			b.Logf("%-13s %8s  %.3f × alone", p.name, median(took[i]), float64(median(took[i]))/float64(alone))
		}
	})
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// connects times connect(2) alone.
func connects(b *testing.B, ns *netns.NS, to netip.Addr, n int) []time.Duration {
	at := &unix.SockaddrInet4{Addr: to.As4(), Port: 80}
	if at.Addr[1] == 7 {
		at.Port = 8080
	}
	var out []time.Duration
	err := ns.Do(func() error {
		for range n {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			begin := time.Now()
			err = unix.Connect(fd, at)
			out = append(out, time.Since(begin))
			// No TIME_WAIT: ports are few.
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			_ = unix.Close(fd)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// restoreLinear programs the layout of kube-proxy: one list of all services, a
// chain per service and one per endpoint.
func restoreLinear(b *testing.B, v iptables.Variant, ns *netns.NS) {
	var chains, services, rest bytes.Buffer
	for i := range benchServices {
		fmt.Fprintf(&chains, ":KUBE-SVC-%d - [0:0]\n", i)
		fmt.Fprintf(&services, "-A KUBE-SERVICES -d %s/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-%d\n", benchVIP(i), i)
		fmt.Fprintf(&rest, "-A KUBE-SVC-%d ! -s 10.0.0.0/8 -d %s/32 -p tcp -m tcp --dport 80 -j MARK --set-xmark 0x4000/0x4000\n", i, benchVIP(i))
		for e, to := range benchEndpoints {
			fmt.Fprintf(&chains, ":KUBE-SEP-%d-%d - [0:0]\n", i, e)
			pick := [...]string{"-m statistic --mode random --probability 0.33333333349 ", "-m statistic --mode random --probability 0.50000000000 ", ""}[e]
			fmt.Fprintf(&rest, "-A KUBE-SVC-%d %s-j KUBE-SEP-%d-%d\n", i, pick, i, e)
			fmt.Fprintf(&rest, "-A KUBE-SEP-%d-%d -s %s/32 -j MARK --set-xmark 0x4000/0x4000\n", i, e, netip.MustParseAddrPort(to).Addr())
			fmt.Fprintf(&rest, "-A KUBE-SEP-%d-%d -p tcp -m tcp -j DNAT --to-destination %s\n", i, e, to)
		}
	}
	restore(b, v, ns, "*nat\n:KUBE-SERVICES - [0:0]\n"+chains.String()+"-A OUTPUT -j KUBE-SERVICES\n"+services.String()+rest.String()+"COMMIT\n")
}

// restore carries out the text by the command alone.
func restore(b *testing.B, v iptables.Variant, ns *netns.NS, in string) {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), "iptables-"+string(v)+"-restore", "--noflush", "-w", "10")
	cmd.Stdin = strings.NewReader(in)
	var out bytes.Buffer
	cmd.Stderr = &out
	err := ns.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		b.Fatalf("%v: %s", err, out.Bytes())
	}
}
