package userspace_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/userspace"
)

// BenchmarkPath compares three ways to an endpoint on this host: directly,
// through this mode, and through a plain proxy of two io.Copy. The ways take
// turns request by request, so that whatever else the machine does meets all of
// them; the ratios are comparable, the absolute figures only within a run.
func BenchmarkPath(b *testing.B) {
	target := echoServer(b)
	naive := naiveProxy(b, target)
	vip := netip.MustParseAddrPort("127.96.240.1:8080")
	ours(b, vip, target)
	ways := []struct {
		name string
		addr string
	}{{"direct", target.String()}, {"userspace", vip.String()}, {"naive", naive}}

	b.Run("short", func(b *testing.B) {
		times := make([][]time.Duration, len(ways))
		for b.Loop() {
			for i, w := range ways {
				begin := time.Now()
				short(b, w.addr)
				times[i] = append(times[i], time.Since(begin))
			}
		}
		for i, w := range ways {
			b.ReportMetric(ratio(times[i], times[0]), w.name+"/direct")
		}
		b.ReportMetric(float64(median(times[0]).Nanoseconds()), "direct-ns")
	})
	b.Run("kept", func(b *testing.B) {
		conns := make([]net.Conn, len(ways))
		for i, w := range ways {
			conns[i] = dial(b, w.addr)
			defer func() { _ = conns[i].Close() }()
		}
		times := make([][]time.Duration, len(ways))
		buf := make([]byte, 64)
		for b.Loop() {
			for i := range ways {
				begin := time.Now()
				roundTrip(b, conns[i], buf)
				times[i] = append(times[i], time.Since(begin))
			}
		}
		for i, w := range ways {
			b.ReportMetric(ratio(times[i], times[0]), w.name+"/direct")
		}
		b.ReportMetric(float64(median(times[0]).Nanoseconds()), "direct-ns")
	})
	// Rate: four clients at once, in turns of 200 requests per way.
	b.Run("rate", func(b *testing.B) {
		spent := make([][]time.Duration, len(ways))
		for b.Loop() {
			for i, w := range ways {
				begin := time.Now()
				done := make(chan struct{})
				for range 4 {
					go func() {
						for range 50 {
							short(b, w.addr)
						}
						done <- struct{}{}
					}()
				}
				for range 4 {
					<-done
				}
				spent[i] = append(spent[i], time.Since(begin))
			}
		}
		for i, w := range ways {
			b.ReportMetric(1/ratio(spent[i], spent[0]), w.name+"/direct")
		}
		b.ReportMetric(200/median(spent[0]).Seconds(), "direct-conn/s")
	})
	b.Run("bulk", func(b *testing.B) {
		const size = 64 << 20
		spent := make([]time.Duration, len(ways))
		for b.Loop() {
			for i, w := range ways {
				begin := time.Now()
				bulk(b, w.addr, size)
				spent[i] += time.Since(begin)
			}
		}
		for i, w := range ways {
			b.ReportMetric(float64(spent[0])/float64(spent[i]), w.name+"/direct")
		}
		b.ReportMetric(float64(b.N)*size/1e6/spent[0].Seconds(), "direct-MB/s")
	})
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

func ratio(d, base []time.Duration) float64 { return float64(median(d)) / float64(median(base)) }

func short(b *testing.B, addr string) {
	c := dial(b, addr)
	roundTrip(b, c, make([]byte, 64))
	_ = c.Close()
}

func dial(b *testing.B, addr string) net.Conn {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		b.Error(err)
		panic(err)
	}
	return c
}

func roundTrip(b *testing.B, c net.Conn, buf []byte) {
	if _, err := c.Write(buf); err != nil {
		b.Error(err)
	}
	if _, err := io.ReadFull(c, buf); err != nil {
		b.Error(err)
	}
}

func bulk(b *testing.B, addr string, size int) {
	c := dial(b, addr)
	defer func() { _ = c.Close() }()
	go func() {
		buf := make([]byte, 128<<10)
		for sent := 0; sent < size; sent += len(buf) {
			if _, err := c.Write(buf); err != nil {
				b.Error(err)
				return
			}
		}
	}()
	if n, err := io.CopyN(io.Discard, c, int64(size)); err != nil {
		b.Errorf("got %d bytes: %v", n, err)
	}
}

func echoServer(b *testing.B) netip.AddrPort {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
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
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// naiveProxy is what one writes first: no retry, no limits, no metrics.
func naiveProxy(b *testing.B, target netip.AddrPort) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				backend, err := net.Dial("tcp", target.String())
				if err != nil {
					_ = client.Close()
					return
				}
				go func() {
					_, _ = io.Copy(backend, client)
					_ = backend.(*net.TCPConn).CloseWrite()
				}()
				_, _ = io.Copy(client, backend)
				_ = client.Close()
				_ = backend.Close()
			}()
		}
	}()
	return ln.Addr().String()
}

func ours(b *testing.B, vip, target netip.AddrPort) {
	m, err := userspace.New(userspace.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = m.Close(ctx)
	})
	if err := m.Apply(b.Context(), []proxy.Change{change("bench", vip, target)}); err != nil {
		b.Fatal(err)
	}
}

// change makes a Service's only port, with one virtual address.
func change(name string, vip netip.AddrPort, targets ...netip.AddrPort) proxy.Change {
	p := proxy.Port{Protocol: proxy.TCP, Port: vip.Port()}
	svc := &proxy.Service{
		Name:       proxy.ServiceName{Namespace: "default", Name: name},
		ClusterIPs: []netip.Addr{vip.Addr()}, Ports: []proxy.Port{p},
	}
	state := &proxy.PortState{Name: proxy.PortName{ServiceName: svc.Name}, Service: svc, Port: p}
	choice := state.For(vip.Addr())
	slices.SortFunc(targets, netip.AddrPort.Compare)
	for _, t := range targets {
		choice.Cluster = append(choice.Cluster, proxy.Target{Addr: t, Weight: 1})
	}
	if len(targets) == 0 {
		choice.NoCluster = proxy.Reject
	}
	return proxy.Change{Name: state.Name, State: state}
}

// BenchmarkApply is the cost of one changed service port among many.
func BenchmarkApply(b *testing.B) {
	for _, n := range []int{100, 2000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m, err := userspace.New(userspace.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = m.Close(b.Context()) }()
			target := netip.MustParseAddrPort("127.0.0.1:9")
			var all []proxy.Change
			for i := range n {
				vip := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 96, byte(210 + i>>8), byte(i)}), 8080)
				all = append(all, change(fmt.Sprint("s", i), vip, target))
			}
			if err := m.Apply(b.Context(), all); err != nil {
				b.Fatal(err)
			}
			vip := netip.MustParseAddrPort("127.96.210.7:8080")
			changes := [][]proxy.Change{
				{change("s7", vip, target)},
				{change("s7", vip, target, netip.MustParseAddrPort("127.0.0.2:9"))},
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if err := m.Apply(b.Context(), changes[i%2]); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}
