//go:build linux

package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/plot"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// sumsServer answers as a control plane with sums of zones and Services.
type sumsServer struct {
	zones    summary.Zones
	services []topology.Line
	mu       sync.Mutex
	// demand of the first zone, which each frame of the stream raises; drawing as it was sent.
	demand  float64
	drawing []byte
	paths   map[string]int
}

func newSumsServer(t *testing.T, zones, services int) (s *sumsServer, kubeconfig string) {
	s = &sumsServer{demand: 100, paths: map[string]int{}}
	for i := range zones {
		name := locality.Zone(fmt.Sprintf("zone-%02d", i))
		s.zones.Zones = append(s.zones.Zones, summary.Zone{Name: name, Region: "r", Nodes: 3, Ready: 3, Endpoints: int64(10 * i), Demand: float64(100 - i), InZone: 0.5, Worst: 1.25})
		s.zones.Flows = append(s.zones.Flows, topology.Flow{From: name, To: "zone-00", Planned: float64(i) + 1})
	}
	s.zones.Total = summary.Totals{Services: services, Planned: 3, Demand: 1234, Currency: "USD", Cost: new(12.5)}
	for i := range services {
		s.services = append(s.services, topology.Line{Namespace: "shop", Name: fmt.Sprintf("svc-%05d", i), Mode: "proxima.dev/Adaptive", Demand: float64(i), Measured: true, Code: "Planned", Endpoints: 3})
	}
	mux := http.NewServeMux()
	count := func(next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			s.paths[r.URL.Path]++
			s.mu.Unlock()
			next(w, r)
		}
	}
	reply := func(w http.ResponseWriter, value any) { _ = json.NewEncoder(w).Encode(value) }
	mux.HandleFunc(admin.SummaryZonesPath, count(func(w http.ResponseWriter, _ *http.Request) { reply(w, &s.zones) }))
	mux.HandleFunc(admin.SummaryServicesPath, count(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		var out summary.Services
		for _, l := range s.services {
			if strings.Contains(l.Name, q.Get("q")) {
				out.Services = append(out.Services, l)
			}
		}
		slices.SortFunc(out.Services, func(a, b topology.Line) int {
			if q.Get("sort") == "demand" {
				return cmp.Compare(b.Demand, a.Demand)
			}
			return cmp.Compare(a.Name, b.Name)
		})
		limit, _ := strconv.Atoi(q.Get("limit"))
		first, _ := strconv.Atoi(q.Get("continue"))
		out.Total, out.All = len(out.Services), len(s.services)
		out.Services = out.Services[min(first, out.Total):]
		out.Services = out.Services[:min(limit, len(out.Services))]
		reply(w, &out)
	}))
	mux.HandleFunc(admin.StreamPath, count(s.stream))
	mux.HandleFunc(admin.StatusPath, count(func(w http.ResponseWriter, _ *http.Request) {
		status := admin.Status{Preset: "kube-proxy-replacement", Agents: []admin.AgentStatus{{Node: "n-1", Behind: 7}, {Node: "n-2\x1b[31m"}}}
		status.Federation = &admin.FederationStatus{Zones: []admin.ZoneState{{Name: "b", Enabled: true}}}
		reply(w, &status)
	}))
	mux.HandleFunc(admin.PlotZonesPath, count(func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.drawing = plot.Zones(&s.zones).SVG()
		_, _ = w.Write(s.drawing)
	}))
	return s, kubeconfigFor(t, mux)
}

// stream a snapshot, and then the first zone with ever more demand, every 100 ms.
func (s *sumsServer) stream(w http.ResponseWriter, r *http.Request) {
	out := json.NewEncoder(w)
	row := func(value any) json.RawMessage {
		data, _ := json.Marshal(value)
		return data
	}
	rows := map[string]json.RawMessage{"total": row(&s.zones.Total)}
	for i := range s.zones.Zones {
		rows["zone/"+string(s.zones.Zones[i].Name)] = row(&s.zones.Zones[i])
		rows["flow/"+string(s.zones.Flows[i].From)+"/zone-00"] = row(&s.zones.Flows[i])
	}
	delta := summary.Delta{Position: summary.Position{Epoch: "e", Sequence: 1}, Snapshot: true, Rows: rows}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if out.Encode(admin.Frame{Topic: "zones", Delta: row(&delta), Time: time.Now()}) != nil || http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		s.demand++
		z := s.zones.Zones[0]
		z.Demand = s.demand
		s.mu.Unlock()
		delta = summary.Delta{Position: summary.Position{Epoch: "e", Sequence: delta.Sequence + 1}, Rows: map[string]json.RawMessage{"zone/" + string(z.Name): row(&z)}}
	}
}

// screen is a terminal with top on it, as a process of its own.
type screen struct {
	t       *testing.T
	cmd     *exec.Cmd
	pty     *os.File
	mu      sync.Mutex
	display *vt.Emulator
	written bytes.Buffer
	ended   chan error
}

// topOn a terminal of this size. TestTopProcess is the process.
func topOn(t *testing.T, cols, rows uint16, env []string, args ...string) *screen {
	t.Helper()
	s := &screen{t: t, display: vt.NewEmulator(int(cols), int(rows)), cmd: exec.Command(os.Args[0], "-test.run=^TestTopProcess$"), ended: make(chan error, 1)}
	s.cmd.Env = append(env, "PROXIMA_TEST_TOP="+strings.Join(args, " "), "HOME="+t.TempDir())
	var err error
	if s.pty, err = pty.StartWithSize(s.cmd, &pty.Winsize{Cols: cols, Rows: rows}); err != nil {
		t.Fatal(err)
	}
	read, answered := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(s, s.pty) // until the process ends
		s.ended <- s.cmd.Wait()
	}()
	go func() {
		defer close(answered)
		_, _ = io.Copy(s.pty, s.display)      // what a terminal answers
		_, _ = io.Copy(io.Discard, s.display) // the process has ended: the display must not wait
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it has ended, if the test went well
		<-read
		if w, ok := s.display.InputPipe().(io.Closer); ok {
			_ = w.Close() // Close of the display is not for two goroutines
		}
		s.pty.Close()
		<-answered
	})
	return s
}

// TestTopProcess is top, for tests that start it.
func TestTopProcess(t *testing.T) {
	args, ok := os.LookupEnv("PROXIMA_TEST_TOP")
	if !ok {
		t.Skip("other tests start it")
	}
	os.Exit(execute(context.Background(), &settings{io: IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Env: os.LookupEnv}}, append([]string{"top"}, strings.Fields(args)...)))
}

// Write implements io.Writer: what the process wrote.
func (s *screen) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written.Write(data)
	return s.display.Write(data)
}

func (s *screen) resize(cols, rows uint16) {
	s.mu.Lock()
	s.display.Resize(int(cols), int(rows))
	s.mu.Unlock()
	if err := pty.Setsize(s.pty, &pty.Winsize{Cols: cols, Rows: rows}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) keys(text string) {
	if _, err := s.pty.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// raw is all that was written.
func (s *screen) raw() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.String()
}

// text that is seen now.
func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.display.String()
}

// shows waits for a text on the screen.
func (s *screen) shows(pattern string) {
	s.t.Helper()
	re := regexp.MustCompile(pattern)
	for late := time.After(testkit.Timeout); !re.MatchString(s.text()); {
		select {
		case <-late:
			s.t.Fatalf("%q is not shown:\n%s", pattern, s.text())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *screen) quits(key string) {
	s.t.Helper()
	s.keys(key)
	select {
	case err := <-s.ended:
		if err != nil {
			s.t.Error(err)
		}
	case <-time.After(testkit.Timeout):
		s.t.Fatal("it does not end")
	}
}

var terminal = []string{"TERM=xterm-256color"}

// TestTop: on terminals, what the views show, their keys, and a change of the size.
func TestTop(t *testing.T) {
	_, kubeconfig := newSumsServer(t, 30, 10_000)
	s := topOn(t, 80, 24, terminal, "--kubeconfig", kubeconfig)
	s.shows(`10000 Services, 3 planned`)
	s.shows(`zone-00 +3/3`)
	s.shows(`1–20 of 30`)
	s.shows(`zone-00 .* (10[1-9]|1[1-9][0-9]|[2-9][0-9]{2}) `) // the stream
	s.keys("s")
	s.shows(`by name`)
	s.keys("G")
	s.shows(`11–30 of 30`)
	s.keys("/29")
	s.shows(`filter: 29`)
	s.shows(`(?s)zone-29 .*1–1 of 1|(?s)zone-29 .*filter: 29`)
	s.keys("\r2")
	s.shows(`10000 of 10000 Services, by saving`)
	s.shows(`svc-00000`)
	s.keys("ss")
	s.shows(`by demand`)
	s.shows(`svc-09999`)
	s.resize(200, 60)
	s.shows(`1–56 of 10000`)
	s.keys("3")
	s.shows(`n-1 .* 7 `)
	s.keys("4")
	s.shows(`1 sites, 0 online`)
	if strings.Contains(s.raw(), "n-2\x1b[31m") {
		t.Error("a name is obeyed by the terminal")
	}
	s.quits("q")
	if !strings.Contains(s.raw(), "\x1b[?1049l") {
		t.Error("the screen before is not restored")
	}
}

// TestTopWithoutColor: with NO_COLOR no colour is set.
func TestTopWithoutColor(t *testing.T) {
	_, kubeconfig := newSumsServer(t, 3, 5)
	color := regexp.MustCompile(`\x1b\[[0-9;]*(3[0-7]|4[0-7]|38|48)[;m]`)
	for _, env := range [][]string{{"TERM=xterm-256color", "NO_COLOR=1"}, {"TERM=vt100"}} {
		s := topOn(t, 80, 24, env, "--kubeconfig", kubeconfig)
		s.shows(`zone-02`)
		s.quits("q")
		if color.MatchString(s.raw()) {
			t.Errorf("%v: %q", env, s.raw())
		}
	}
}

// TestTopOnce prints tables where there is no terminal.
func TestTopOnce(t *testing.T) {
	server, kubeconfig := newSumsServer(t, 3, 500)
	says(t, 0, []string{"top", "--kubeconfig", kubeconfig}, []string{"500 Services, 3 planned", "ZONE", "zone-00", "zone-00 3/s", "50%"}, []string{"\x1b"})
	says(t, 0, []string{"top", "services", "--once", "--sort", "demand", "--limit", "2", "--kubeconfig", kubeconfig},
		[]string{"500 of 500 Services", "svc-00499", "… and 498 more"}, []string{"svc-00400"})
	says(t, 0, []string{"top", "nodes", "--once", "--kubeconfig", kubeconfig}, []string{"n-1", "n-2"}, []string{"\x1b"})
	says(t, 2, []string{"top", "pods", "--kubeconfig", kubeconfig}, []string{`"pods": choose zones, services, nodes or sites`}, nil)
	says(t, 2, []string{"top", "--sort", "age", "--kubeconfig", kubeconfig}, []string{`--sort "age": of zones`}, nil)
	server.mu.Lock()
	defer server.mu.Unlock()
	if server.paths[admin.StreamPath] > 0 {
		t.Error("a table needs no stream")
	}
}

// TestTopCPU: with 10,000 Services that change ten times a second, it uses at most 3 % of a core.
func TestTopCPU(t *testing.T) {
	limit := 0.03
	if info, ok := debug.ReadBuildInfo(); ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" }) {
		limit = 0.3 // the race detector takes more than the program
	}
	_, kubeconfig := newSumsServer(t, 100, 10_000)
	for _, view := range []string{"zones", "services"} {
		s := topOn(t, 200, 60, terminal, view, "--kubeconfig", kubeconfig)
		s.shows(`of 100`)
		before := s.cpu()
		const span = 2 * time.Second
		time.Sleep(span) // what is measured is a time
		used := s.cpu() - before
		if share := used.Seconds() / span.Seconds(); share > limit {
			t.Errorf("%s: %.1f %% of a core", view, 100*share)
		} else {
			t.Logf("%s: %.1f %% of a core", view, 100*share)
		}
		s.quits("q")
	}
}

// TestPlot: the file is what the server sent.
func TestPlot(t *testing.T) {
	server, kubeconfig := newSumsServer(t, 3, 5)
	file := filepath.Join(t.TempDir(), "zones.svg")
	says(t, 0, []string{"plot", "zones", "-o", file, "--kubeconfig", kubeconfig}, nil, nil)
	got, err := os.ReadFile(file)
	if err != nil || len(got) == 0 || !bytes.Equal(got, server.drawing) {
		t.Errorf("%v: %d bytes, of %d", err, len(got), len(server.drawing))
	}
	code, out, _ := runHere(t, "plot", "zones", "--kubeconfig", kubeconfig)
	if code != 0 || out != string(server.drawing) {
		t.Errorf("standard output: exit code %d, %d bytes", code, len(out))
	}
	says(t, 1, []string{"plot", "service", "shop/web", "-o", file, "--kubeconfig", kubeconfig}, []string{"does not serve"}, nil)
	if again, err := os.ReadFile(file); err != nil || !bytes.Equal(again, got) {
		t.Error("a failure changed the file")
	}
}

// cpu time that the process has used (proc_pid_stat(5)).
func (s *screen) cpu() time.Duration {
	s.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.Atoi(f)
		if err != nil {
			s.t.Fatal(err)
		}
		ticks += n
	}
	const perSecond = 100 // USER_HZ
	return time.Duration(ticks) * time.Second / perSecond
}
