package userspace_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/userspace"
)

// echo starts an endpoint that sends back what it gets.
func echo(t *testing.T) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
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

func closeNow(t *testing.T, m *userspace.Mode) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := m.Close(ctx); err != nil {
		t.Error(err)
	}
}

func talk(t *testing.T, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	say(t, c)
	return c
}

func say(t *testing.T, c net.Conn) {
	t.Helper()
	buf := []byte("hello")
	if _, err := c.Write(buf); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, buf); err != nil {
		t.Fatal(err)
	}
}

func hint(err error) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		return h.Hint()
	}
	return ""
}

func TestOneFailingPortLeavesTheOthers(t *testing.T) {
	target := echo(t)
	squatter, err := net.Listen("tcp4", "127.96.250.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = squatter.Close() }()
	m := newMode(t, userspace.Options{})
	defer closeNow(t, m)

	sctp := change("sctp", netip.MustParseAddrPort("127.96.250.3:8080"), target)
	sctp.State.Port.Protocol = proxy.SCTP
	taken := netip.MustParseAddrPort("127.96.250.1:8080")
	good := netip.MustParseAddrPort("127.96.250.2:8080")
	foreign := netip.MustParseAddrPort("203.0.113.1:8080")
	changes := []proxy.Change{
		change("taken", taken, target), change("good", good, target), sctp,
		change("twin", good, target), change("foreign", foreign, target),
	}
	want := map[string]string{
		"taken":   "another process",
		"sctp":    "kernel mode",
		"twin":    "another address",
		"foreign": "127.0.0.0/8",
	}
	if os.Geteuid() != 0 {
		changes = append(changes, change("low", netip.MustParseAddrPort("127.96.250.2:80"), target))
		want["low"] = "CAP_NET_BIND_SERVICE"
	}
	err = m.Apply(t.Context(), changes)
	var perPort *proxy.PortError
	if !errors.As(err, &perPort) {
		t.Fatalf("got %v, want a PortError", err)
	}
	for name, err := range perPort.Failed {
		if w, ok := want[name.Name]; !ok || !strings.Contains(hint(err), w) {
			t.Errorf("%s failed with %q and the hint %q, want one with %q", name, err, hint(err), w)
		}
		delete(want, name.Name)
	}
	if len(want) > 0 {
		t.Errorf("no failure reported for %v", want)
	}
	talk(t, good)

	_ = squatter.Close()
	if err := m.Apply(t.Context(), changes[:1]); err != nil {
		t.Errorf("once the address is free: %v", err)
	}
	talk(t, taken)
}

func TestForeignExternalAddressIsSkipped(t *testing.T) {
	target := echo(t)
	m := newMode(t, userspace.Options{})
	defer closeNow(t, m)
	vip := netip.MustParseAddrPort("127.96.250.4:8080")
	local := netip.MustParseAddrPort("127.96.250.5:8080")
	c := change("a", vip, target)
	c.State.Service.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1"), local.Addr()}
	if err := m.Apply(t.Context(), []proxy.Change{c}); err != nil {
		t.Fatal(err)
	}
	talk(t, vip)
	talk(t, local)
}

func TestCloseLetsConnectionsFinish(t *testing.T) {
	target := echo(t)
	m := newMode(t, userspace.Options{})
	vip := netip.MustParseAddrPort("127.96.250.6:8080")
	if err := m.Apply(t.Context(), []proxy.Change{change("a", vip, target)}); err != nil {
		t.Fatal(err)
	}
	patient, stubborn := talk(t, vip), talk(t, vip)

	ctx, cancel := context.WithCancel(context.Background())
	closed := make(chan error)
	go func() { closed <- m.Close(ctx) }()
	for { // until Close has begun
		c, err := net.Dial("tcp", vip.String())
		if err != nil {
			break
		}
		_ = c.Close()
	}
	say(t, patient)
	_ = patient.Close()
	say(t, stubborn)
	select {
	case err := <-closed:
		t.Fatalf("Close returned %v with a connection open", err)
	default:
	}
	cancel()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if n, err := stubborn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("connection that outlived Close read %d bytes, %v, want a reset", n, err)
	}
}

func TestCountsAndMetrics(t *testing.T) {
	target := echo(t)
	reg := prometheus.NewPedanticRegistry()
	m := newMode(t, userspace.Options{Registerer: reg, ConnectTimeout: 200 * time.Millisecond, Penalty: time.Hour})
	vip := netip.MustParseAddrPort("127.96.250.7:8080")
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.Close()
	deadAddr := dead.Addr().(*net.TCPAddr).AddrPort()
	one := change("a", vip, target, deadAddr)
	for i := range one.State.IPv4.Cluster {
		one.State.IPv4.Cluster[i].Zone = "zone-b"
	}
	if err := m.Apply(t.Context(), []proxy.Change{one}); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		c := talk(t, vip)
		_ = c.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Fatal(err)
		}
	}
	var got proxy.Counts
	for name, c := range m.Counts() {
		if name.Name != "a" {
			t.Errorf("counts of %s", name)
		}
		got = c
	}
	// The dead endpoint was tried once; then its penalty keeps it away.
	want := proxy.Counts{Connections: 8, BytesIn: 40, BytesOut: 40, Retries: 1, ByFamily: true}
	if got != want {
		t.Errorf("counts are %+v, want %+v", got, want)
	}
	expected := `
# HELP proxima_userspace_connections_total New connections, for UDP new flows, to a service port.
# TYPE proxima_userspace_connections_total counter
proxima_userspace_connections_total{namespace="default",port="",service="a"} 8
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(expected), "proxima_userspace_connections_total"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
	checkExchanges(t, m, proxy.Exchange{Family: proxy.IPv4, Zone: "zone-b", BytesIn: 40, BytesOut: 40, Opened: 8, Closed: 8})
	open := talk(t, vip)
	checkExchanges(t, m, proxy.Exchange{Family: proxy.IPv4, Zone: "zone-b", BytesIn: 45, BytesOut: 45, Opened: 9, Closed: 8, Open: 1})
	_ = open.Close()
	checkExchanges(t, m, proxy.Exchange{Family: proxy.IPv4, Zone: "zone-b", BytesIn: 45, BytesOut: 45, Opened: 9, Closed: 9})
	closeNow(t, m)
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 0 {
		t.Errorf("%d metrics after Close, %v", n, err)
	}
}

func TestLimitMakesClientsWait(t *testing.T) {
	target := echo(t)
	m := newMode(t, userspace.Options{MaxConnections: 2})
	defer closeNow(t, m)
	vip := netip.MustParseAddrPort("127.96.250.8:8080")
	if err := m.Apply(t.Context(), []proxy.Change{change("a", vip, target)}); err != nil {
		t.Fatal(err)
	}
	first, _ := talk(t, vip), talk(t, vip)
	third, err := net.Dial("tcp", vip.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = third.Close() }()
	_ = third.SetDeadline(time.Now().Add(time.Minute))
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		say(t, third)
	}()
	say(t, first) // the ones before are served meanwhile
	select {
	case <-answered:
		t.Error("a third connection was served at a limit of two")
	default:
	}
	_ = first.Close()
	<-answered
}

func TestUDPFlowsEndWhenIdleOrCrowded(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	go func() {
		buf := make([]byte, 100)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(buf[:n], from)
		}
	}()
	reg := prometheus.NewPedanticRegistry()
	m := newMode(t, userspace.Options{MaxConnections: 4, UDPIdle: 300 * time.Millisecond, Registerer: reg})
	defer closeNow(t, m)
	vip := netip.MustParseAddrPort("127.96.250.9:8080")
	c := change("a", vip, server.LocalAddr().(*net.UDPAddr).AddrPort())
	c.State.Port.Protocol = proxy.UDP
	if err := m.Apply(t.Context(), []proxy.Change{c}); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		c, err := net.Dial("udp", vip.String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		say(t, c)
		if n := active(t, reg); n > 4 {
			t.Errorf("%g flows after %d clients, want ≤ 4", n, i+1)
		}
		_ = c.Close()
	}
	deadline := time.Now().Add(time.Minute)
	for active(t, reg) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("idle flows do not end")
		}
		time.Sleep(10 * time.Millisecond) // polling; nothing reports when a flow ends
	}
}

func active(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "proxima_userspace_active_connections" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("no such metric")
	return 0
}

// checkExchanges waits until the mode has counted this, exactly: the ends of a connection
// are noticed a moment later.
func checkExchanges(t *testing.T, m *userspace.Mode, want proxy.Exchange) {
	t.Helper()
	var got []proxy.Exchange
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		got = nil
		state, rows := m.Exchanges()
		for _, x := range rows {
			got = append(got, x)
		}
		if state.Quality == proxy.Measured && len(got) == 1 && got[0] == want {
			return
		}
	}
	t.Errorf("exchanges are %+v, want %+v", got, want)
}
