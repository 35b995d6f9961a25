package cli

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/admin"
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
	s := &settings{io: IO{Env: func(string) (string, bool) { return "", false }}}
	s.dataDir = serveAgent(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(dump) }))
	d := doctorFlags{root: strings.TrimPrefix(root, "/")}
	look := func(mode string) []finding {
		agent := &admin.NodeStatus{}
		agent.Agent.Mode = mode
		return s.kernelFindings(t.Context(), d, agent)
	}
	if got := s.kernelFindings(t.Context(), d, nil); got != nil {
		t.Errorf("without an agent: %+v", got)
	}
	if got := look("userspace"); got != nil {
		t.Errorf("userspace: %+v", got)
	}
	forward("1")
	dump.Kernel, dump.Compared = []string{"ip map vip", "ip map ep"}, true
	want := []finding{{Check: "forwarding", Note: "on"}, {Check: "kernel tables", Note: "2 objects, all as they should be"}}
	if diff := cmp.Diff(want, look("nftables")); diff != "" {
		t.Error(diff)
	}
	forward("0")
	dump.Missing, dump.Foreign = []string{"ip map aff"}, []string{"ip map mine", "ip map other"}
	got := look("nftables")
	if len(got) != 2 || !strings.HasPrefix(got[0].Note, "off: clients on other machines") ||
		got[1].Problem != `1 objects are missing in the kernel and 2 are foreign, the first is "ip map aff"` || got[1].Fix == "" {
		t.Errorf("got %+v", got)
	}
	dump = admin.NodeDump{Kernel: []string{"-A PROXIMA-SERVICES"}}
	if got := look("iptables"); len(got) != 1 {
		t.Errorf("iptables: %+v", got)
	}
}
