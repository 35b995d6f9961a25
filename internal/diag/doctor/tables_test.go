package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy/ebpf"
)

func TestKernelFindings(t *testing.T) {
	root := t.TempDir()
	forward := func(value string) {
		dir := filepath.Join(root, "proc/sys/net/ipv4")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "ip_forward"), []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var dump admin.NodeDump
	x := examiner{Config{Root: strings.TrimPrefix(root, "/"), Agent: fakeAgent{dump: &dump}}}
	look := func(mode string) []Finding {
		agent := &admin.NodeStatus{}
		agent.Agent.Mode = mode
		return x.kernel(t.Context(), agent)
	}
	if got := x.kernel(t.Context(), nil); got != nil {
		t.Errorf("without an agent: %+v", got)
	}
	if got := look("userspace"); got != nil {
		t.Errorf("userspace: %+v", got)
	}
	forward("1")
	tracked := func(flows string) {
		dir := filepath.Join(root, "proc/sys/net/netfilter")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"nf_conntrack_count": flows, "nf_conntrack_max": "1000"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(value+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	tracked("799")
	dump.Kernel, dump.Compared = []string{"ip map vip", "ip map ep"}, true
	want := []Finding{
		{ID: checkForwarding, Check: "forwarding", Note: "on"},
		{ID: checkConnections, Check: "table of connections", Note: "799 of 1000"},
		{ID: checkKernelTables, Check: "kernel tables", Note: "2 objects, all as they should be"},
	}
	if diff := cmp.Diff(want, look("nftables")); diff != "" {
		t.Error(diff)
	}
	layered := &admin.NodeStatus{Layer: &ebpf.Status{Below: "nftables", Passing: "no cgroup"}}
	layered.Agent.Mode = "ebpf"
	passes := Finding{ID: checkLayer, Check: "eBPF layer", Note: "only passes, and nftables serves: no cgroup"}
	if got := x.kernel(t.Context(), layered); !slices.Contains(got, passes) {
		t.Errorf("a layer that only passes: %+v", got)
	}
	estimated := &admin.NodeStatus{LayerEstimate: &ebpf.Estimate{Unavailable: "no cgroup"}}
	estimated.Agent.Mode = "nftables"
	if got := x.kernel(t.Context(), estimated); !slices.Contains(got, Finding{ID: checkLayer, Check: "eBPF layer", Note: "mode ebpf would not work here: no cgroup"}) {
		t.Errorf("what the layer would save: %+v", got)
	}
	dump.Blocking = []string{"ip filter FORWARD (policy)", "ip6 filter FORWARD of iptables-legacy (policy)", "inet fw between (last rule)"}
	blocked := look("nftables")[0]
	if blocked.Code != problem.ForwardBlocked || !strings.Contains(blocked.Problem, "ip filter FORWARD (policy), ip6 filter FORWARD of") {
		t.Errorf("blocked: %+v", blocked)
	}
	for _, fix := range []string{
		`"iptables -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT"`, `"ip6tables-legacy -A FORWARD -m`, `"nft insert rule inet fw between ct status dnat accept"`,
	} {
		if !strings.Contains(blocked.Fix, fix) {
			t.Errorf("the fix %q lacks %q", blocked.Fix, fix)
		}
	}
	forward("0")
	tracked("800")
	dump.Missing, dump.Foreign = []string{"ip map aff"}, []string{"ip map mine", "ip map other"}
	got := look("nftables")
	if len(got) != 3 || !strings.HasPrefix(got[0].Note, "off: clients on other machines") || got[1].Code != problem.ConnectionsFull ||
		got[2].Problem != `1 objects are missing in the kernel and 2 are foreign, the first is "ip map aff"` || got[2].Fix == "" || got[2].Code != problem.KernelTablesDiffer {
		t.Errorf("got %+v", got)
	}
	dump = admin.NodeDump{Kernel: []string{"-A PROXIMA-SERVICES"}}
	if got := look("iptables"); len(got) != 2 {
		t.Errorf("iptables: %+v", got)
	}
}
