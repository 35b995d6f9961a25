//go:build linux

package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// crowd is many services with three endpoints each.
func crowd(n int) []proxy.Change {
	out := make([]proxy.Change, n)
	for i := range out {
		out[i] = member(i, 0, 3)
	}
	return out
}

// member is the i-th of a crowd with count endpoints, of which the first is the
// shift-th of its kind.
func member(i, shift, count int) proxy.Change {
	return spec(fmt.Sprintf("svc-%d", i), proxy.TCP, 80, []netip.Addr{vipAt(false, i)}, func(s *proxy.PortState) {
		for e := range count {
			o := e
			if e == 0 {
				o = 10 * shift
			}
			a := netip.AddrFrom4([4]byte{10, byte(128 + o), byte(i >> 8), byte(i)})
			s.IPv4.Cluster = append(s.IPv4.Cluster, proxy.Target{Addr: netip.AddrPortFrom(a, 8080), Weight: 1})
		}
	})
}

func benchMode(b *testing.B, ns *netns.NS) *Mode {
	b.Helper()
	m, err := New(Options{Namespace: ns.Fd(), ServiceCIDRs: serviceCIDRs, WorkloadCIDRs: []netip.Prefix{netip.MustParsePrefix(podNet)}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = m.Close(context.Background()) })
	return m
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// reportCPU reports what was really worked, which on a busy machine is less than
// what was waited.
func reportCPU(b *testing.B) func() {
	cpu := func() int64 {
		var r unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &r)
		return r.Utime.Nano() + r.Stime.Nano()
	}
	start := cpu()
	return func() { b.ReportMetric(float64(cpu()-start)/float64(b.N)/1e6, "cpu-ms/op") }
}

func BenchmarkColdStart(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ns := netns.New(b, "pnft-bench")
			changes := crowd(n)
			defer reportCPU(b)()
			for b.Loop() {
				b.StopTimer()
				must(b, Cleanup(b.Context(), Options{Namespace: ns.Fd()}))
				m := benchMode(b, ns)
				b.StartTimer()
				must(b, m.Apply(b.Context(), changes))
				b.StopTimer()
				must(b, m.Close(b.Context()))
				b.StartTimer()
			}
		})
	}
}

func BenchmarkWarmRestart(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ns := netns.New(b, "pnft-bench")
			changes := crowd(n)
			first := benchMode(b, ns)
			must(b, first.Apply(b.Context(), changes))
			must(b, first.Close(b.Context()))
			defer reportCPU(b)()
			for b.Loop() {
				m := benchMode(b, ns)
				must(b, m.Apply(b.Context(), changes))
				b.StopTimer()
				must(b, m.Close(b.Context()))
				b.StartTimer()
			}
		})
	}
}

// BenchmarkChange makes one change to one of n services at a time.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		ns := netns.New(b, "pnft-bench")
		m := benchMode(b, ns)
		must(b, m.Apply(b.Context(), crowd(n)))
		// The pick chains of all counts are there, as in the long run.
		must(b, m.Apply(b.Context(), []proxy.Change{member(0, 0, 4), member(1, 0, 2)}))
		run := func(name string, change func(i int) proxy.Change) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				i := 0
				for b.Loop() {
					i++
					must(b, m.Apply(b.Context(), []proxy.Change{change(i)}))
				}
			})
		}
		run("endpoint-replaced", func(i int) proxy.Change { return member(5, 1+i%2, 3) })
		run("count-3-4", func(i int) proxy.Change { return member(6, 0, 3+i%2) })
		run("count-4-2", func(i int) proxy.Change { return member(7, 0, 2+2*(i%2)) })
		run("service-add-remove", func(i int) proxy.Change {
			if i%2 == 0 {
				return gone(fmt.Sprintf("svc-%d", n))
			}
			return member(n, 0, 3)
		})
		run("new-slot-count", func(i int) proxy.Change { return member(8, 0, 5+i%100) })
		b.Run(fmt.Sprintf("read-counters/%d", n), func(b *testing.B) {
			for b.Loop() {
				for range m.Counts() {
				}
			}
		})
		b.Run(fmt.Sprintf("verify/%d", n), func(b *testing.B) {
			for b.Loop() {
				must(b, m.repair(true, false))
			}
		})
	}
}
