//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

const (
	servicePort  = 80
	endpointPort = 8080
	// endpointRange has all endpoints, at whatever address.
	endpointRange = "10.128.0.0/9"
	// mostServices that addresses are for.
	mostServices = 1 << 16
)

var (
	workloads = netip.MustParsePrefix("10.7.0.0/16")
	ranges    = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
)

// vip is the address of a service. The first 256 of the range stay free: an API
// has services of its own there.
func vip(i int) netip.Addr {
	i += 256
	return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
}

func at(addr netip.Addr) netip.AddrPort { return netip.AddrPortFrom(addr, servicePort) }

// endpoint is the k-th that a service may have, of 128 at most.
func endpoint(i, k int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(128 + k), byte(i >> 8), byte(i)}), endpointPort)
}

// endpointsOf a service from one number to another.
func endpointsOf(i, from, to int) []netip.AddrPort {
	var out []netip.AddrPort
	for k := from; k < to; k++ {
		out = append(out, endpoint(i, k))
	}
	return out
}

// machine is a namespace with all endpoints in it.
type machine struct {
	*netns.NS
	listener net.Listener
}

func newMachine(ctx context.Context, name string) (_ *machine, err error) {
	ns, err := netns.New(name)
	if err != nil {
		return nil, err
	}
	m := &machine{NS: ns}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	// A workload's address to speak from.
	if err := ns.AddAddr("lo", netip.PrefixFrom(workloads.Addr().Next(), 32)); err != nil {
		return nil, err
	}
	if err := serveRange(ctx, ns); err != nil {
		return nil, err
	}
	// The kernel looks for a route before it translates.
	if _, err := ns.Output(ctx, "ip", "route", "add", "default", "dev", "lo"); err != nil {
		return nil, err
	}
	if m.listener, err = ns.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", endpointPort)); err != nil {
		return nil, err
	}
	go answer(m.listener)
	return m, nil
}

// serveRange makes all endpoints addresses of a namespace.
func serveRange(ctx context.Context, ns *netns.NS) error {
	_, err := ns.Output(ctx, "ip", "route", "add", "local", endpointRange, "dev", "lo")
	return err
}

func (m *machine) close() {
	if m.listener != nil {
		_ = m.listener.Close()
	}
	_ = m.Close()
}

// answer with the address that was asked, in four bytes.
func answer(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			local := c.LocalAddr().(*net.TCPAddr).AddrPort().Addr().As4()
			_, _ = c.Write(local[:])
			_, _ = io.Copy(io.Discard, c)
		}()
	}
}

// asked is who answers at an address, and whether packets were lost on the way.
func (m *machine) asked(ctx context.Context, to netip.AddrPort) (who netip.Addr, resent bool, err error) {
	c, err := m.DialContext(ctx, "tcp4", to.String())
	if err != nil {
		return who, false, err
	}
	defer func() { _ = c.Close() }()
	tcp := c.(*net.TCPConn)
	_ = tcp.SetLinger(0) // no TIME_WAIT: ports are few
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	var from [4]byte
	if _, err := io.ReadFull(c, from[:]); err != nil {
		return who, false, err
	}
	return netip.AddrFrom4(from), retransmitted(tcp), nil
}

// retransmitted reports whether a connection lost a packet.
func retransmitted(c *net.TCPConn) (lost bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		lost = err == nil && info.Total_retrans > 0
	})
	return lost
}

// feed runs a program of a machine with a text and returns how long that took,
// process and all.
func (m *machine) feed(ctx context.Context, text, program string, args ...string) (time.Duration, error) {
	return feed(ctx, m.NS, text, program, args...)
}

func feed(ctx context.Context, ns *netns.NS, text, program string, args ...string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var complaint strings.Builder
	cmd.Stdin, cmd.Stderr = strings.NewReader(text), &complaint
	begin := time.Now()
	err := ns.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %.500s", program, err, complaint.String())
	}
	return time.Since(begin), nil
}

// nft runs a transaction.
func (m *machine) nft(ctx context.Context, text string) (time.Duration, error) {
	return m.feed(ctx, text, "nft", "-f", "-")
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

func removal(i int) proxy.Change { return proxy.Change{Name: state(i, nil).Name} }

// all are n services of three endpoints.
func all(n int) []proxy.Change {
	out := make([]proxy.Change, n)
	for i := range out {
		out[i] = change(i, endpointsOf(i, 0, 3))
	}
	return out
}

func newNftables(ns *netns.NS) (*nftables.Mode, error) {
	return nftables.New(nftables.Options{Namespace: ns.Fd(), ServiceCIDRs: ranges, WorkloadCIDRs: []netip.Prefix{workloads}})
}

// dial is a socket that goes to a service and never stays in TIME_WAIT.
func dial(to netip.AddrPort) (fd int, took time.Duration, err error) {
	domain, addr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(to.Addr().AsSlice()[:4]), Port: int(to.Port())})
	if to.Addr().Is6() {
		domain, addr = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
	}
	fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, 0, err
	}
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	begin := time.Now()
	err = retried(func() error { return unix.Connect(fd, addr) })
	if err != nil {
		return -1, 0, errors.Join(fmt.Errorf("connect to %s: %w", to, err), unix.Close(fd))
	}
	return fd, time.Since(begin), nil
}

// retried goes on where a signal of Go's scheduler broke a system call off. A
// connect that went on meanwhile is done.
func retried(call func() error) error {
	for {
		err := call()
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EALREADY):
		case errors.Is(err, unix.EISCONN):
			return nil
		default:
			return err
		}
	}
}

// connects times connect(2) n times, from a namespace.
func connects(ns *netns.NS, n int, to netip.AddrPort) ([]time.Duration, error) {
	out := make([]time.Duration, 0, n)
	err := ns.Do(func() error {
		for range n {
			fd, took, err := dial(to)
			if err != nil {
				return err
			}
			out = append(out, took)
			if err := unix.Close(fd); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}
