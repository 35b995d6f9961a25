package ebpf

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// TestKilledUnderTraffic: agents that are killed while they run, and while they start, fail no connection. Nothing
// below would serve what passes. PROXIMA_SOAK=1 makes it a hundred.
func TestKilledUnderTraffic(t *testing.T) {
	const agent = "PROXIMA_TEST_EBPF_AGENT"
	if dir := os.Getenv(agent); dir != "" {
		flap(t, &place{node: dir, bpffs: os.Getenv(agent + "_PINS")})
		return
	}
	inside(t, func(w *world) {
		w.listen(0, 1, 2)
		w.close(w.mode)
		kills := 6
		if os.Getenv("PROXIMA_SOAK") != "" {
			kills = 100
		}
		begin := func() (*exec.Cmd, *bufio.Reader) {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilledUnderTraffic$", "-test.v")
			cmd.Env = append(os.Environ(), agent+"="+w.node, agent+"_PINS="+w.bpffs)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			return cmd, bufio.NewReader(out)
		}
		ready := func(out *bufio.Reader) {
			t.Helper()
			for {
				line, err := out.ReadString('\n')
				if err != nil {
					t.Fatalf("the agent ended: %v", err)
				}
				if line == "flapping\n" {
					go func() { _, _ = io.Copy(io.Discard, out) }()
					return
				}
			}
		}
		end := func(cmd *exec.Cmd) {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		first, out := begin()
		ready(out)
		done := w.traffic()
		end(first)
		for i := range kills {
			cmd, out := begin()
			if i%4 == 3 { // while it starts
				time.Sleep(time.Duration(i%20) * time.Millisecond) // any moment will do
			} else {
				ready(out)
			}
			end(cmd)
		}
		t.Logf("%d agents killed", kills)
		done(int64(10 * kills))
		found, err := filepath.Glob(filepath.Join(w.bpffs, pinFolder, "*", "connect?"))
		if err != nil || len(found) != 2 {
			t.Errorf("pins: %v, %v", found, err)
		}
	})
}

// traffic of both families to service 0, each connection of its own, until end, which reports those that failed, and if there were
// fewer than least.
func (w *world) traffic() (end func(least int64)) {
	var asked, failed atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 2 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := (&net.Dialer{Timeout: 5 * time.Second}).Dial("tcp", w.vip(i == 1, 0).String())
				asked.Add(1)
				if err != nil {
					failed.Add(1)
					w.Log(err)
					continue
				}
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
			}
		})
	}
	return func(least int64) {
		w.Helper()
		close(stop)
		clients.Wait()
		w.Logf("%d connections, %d failed", asked.Load(), failed.Load())
		if failed.Load() > 0 || asked.Load() < least {
			w.Errorf("%d of %d connections failed, want none of at least %d", failed.Load(), asked.Load(), least)
		}
	}
}

// TestUpgradeUnderTraffic: an agent with other programs takes over from another one, and gives its own other constants, without a
// failed connection. Nothing below would serve what passes. PROXIMA_SOAK=1 makes it two hundred.
func TestUpgradeUnderTraffic(t *testing.T) {
	inside(t, func(w *world) {
		w.listen(0, 1, 2)
		w.apply(w.service("api", 0, 0, 1, 2))
		upgrades := 10
		if os.Getenv("PROXIMA_SOAK") != "" {
			upgrades = 200
		}
		done := w.traffic()
		for i := range upgrades {
			w.close(w.mode)
			w.open(func(o *Options) { o.PeerIsVIP = i%2 == 0 })
			w.apply(w.service("api", 0, i%3, (i+1)%3))
			w.mode.ExemptNetworks(map[uint64]struct{}{1 << 40: {}}) // of nobody
		}
		done(int64(10 * upgrades))
	})
}

// flap is an agent that changes a service for ever.
func flap(t *testing.T, p *place) {
	w := &world{T: t, place: p}
	m, err := New(p.options(), &nothingBelow{})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		s := w.service("api", 0, 0, 1, 2)
		if i%2 == 1 {
			s = w.service("api", 0, 0, 2)
		}
		if err := m.Apply(t.Context(), []proxy.Change{{Name: s.Name, State: s}}); err != nil {
			t.Fatal(err)
		}
		if i == 10 {
			_, _ = os.Stdout.WriteString("flapping\n")
		}
		time.Sleep(100 * time.Microsecond) // a hundred times what services do
	}
}
