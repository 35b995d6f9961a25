//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

// road is a client, a machine that forwards, and a server behind it, joined by
// veth pairs.
type road struct {
	client, node, server *netns.NS
	listener             int
	done                 chan struct{} // closed when the server has ended
}

var (
	clientAddr, clientGate = netip.MustParsePrefix("10.7.1.2/30"), netip.MustParsePrefix("10.7.1.1/30")
	serverAddr, serverGate = netip.MustParsePrefix("198.51.100.2/30"), netip.MustParsePrefix("198.51.100.1/30")
	anywhere               = netip.MustParsePrefix("0.0.0.0/0")
)

func newRoad(ctx context.Context, cpu int) (_ *road, err error) {
	r := &road{listener: -1}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	for _, n := range []struct {
		name string
		ns   **netns.NS
	}{{"pmus-client", &r.client}, {"pmus-node", &r.node}, {"pmus-server", &r.server}} {
		if *n.ns, err = netns.New(n.name); err != nil {
			return nil, err
		}
	}
	err = errors.Join(
		netns.Connect(
			netns.End{NS: r.client, Link: "eth0", Addrs: []netip.Prefix{clientAddr}},
			netns.End{NS: r.node, Link: "client", Addrs: []netip.Prefix{clientGate}}),
		netns.Connect(
			netns.End{NS: r.node, Link: "server", Addrs: []netip.Prefix{serverGate}},
			netns.End{NS: r.server, Link: "eth0", Addrs: []netip.Prefix{serverAddr}}))
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		r.client.AddRoute(anywhere, clientGate.Addr()),
		r.node.AddRoute(anywhere, serverAddr.Addr()),
		r.server.AddRoute(anywhere, serverGate.Addr()),
		r.node.SetSysctl("net.ipv4.ip_forward", "1"),
		serveRange(ctx, r.server))
	if err != nil {
		return nil, err
	}
	return r, r.serve(cpu)
}

// serve repeats what clients say, one after another, by blocking system calls on
// one thread: the scheduler of Go would be most of what is measured.
func (r *road) serve(cpu int) error {
	err := r.server.Do(func() (err error) {
		r.listener, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Bind(r.listener, &unix.SockaddrInet4{Port: endpointPort}); err != nil {
			return err
		}
		return unix.Listen(r.listener, 128)
	})
	if err != nil {
		return err
	}
	r.done = make(chan struct{})
	go func() {
		defer close(r.done)
		_ = onCPU(cpu, func() error {
			return repeatAll(r.listener)
		})
	}()
	return nil
}

// repeatAll that clients say, one after another, until the listener is shut down.
func repeatAll(listener int) error {
	buf := make([]byte, 64)
	for {
		var fd int
		err := retried(func() (err error) { fd, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC); return err })
		switch {
		case err == nil:
			repeat(fd, buf)
		case errors.Is(err, unix.ECONNABORTED):
		default: // shut down
			return nil
		}
	}
}

// repeat what one client says until it leaves.
func repeat(fd int, buf []byte) {
	defer func() { _ = unix.Close(fd) }()
	for {
		var n int
		err := retried(func() (err error) { n, err = unix.Read(fd, buf); return err })
		if err != nil || n == 0 {
			return
		}
		if _, err := unix.Write(fd, buf[:n]); err != nil {
			return
		}
	}
}

func (r *road) close() {
	if r.listener >= 0 {
		_ = unix.Shutdown(r.listener, unix.SHUT_RDWR)
		if r.done != nil {
			<-r.done
		}
		_ = unix.Close(r.listener)
	}
	for _, ns := range []*netns.NS{r.client, r.node, r.server} {
		if ns != nil {
			_ = ns.Close()
		}
	}
}

// onCPU runs f on a thread that stays on one processor meanwhile. Both ends of a
// road share one: waking another processor costs more than the road, in a virtual
// machine above all.
func onCPU(cpu int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	return errors.Join(f(), unix.SchedSetaffinity(0, &before))
}

// lastCPU that this process may use.
func lastCPU() (int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, err
	}
	for cpu := 1023; cpu >= 0; cpu-- {
		if set.IsSet(cpu) {
			return cpu, nil
		}
	}
	return 0, errors.New("no processor")
}

// transactions times n of them: connect, request, answer, close.
func transactions(n int, to netip.AddrPort) (connect, whole []time.Duration, err error) {
	buf := []byte{1}
	for range n {
		fd, took, err := dial(to)
		if err != nil {
			return nil, nil, err
		}
		begin := time.Now()
		if _, err = unix.Write(fd, buf); err == nil {
			err = retried(func() error { _, err := unix.Read(fd, buf); return err })
		}
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			return nil, nil, fmt.Errorf("transaction with %s: %w", to, err)
		}
		connect, whole = append(connect, took), append(whole, took+time.Since(begin))
	}
	return connect, whole, nil
}

// path measures what connections through the large number of services cost,
// compared with none and with kube-proxy's layout.
func (b *bench) path(ctx context.Context) error {
	n := b.services[len(b.services)-1]
	b.section("Data path of nftables: forwarded over veth, client and server on one processor, a service of its own each round")
	cpu, err := lastCPU()
	if err != nil {
		return err
	}
	var roads [3]*road // direct, ours, theirs
	for i := range roads {
		if roads[i], err = newRoad(ctx, cpu); err != nil {
			return err
		}
		defer roads[i].close()
	}
	var mode *nftables.Mode
	if mode, err = newNftables(roads[1].node); err != nil {
		return err
	}
	defer func() { _ = mode.Close(context.WithoutCancel(ctx)) }()
	if err := mode.Apply(ctx, all(n)); err != nil {
		return err
	}
	if _, err := feed(ctx, roads[2].node, layoutOf(n, false), "nft", "-f", "-"); err != nil {
		return err
	}
	var connect, whole [3][]float64
	for round := -1; round < b.rounds; round++ { // the first one warms up
		i := (round + 1) * 7919 % n
		for turn := range roads {
			side := (round + 1 + turn) % len(roads)
			to := at(vip(i))
			if side == 0 {
				to = endpoint(i, 0)
			}
			var c, w []time.Duration
			err := roads[side].client.Do(func() error {
				return onCPU(cpu, func() (err error) {
					c, w, err = transactions(b.batch, to)
					return err
				})
			})
			if err != nil {
				return err
			}
			if round >= 0 {
				connect[side], whole[side] = append(connect[side], middle(c)), append(whole[side], middle(w))
			}
		}
	}
	b.add(row{"connect", n, seconds, connect[1], "direct", connect[0], nil})
	b.add(row{"connect", n, seconds, connect[1], "kube-proxy's layout", connect[2], nil})
	b.add(row{"short transaction", n, seconds, whole[1], "direct", whole[0], ratioAtMost(1.25)})
	b.add(row{"short transaction", n, seconds, whole[1], "kube-proxy's layout", whole[2], ratioAtMost(1)})
	b.add(row{"kube-proxy's layout: short transaction", n, seconds, whole[2], "direct", whole[0], nil})
	return nil
}
