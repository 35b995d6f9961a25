package dns

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/proxima-mesh/proxima/internal/dns/records"
)

func edns(size uint16, do bool) func(*dns.Msg) {
	return func(m *dns.Msg) { m.SetEdns0(size, do) }
}

func TestEDNS(t *testing.T) {
	const name = "web.default.svc.cluster.local."
	s := serve(t)
	for range 2 {
		if r := s.ask(t, "udp", name, dns.TypeA); r.IsEdns0() != nil {
			t.Error("an OPT record for a client that sent none")
		}
		for _, do := range []bool{false, true} {
			r := s.ask(t, "udp", name, dns.TypeA, edns(4096, do))
			if opt := r.IsEdns0(); opt == nil || opt.Do() != do || opt.UDPSize() != maxUDP || len(r.Answer) != 1 {
				t.Errorf("DO %v: %v", do, r)
			}
		}
	}
	r := s.ask(t, "udp", name, dns.TypeA, edns(4096, false), func(m *dns.Msg) { m.IsEdns0().SetVersion(1) })
	if r.Rcode != dns.RcodeBadVers || len(r.Answer) != 0 {
		t.Errorf("version 1: %v", r)
	}
	r = s.ask(t, "udp", name, dns.TypeA, edns(4096, false), func(m *dns.Msg) {
		m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0011223344556677"})
	})
	if r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1 {
		t.Errorf("an option that is not known: %v", r)
	}
}

// The common question takes the fast way, with and without EDNS.
func TestFastWay(t *testing.T) {
	s := serve(t)
	for what, q := range map[string][]byte{
		"plain":   packed(t, "WEB.default.svc.cluster.local.", dns.TypeA),
		"EDNS":    packed(t, "web.default.svc.cluster.local.", dns.TypeAAAA, edns(1232, true)),
		"reverse": packed(t, "1.0.96.10.in-addr.arpa.", dns.TypePTR),
		"denied":  packed(t, "none.default.svc.cluster.local.", dns.TypeA),
	} {
		if s.fast(q, nil, netip.Addr{}) == nil {
			t.Errorf("%s: the long way", what)
		}
	}
	for what, q := range map[string][]byte{
		"others' name":     packed(t, "www.example.com.", dns.TypeA),
		"several to order": packed(t, "db.default.svc.cluster.local.", dns.TypeA),
		"too large":        packed(t, "big.default.svc.cluster.local.", dns.TypeA),
		"another version":  packed(t, "web.default.svc.cluster.local.", dns.TypeA, edns(1232, false), func(m *dns.Msg) { m.IsEdns0().SetVersion(1) }),
	} {
		if s.fast(q, nil, netip.Addr{}) != nil {
			t.Errorf("%s: the fast way", what)
		}
	}
}

func TestTruncation(t *testing.T) {
	const name = "big.default.svc.cluster.local." // 200 addresses, 16 bytes each
	s := serve(t)
	for _, tt := range []struct {
		what    string
		network string
		edits   []func(*dns.Msg)
		least   int // size
		most    int
		cut     bool
	}{
		{"plain", "udp", nil, 400, 512, true},
		{"EDNS", "udp", []func(*dns.Msg){edns(1232, false)}, 1000, 1232, true},
		{"EDNS that promises too much", "udp", []func(*dns.Msg){edns(65000, false)}, 1000, 1232, true},
		{"EDNS that promises too little", "udp", []func(*dns.Msg){edns(100, false)}, 400, 512, true},
		{"TCP", "tcp", nil, 3200, 65535, false},
		{"TCP with EDNS", "tcp", []func(*dns.Msg){edns(512, false)}, 3200, 65535, false},
	} {
		r := s.ask(t, tt.network, name, dns.TypeA, tt.edits...)
		r.Compress = true
		if n := r.Len(); n < tt.least || n > tt.most || r.Truncated != tt.cut || !tt.cut && len(r.Answer) != 200 {
			t.Errorf("%s: %d bytes, truncated %v, %d records", tt.what, n, r.Truncated, len(r.Answer))
		}
	}
}

func TestOrderVaries(t *testing.T) {
	s := serve(t)
	first := map[string]bool{}
	for range 50 {
		r := s.ask(t, "udp", "db.default.svc.cluster.local.", dns.TypeA)
		first[r.Answer[0].(*dns.A).A.String()] = true
	}
	if len(first) != 2 {
		t.Errorf("first were %v", first)
	}
}

func TestWhatIsNotAnswered(t *testing.T) {
	s := serve(t)
	const name = "web.default.svc.cluster.local."
	for what, tt := range map[string]struct {
		edit func(*dns.Msg)
		want int
	}{
		"another opcode": {func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }, dns.RcodeNotImplemented},
		"another class":  {func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, dns.RcodeRefused},
		"zone transfer":  {func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAXFR }, dns.RcodeRefused},
		"no question":    {func(m *dns.Msg) { m.Question = nil }, dns.RcodeFormatError},
		"two questions":  {func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }, dns.RcodeFormatError},
	} {
		for _, network := range []string{"udp", "tcp"} {
			if r := s.ask(t, network, name, dns.TypeA, tt.edit); r.Rcode != tt.want || len(r.Answer) != 0 {
				t.Errorf("%s by %s: %v", what, network, r)
			}
		}
	}
}

func TestGarbage(t *testing.T) {
	s := serve(t)
	question := packed(t, "web.default.svc.cluster.local.", dns.TypeA)
	answer := bytes.Clone(question)
	answer[2] |= 0x80
	for what, tt := range map[string]struct {
		packet []byte
		want   int // rcode; -1: no answer
	}{
		"nothing":               {nil, -1},
		"less than a header":    {question[:11], -1},
		"an answer":             {answer, -1},
		"a header alone":        {question[:12], dns.RcodeFormatError},
		"cut in the name":       {question[:20], dns.RcodeFormatError},
		"a name without end":    {append(bytes.Clone(question[:12]), 0xc0, 12), dns.RcodeFormatError},
		"a label of 64":         {append(append(bytes.Clone(question[:12]), 64), make([]byte, 80)...), dns.RcodeFormatError},
		"bytes after the end":   {append(bytes.Clone(question), 1, 2, 3), dns.RcodeSuccess},
		"more records promised": {func() []byte { b := bytes.Clone(question); b[11] = 1; return b }(), dns.RcodeSuccess},
	} {
		got := -1
		handle(s.Server, tt.packet, func(b []byte) {
			var r dns.Msg
			if err := r.Unpack(b); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if !bytes.Equal(b[:2], tt.packet[:2]) {
				t.Errorf("%s: another id", what)
			}
			got = r.Rcode
		})
		if got != tt.want {
			t.Errorf("%s: rcode %d, want %d", what, got, tt.want)
		}
	}
}

func packed(t testing.TB, name string, qtype uint16, edits ...func(*dns.Msg)) []byte {
	t.Helper()
	q := new(dns.Msg)
	q.SetQuestion(name, qtype)
	for _, edit := range edits {
		edit(q)
	}
	b, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// handle does what a reader of UDP does with a packet.
func handle(s *Server, packet []byte, send func([]byte)) {
	if b := s.fast(packet, nil, netip.Addr{}); b != nil {
		send(b)
		return
	}
	if later := s.respond(packet, netip.MustParseAddr("127.0.0.1"), minUDP, overUDP, send); later != nil {
		later(context.Background())
	}
}

// Many questions on one connection are answered in their order; a connection
// that says nothing is closed by the client's end of it here.
func TestOneConnectionManyQuestions(t *testing.T) {
	s := serve(t)
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var all []byte
	for i := range 20 {
		q := packed(t, "web.default.svc.cluster.local.", dns.TypeA, func(m *dns.Msg) { m.Id = uint16(i) })
		all = append(binary.BigEndian.AppendUint16(all, uint16(len(q))), q...)
	}
	if _, err := conn.Write(all); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		var length [2]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(conn, b); err != nil {
			t.Fatal(err)
		}
		var r dns.Msg
		if err := r.Unpack(b); err != nil || r.Id != uint16(i) || len(r.Answer) != 1 {
			t.Fatalf("answer %d: %v %v", i, err, r)
		}
	}
}

// FuzzPacket: whatever comes, nothing breaks, the answer can be read and belongs
// to the question, and the fast way says what the long way says.
func FuzzPacket(f *testing.F) {
	for _, name := range []string{"web.default.svc.cluster.local.", "db.default.svc.cluster.local.", "WEB.default.svc.Cluster.Local.", "_http._tcp.web.default.svc.cluster.local.", "10.0.96.10.in-addr.arpa.", "x.test.", "."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypePTR, dns.TypeANY} {
			f.Add(packed(f, name, qtype))
			f.Add(packed(f, name, qtype, edns(1232, true)))
		}
	}
	z := records.New()
	z.Apply(sample())
	s, err := New(Config{Zone: z})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		quick := s.fast(packet, nil, netip.Addr{})
		var slow []byte
		if later := s.respond(packet, netip.Addr{}, minUDP, overUDP, func(b []byte) { slow = bytes.Clone(b) }); later != nil {
			later(t.Context())
		}
		for _, b := range [][]byte{quick, slow} {
			if b == nil {
				continue
			}
			var r dns.Msg
			if err := r.Unpack(b); err != nil || !r.Response || len(b) > maxUDP || !bytes.Equal(b[:2], packet[:2]) {
				t.Fatalf("%v\n%x\n%v", err, b, &r)
			}
		}
		if quick == nil {
			return
		}
		var a, b, q dns.Msg
		if a.Unpack(quick) != nil || b.Unpack(slow) != nil || q.Unpack(packet) != nil {
			t.Fatal("an answer, and the question cannot be read")
		}
		if a.MsgHdr != b.MsgHdr || a.Question[0] != q.Question[0] {
			t.Fatalf("quick %v, slow %v", &a, &b)
		}
		if diff := cmp.Diff(strings.ToLower(b.String()), strings.ToLower(a.String())); diff != "" {
			t.Fatal(diff)
		}
	})
}

// BenchmarkAnswer is the work for one answer without the socket.
func BenchmarkAnswer(b *testing.B) {
	z := records.New()
	z.Apply(sample())
	s, err := New(Config{Zone: z})
	if err != nil {
		b.Fatal(err)
	}
	for what, q := range map[string][]byte{
		"kept":     packed(b, "web.default.svc.cluster.local.", dns.TypeA, edns(1232, false)),
		"headless": packed(b, "db.default.svc.cluster.local.", dns.TypeA, edns(1232, false)),
		"denied":   packed(b, "web.default.svc.cluster.local.example.cluster.local.", dns.TypeA),
	} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			out := make([]byte, 0, minUDP)
			for b.Loop() {
				if s.fast(q, out, netip.Addr{}) == nil {
					s.respond(q, netip.Addr{}, minUDP, overUDP, func([]byte) {})
				}
			}
		})
	}
}
