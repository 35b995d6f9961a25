package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/problem"
)

var traces = map[string]*diag.Trace{
	"nftables": {
		To: "10.96.0.10:80", Protocol: "tcp", From: "10.1.0.5", Node: "a-1", Zone: "zone-a", Mode: "nftables",
		Service: "shop/web:http", Role: "cluster IP", Outcome: "endpoint", List: "cluster", Rule: "zone hints", AffinitySeconds: 10800,
		Source: diag.Source{Here: true, Node: "a-1", Zone: "zone-a"},
		Endpoints: []diag.TraceEndpoint{
			{Address: "10.0.0.1:8080", Weight: 1, Share: 0.25, Local: true, Node: "a-1", Zone: "zone-a"},
			{Address: "10.0.0.2:8080", Weight: 3, Share: 0.75, Node: "b-1", Zone: "zone-b"},
		},
		Steps: []diag.TraceStep{{Object: "ip map vip 10.96.0.10 . tcp . 80", Does: "service port 1 (shop/web:http), class 10"}, {Object: "ip chain pick-keep-cluster-4", Does: "one of 4 slots of map ep, service 1"}},
	},
	"iptables": {
		To: "198.51.100.7:80", Protocol: "tcp", From: "192.0.2.1", Node: "a-1", Mode: "iptables",
		Service: "shop/web:http", Role: "external IP", Outcome: "endpoint", List: "local", Rule: "endpoints on this node, as the traffic policy is Local", Masquerade: true,
		Endpoints: []diag.TraceEndpoint{{Address: "10.0.0.1:8080", Weight: 1, Share: 1, Local: true}},
		Kernel:    []string{"-A PROXIMA-SVC-X -p tcp -j DNAT --to-destination 10.0.0.1:8080"}, Pending: "busy try later",
	},
	"nobody": {
		To: "10.96.0.99:80", Protocol: "udp", From: "10.1.0.5", Node: "a-1", Zone: "zone-a", Mode: "nftables", Outcome: "drop", Endpoints: []diag.TraceEndpoint{},
		Steps: []diag.TraceStep{{Object: "ip chain service-cidr", Does: "10.96.0.99 is in 10.96.0.0/16 and not allocated: drop"}},
	},
	"not-admitted": {
		To: "203.0.113.7:80", Protocol: "tcp", From: "192.0.3.1", Node: "a-1", Zone: "zone-a", Mode: "nftables",
		Service: "shop/web:http", Role: "load balancer", Outcome: "drop", Endpoints: []diag.TraceEndpoint{},
		Reason: "192.0.3.1 is in no range of loadBalancerSourceRanges (192.0.2.0/24)",
		Steps: []diag.TraceStep{
			{Object: "ip map vip 203.0.113.7 . tcp . 80", Does: "service port 1 (shop/web:http), class 4"},
			{Object: "ip chain ranges", Does: "192.0.3.1 is in no source range: drop"},
		},
	},
	"userspace": {
		To: "10.96.0.10:80", Protocol: "tcp", From: "10.0.0.7", Node: "a-1", Mode: "userspace",
		Source:  diag.Source{Node: "b-1", Zone: "zone-b"},
		Service: "shop/web:http", Role: "cluster IP", Outcome: "endpoint", List: "cluster", Rule: "zone hints", Masquerade: true,
		Endpoints: []diag.TraceEndpoint{{Address: "10.0.0.1:8080", Weight: 1, Share: 1}}, Spare: []diag.TraceEndpoint{{Address: "10.0.9.9:8080", Weight: 1, Node: "c-1", Zone: "zone-c"}, {Address: "10.0.9.10:8080", Weight: 1}},
	},
}

func TestTracePrints(t *testing.T) {
	for name, trace := range traces {
		var out bytes.Buffer
		if err := printTrace(&out, trace); err != nil {
			t.Fatal(err)
		}
		golden(t, "trace-"+name, out.String())
	}
}

func TestDumpPrints(t *testing.T) {
	d := &admin.NodeDump{
		Node: node.Facts{Name: "a-1", Zone: "zone-a"}, Mode: "nftables",
		Ports: []admin.DumpPort{{
			Name: "shop/web:http", Protocol: "TCP", Port: 80, NodePort: 30080, Addresses: []string{"10.96.0.10", "fd00:96::10"},
			Families: []admin.DumpEndpoints{
				{Family: "IPv4", Rule: "zone hints", Cluster: []string{"10.0.0.1:8080 weight 1", "10.0.0.2:8080 weight 3"}, Local: []string{"10.0.0.1:8080 weight 1"}},
				{Family: "IPv6", Rule: "no endpoint"},
			},
		}},
		Kernel: []string{"ip chain dispatch: 4 rules", "ip map vip"}, Missing: []string{"ip map ep"},
	}
	var out bytes.Buffer
	if err := printDump(&out, d); err != nil {
		t.Fatal(err)
	}
	golden(t, "dump-nftables", out.String())
	out.Reset()
	d.Mode, d.Kernel, d.Missing, d.Ports = "userspace", nil, nil, nil
	if err := printDump(&out, d); err != nil {
		t.Fatal(err)
	}
	golden(t, "dump-userspace", out.String())
}

// golden compares with testdata/golden/NAME; -update writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -update rewrites it\n%s", path, diff)
	}
}

// runHere runs a command line in process.
func runHere(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, complaints bytes.Buffer
	code = execute(t.Context(), &settings{io: IO{In: strings.NewReader(""), Out: &out, Err: &complaints, Env: func(string) (string, bool) { return "", false }}}, args)
	return code, out.String(), complaints.String()
}

func TestTraceAsksTheAgent(t *testing.T) {
	asked := ""
	dir := serveAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == local.AlivePath {
			return
		}
		asked = r.URL.RequestURI()
		switch {
		case r.URL.Path == local.DumpPath:
			http.Error(w, "read the kernel's tables: permission denied", http.StatusServiceUnavailable)
		case r.URL.Query().Get("from") == "192.0.2.1":
			http.NotFound(w, r)
		default:
			_ = json.NewEncoder(w).Encode(traces["nftables"])
		}
	}))
	code, out, complaint := runHere(t, "trace", "[fd00::1]:80", "--protocol", "UDP", "--data-dir", dir, "-o", "json")
	var got diag.Trace
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, complaint)
	}
	if diff := cmp.Diff(traces["nftables"], &got); diff != "" {
		t.Error(diff)
	}
	if want := "/trace?protocol=udp&to=%5Bfd00%3A%3A1%5D%3A80"; asked != want {
		t.Errorf("asked %s, want %s", asked, want)
	}
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{1, "does not know /trace", []string{"trace", "10.96.0.1:80", "--from", "192.0.2.1", "--data-dir", dir}},
		{1, "permission denied", []string{"node", "dump", "--data-dir", dir}},
		{1, "no agent with data directory", []string{"node", "dump", "--data-dir", t.TempDir()}},
		{2, "want an address and a port", []string{"trace", "10.96.0.1"}},
		{2, "want an address and a port", []string{"trace", "10.96.0.1:0"}},
		{2, `--from "x"`, []string{"trace", "10.96.0.1:80", "--from", "x"}},
		{2, `--protocol "icmp"`, []string{"trace", "10.96.0.1:80", "--protocol", "icmp"}},
		{2, `-o "xml"`, []string{"node", "dump", "-o", "xml"}},
	} {
		code, out, complaint := runHere(t, c.args...)
		if code != c.code || out != "" || !strings.Contains(complaint, c.says) {
			t.Errorf("%v: exit code %d, want %d with %q:\n%s%s", c.args, code, c.code, c.says, out, complaint)
		}
	}
	_, err := traceQuery("x", "tcp", "")
	if p, _ := problem.Of(err); p.Code != problem.Usage {
		t.Errorf("%v is no usage error", err)
	}
}
