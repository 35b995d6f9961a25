package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// joinCgroup has this process, its clients and the agents that it starts run in a cgroup of their own, until the test ends:
// programs of mode ebpf see the sockets of all network namespaces. Call it before anything is started.
func joinCgroup(t testing.TB) (dir string) {
	t.Helper()
	root, err := cgroup.Root()
	if err != nil {
		t.Skip(err)
	}
	own := []byte(strconv.Itoa(os.Getpid()))
	// Agents remove empty cgroups whose names begin with proxima-.
	dir = filepath.Join(root, "test-proxima-e2e-"+string(own))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(filepath.Join(root, "cgroup.procs"), own, 0); err != nil {
			t.Error(err)
		}
		testkit.Eventually(t, "the cgroup can be removed", func() bool { return os.Remove(dir) == nil })
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), own, 0); err != nil {
		t.Fatal(err)
	}
	return dir
}

var translatedText = regexp.MustCompile(`(?m)^proxima_ebpf_connections_total\{.*\} [1-9]`)

// translates waits until the layer has given connections their endpoints.
func (n *kernelNode) translates(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, "the eBPF layer translates connections", func() bool {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", n.metrics))
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		return err == nil && translatedText.Match(text)
	})
}

// pinned reports whether links of the layer are, of this network namespace.
func pinned(t testing.TB) bool {
	t.Helper()
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &ns); err != nil {
		t.Fatal(err)
	}
	_, err := os.Stat(fmt.Sprintf("/sys/fs/bpf/proxima/netns-%d/connect4", ns.Ino))
	return err == nil
}
