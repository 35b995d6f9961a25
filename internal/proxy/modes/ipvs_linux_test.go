package modes

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/proxima-mesh/proxima/internal/proxy/ipvs"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// TestIPVSFallsBack: where the kernel has no IPVS, another mode carries the traffic, and log and status name the module. It runs once
// more in a process with a network namespace of its own.
func TestIPVSFallsBack(t *testing.T) {
	const inside = "PROXIMA_TEST_IPVS_FALLS_BACK"
	if os.Getenv(inside) == "" {
		if why := netns.Available(); why != "" {
			t.Skip(why)
		}
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestIPVSFallsBack$", "-test.v", "-test.count=1")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("in the namespace: %v", err)
		}
		t.Logf("%s", out)
		return
	}
	missing := new(ipvs.MissingError)
	if err := ipvs.Check(""); !errors.As(err, &missing) {
		t.Skipf("this kernel has IPVS, or none can tell: %v", err)
	}
	var log bytes.Buffer
	registry := prometheus.NewRegistry()
	m, err := New(t.Context(), ipvsName, Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	missingMetrics := func() int {
		n, err := testutil.GatherAndCount(registry, "proxima_ipvs_missing")
		if err != nil {
			t.Error(err)
		}
		return n
	}
	if n := missingMetrics(); n != 1 {
		t.Errorf("proxima_ipvs_missing has %d series, want 1", n)
	}
	t.Cleanup(func() {
		_ = m.Close(t.Context())
		if n := missingMetrics(); n != 0 {
			t.Errorf("after the mode, proxima_ipvs_missing has %d series", n)
		}
	})
	s := IPVSOf(m)
	if s == nil || s.Instead != m.Name() || (m.Name() != iptablesName && m.Name() != nftablesName) || !slices.Contains(s.Missing, "ip_vs") {
		t.Errorf("mode %s, status %+v", m.Name(), s)
	}
	if !strings.Contains(log.String(), "IPVS does not work here") || !strings.Contains(log.String(), "ip_vs") {
		t.Errorf("the log says %s", log.String())
	}
	if err := m.Apply(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func TestUnknownSchedulerIsRefused(t *testing.T) {
	_, err := New(t.Context(), ipvsName, Config{Logger: slog.New(slog.DiscardHandler), IPVS: IPVS{Scheduler: "fast"}})
	if err == nil || !strings.Contains(err.Error(), "use one of rr, wrr") {
		t.Errorf("%v", err)
	}
}
