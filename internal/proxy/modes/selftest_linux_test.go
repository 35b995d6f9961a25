package modes

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/proxy/ebpf"
)

// TestEstimateLayer: another process measures, and no cgroup is left, nor one of an agent that was killed.
func TestEstimateLayer(t *testing.T) {
	const inside = "PROXIMA_TEST_SELF_TEST"
	if os.Getenv(inside) != "" {
		if err := json.NewEncoder(os.Stdout).Encode(MeasureLayer(t.Context(), flag.Arg(0), flag.Arg(1))); err != nil {
			t.Fatal(err)
		}
		os.Exit(0) // no word of the test beside the result
	}
	root, err := cgroup.Root()
	if os.Geteuid() != 0 || err != nil {
		t.Skipf("cgroups need root and their file system: %v", err)
	}
	if err := ebpf.Check(ebpf.Options{}); err != nil {
		t.Skip(err)
	}
	dir := filepath.Join(root, "proxima-modes-"+strconv.Itoa(os.Getpid()))
	const killed = selfTestCgroup + "1073741823" // more than there can be processes
	for _, d := range []string{dir, filepath.Join(dir, killed)} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("something is left in the cgroup: %v", err)
		}
	})
	t.Setenv(inside, "1")
	program := []string{os.Args[0], "-test.run=^TestEstimateLayer$"}
	e := EstimateLayer(t.Context(), program, nftablesName, dir)
	t.Log(&e)
	if e.Unavailable != "" || e.Connections == 0 || e.With <= 0 || e.Below != nftablesName {
		t.Errorf("%+v", e)
	}
	for _, c := range []struct{ mode, dir, want string }{
		{userspaceName, dir, "a layer above nftables or iptables"},
		{nftablesName, filepath.Join(dir, "missing"), "no such file"},
		{nftablesName, t.TempDir(), "its self-test cannot be run"},
	} {
		if e := EstimateLayer(t.Context(), program, c.mode, c.dir); !strings.Contains(e.Unavailable, c.want) {
			t.Errorf("%s at %s: %+v, want %q", c.mode, c.dir, e, c.want)
		}
	}
	if e := EstimateLayer(t.Context(), []string{os.Args[0], "-test.run=^$"}, nftablesName, dir); !strings.Contains(e.Unavailable, "result of its self-test") {
		t.Errorf("a program that prints something else: %+v", e)
	}
	if _, err := os.Stat(filepath.Join(dir, selfTestCgroup+fmt.Sprint(os.Getpid()))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its cgroup is left: %v", err)
	}
}
