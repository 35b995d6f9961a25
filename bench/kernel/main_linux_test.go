package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestSmoke runs every part; the figures are for people.
func TestSmoke(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	var out strings.Builder
	b := &bench{sizes: smoke, binary: testkit.Binary(t)}
	if err := b.run(t.Context(), &out, ""); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	for _, want := range []string{
		"cold: all services", "warm: the same", "one endpoint replaced", "one endpoint more", "a service added",
		"short transaction", "eBPF layer", "iptables-legacy: connect to the last", "iptables-nft: connect to the last", "iptables-nft: one endpoint replaced",
		"slice written to new backend's answer", "warm restart", "new connections that failed", "memory", "idle", "goals missed",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line about %q:\n%s", want, &out)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		b    bench
		only string
		want string
	}{
		{bench{sizes: smoke}, "path,nonsense", "nonsense"},
		{bench{sizes: smoke, kubeProxy: "/does/not/exist"}, "", "KUBE_PROXY"},
		{bench{sizes: sizes{services: []int{0}, iptables: 2, agents: [2]int{2, 2}}}, "", "services"},
	} {
		if err := c.b.check(c.only); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want something about %q", c.only, err, c.want)
		}
	}
}

func TestFigures(t *testing.T) {
	if got := median([]float64{3, 1, 2}); got != 2 {
		t.Errorf("median of three: %v", got)
	}
	if got := median([]float64{4, 1, 2, 3}); got != 2.5 {
		t.Errorf("median of four: %v", got)
	}
	// One round was twice as slow for both: its ratio is as good as the others'.
	if got := ratioOf([]float64{1, 2, 1}, []float64{2, 4, 2}); got != 0.5 {
		t.Errorf("ratio round by round: %v", got)
	}
	if got := ratioOf([]float64{1, 1}, []float64{4}); got != 0.25 {
		t.Errorf("ratio of medians: %v", got)
	}
	var out strings.Builder
	tab := table{out: &out}
	tab.add(row{"a", 1, seconds, []float64{0.2}, "b", []float64{0.1}, ratioAtMost(1.5)})
	tab.add(row{"a", 1, seconds, []float64{0.2}, "", nil, atMost(0.3)})
	tab.add(row{"a", 1, seconds, []float64{0}, "b", []float64{0}, nil})
	tab.add(row{"a", 1, seconds, []float64{0.2}, "", nil, atMost(0.1)})
	if tab.missed != 2 || strings.Count(out.String(), "MISSED") != 2 || strings.Count(out.String(), "met") != 1 ||
		strings.Contains(out.String(), "NaN") {
		t.Errorf("%d missed:\n%s", tab.missed, &out)
	}
}

// TestProcessFigures reads /proc for this process, whose figures are known by
// other ways.
func TestProcessFigures(t *testing.T) {
	p := &process{cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}}
	used := func() float64 {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			t.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano()).Seconds()
	}
	spun := 0
	for used() < 0.1 { // some ticks of the clock by which /proc counts
		for range 1 << 20 {
			spun++
		}
	}
	before := used()
	got, err := p.cpu()
	const ticks = 3. / ticksPerSecond
	if after := used(); err != nil || got < before-ticks || got > after+ticks {
		t.Errorf("CPU %v s, %v, of %d turns; want between %v and %v", got, err, spun, before, after)
	}
	resident, err := p.status("VmRSS")
	if err != nil || resident < 1 {
		t.Errorf("resident: %v MB, %v", resident, err)
	}
	if file, err := p.status("RssFile"); err != nil || file <= 0 || file > resident {
		t.Errorf("of it pages of files: %v MB, %v; want less than %v", file, err, resident)
	}
	if _, err := p.status("Nonsense"); err == nil {
		t.Error("/proc has something called Nonsense")
	}
}
