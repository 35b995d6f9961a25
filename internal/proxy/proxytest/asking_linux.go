package proxytest

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Both protocols that have sockets everywhere.
var both = []proxy.Protocol{proxy.TCP, proxy.UDP}

// prompt bounds what has to answer: a hang fails, slowness of the machine does
// not.
const prompt = 3 * time.Second

// ask n times. Answers other than by a backend are among the result; a first
// silence is the last question.
func (k *kernel) ask(n int, c client, proto proxy.Protocol, to netip.AddrPort) []answer {
	k.Helper()
	var out []answer
	for range n {
		a, err := c.ask(proto, to, prompt)
		if err != nil {
			k.Fatalf("%s asks %s %s: %v", c.name, proto, to, err)
		}
		if out = append(out, a); a.who == whoSilent {
			break
		}
	}
	return out
}

// askFrom a port, which an earlier question may have been from.
func (k *kernel) askFrom(c client, port uint16, proto proxy.Protocol, to netip.AddrPort) answer {
	k.Helper()
	c.port = port
	a, err := c.ask(proto, to, prompt)
	if err != nil {
		k.Fatalf("%s asks %s %s from port %d: %v", c.name, proto, to, port, err)
	}
	return a
}

// reaches all of these backends and no others, and returns their answers. So
// many questions miss one of them once in a million times.
func (k *kernel) reaches(c client, proto proxy.Protocol, to netip.AddrPort, want ...string) []answer {
	k.Helper()
	n := 3
	if len(want) > 1 {
		n = 14 * len(want)
	}
	answers := k.ask(n, c, proto, to)
	got := map[string]int{}
	for _, a := range answers {
		got[a.who]++
	}
	for who := range got {
		if !slices.Contains(want, who) {
			k.Fatalf("%s asks %s %s: answered by %v, want %v", c.name, proto, to, got, want)
		}
	}
	if len(got) != len(want) {
		k.Fatalf("%s asks %s %s: answered by %v, want all of %v", c.name, proto, to, got, want)
	}
	return answers
}

// turnedAway without delay: a reset, or an ICMP message.
func (k *kernel) turnedAway(c client, proto proxy.Protocol, to netip.AddrPort) {
	k.Helper()
	for _, a := range k.ask(2, c, proto, to) {
		if a.who != whoRefused {
			k.Fatalf("%s asks %s %s: %s, want a refusal", c.name, proto, to, a.who)
		}
	}
}

// unanswered: not even a refusal. It may be called from several goroutines, as
// may notServed.
func (k *kernel) unanswered(c client, proto proxy.Protocol, to netip.AddrPort) {
	k.Helper()
	a, err := c.ask(proto, to, timeout)
	if err != nil || a.who != whoSilent {
		k.Errorf("%s asks %s %s: %s, %v, want silence", c.name, proto, to, a.who, err)
	}
}

// notServed, whether it gets an answer or not.
func (k *kernel) notServed(c client, proto proxy.Protocol, to netip.AddrPort) {
	k.Helper()
	a, err := c.ask(proto, to, timeout)
	if err != nil || (a.who != whoSilent && a.who != whoRefused) {
		k.Errorf("%s asks %s %s: %s, %v, want no answer", c.name, proto, to, a.who, err)
	}
}

// together runs checks that mostly wait for silence.
func together(checks ...func()) {
	var all sync.WaitGroup
	for _, check := range checks {
		all.Go(check)
	}
	all.Wait()
}

// seenAs checks the source address that backends saw.
func (k *kernel) seenAs(c client, answers []answer, want ...netip.Addr) {
	k.Helper()
	for _, a := range answers {
		if !slices.Contains(want, a.source) {
			k.Errorf("%s asks, and %s sees %s, want one of %v", c.name, a.who, a.source, want)
			return
		}
	}
}

// nodeAddresses are those that a masquerade may show.
func (k *kernel) nodeAddresses() []netip.Addr {
	f := k.family
	addrs := []netip.Addr{netip.MustParseAddr(f.node), netip.MustParseAddr(f.nodeOutside)}
	for i := range 3 {
		ours, _ := f.local(i)
		addrs = append(addrs, netip.MustParseAddr(ours))
	}
	return addrs
}

func (k *kernel) nodeAt(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(k.family.node), port)
}

// session is a connection or flow that goes on.
type session struct {
	k     *kernel
	proto proxy.Protocol
	conn  net.Conn
	// first is the endpoint that it was given.
	first answer
}

func (k *kernel) session(c client, proto proxy.Protocol, to netip.AddrPort) *session {
	k.Helper()
	conn, err := c.open(proto, to, prompt)
	if err != nil {
		k.Fatalf("%s opens %s %s: %v", c.name, proto, to, err)
	}
	k.Cleanup(func() { _ = conn.Close() })
	s := &session{k: k, proto: proto, conn: conn}
	if s.first, err = question(conn, proto, prompt); err != nil {
		k.Fatal(err)
	}
	return s
}

// lives if a word comes back.
func (s *session) lives(when string) {
	s.k.Helper()
	if s.proto == proxy.UDP {
		if a := s.again(prompt); a.who != s.first.who {
			s.k.Errorf("%s: the flow is answered by %s, not by %s", when, a.who, s.first.who)
		}
		return
	}
	_ = s.conn.SetDeadline(time.Now().Add(prompt))
	if _, err := s.conn.Write([]byte("ping")); err != nil {
		s.k.Errorf("%s: %v", when, err)
		return
	}
	buf := make([]byte, 4)
	if _, err := s.conn.Read(buf); err != nil || string(buf) != "ping" {
		s.k.Errorf("%s: read %q, %v", when, buf, err)
	}
}

// again asks on the flow; an error that an earlier datagram earned does not
// count, as it is returned by the next call.
func (s *session) again(wait time.Duration) answer {
	s.k.Helper()
	a, err := question(s.conn, s.proto, wait)
	if err != nil {
		s.k.Fatal(err)
	}
	return a
}
