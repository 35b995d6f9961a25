//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/iptables"
	"github.com/proxima-mesh/proxima/internal/proxy/ipvs"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

const (
	bulkPort = 9090
	// heldConnections are open while services change.
	heldConnections = 20
)

// fewServices are what iptables gets, as its programs take minutes for more on a slow machine. What connections cost does not
// depend on how many there are.
const fewServices = 1000

// kernelMode is a mode on a road of its own.
type kernelMode struct {
	name     string
	services int
	road     *road
	mode     proxy.Mode
	bulk     net.Listener

	cold           float64
	changed        []float64
	connect, whole [2][]float64 // of the first service and the last one
	rate           []float64    // bytes per second
}

// apply in the machine's network namespace, as a process there does.
func (m *kernelMode) apply(ctx context.Context, changes ...proxy.Change) (took time.Duration, err error) {
	err = m.road.node.Do(func() error {
		begin := time.Now()
		err := m.mode.Apply(ctx, changes)
		took = time.Since(begin)
		return err
	})
	return took, err
}

func (m *kernelMode) close() {
	if m.mode != nil {
		_ = m.mode.Close(context.Background())
	}
	if m.bulk != nil {
		_ = m.bulk.Close()
	}
	if m.road != nil {
		m.road.close()
	}
}

func (b *bench) newKernelMode(ctx context.Context, name string, cpu int) (_ *kernelMode, err error) {
	m := &kernelMode{name: name, services: b.services[len(b.services)-1]}
	if name == "iptables" {
		m.services = min(m.services, fewServices)
	}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if m.road, err = newRoad(ctx, cpu); err != nil {
		return nil, err
	}
	if m.bulk, err = m.road.server.Listen("tcp4", fmt.Sprint("0.0.0.0:", bulkPort)); err != nil {
		return nil, err
	}
	go swallow(m.bulk)
	tables := nftables.Options{ServiceCIDRs: ranges, WorkloadCIDRs: []netip.Prefix{workloads}}
	err = m.road.node.Do(func() (err error) {
		switch name {
		case ipvs.Name:
			m.mode, err = ipvs.New(ipvs.Options{Tables: tables})
		case "nftables":
			m.mode, err = nftables.New(tables)
		default:
			m.mode, err = iptables.New(iptables.Options{Variant: iptables.NFT, ServiceCIDRs: ranges, WorkloadCIDRs: tables.WorkloadCIDRs, Inside: m.road.node.Do})
		}
		return err
	})
	return m, err
}

// swallow whatever comes, and say so at its end.
func swallow(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			if _, err := io.Copy(io.Discard, c); err == nil {
				_, _ = c.Write([]byte{1})
			}
		}()
	}
}

// send so many bytes to an address, and return how many are taken in a second.
func (m *kernelMode) send(bytes int, to netip.AddrPort) (perSecond float64, err error) {
	var c net.Conn
	err = m.road.client.Do(func() (err error) {
		c, err = net.DialTimeout("tcp4", to.String(), 10*time.Second)
		return err
	})
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	block := make([]byte, 1<<17)
	begin := time.Now()
	for sent := 0; sent < bytes; sent += len(block) {
		if _, err := c.Write(block); err != nil {
			return 0, err
		}
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(c, block[:1]); err != nil {
		return 0, err
	}
	return float64(bytes) / time.Since(begin).Seconds(), nil
}

func rate(v float64) string { return fmt.Sprintf("%.0f MB/s", v/1e6) }

// ipvsMode compares the mode with our other modes in the kernel, and shows that changes fail no connection.
func (b *bench) ipvsMode(ctx context.Context) error {
	n := b.services[len(b.services)-1]
	b.section("IPVS beside our nftables and iptables (nft): forwarded over veth, client and server on one processor")
	if err := ipvs.Check(ipvs.Default); err != nil {
		b.note("left out: %v", err)
		return nil
	}
	cpu, err := lastCPU()
	if err != nil {
		return err
	}
	var sides []*kernelMode
	for _, name := range []string{ipvs.Name, "nftables", "iptables"} {
		m, err := b.newKernelMode(ctx, name, cpu)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer m.close()
		sides = append(sides, m)
		runtime.GC()
		took, err := m.apply(ctx, all(m.services)...)
		if err != nil {
			return fmt.Errorf("%s: %d services: %w", name, m.services, err)
		}
		m.cold = took.Seconds()
		if _, err := m.apply(ctx, change(m.services, []netip.AddrPort{netip.AddrPortFrom(endpoint(m.services, 0).Addr(), bulkPort)})); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for round := -1; round < b.rounds; round++ { // the first one warms up
		for turn := range sides {
			m := sides[(round+1+turn)%len(sides)]
			if err := b.ipvsRound(ctx, m, cpu, round); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
		}
	}
	first := sides[0]
	for _, m := range sides[1:] {
		beside := fmt.Sprintf("%s, %d services", m.name, m.services)
		b.add(row{"ipvs: cold: all services, 3 endpoints each", n, seconds, []float64{first.cold}, beside, []float64{m.cold}, nil})
		b.add(row{"ipvs: one endpoint replaced", n, seconds, first.changed, beside, m.changed, nil})
		b.add(row{"ipvs: connect to the last service", n, seconds, first.connect[1], beside, m.connect[1], nil})
		b.add(row{"ipvs: short transaction", n, seconds, first.whole[1], beside, m.whole[1], nil})
		b.add(row{"ipvs: throughput of one connection", n, rate, first.rate, beside, m.rate, nil})
	}
	b.add(row{"ipvs: connect to the last service", n, seconds, first.connect[1], "to the first", first.connect[0], ratioAtMost(1.1)})
	failed, asked, err := b.ipvsUnderTraffic(ctx, first, n)
	if err != nil {
		return err
	}
	b.note("ipvs: %d changes under traffic: %d connections, of which %d held from before the first to after the last one", b.trafficChanges, asked, heldConnections)
	b.add(row{"ipvs: connections that failed meanwhile", n, count, []float64{float64(failed)}, "", nil, atMost(0)})
	if failed, err = b.ipvsLeft(ctx, first, n); err != nil {
		return fmt.Errorf("a switch to nftables: %w", err)
	}
	b.add(row{"ipvs: connections that a switch to nftables ended", n, count, []float64{float64(failed)}, "", nil, atMost(0)})
	return nil
}

// ipvsRound measures a side once.
func (b *bench) ipvsRound(ctx context.Context, m *kernelMode, cpu, round int) error {
	n := m.services
	if round < b.changes {
		var batch []time.Duration
		for k := range 20 {
			took, err := m.apply(ctx, change(n/2, endpointsOf(n/2, 1-k%2, 4-k%2)))
			if err != nil {
				return err
			}
			batch = append(batch, took)
			if m.name == "iptables" && k == 1 { // each takes a program
				break
			}
		}
		if round >= 0 {
			m.changed = append(m.changed, middle(batch))
		}
	}
	for k := range 2 {
		k = (k + round + 1) % 2
		var c, w []time.Duration
		err := m.road.client.Do(func() error {
			return onCPU(cpu, func() (err error) {
				c, w, err = transactions(b.batch, at(vip(k*(n-1))))
				return err
			})
		})
		if err != nil {
			return err
		}
		if round >= 0 {
			m.connect[k], m.whole[k] = append(m.connect[k], middle(c)), append(m.whole[k], middle(w))
		}
	}
	if round < b.changes {
		perSecond, err := m.send(b.bulk, at(vip(n)))
		if err != nil {
			return err
		}
		if round >= 0 {
			m.rate = append(m.rate, perSecond)
		}
	}
	return nil
}

// ipvsUnderTraffic changes the endpoints of a service that is asked all the time, and returns how many connections failed. Those
// that are held ask once more at the end, when their endpoints have gone.
func (b *bench) ipvsUnderTraffic(ctx context.Context, m *kernelMode, n int) (failed, asked int, err error) {
	i := n / 3
	held, err := m.hold(ctx, n+1)
	if err != nil {
		return 0, 0, err
	}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var firstFailure error
	clients.Go(func() {
		_ = m.road.client.Do(func() error {
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				asked++
				if _, _, err := transactions(1, at(vip(i))); err != nil {
					failed++
					firstFailure = errors.Join(firstFailure, err)
				}
			}
		})
	})
	for k := range b.trafficChanges {
		from := k % 2 // of the last one 1: what is held has lost its endpoints
		if _, err = m.apply(ctx, change(i, endpointsOf(i, from, from+3)), change(n+1, bulkEndpoints(n+1, 3*from, 3*from+3))); err != nil {
			break
		}
	}
	close(stop)
	clients.Wait()
	if err != nil {
		return failed, asked, err
	}
	ended, err := endAll(held)
	if firstFailure = errors.Join(firstFailure, err); firstFailure != nil {
		b.note("%.500s", firstFailure.Error())
	}
	return failed + ended, asked + len(held), nil
}

// hold connections to the i-th service, which it makes. The server on one thread speaks with one client at a time, so
// they are to the other port.
func (m *kernelMode) hold(ctx context.Context, i int) (held []int, err error) {
	if _, err := m.apply(ctx, change(i, bulkEndpoints(i, 0, 3))); err != nil {
		return nil, err
	}
	err = m.road.client.Do(func() error {
		for range heldConnections {
			fd, _, err := dial(at(vip(i)))
			if err != nil {
				return err
			}
			held = append(held, fd)
		}
		return nil
	})
	if err != nil {
		_, _ = endAll(held)
		return nil, err
	}
	return held, nil
}

// endAll connections that are held, in order, and count those that do not carry their last byte and its answer.
func endAll(held []int) (failed int, err error) {
	one := make([]byte, 1)
	patience := unix.Timeval{Sec: 10}
	for _, fd := range held {
		var got int
		_, e := unix.Write(fd, one)
		if e == nil {
			e = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience), unix.Shutdown(fd, unix.SHUT_WR))
		}
		if e == nil {
			if e = retried(func() (err error) { got, err = unix.Read(fd, one); return err }); e == nil && got == 0 {
				e = io.ErrUnexpectedEOF
			}
		}
		if e != nil {
			failed++
			err = errors.Join(err, fmt.Errorf("a connection that was held: %w", e))
		}
		_ = unix.Close(fd)
	}
	return failed, err
}

// ipvsLeft switches to mode nftables while connections are held, and returns how many that ended.
func (b *bench) ipvsLeft(ctx context.Context, m *kernelMode, n int) (failed int, err error) {
	held, err := m.hold(ctx, n+2)
	if err != nil {
		return 0, err
	}
	before := m.mode
	err = m.road.node.Do(func() (err error) {
		after, err := nftables.New(nftables.Options{ServiceCIDRs: ranges, WorkloadCIDRs: []netip.Prefix{workloads}})
		if err != nil {
			return err
		}
		m.mode = after
		if err := errors.Join(before.Close(ctx), m.mode.Apply(ctx, append(all(n), change(n+2, bulkEndpoints(n+2, 0, 3))))); err != nil {
			return err
		}
		left, err := ipvs.Leave()
		if err == nil && !left {
			err = errors.New("IPVS has nothing of the connections that are held")
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	err = m.road.client.Do(func() error {
		_, _, err := transactions(b.batch, at(vip(n-1)))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("after the switch: %w", err)
	}
	failed, err = endAll(held)
	if err != nil {
		b.note("%.500s", err.Error())
	}
	return failed, nil
}

func bulkEndpoints(i, from, to int) []netip.AddrPort {
	out := endpointsOf(i, from, to)
	for k, e := range out {
		out[k] = netip.AddrPortFrom(e.Addr(), bulkPort)
	}
	return out
}
