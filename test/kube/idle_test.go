package kube_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// What TestIdle allows.
const (
	idleServices = 1000
	// idleResident memory of a process, in bytes.
	idleResident = 80 << 20
	// idleOthers are requests in ten minutes that are neither for the Lease nor watches.
	idleOthers = 10
	// idleWatches is how often a watch may be opened in ten minutes: the API server ends each
	// after some time.
	idleWatches = 2
	// idleVariable is how long nothing happens, in place of a minute. What is allowed is what it
	// says for ten minutes, also in a shorter time.
	idleVariable = "PROXIMA_KUBE_IDLE"
)

func idleTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(idleVariable)
	if text == "" {
		return time.Minute
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", idleVariable, err)
	}
	return d
}

// TestIdle: with 1,000 Services, when nothing changes, control plane and agent are small, and
// ask the API server for nothing but the Lease. An agent that has a view asks it for nothing.
func TestIdle(t *testing.T) {
	unpack(t)
	b := newBench(t)
	client, err := kubernetes.NewForConfig(b.Admin(t))
	if err != nil {
		t.Fatal(err)
	}
	fillWith(t, client, idleServices)
	r := &rig{bench: b, client: client, nodes: map[string]*cluster.Node{}, pods: map[string]*corev1.Pod{}}
	b.kubectl(b.manifests("kube-proxy-replacement", "--set", "agent.mode=nftables"), "apply", "--server-side", "-f", "-")
	b.until("the account of pods is there", func() bool {
		_, err := client.CoreV1().ServiceAccounts(manifests.Namespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	pids := map[string]int{}
	dir := t.TempDir()
	for i, dir := range []string{dir, t.TempDir()} {
		port := planePort + 2*i
		p := testkit.Start(t, []string{"PROXIMA_KUBECONFIG=" + b.kubeconfigOf("proxima")}, testkit.Binary(t),
			append(b.podArgs(dir, fmt.Sprintf("%s:%d", address, port)), fmt.Sprintf("--grpc-port=%d", port+1))...)
		if line := p.FirstLine(); !strings.HasPrefix(line, "ready api=https://") {
			t.Fatalf("the control plane says %q", line)
		}
		pids[fmt.Sprintf("control plane %d", i+1)] = p.PID()
	}
	r.nodes["n1"] = b.AddNode(t, "n1", "zone-a")
	args := r.agentArgs("n1", fmt.Sprintf("%s:%d", address, planePort))
	pids["agent"] = args.start(r).PID()
	b.until("the agent follows the control plane", func() bool {
		a, answers := r.agentStatus(args.state, dir)
		return answers && a.followsView()
	})
	b.until("all Services have plans", func() bool {
		return strings.Count(b.kubectl("", "--namespace", "shop", "get", "trafficplans", "-o", "name"), "trafficplan") == idleServices
	})
	b.quiet()
	began := time.Now()
	idle := idleTime(t)
	select {
	case <-time.After(idle): // it is what is measured
	case <-t.Context().Done():
	}
	for _, name := range slices.Sorted(maps.Keys(pids)) {
		n := resident(t, pids[name], "VmRSS")
		t.Logf("%s: %.1f MB resident, of which %.1f MB are pages of the program's file",
			name, float64(n)/(1<<20), float64(resident(t, pids[name], "RssFile"))/(1<<20))
		if n > idleResident {
			t.Errorf("%s: %.1f MB resident, and %d are allowed", name, float64(n)/(1<<20), idleResident>>20)
		}
	}
	b.wantIdle(began, idle)
}

// requestsSince a moment of Proxima's service accounts and its node, each once.
func (b *bench) requestsSince(began time.Time) map[string]map[permission]int {
	b.t.Helper()
	out, seen := map[string]map[permission]int{}, map[string]bool{}
	prefix := "system:serviceaccount:" + manifests.Namespace + ":"
	b.audited(func(r *request) {
		who, ours := strings.CutPrefix(r.User.Username, prefix)
		if !ours || r.Arrived.Before(began) || seen[r.AuditID] {
			return
		}
		seen[r.AuditID] = true
		if out[who] == nil {
			out[who] = map[permission]int{}
		}
		if r.ObjectRef == nil {
			out[who][permission{"", r.RequestURI, r.Verb}]++
			return
		}
		out[who][r.permission()]++
	})
	return out
}

// quiet waits until nothing but the Lease was asked for in a while: plans and conditions are
// written when everything starts.
func (b *bench) quiet() {
	b.t.Helper()
	const calm = 20 * time.Second
	b.until("the control plane has nothing to write", func() bool {
		for _, requests := range b.requestsSince(time.Now().Add(-calm)) {
			for p := range requests {
				if p.resource != "leases" {
					return false
				}
			}
		}
		return true
	})
}

// wantIdle looks at the requests of a time in which nothing happened.
func (b *bench) wantIdle(began time.Time, idle time.Duration) {
	b.t.Helper()
	requests := b.requestsSince(began)
	others, watches := 0, map[permission]int{}
	for p, n := range requests["proxima"] {
		b.t.Logf("control planes, in %s: %s %d", idle, p, n)
		switch {
		case p.resource == "leases":
		case p.verb == "watch":
			watches[p] += n
		default:
			others += n
		}
	}
	if others > idleOthers {
		b.t.Errorf("%d requests, and %d are allowed", others, idleOthers)
	}
	const replicas = 2
	for p, n := range watches {
		if n > replicas*idleWatches {
			b.t.Errorf("%s: %d, and %d are allowed for each of %d replicas", p, n, idleWatches, replicas)
		}
	}
	if n := len(requests["proxima-agent"]); n != 0 {
		b.t.Errorf("the agent asked: %v", requests["proxima-agent"])
	}
}

// unpack has the test run a copy of the program that was written as a container runtime unpacks an
// image. How much of a file is mapped with a page that is used depends on the folios of the page cache,
// and so on how it was written: on Linux 6.18 up to 55 MB of a program that the linker had just written
// were resident, and 15 to 25 MB of a copy.
func unpack(t *testing.T) {
	t.Helper()
	from, err := os.Open(testkit.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(t.TempDir(), "proxima"), os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	// Bare, as files would be copied by the kernel, and not in pieces.
	_, err = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 32<<10))
	if err := errors.Join(err, to.Close()); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PROXIMA_BIN", to.Name())
}

// resident memory of a process, in bytes, by the name of the value in proc_pid_status(5).
func resident(t *testing.T, pid int, value string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var n int
		if _, err := fmt.Sscanf(line, value+": %d kB", &n); err == nil {
			return n << 10
		}
	}
	t.Fatalf("process %d has no %s", pid, value)
	return 0
}
