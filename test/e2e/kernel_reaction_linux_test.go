package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestKernelReaction measures from the request that writes a slice until the new
// backend answers, through a control plane and an agent of their own processes,
// among few services; with PROXIMA_SOAK=1 among 10,000, too.
func TestKernelReaction(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	network, p, c := startKernel(t, 1)
	n := p.newKernelNode("edge-1")
	have := 1
	for _, services := range []int{100, soak(0, 10_000)} {
		if services < have {
			continue
		}
		fillKernel(t, c, have, services)
		have = services + 1
		for _, mode := range kernelModes {
			n.run(mode)
			testkit.Eventually(t, "all services are in place", func() bool {
				return n.metric("proxima_node_service_ports") >= float64(services) && n.metric("proxima_node_pending_service_ports") == 0 &&
					n.metric("proxima_view_connected") == 1
			})
			var took []time.Duration
			for i := range soak(30, 200) {
				d := network.moved(t, c, i%8)
				if d > time.Second {
					t.Logf("%s: the %d. change took %s; the view is connected: %v", mode, i+1, d, n.metric("proxima_view_connected"))
				}
				took = append(took, d)
				// Apart from each other, as the changes of an idle service are.
				time.Sleep(150 * time.Millisecond)
			}
			slices.Sort(took)
			t.Logf("%s, %d services: slice written to the new backend's answer: p50 %s, p99 %s; the agent has %d MiB", mode, services,
				took[len(took)/2].Round(10*time.Microsecond), took[len(took)*99/100].Round(10*time.Microsecond),
				residentMiB(t, n.process.PID()))
			n.process.Kill()
			n.cleanup()
		}
	}
}

// moved makes one backend the only one of service 0, and waits for its answer.
func (n *kernelNet) moved(t testing.TB, c *cluster, backend int) time.Duration {
	t.Helper()
	want := backendAt(0, backend)
	began := time.Now()
	c.mustPut(sliceOf(0, backend))
	for {
		conn, name, err := ask(t.Context(), n.here, at(vipAt(0)))
		if err == nil {
			_ = conn.Close()
		}
		took := time.Since(began)
		if name == want {
			return took
		}
		if took > testkit.Timeout {
			t.Fatalf("%s does not answer: %q, %v", want, name, err)
		}
	}
}

// fillKernel makes services from a number to another, of three endpoints each.
func fillKernel(t testing.TB, c *cluster, from, to int) {
	t.Helper()
	const writers = 8
	work := make(chan int)
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for s := range work {
				if err := c.tryService(s, func(svc *corev1.Service) { svc.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", 2+s/250, 1+s%250) }); err != nil {
					t.Error(err)
				}
				slice := sliceOf(0, 0, 1, 2)
				slice.Name, slice.Labels["kubernetes.io/service-name"] = fmt.Sprint("s", s, "-1"), fmt.Sprint("s", s)
				if err := c.put(t.Context(), slice); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for s := from; s <= to; s++ {
		work <- s
	}
	close(work)
	running.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// residentMiB is the memory of a process (proc_pid_status(5), VmRSS).
func residentMiB(t testing.TB, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
