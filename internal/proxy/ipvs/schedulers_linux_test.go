package ipvs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
	"github.com/proxima-mesh/proxima/internal/proxy/proxytest"
	testnetns "github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// patience of a client on an emulated machine.
const patience = 30 * time.Second

// clients are the addresses that connections come from.
const clients = 32

// road is a client and endpoints, with this process's network namespace, a node, between them.
type road struct {
	*testing.T
	client *testnetns.NS
	mode   *Mode
	vip    netip.Addr
	others []netip.Addr // further addresses of the service
}

func clientAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}) }

func endpointAt(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(1 + i)}), 8080)
}

const endpoints = 3

func newRoad(t *testing.T) *road {
	t.Helper()
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = here.Close() })
	r := &road{T: t, client: testnetns.New(t, "client")}
	server := testnetns.New(t, "server")
	prefix := func(text string) netip.Prefix { return netip.MustParsePrefix(text) }
	err = errors.Join(
		here.SetSysctl("net.ipv4.ip_forward", "1"), here.SetLinkUp("lo", true),
		netns.Connect(netns.End{NS: here, Link: "client", Addrs: []netip.Prefix{prefix("192.0.2.1/24")}},
			netns.End{NS: r.client.NS, Link: "eth0", Addrs: []netip.Prefix{prefix("192.0.2.2/24")}}),
		netns.Connect(netns.End{NS: here, Link: "server", Addrs: []netip.Prefix{prefix("198.51.100.1/24")}},
			netns.End{NS: server.NS, Link: "eth0", Addrs: []netip.Prefix{prefix("198.51.100.2/24")}}),
		here.AddRoute(prefix("10.1.0.0/24"), netip.MustParseAddr("198.51.100.2")),
		here.AddRoute(prefix("0.0.0.0/0"), netip.MustParseAddr("198.51.100.2")),
	)
	if err != nil {
		t.Fatal(err)
	}
	r.client.Route("0.0.0.0/0", "192.0.2.1")
	server.Route("0.0.0.0/0", "198.51.100.1")
	for i := range clients {
		r.client.Addr("eth0", netip.PrefixFrom(clientAddr(i), 24).String())
	}
	for i := range endpoints {
		at := endpointAt(i)
		server.Addr("lo", netip.PrefixFrom(at.Addr(), 32).String())
		l, err := server.Listen("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go serveNumber(l, i)
	}
	return r
}

// serveNumber tells each client a number, and ends its connection after it.
func serveNumber(l net.Listener, number int) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			_, _ = fmt.Fprintln(c, number)
			_, _ = io.Copy(io.Discard, c)
		}()
	}
}

// begin a mode with a scheduler. Each has addresses of its own, as IPVS remembers connections.
func (r *road) begin(t *testing.T, index int, scheduler string) *road {
	t.Helper()
	m, err := New(Options{Tables: nftables.Options{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}, Scheduler: scheduler})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background() // the test's own is over
		if err := errors.Join(m.Close(ctx), Cleanup(), nftables.Cleanup(ctx, nftables.Options{})); err != nil {
			t.Error(err)
		}
	})
	own := *r
	own.T, own.mode, own.vip = t, m, netip.AddrFrom4([4]byte{10, 96, byte(1 + index), 1})
	for i := range 12 {
		own.others = append(own.others, netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + 16*index + i)}))
	}
	return &own
}

// weights of the endpoints from the first one on; 0: it is no endpoint any more.
func (r *road) weights(all ...uint32) {
	r.Helper()
	var list []proxy.Target
	for i, w := range all {
		if w > 0 {
			list = append(list, proxy.Target{Addr: endpointAt(i), Weight: w})
		}
	}
	port := proxy.Port{Name: "http", Protocol: proxy.TCP, Port: 80}
	name := proxy.ServiceName{Namespace: "shop", Name: "web"}
	state := &proxy.PortState{
		Name: proxy.PortName{ServiceName: name, Port: "http"}, Port: port, IPv4: proxy.Choice{Cluster: list},
		Service: &proxy.Service{Name: name, ClusterIPs: []netip.Addr{r.vip}, ExternalIPs: r.others, Ports: []proxy.Port{port}},
	}
	if err := r.mode.Apply(r.Context(), []proxy.Change{{Name: state.Name, State: state}}); err != nil {
		r.Fatal(err)
	}
}

// heldConn is a connection, and the endpoint that it has.
type heldConn struct {
	*net.TCPConn
	*bufio.Reader
	endpoint int
}

// open a connection from the i-th client.
func (r *road) open(i int, to netip.Addr) heldConn {
	r.Helper()
	var c net.Conn
	err := r.client.Do(func() (err error) {
		d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: clientAddr(i).AsSlice()}}
		c, err = d.DialContext(r.Context(), "tcp", netip.AddrPortFrom(to, 80).String())
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	h := heldConn{TCPConn: c.(*net.TCPConn), Reader: bufio.NewReader(c)}
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fscanln(h.Reader, &h.endpoint); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = c.Close() })
	return h
}

// end a connection, in both directions, so that IPVS counts it as active no more.
func (r *road) end(h heldConn) {
	r.Helper()
	err := h.CloseWrite()
	if err == nil {
		_, err = io.Copy(io.Discard, h.Reader)
	}
	if err := errors.Join(err, h.TCPConn.Close()); err != nil {
		r.Fatal(err)
	}
}

// hold connections of different clients, and return which endpoint each has.
func (r *road) hold(n int) (all []heldConn, who []int) {
	r.Helper()
	for i := range n {
		h := r.open(i%clients, r.vip)
		all, who = append(all, h), append(who, h.endpoint)
	}
	return all, who
}

// ask one after the other, each from another client, and return which endpoints answered.
func (r *road) ask(n int, to netip.Addr) (who []int) {
	r.Helper()
	for i := range n {
		h := r.open(i%clients, to)
		who = append(who, h.endpoint)
		r.end(h)
	}
	return who
}

// counts of endpoints in a list.
func counts(who []int) (n [endpoints]int) {
	for _, w := range who {
		n[w]++
	}
	return n
}

func (r *road) want(what string, got any, want any) {
	r.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		r.Errorf("%s: %s, want %s", what, g, w)
	}
}

// alternate: two endpoints take turns.
func alternate(who []int) bool {
	for i := 2; i < len(who); i++ {
		if who[i] != who[i-2] || who[i] == who[i-1] {
			return false
		}
	}
	return true
}

// schedulerRules show by connections what each scheduler is there for.
var schedulerRules = map[string]func(*road){
	"rr": func(r *road) { // turns, whatever the weights
		r.weights(1, 3)
		if who := r.ask(8, r.vip); !alternate(who) {
			r.Errorf("answered by %v, want turns", who)
		}
	},
	"wrr": func(r *road) { // turns, by weight
		r.weights(1, 3)
		r.want("of 16 connections", counts(r.ask(16, r.vip)), [endpoints]int{4, 12, 0})
		r.weights(3, 1)
		r.want("of 16 connections, weights exchanged", counts(r.ask(16, r.vip)), [endpoints]int{12, 4, 0})
	},
	"lc": func(r *road) { // fewest connections, whatever the weights
		r.weights(1, 5, 1)
		all, who := r.hold(6)
		r.want("of 6 connections that are held", counts(who), [endpoints]int{2, 2, 2})
		for _, h := range all {
			if h.endpoint == 1 {
				r.end(h)
			}
		}
		_, who = r.hold(2)
		r.want("when one endpoint has none any more, of 2", counts(who), [endpoints]int{0, 2, 0})
	},
	"wlc": func(r *road) { // fewest connections by weight
		r.weights(1, 3)
		all, who := r.hold(8)
		r.want("of 8 connections that are held", counts(who), [endpoints]int{2, 6, 0})
		for _, h := range all {
			if h.endpoint == 0 {
				r.end(h)
			}
		}
		_, who = r.hold(1)
		r.want("when the smaller endpoint has none any more, the next", counts(who), [endpoints]int{1, 0, 0})
	},
	"sed": func(r *road) { // shortest expected delay: a large endpoint with connections goes before a small one without
		r.weights(1, 3)
		_, who := r.hold(2)
		r.want("of the first 2 connections", counts(who), [endpoints]int{0, 2, 0})
		_, more := r.hold(6)
		r.want("of 8 connections that are held", counts(append(who, more...)), [endpoints]int{2, 6, 0})
	},
	"nq": func(r *road) { // never queue: who has no connection gets one, then as sed
		r.weights(1, 3)
		_, who := r.hold(2)
		r.want("of the first 2 connections", counts(who), [endpoints]int{1, 1, 0})
		_, more := r.hold(6)
		r.want("of 8 connections that are held", counts(append(who, more...)), [endpoints]int{2, 6, 0})
	},
	"sh": func(r *road) { // by source
		r.weights(1, 1, 1)
		first := r.ask(clients, r.vip)
		r.want("the same clients again", r.ask(clients, r.vip), first)
		for i, n := range counts(first) {
			if n == 0 {
				r.Errorf("endpoint %d has none of %d clients: %v", i, clients, first)
			}
		}
		r.want("another address of the Service", r.ask(clients, r.others[0]), first)
	},
	"mh": func(r *road) { // by source, and few clients move when an endpoint goes
		r.weights(1, 1, 1)
		first := r.ask(clients, r.vip)
		r.want("the same clients again", r.ask(clients, r.vip), first)
		r.weights(1, 1)
		moved := 0
		for i, who := range r.ask(clients, r.vip) {
			switch {
			case who == 2:
				r.Fatalf("client %d has an endpoint that went", i)
			case first[i] != 2 && who != first[i]:
				moved++
			}
		}
		if moved > clients/4 {
			r.Errorf("%d of %d clients moved between endpoints that stay", moved, clients)
		}
	},
	"dh": func(r *road) { // by the address that is asked
		r.weights(1, 1, 1)
		var used []int
		for _, a := range append(r.others, r.vip) {
			who := r.ask(4, a)
			if len(slices.Compact(slices.Clone(who))) != 1 {
				r.Errorf("%s is answered by %v, want one endpoint", a, who)
			}
			used = append(used, who[0])
		}
		if slices.Sort(used); len(slices.Compact(used)) < 2 {
			r.Error("all addresses have the same endpoint")
		}
	},
	"lblc": func(r *road) { // one endpoint for an address, until it has more connections than its weight; then another one
		r.weights(1, 1, 1)
		one := r.ask(4, r.vip)
		if len(slices.Compact(slices.Clone(one))) != 1 {
			r.Errorf("answered by %v, want one endpoint", one)
		}
		all, who := r.hold(3)
		if who[0] != one[0] || who[1] != one[0] || who[2] == one[0] {
			r.Errorf("connections that are held have %v, want twice %d, then another", who, one[0])
		}
		r.end(all[0])
		r.end(all[1])
		if again := r.ask(1, r.vip)[0]; again != who[2] {
			r.Errorf("when the first one is idle again: %d, want %d, which took its place", again, who[2])
		}
	},
	"lblcr": func(r *road) { // the same, and the other one is added to the first
		r.weights(1, 1, 1)
		one := r.ask(4, r.vip)
		if len(slices.Compact(slices.Clone(one))) != 1 {
			r.Errorf("answered by %v, want one endpoint", one)
		}
		all, who := r.hold(3)
		if who[0] != one[0] || who[1] != one[0] || who[2] == one[0] {
			r.Errorf("connections that are held have %v, want twice %d, then another", who, one[0])
		}
		r.end(all[0])
		r.end(all[1])
		if again := r.ask(1, r.vip)[0]; again != one[0] {
			r.Errorf("when the first one is idle again: %d, want %d, which stays one of two", again, one[0])
		}
	},
	"fo": func(r *road) { // the highest weight, as long as it is there
		r.weights(1, 3, 2)
		r.want("of 6 connections", counts(r.ask(6, r.vip)), [endpoints]int{0, 6, 0})
		r.weights(1, 0, 2)
		r.want("without that one", counts(r.ask(6, r.vip)), [endpoints]int{0, 0, 6})
	},
	"ovf": func(r *road) { // the highest weight, until it has more connections; then the next
		r.weights(2, 3)
		_, who := r.hold(5)
		r.want("connections that are held", who, []int{1, 1, 1, 1, 0})
	},
}

// TestKernelSchedulers: connections show the rule of each scheduler.
func TestKernelSchedulers(t *testing.T) {
	needIPVS(t, Default)
	if !proxytest.OnNode(t) {
		return
	}
	r := newRoad(t)
	for i, scheduler := range Schedulers() {
		t.Run(scheduler, func(t *testing.T) {
			rule := schedulerRules[scheduler]
			if rule == nil {
				t.Fatal("no test shows its rule")
			}
			if err := Check(scheduler); err != nil {
				t.Fatal(err)
			}
			rule(r.begin(t, i, scheduler))
		})
	}
	if _, err := New(Options{Scheduler: "twos"}); err == nil || !strings.Contains(err.Error(), strings.Join(Schedulers(), ", ")) {
		t.Errorf("an unknown name: %v", err)
	}
}
