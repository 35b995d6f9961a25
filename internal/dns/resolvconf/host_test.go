package resolvconf

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine is a file system of its own.
type machine struct {
	t       *testing.T
	system  System
	reloads int
}

const before = "# by DHCP\nsearch example.org\nnameserver 192.0.2.1\nnameserver 192.0.2.2\noptions ndots:2\n"

func newMachine(t *testing.T, files map[string]string) *machine {
	m := &machine{t: t}
	m.system = System{Root: t.TempDir(), Reload: func(context.Context) error { m.reloads++; return nil }}
	for name, text := range files {
		m.write(name, text)
	}
	return m
}

func (m *machine) write(name, text string) {
	m.t.Helper()
	path := m.system.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// read a file; "-" if there is none.
func (m *machine) read(name string) string {
	m.t.Helper()
	data, err := os.ReadFile(m.system.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return "-"
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return string(data)
}

// tree is all files, links as "-> target".
func (m *machine) tree() map[string]string {
	m.t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(m.system.Root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(m.system.Root, path)
		if target, err := os.Readlink(path); err == nil {
			out[name] = "-> " + target
			return nil
		}
		out[name] = m.read(name)
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

func setting(server string) Setting {
	return Setting{Server: netip.MustParseAddrPort(server), Domains: []string{"cluster.local", "clusterset.local"},
		Ranges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/108")}}
}

func (m *machine) set(server string) Manner {
	m.t.Helper()
	manner, err := m.system.Set(m.t.Context(), setting(server))
	if err != nil {
		m.t.Fatal(err)
	}
	return manner
}

func (m *machine) undo(want bool) {
	m.t.Helper()
	if undone, err := m.system.Undo(m.t.Context()); err != nil || undone != want {
		m.t.Errorf("undo: %t, %v; want %t", undone, err, want)
	}
}

func TestResolvConf(t *testing.T) {
	m := newMachine(t, map[string]string{resolvConf: before})
	was := m.tree()
	for range 2 { // idempotent
		if manner := m.set("127.0.0.1:53"); manner != ResolvConf {
			t.Errorf("manner %s", manner)
		}
	}
	text := m.read(resolvConf)
	if diff := cmp.Diff([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")},
		nameservers(text), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("nameservers: %s", diff)
	}
	for _, words := range []string{"proxima doctor --undo", "search example.org", "options ndots:2", "resolv.conf.proxima-backup"} {
		if !strings.Contains(text, words) {
			t.Errorf("%q is missing in:\n%s", words, text)
		}
	}
	if got := m.read(backup); got != before {
		t.Errorf("backup:\n%s", got)
	}
	if server, ok := m.system.Current(); !ok || server.String() != "127.0.0.1:53" {
		t.Errorf("current: %s, %t", server, ok)
	}
	if diff := cmp.Diff([]string{"192.0.2.1:53", "192.0.2.2:53"}, m.upstreams("127.0.0.1:53")); diff != "" {
		t.Errorf("upstreams: %s", diff)
	}
	m.set("127.0.0.9:53") // another agent
	if server, _ := m.system.Current(); server.String() != "127.0.0.9:53" || strings.Count(m.read(resolvConf), "nameserver 127.") != 1 {
		t.Errorf("current: %s:\n%s", server, m.read(resolvConf))
	}
	m.undo(true)
	if diff := cmp.Diff(was, m.tree()); diff != "" {
		t.Errorf("after undo: %s", diff)
	}
	m.undo(false)
}

func (m *machine) upstreams(self string) []string {
	m.t.Helper()
	out, err := m.system.Upstreams(netip.MustParseAddrPort(self))
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

func TestResolvConfStates(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prepare func(*machine)
	}{
		{"none", func(*machine) {}},
		{"empty", func(m *machine) { m.write(resolvConf, "") }},
		{"a link", func(m *machine) {
			m.write("run/NetworkManager/resolv.conf", before)
			m.write("etc/hostname", "x")
			if err := os.Symlink("../run/NetworkManager/resolv.conf", m.system.path(resolvConf)); err != nil {
				m.t.Fatal(err)
			}
		}},
		{"a link that leads nowhere yet", func(m *machine) {
			m.write("etc/hostname", "x")
			if err := os.Symlink("../run/later/resolv.conf", m.system.path(resolvConf)); err != nil {
				m.t.Fatal(err)
			}
		}},
		{"without a line end", func(m *machine) { m.write(resolvConf, "nameserver 192.0.2.1") }},
		{"musl", func(m *machine) { m.write("lib/ld-musl-x86_64.so.1", ""); m.write(resolvConf, before) }},
		{"a backup that a crash left", func(m *machine) { m.write(resolvConf, before); m.write(backup, "old") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t, map[string]string{"etc/passwd": ""})
			tc.prepare(m)
			was := m.tree()
			delete(was, backup)
			m.set("127.0.0.1:53")
			servers := nameservers(m.read(resolvConf))
			if len(servers) == 0 || servers[0].String() != "127.0.0.1" || tc.name == "musl" && len(servers) != 1 {
				t.Errorf("nameservers %v", servers)
			}
			m.undo(true)
			if diff := cmp.Diff(was, m.tree()); diff != "" {
				t.Errorf("after undo: %s", diff)
			}
		})
	}
}

// The backup is gone, or was never finished: what the file itself says is enough.
func TestUndoWithoutBackup(t *testing.T) {
	for _, musl := range []bool{false, true} {
		m := newMachine(t, map[string]string{resolvConf: before})
		if musl {
			m.write("lib/ld-musl-x86_64.so.1", "")
		}
		m.set("127.0.0.1:53")
		if err := os.Remove(m.system.path(backup)); err != nil {
			t.Fatal(err)
		}
		m.undo(true)
		if got := m.read(resolvConf); got != before {
			t.Errorf("musl %t: %s", musl, cmp.Diff(before, got))
		}
	}
}

// A DHCP client has written the file meanwhile: it stays.
func TestOthersWriteTheFile(t *testing.T) {
	m := newMachine(t, map[string]string{resolvConf: before})
	m.set("127.0.0.1:53")
	m.write(resolvConf, "nameserver 198.51.100.1\n")
	if _, ok := m.system.Current(); ok {
		t.Error("another program's file is taken for ours")
	}
	m.undo(false)
	if got := m.read(resolvConf); got != "nameserver 198.51.100.1\n" || m.read(backup) != "-" {
		t.Errorf("file %q, backup %q", got, m.read(backup))
	}
}

func resolvedMachine(t *testing.T) *machine {
	m := newMachine(t, map[string]string{
		stubConf:        "nameserver 127.0.0.53\noptions edns0 trust-ad\n",
		uplinkConf:      "nameserver 192.0.2.1\n",
		"etc/passwd":    "",
		"etc/systemd/x": "",
	})
	if err := os.Symlink("../run/systemd/resolve/stub-resolv.conf", m.system.path(resolvConf)); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestResolved(t *testing.T) {
	m := resolvedMachine(t)
	was := m.tree()
	for range 2 {
		if manner := m.set("127.0.0.1:10053"); manner != Resolved {
			t.Errorf("manner %s", manner)
		}
	}
	text := m.read(dropIn)
	for _, line := range []string{"[Resolve]\n", "DNS=127.0.0.1:10053\n",
		"Domains=~cluster.local ~clusterset.local ~96.10.in-addr.arpa ~0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa\n"} {
		if !strings.Contains(text, line) {
			t.Errorf("%q is missing in:\n%s", line, text)
		}
	}
	if m.reloads != 1 {
		t.Errorf("reloaded %d times, want once", m.reloads)
	}
	if server, ok := m.system.Current(); !ok || server.String() != "127.0.0.1:10053" {
		t.Errorf("current: %s, %t", server, ok)
	}
	if diff := cmp.Diff([]string{"192.0.2.1:53"}, m.upstreams("127.0.0.1:10053")); diff != "" {
		t.Errorf("upstreams: %s", diff)
	}
	m.undo(true)
	m.undo(false)
	if diff := cmp.Diff(was, m.tree()); diff != "" || m.reloads != 2 {
		t.Errorf("after undo, reloaded %d times: %s", m.reloads, diff)
	}
	m.set("127.0.0.1:53")
	if !strings.Contains(m.read(dropIn), "DNS=127.0.0.1\n") {
		t.Errorf("port 53 needs no word:\n%s", m.read(dropIn))
	}
}

func TestManner(t *testing.T) {
	link := func(target string) func(*machine) {
		return func(m *machine) {
			if err := os.Symlink(target, m.system.path(resolvConf)); err != nil {
				m.t.Fatal(err)
			}
		}
	}
	for _, tc := range []struct {
		name    string
		files   map[string]string
		prepare func(*machine)
		want    Manner
	}{
		{"plain", map[string]string{resolvConf: before}, nil, ResolvConf},
		{"resolved by its stub", map[string]string{stubConf: "nameserver 127.0.0.53\n", "etc/x": ""}, link("../run/systemd/resolve/stub-resolv.conf"), Resolved},
		{"resolved, programs go past it", map[string]string{stubConf: "nameserver 127.0.0.53\n", uplinkConf: "nameserver 192.0.2.1\n", "etc/x": ""}, link("../run/systemd/resolve/resolv.conf"), ResolvConf},
		{"resolved was there once", map[string]string{resolvConf: "nameserver 127.0.0.53\n"}, nil, ResolvConf},
	} {
		m := newMachine(t, tc.files)
		if tc.prepare != nil {
			tc.prepare(m)
		}
		if got := m.system.Manner(); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

func TestPortNeedsAWord(t *testing.T) {
	m := newMachine(t, map[string]string{resolvConf: before})
	was := m.tree()
	_, err := m.system.Set(t.Context(), setting("127.0.0.1:10053"))
	var port *PortError
	if !errors.As(err, &port) || !strings.Contains(port.Hint(), "--dns-port 53") || !strings.Contains(port.Hint(), "redirect to :10053") {
		t.Errorf("error: %v", err)
	}
	if diff := cmp.Diff(was, m.tree()); diff != "" {
		t.Errorf("a refusal changed: %s", diff)
	}
}

func TestUnspecifiedServer(t *testing.T) {
	m := newMachine(t, map[string]string{resolvConf: before})
	m.set("0.0.0.0:53")
	if server, _ := m.system.Current(); server.String() != "127.0.0.1:53" {
		t.Errorf("current: %s", server)
	}
}

// Whatever step a crash comes after, Undo leaves what was there, and Set gets
// through.
func TestCrashes(t *testing.T) {
	for _, link := range []bool{false, true} {
		m := newMachine(t, map[string]string{"run/r": before, "etc/x": ""})
		if link {
			if err := os.Symlink("../run/r", m.system.path(resolvConf)); err != nil {
				t.Fatal(err)
			}
		} else {
			m.write(resolvConf, before)
		}
		was := m.tree()
		// After the backup, before the file.
		if err := m.system.keepBackup(m.system.path(resolvConf), []byte(before), true); err != nil {
			t.Fatal(err)
		}
		m.undo(false)
		if diff := cmp.Diff(was, m.tree()); diff != "" {
			t.Errorf("link %t: %s", link, diff)
		}
		if err := m.system.keepBackup(m.system.path(resolvConf), []byte(before), true); err != nil {
			t.Fatal(err)
		}
		m.set("127.0.0.1:53")
		m.undo(true)
		if diff := cmp.Diff(was, m.tree()); diff != "" {
			t.Errorf("link %t: %s", link, diff)
		}
	}
}

func TestLookup(t *testing.T) {
	knows := serve(t, "127.0.0.2:0", dns.RcodeSuccess)
	_, port, _ := net.SplitHostPort(knows)
	serve(t, "127.0.0.3:"+port, dns.RcodeNameError)
	serve(t, "127.0.0.4:"+port, dns.RcodeServerFailure)
	m := newMachine(t, nil)
	m.system.Port = netip.MustParseAddrPort(knows).Port()
	for _, tc := range []struct {
		servers string
		found   bool
		word    string
	}{
		{"127.0.0.2", true, ""},
		{"127.0.0.3", false, "does not know"},
		{"127.0.0.3 127.0.0.2", false, "does not know"}, // a no is an answer
		{"127.0.0.4 127.0.0.2", true, ""},               // a failure is none
		{"127.0.0.5 127.0.0.2", true, ""},               // refused
		{"127.0.0.4", false, "SERVFAIL"},
		{"127.0.0.5 127.0.0.6 127.0.0.7 127.0.0.2", false, "127.0.0.7"}, // only three count
	} {
		text := ""
		for s := range strings.FieldsSeq(tc.servers) {
			text += "nameserver " + s + "\n"
		}
		m.write(resolvConf, text)
		err := m.system.Lookup(t.Context(), "cluster.local")
		if (err == nil) != tc.found || err != nil && !strings.Contains(err.Error(), tc.word) {
			t.Errorf("%s: %v", tc.servers, err)
		}
	}
}

func serve(t *testing.T, address string, rcode int) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	srv := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg)
		r.SetRcode(q, rcode)
		if rcode == dns.RcodeSuccess {
			r.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"1.1.0"}}}
		}
		_ = w.WriteMsg(r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.ActivateAndServe() }()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return conn.LocalAddr().String()
}

func TestReverseDomains(t *testing.T) {
	for in, want := range map[string]string{
		"10.96.0.0/16":   "96.10.in-addr.arpa",
		"240.0.0.0/4":    "240.in-addr.arpa 241.in-addr.arpa 242.in-addr.arpa 243.in-addr.arpa 244.in-addr.arpa 245.in-addr.arpa 246.in-addr.arpa 247.in-addr.arpa 248.in-addr.arpa 249.in-addr.arpa 250.in-addr.arpa 251.in-addr.arpa 252.in-addr.arpa 253.in-addr.arpa 254.in-addr.arpa 255.in-addr.arpa",
		"100.96.0.0/11":  "100.in-addr.arpa",
		"10.96.4.0/22":   "4.96.10.in-addr.arpa 5.96.10.in-addr.arpa 6.96.10.in-addr.arpa 7.96.10.in-addr.arpa",
		"fd00:240::/64":  "0.0.0.0.0.0.0.0.0.4.2.0.0.0.d.f.ip6.arpa",
		"fd00:240::/63":  "0.0.0.0.0.0.0.0.0.4.2.0.0.0.d.f.ip6.arpa 1.0.0.0.0.0.0.0.0.4.2.0.0.0.d.f.ip6.arpa",
		"192.0.2.128/25": "2.0.192.in-addr.arpa",
	} {
		if got := strings.Join(reverseDomains(netip.MustParsePrefix(in)), " "); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
