package nameserver

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func addrs(all ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range all {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func resource(name string, h wire.HostName) wire.Resource {
	return wire.NewResource(wire.Names, name, "1", h.Append(nil))
}

// shop is the table of most tests.
func shop(t testing.TB) *Table {
	t.Helper()
	var table Table
	err := table.Take([]wire.Resource{
		resource("@", wire.HostName{Names: []string{"cluster.local"}}),
		resource("shop/web", wire.HostName{
			Names: []string{"web.shop.svc", "web.shop.svc.clusterset.local.", "web.example.com."}, Addresses: addrs("10.96.0.1", "fd00::1"),
			Ports: []wire.PortBelow{{Label: "_http._tcp", Number: 80}},
		}),
		resource("shop/db", wire.HostName{
			Names: []string{"db.shop.svc"}, Headless: true, Addresses: addrs("10.0.0.1", "10.0.0.2"),
			Hosts: []wire.HostBelow{{Name: "db-0", Addresses: addrs("10.0.0.1")}, {Name: "db-1.east", Addresses: addrs("10.0.0.2")}},
			Ports: []wire.PortBelow{{Label: "_sql._tcp", Number: 5432, Host: "db-0"}, {Label: "_sql._tcp", Number: 5432, Host: "db-1.east"}},
		}),
		resource("shop/empty", wire.HostName{Names: []string{"empty.shop.svc"}, Headless: true}),
		resource("shop/near", wire.HostName{Names: []string{"near.shop.svc"}, Alias: "web.shop.svc.cluster.local"}),
		resource("shop/far", wire.HostName{Names: []string{"far.shop.svc"}, Alias: "www.example.org"}),
		resource("shop/ring", wire.HostName{Names: []string{"ring.shop.svc"}, Alias: "ring.shop.svc.cluster.local"}),
		resource("web_shop_svc_80.mesh", wire.HostName{Names: []string{"web_shop_svc_80.mesh."}, Addresses: addrs("240.0.0.1")}),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &table
}

// rig is a server, and a resolver behind it that knows www.example.org and big.example.org, and fails
// for all else.
type rig struct {
	t       *testing.T
	server  *Server
	address string
}

func newRig(t *testing.T, table *Table, dead ...netip.AddrPort) *rig {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, 2)
	serve := func(c Config) (*Server, string) {
		on, err := Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := on.Packets.LocalAddr().String()
		s := New(c)
		go func() {
			if err := s.Serve(ctx, on); err != nil {
				t.Error(err)
			}
			done <- struct{}{}
		}()
		return s, address
	}
	var big []netip.Addr
	for i := range 100 {
		big = append(big, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	var others Table
	if err := others.Take([]wire.Resource{
		resource("@", wire.HostName{Names: []string{"example.org"}}),
		resource("www", wire.HostName{Names: []string{"www"}, Addresses: addrs("192.0.2.7")}),
		resource("big", wire.HostName{Names: []string{"big"}, Addresses: big}),
	}, nil); err != nil {
		t.Fatal(err)
	}
	_, upstream := serve(Config{Table: &others})
	r := &rig{t: t}
	all := append(dead, netip.MustParseAddrPort(upstream))
	r.server, r.address = serve(Config{Table: table, Upstreams: func() []netip.AddrPort { return all }})
	t.Cleanup(func() {
		cancel()
		<-done
		<-done
	})
	return r
}

// ask by udp or tcp, and return the code and the answers, sorted.
func (r *rig) ask(network, name string, typ dnsmessage.Type) string {
	r.t.Helper()
	q := question{header: dnsmessage.Header{ID: 4711, RecursionDesired: true}, asked: dnsmessage.Question{
		Name: dnsmessage.MustNewName(name), Type: typ, Class: dnsmessage.ClassINET,
	}}
	message, err := q.encodeQuestion()
	if err != nil {
		r.t.Fatal(err)
	}
	conn, err := net.Dial(network, r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second)) // a failure shows in the read
	buffer := make([]byte, maxTCP)
	if network == "tcp" {
		if err = writeMessage(conn, message); err == nil {
			buffer, err = readMessage(conn)
		}
	} else if _, err = conn.Write(message); err == nil {
		var n int
		n, err = conn.Read(buffer)
		buffer = buffer[:n]
	}
	if err != nil {
		return err.Error()
	}
	var m dnsmessage.Message
	if err := m.Unpack(buffer); err != nil {
		return err.Error()
	}
	if m.ID != 4711 || len(m.Questions) != 1 {
		r.t.Errorf("%s: the answer is to another question: %+v", name, m)
	}
	var out []string
	for _, a := range m.Answers {
		switch b := a.Body.(type) {
		case *dnsmessage.AResource:
			out = append(out, netip.AddrFrom4(b.A).String())
		case *dnsmessage.AAAAResource:
			out = append(out, netip.AddrFrom16(b.AAAA).String())
		case *dnsmessage.CNAMEResource:
			out = append(out, "="+b.CNAME.String())
		case *dnsmessage.PTRResource:
			out = append(out, b.PTR.String())
		case *dnsmessage.SRVResource:
			out = append(out, fmt.Sprintf("%s:%d", b.Target, b.Port))
		}
	}
	slices.Sort(out)
	if len(out) > 4 {
		out = []string{fmt.Sprint(len(out))}
	}
	text := strings.TrimPrefix(m.RCode.String(), "RCode")
	if m.Truncated {
		text += " truncated"
	}
	return strings.TrimSpace(text + " " + strings.Join(out, " "))
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, shop(t))
	for _, c := range []struct {
		name string
		typ  dnsmessage.Type
		want string
	}{
		{"web.shop.svc.cluster.local.", dnsmessage.TypeA, "Success 10.96.0.1"},
		{"WEB.Shop.svc.cluster.local.", dnsmessage.TypeAAAA, "Success fd00::1"},
		{"web.shop.svc.clusterset.local.", dnsmessage.TypeA, "Success 10.96.0.1"},
		{"web.shop.svc.cluster.local.", dnsmessage.TypeMX, "Success"},
		{"_http._tcp.web.shop.svc.cluster.local.", dnsmessage.TypeSRV, "Success web.shop.svc.cluster.local.:80"},
		{"_tcp.web.shop.svc.cluster.local.", dnsmessage.TypeA, "Success"},
		{"nobody.web.shop.svc.cluster.local.", dnsmessage.TypeA, "NameError"},
		{"db.shop.svc.cluster.local.", dnsmessage.TypeA, "Success 10.0.0.1 10.0.0.2"},
		{"db-0.db.shop.svc.cluster.local.", dnsmessage.TypeA, "Success 10.0.0.1"},
		{"db-1.east.db.shop.svc.cluster.local.", dnsmessage.TypeA, "Success 10.0.0.2"},
		{"_sql._tcp.db.shop.svc.cluster.local.", dnsmessage.TypeSRV, "Success db-0.db.shop.svc.cluster.local.:5432 db-1.east.db.shop.svc.cluster.local.:5432"},
		{"empty.shop.svc.cluster.local.", dnsmessage.TypeA, "NameError"},
		{"near.shop.svc.cluster.local.", dnsmessage.TypeA, "Success 10.96.0.1 =web.shop.svc.cluster.local."},
		{"far.shop.svc.cluster.local.", dnsmessage.TypeA, "Success 192.0.2.7 =www.example.org."},
		{"ring.shop.svc.cluster.local.", dnsmessage.TypeA, "ServerFailure"},
		{"other.shop.svc.cluster.local.", dnsmessage.TypeA, "NameError"},
		{"shop.svc.cluster.local.", dnsmessage.TypeA, "Success"},
		{"www.example.org.shop.svc.cluster.local.", dnsmessage.TypeA, "NameError"},
		{"web_shop_svc_80.mesh.", dnsmessage.TypeA, "Success 240.0.0.1"},
		{"web.shop.svc.80.mesh.", dnsmessage.TypeA, "Success 240.0.0.1"},
		{"svc.80.mesh.", dnsmessage.TypeA, "Success"},
		{"other.mesh.", dnsmessage.TypeA, "NameError"},
		{"web.example.com.", dnsmessage.TypeA, "Success 10.96.0.1"},
		{"web.example.com.", typeHTTPS, "Success"},
		{"below.web.example.com.", dnsmessage.TypeA, "ServerFailure"},
		{"1.0.96.10.in-addr.arpa.", dnsmessage.TypePTR, "Success web.shop.svc.cluster.local."},
		{"1.0.0.10.in-addr.arpa.", dnsmessage.TypePTR, "Success db-0.db.shop.svc.cluster.local."},
		{"9.9.9.9.in-addr.arpa.", dnsmessage.TypePTR, "ServerFailure"},
		{"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", dnsmessage.TypePTR, "Success web.shop.svc.cluster.local."},
		{"www.example.org.", dnsmessage.TypeA, "Success 192.0.2.7"},
		{"nowhere.example.org.", dnsmessage.TypeA, "ServerFailure"},
	} {
		for _, network := range []string{"udp", "tcp"} {
			if got := r.ask(network, c.name, c.typ); got != c.want {
				t.Errorf("%s %s %s: %s, want %s", network, c.name, c.typ, got, c.want)
			}
		}
	}
	if got := r.ask("udp", "big.example.org.", dnsmessage.TypeA); got != "Success truncated" {
		t.Errorf("an answer that is too large for UDP: %s", got)
	}
	if got := r.ask("tcp", "big.example.org.", dnsmessage.TypeA); got != "Success 100" {
		t.Errorf("the same by TCP: %s", got)
	}
}

// TestChanges: names come, change and go; before any came, a name of the cluster fails, and is not said
// not to exist.
func TestChanges(t *testing.T) {
	t.Parallel()
	var table Table
	r := newRig(t, &table, netip.MustParseAddrPort("127.0.0.1:1")) // nobody is there: the next resolver is asked
	const name = "web.shop.svc.cluster.local."
	take := func(set []wire.Resource, removed ...string) {
		t.Helper()
		if err := table.Take(set, removed); err != nil {
			t.Fatal(err)
		}
	}
	want := func(name, want string) {
		t.Helper()
		if got := r.ask("udp", name, dnsmessage.TypeA); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	want("other.mesh.", "ServerFailure")
	want("www.example.org.", "Success 192.0.2.7")
	one := wire.HostName{Names: []string{"web.shop.svc"}, Addresses: addrs("10.96.0.1")}
	take([]wire.Resource{resource("shop/web", one)}) // before the domain
	take([]wire.Resource{resource("@", wire.HostName{Names: []string{"cluster.local"}})})
	want(name, "Success 10.96.0.1")
	one.Addresses = addrs("10.96.0.2")
	take([]wire.Resource{resource("shop/web", one)})
	want(name, "Success 10.96.0.2")
	if names := table.names(addrs("10.96.0.1")[0]); len(names) > 0 {
		t.Errorf("the former address leads back to %v", names)
	}
	take(nil, "shop/web", "never/there")
	want(name, "NameError")
	if err := table.Take([]wire.Resource{wire.NewResource(wire.Names, "shop/bad", "1", []byte{0x12, 3, 1, 2, 3})}, nil); err == nil {
		t.Error("a damaged name is taken")
	}
}

func TestResolvers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, backup := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "backup")
	write := func(path, text string, at int64) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Unix(at, 0), time.Unix(at, 0)); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Unix(1000, 0)
	r := &Resolvers{Files: []string{file, backup}, Now: func() time.Time { return now }}
	want := func(want string) {
		t.Helper()
		if got := fmt.Sprint(r.Get()); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	want("[]")
	write(file, "# a comment\nsearch example.org\nnameserver 192.0.2.1\nnameserver fd00::53\nnameserver none\n", 1)
	write(backup, "nameserver 192.0.2.1\nnameserver 192.0.2.2\n", 1)
	want("[]")
	now = now.Add(reread)
	want("[192.0.2.1:53 [fd00::53]:53 192.0.2.2:53]")
	write(file, "nameserver 192.0.2.9\n", 2)
	now = now.Add(reread)
	want("[192.0.2.9:53 192.0.2.1:53 192.0.2.2:53]")
}

// FuzzQuestion: no message of a client stops the server, and answers can be read.
func FuzzQuestion(f *testing.F) {
	table := shop(f)
	for _, name := range []string{"web.shop.svc.cluster.local.", "near.shop.svc.cluster.local.", "_sql._tcp.db.shop.svc.cluster.local.", "."} {
		q := question{asked: dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeALL, Class: dnsmessage.ClassINET}}
		message, err := q.encodeQuestion()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(message)
	}
	s := New(Config{Table: table})
	f.Fuzz(func(t *testing.T, message []byte) {
		q, err := parse(message)
		if err != nil {
			return
		}
		r, ours := s.answer(&q)
		if !ours {
			return
		}
		r.alias = ""
		out := q.encode(&r, q.size)
		var m dnsmessage.Message
		if err := m.Unpack(out); out == nil || err != nil || len(out) > q.size {
			t.Errorf("%v, %d bytes of %d", err, len(out), q.size)
		}
	})
}
