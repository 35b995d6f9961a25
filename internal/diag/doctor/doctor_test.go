package doctor

import (
	"bytes"
	"compress/gzip"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/node"
)

// rootWith is a file system that holds some files.
func rootWith(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(text))
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestDoctorKernel(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks at Linux")
	}
	const release = "proc/sys/kernel/osrelease"
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"everything built in", map[string]string{release: "6.1.0-x\n", "proc/config.gz": gzipped(t,
			"CONFIG_NF_TABLES=y\nCONFIG_IP_NF_IPTABLES=y\nCONFIG_NETFILTER_XT_MATCH_STATISTIC=y\nCONFIG_IP_VS=y\nCONFIG_IP_VS_RR=y\nCONFIG_IP_VS_WRR=y\n")},
			"nftables, iptables, ebpf, ipvs, userspace"},
		{"modules to load", map[string]string{release: "6.1.0-x\n", "lib/modules/6.1.0-x/modules.dep": "kernel/net/netfilter/nf_tables.ko.xz: a\nkernel/net/netfilter/xt_state.ko.xz: b\n"},
			"nftables, ebpf, userspace; not by iptables (module xt_statistic is not there), ipvs (module ip_vs is not there)"},
		{"too old", map[string]string{release: "5.4.0\n", "sys/module/nf_tables/x": "", "sys/module/xt_statistic/x": ""},
			"iptables, userspace; not by nftables (needs 5.13), ebpf (needs 5.10), ipvs (needs 5.13)"},
	} {
		if f := kernelModes(rootWith(t, tc.files)); f.Problem != "" || !strings.HasSuffix(f.Note, " can carry by "+tc.want) {
			t.Errorf("%s: %+v, want %s", tc.name, f, tc.want)
		}
	}
}

func TestDoctorFindsKubeProxy(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks at Linux")
	}
	f := otherProxies(t.Context(), rootWith(t, map[string]string{"proc/1/comm": "init\n", "proc/77/comm": "kube-proxy\n"}))
	if !strings.Contains(f.Problem, "kube-proxy, pid 77") || !strings.Contains(f.Fix, "--cleanup") {
		t.Errorf("%+v", f)
	}
}

func TestDoctorRanges(t *testing.T) {
	networks := map[netip.Prefix]string{netip.MustParsePrefix("10.96.3.0/24"): "eth0", netip.MustParsePrefix("192.0.2.0/24"): "eth1"}
	for r, want := range map[string]string{"10.96.0.0/16": "eth0", "192.0.2.128/25": "eth1", "10.97.0.0/16": "", "fd00::/108": ""} {
		if _, name, ok := overlapping(netip.MustParsePrefix(r), networks); name != want || ok != (want != "") {
			t.Errorf("%s overlaps %q, want %q", r, name, want)
		}
	}
	agent := &admin.NodeStatus{Agent: node.Status{Mode: "userspace"}}
	found := serviceRanges([]netip.Prefix{netip.MustParsePrefix("127.96.0.0/16")}, agent)
	if len(found) != 1 || found[0].Problem != "" || found[0].Note != "leads to this machine" {
		t.Errorf("%+v", found)
	}
	// An address of TEST-NET-3 leads away from here, or nowhere.
	found = serviceRanges([]netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, agent)
	if len(found) != 1 || !strings.Contains(found[0].Fix, "CAP_NET_ADMIN") {
		t.Errorf("%+v", found)
	}
}

func TestDoctorPermissions(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no such modes")
	}
	x := examiner{Config{DataDir: t.TempDir()}}
	if err := os.WriteFile(filepath.Join(x.DataDir, "kubeconfig"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for mode, wrong := range map[os.FileMode]bool{0o700: false, 0o755: true, 0o750: true} {
		if err := os.Chmod(x.DataDir, mode); err != nil {
			t.Fatal(err)
		}
		f := x.privateFiles()
		if (f.Problem != "") != wrong || wrong && (!strings.Contains(f.Problem, "kubeconfig (0644)") || f.Fix != "chmod -R go= "+x.DataDir) {
			t.Errorf("%04o: %+v", mode, f)
		}
	}
	// As packages make it, for a control plane of another user beside root's agent.
	for mode, wrong := range map[os.FileMode]string{
		0o770 | os.ModeSticky: "other users can read " + filepath.Join(x.DataDir, "kubeconfig") + " (0644)",
		0o777 | os.ModeSticky: "other users can read " + x.DataDir + " (0777)",
	} {
		if err := os.Chmod(x.DataDir, mode); err != nil {
			t.Fatal(err)
		}
		if f := x.privateFiles(); !strings.HasPrefix(f.Problem, wrong) || !strings.HasPrefix(f.Fix, "chmod o= ") {
			t.Errorf("%s: %+v", mode, f)
		}
	}
	if err := errors.Join(os.Chmod(x.DataDir, 0o770|os.ModeSticky), os.Chmod(filepath.Join(x.DataDir, "kubeconfig"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if f := x.privateFiles(); f.Problem != "" {
		t.Errorf("a directory as of packages: %+v", f)
	}
}

// What doctor says of the resolver, without an agent and with one.
func TestDoctorResolver(t *testing.T) {
	agentAt := dnsServer(t)
	root := func(resolvConf string) string { return rootWith(t, map[string]string{"etc/resolv.conf": resolvConf}) }
	// No program answers on port 53 of this address.
	const silent = "nameserver 127.9.9.9\n"
	marked := "# Set by proxima: names of Services are asked of "
	agent := &admin.NodeStatus{DNS: agentAt}
	for _, tc := range []struct {
		name         string
		conf         string
		agent        *admin.NodeStatus
		flags        Config
		problem, fix string
		note         string
	}{
		{name: "no agent", conf: silent, note: "no agent of this machine serves names"},
		{name: "an agent without DNS", conf: silent, agent: &admin.NodeStatus{}, note: "runs without DNS"},
		{name: "set for an agent that is gone", conf: marked + "127.9.9.9:53 first.\n", problem: "no agent answers", fix: "--undo"},
		{name: "set for one that is there", conf: marked + agentAt + " first.\n", note: "found, by " + agentAt},
		{name: "a port that the file cannot say", conf: silent, agent: agent, problem: "do not find names", fix: "--dns-port 53"},
		{name: "the same, to be fixed", conf: silent, agent: agent, flags: Config{Fix: true}, problem: "cannot name port", fix: "redirect to :"},
		{name: "an agent that does not answer", conf: silent, agent: &admin.NodeStatus{DNS: "127.9.9.9:1053"}, problem: "own DNS server", fix: "agent's log"},
		{name: "a wrong --dns-address", conf: silent, flags: Config{DNSAddress: "here"}, problem: "is not ADDRESS:PORT", fix: "127.0.0.1:53"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := examiner{tc.flags}
			x.Root = root(tc.conf)
			f := x.resolver(t.Context(), tc.agent, nil)
			if !strings.Contains(f.Problem, tc.problem) || (f.Problem == "") != (tc.problem == "") ||
				!strings.Contains(f.Fix, tc.fix) || !strings.Contains(f.Note, tc.note) {
				t.Errorf("%+v", f)
			}
			if data, err := os.ReadFile(filepath.Join(x.Root, "etc/resolv.conf")); err != nil || string(data) != tc.conf {
				t.Errorf("resolv.conf: %v\n%s", err, data)
			}
		})
	}
}

func TestDoctorUndo(t *testing.T) {
	root := rootWith(t, map[string]string{"etc/resolv.conf": "nameserver 192.0.2.1\n"})
	if undone, err := UndoResolver(t.Context(), root); err != nil || undone {
		t.Errorf("undone %t, %v", undone, err)
	}
}

// dnsServer answers as an agent does.
func dnsServer(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg)
		r.SetReply(q)
		r.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"1.1.0"}}}
		_ = w.WriteMsg(r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.ActivateAndServe() }()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return conn.LocalAddr().String()
}
