package redirect

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// A test binary that is started with this variable connects, prints who answers, and ends.
const dialVariable = "REDIRECT_TEST_DIAL"

// With this one, too, it connects as the proxy does for the workload.
const priorityVariable = "REDIRECT_TEST_PRIORITY"

func TestMain(m *testing.M) {
	if address := os.Getenv(dialVariable); address != "" {
		d := &net.Dialer{Timeout: 5 * time.Second}
		if os.Getenv(priorityVariable) != "" {
			d.Control = func(_, _ string, c syscall.RawConn) (err error) {
				return errors.Join(c.Control(func(fd uintptr) {
					err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, ProxyPriority)
				}), err)
			}
		}
		answer, err := question(d, address)
		fmt.Print(answer)
		if err != nil {
			fmt.Print("error: ", err)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// question to an address, by TCP, or by UDP behind "udp:"; it returns who answers.
func question(d *net.Dialer, address string) (string, error) {
	address, packet := strings.CutPrefix(address, "udp:")
	if !packet {
		conn, err := d.Dial("tcp", address)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		answer, err := io.ReadAll(conn)
		return string(answer), err
	}
	conn, err := d.Dial("udp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("?")); err != nil {
		return "", err
	}
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second)) // a failure shows in the read
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	return string(answer[:n]), err
}

func TestParse(t *testing.T) {
	e, err := ParseExclusion("10.1.2.3/8, 192.0.2.1,25,2001:db8::/32")
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::/32")}
	if err != nil || !slices.Equal(e.Prefixes, want) || !slices.Equal(e.Ports, []uint16{25}) {
		t.Errorf("%+v, %v", e, err)
	}
	for _, bad := range []string{"x", "0", "70000", "10.0.0.0/40"} {
		if e, err := ParseExclusion(bad); err == nil {
			t.Errorf("%q: %+v", bad, e)
		}
	}
	if p, err := ParsePorts("80,443"); err != nil || len(p) != 2 {
		t.Errorf("%v, %v", p, err)
	}
	if _, err := ParsePorts("10.0.0.1"); err == nil {
		t.Error("an address is no port")
	}
}

// rig is a workload's namespace, with a stand-in for its proxy, and a peer.
type rig struct {
	t         *testing.T
	pod, peer *netns.NS
}

const (
	pod4, pod6   = "198.51.100.2", "2001:db8:1::2"
	peer4, peer6 = "198.51.100.1", "2001:db8:1::1"
)

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, pod: netns.New(t, "pod"), peer: netns.New(t, "peer")}
	netns.Connect(r.pod, r.peer, [2]string{pod4 + "/24", peer4 + "/24"}, [2]string{pod6 + "/64", peer6 + "/64"})
	r.serve(r.peer, ":8080", "peer")
	r.serve(r.peer, ":25", "peer")
	r.serve(r.pod, ":8080", "application")
	r.serve(r.pod, ":9090", "application")
	r.serve(r.pod, fmt.Sprint(":", OutboundPort), "outbound")
	r.serve(r.pod, fmt.Sprint(":", InboundPort), "inbound")
	r.serve(r.pod, fmt.Sprint(":", HealthPort), "health")
	return r
}

func (r *rig) serve(ns *netns.NS, address, name string) {
	r.t.Helper()
	l, err := ns.Listen("tcp", address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, name) // a client that has gone does not matter
			_ = conn.Close()
		}
	}()
}

// dial from this process, as root.
func (r *rig) dial(ns *netns.NS, address string) string {
	r.t.Helper()
	answer := ""
	err := ns.Do(func() (err error) {
		answer, err = question(&net.Dialer{Timeout: 5 * time.Second}, address)
		return err
	})
	if err != nil {
		return "error: " + err.Error()
	}
	return answer
}

// serveDNS answers at a port by UDP and TCP.
func (r *rig) serveDNS(ns *netns.NS, address, name string) {
	r.t.Helper()
	r.serve(ns, address, name)
	var conn net.PacketConn
	if err := ns.Do(func() (err error) { conn, err = net.ListenPacket("udp", address); return err }); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buffer := make([]byte, 64)
		for {
			_, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(name), from) // a client that has gone does not matter
		}
	}()
}

// TestDNS: questions of the workload are led to the supervisor by UDP and TCP, wherever they are for, and
// those of others, of the proxy and of the supervisor are not.
func TestDNS(t *testing.T) {
	r := newRig(t)
	for _, loopback := range []string{"127.0.0.1", "[::1]"} {
		r.serveDNS(r.pod, fmt.Sprint(loopback, ":", DNSPort), "names")
	}
	r.serveDNS(r.peer, peer4+":53", "peer")
	r.serveDNS(r.peer, "["+peer6+"]:53", "peer")
	r.serveDNS(r.pod, "127.0.0.1:53", "resolver")
	install := func(rules Rules) {
		t.Helper()
		if err := r.pod.Do(func() error { return Install(rules) }); err != nil {
			t.Fatal(err)
		}
	}
	all := func(what string, start func(*exec.Cmd), remote, local string) {
		t.Helper()
		for _, by := range []string{"", "udp:"} {
			r.expect(what+" to a resolver "+by, r.ask(r.pod, by+peer4+":53", start), remote)
			r.expect(what+" to a resolver of IPv6 "+by, r.ask(r.pod, by+"["+peer6+"]:53", start), remote)
			r.expect(what+" to a resolver here "+by, r.ask(r.pod, by+"127.0.0.1:53", start), local)
		}
	}
	rules := Rules{Owner: "o", DNS: true}
	install(rules)
	all("the workload", nil, "names", "names")
	all("the proxy", asProxy, "peer", "resolver")
	answer := ""
	if err := r.pod.Do(func() (err error) {
		answer, err = question(&net.Dialer{Control: Control, Timeout: 5 * time.Second}, "udp:"+peer4+":53")
		return err
	}); err != nil || answer != "peer" {
		t.Errorf("the supervisor to a resolver: %q, %v", answer, err)
	}
	r.expect("to another port", r.ask(r.pod, peer4+":8080", nil), "outbound")
	excluded := rules
	excluded.ExcludeOutbound = Exclusion{Prefixes: []netip.Prefix{netip.MustParsePrefix(peer4 + "/32")}}
	install(excluded)
	r.expect("to a resolver that is left out", r.ask(r.pod, "udp:"+peer4+":53", nil), "peer")
	r.expect("to another one", r.ask(r.pod, "udp:["+peer6+"]:53", nil), "names")
	install(Rules{Owner: "o"})
	r.expect("without DNS", r.ask(r.pod, "udp:127.0.0.1:53", nil), "resolver")

	h, err := cgroup.Find()
	var unavailable *cgroup.UnavailableError
	if errors.As(err, &unavailable) {
		t.Log(err) // the rest needs it
		return
	} else if err != nil {
		t.Fatal(err)
	}
	group, err := h.Create("shop", "web-dns")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Close(); err != nil {
			t.Error(err)
		}
	})
	id, err := h.Lookup(group.Path())
	if err != nil {
		t.Fatal(err)
	}
	install(Rules{Owner: "o", DNS: true, Cgroup: id.Number, CgroupLevel: id.Level})
	all("the workload's cgroup", group.Start, "names", "names")
	all("another program", nil, "peer", "resolver")
}

// ask in a namespace who answers; start (nil: nothing) changes the process that asks.
func (r *rig) ask(ns *netns.NS, address string, start func(*exec.Cmd)) string {
	r.t.Helper()
	if start == nil {
		return r.dial(ns, address)
	}
	cmd := exec.CommandContext(r.t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), dialVariable+"="+address)
	var out strings.Builder
	cmd.Stdout = &out
	start(cmd)
	if err := ns.Start(cmd); err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		r.t.Fatal(err)
	}
	return out.String()
}

func asProxy(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ProxyUser, Gid: ProxyUser}}
}

func (r *rig) expect(what string, got, want string) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: %q answers, want %q", what, got, want)
	}
}

// TestNamespace: everything in a namespace goes to the proxy, but what is the proxy's own, local or
// left out; declared ports do from outside. The rules stay, and are one workload's.
func TestNamespace(t *testing.T) {
	r := newRig(t)
	rules := Rules{Owner: "default/shop/web-1", Inbound: []uint16{8080}, ExcludeOutbound: Exclusion{Ports: []uint16{25}}}
	install := func(rules Rules) error { return r.pod.Do(func() error { return Install(rules) }) }
	if err := r.pod.Do(func() error { return Check(rules) }); err != nil {
		t.Fatal(err)
	}
	r.expect("after a check alone", r.ask(r.pod, peer4+":8080", nil), "peer")
	if err := install(rules); err != nil {
		t.Fatal(err)
	}
	for _, family := range []struct{ pod, peer, loopback string }{{pod4, peer4, "127.0.0.1"}, {pod6, peer6, "::1"}} {
		at := func(host, port string) string { return net.JoinHostPort(host, port) }
		r.expect("the workload to a peer", r.ask(r.pod, at(family.peer, "8080"), nil), "outbound")
		r.expect("the proxy to a peer", r.ask(r.pod, at(family.peer, "8080"), asProxy), "peer")
		r.expect("to a port that is left out", r.ask(r.pod, at(family.peer, "25"), nil), "peer")
		r.expect("to loopback", r.ask(r.pod, at(family.loopback, "8080"), nil), "application")
		r.expect("to its own address", r.ask(r.pod, at(family.pod, "8080"), nil), "application")
		r.expect("a peer to a declared port", r.ask(r.peer, at(family.pod, "8080"), nil), "inbound")
		r.expect("a peer to another port", r.ask(r.peer, at(family.pod, "9090"), nil), "application")
	}
	// A supervisor without privileges knows that the rules stand by a port that nobody listens on.
	beacon := fmt.Sprint("127.0.0.1:", BeaconPort)
	r.expect("the proxy to the beacon", r.ask(r.pod, beacon, asProxy), "health")
	stand := func(rules Rules) bool {
		t.Helper()
		is := false
		err := r.pod.Do(func() (err error) { is, err = Stands(rules); return err })
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	different := rules
	different.Inbound = []uint16{8080, 9090}
	if !stand(rules) || stand(different) {
		t.Errorf("these rules stand: %t, others: %t", stand(rules), stand(different))
	}
	// The supervisor's own connections are marked.
	var answer []byte
	err := r.pod.Do(func() error {
		conn, err := (&net.Dialer{Control: Control, Timeout: 5 * time.Second}).Dial("tcp", peer4+":8080")
		if err != nil {
			return err
		}
		defer conn.Close()
		answer, err = io.ReadAll(conn)
		return err
	})
	if err != nil || string(answer) != "peer" {
		t.Errorf("the supervisor to a peer: %q, %v", answer, err)
	}

	other := rules
	other.Owner = "default/shop/web-2"
	if err := install(other); !errors.Is(err, ErrTaken) {
		t.Errorf("another workload: %v, want ErrTaken", err)
	}
	// The same workload again, with other rules, in place of the first ones.
	rules.ExcludeOutbound = Exclusion{Prefixes: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}
	rules.ExcludeInbound = Exclusion{Prefixes: []netip.Prefix{netip.MustParsePrefix(peer4 + "/32")}}
	if err := install(rules); err != nil {
		t.Fatal(err)
	}
	r.expect("to a prefix that is left out", r.ask(r.pod, peer4+":8080", nil), "peer")
	r.expect("to others", r.ask(r.pod, net.JoinHostPort(peer6, "25"), nil), "outbound")
	r.expect("from an address that is left out", r.ask(r.peer, pod4+":8080", nil), "application")

	remove := func(owner string) {
		t.Helper()
		if err := r.pod.Do(func() error { return Remove(owner) }); err != nil {
			t.Error(err)
		}
	}
	remove(other.Owner)
	r.expect("after another one has gone", r.ask(r.pod, net.JoinHostPort(peer6, "8080"), nil), "outbound")
	remove(rules.Owner)
	remove(rules.Owner)
	if stand(rules) || !strings.HasPrefix(r.ask(r.pod, beacon, asProxy), "error: ") {
		t.Error("rules stand that are gone")
	}
	r.expect("without rules", r.ask(r.pod, net.JoinHostPort(peer6, "8080"), nil), "peer")
}

// TestOwnService: what the proxy connects to for the workload, and is the workload itself, comes to the proxy
// again; what it connects to as the proxy of its clients is the application, and so is loopback to others.
func TestOwnService(t *testing.T) {
	r := newRig(t)
	rules := Rules{Owner: "o", Inbound: []uint16{8080}}
	if err := r.pod.Do(func() error { return Install(rules) }); err != nil {
		t.Fatal(err)
	}
	prioritised := func(cmd *exec.Cmd) {
		asProxy(cmd)
		cmd.Env = append(cmd.Env, priorityVariable+"=1")
	}
	for _, own := range []string{pod4, pod6} {
		at := net.JoinHostPort(own, "8080")
		r.expect("the proxy to the workload as a client", r.ask(r.pod, at, prioritised), "inbound")
		r.expect("the proxy to its application", r.ask(r.pod, at, asProxy), "application")
		r.expect("to a port that is not declared", r.ask(r.pod, net.JoinHostPort(own, "9090"), prioritised), "application")
	}
	r.expect("the proxy to a peer", r.ask(r.pod, peer4+":8080", prioritised), "peer")
}

// TestCgroup: on a machine with other programs only those of the workload's cgroup go to the proxy.
func TestCgroup(t *testing.T) {
	r := newRig(t)
	h, err := cgroup.Find()
	var unavailable *cgroup.UnavailableError
	if errors.As(err, &unavailable) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	group, err := h.Create("shop", "web-1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Close(); err != nil {
			t.Error(err)
		}
	})
	id, err := h.Lookup(group.Path())
	if err != nil {
		t.Fatal(err)
	}
	rules := Rules{
		Owner: "o", Cgroup: id.Number, CgroupLevel: id.Level, Inbound: []uint16{8080}, Addresses: []netip.Addr{netip.MustParseAddr(pod4)},
	}
	if err := r.pod.Do(func() error { return Install(rules) }); err != nil {
		t.Fatal(err)
	}
	r.expect("the workload", r.ask(r.pod, peer4+":8080", group.Start), "outbound")
	r.expect("another program", r.ask(r.pod, peer4+":8080", nil), "peer")
	r.expect("a peer to the workload's address", r.ask(r.peer, pod4+":8080", nil), "inbound")
	r.expect("a peer to another address", r.ask(r.peer, net.JoinHostPort(pod6, "8080"), nil), "application")
}
