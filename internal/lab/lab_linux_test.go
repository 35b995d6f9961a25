package lab_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

func TestMain(m *testing.M) {
	if shopChild() {
		return
	}
	goleak.VerifyTestMain(m)
}

// labName is of at most 8 letters and digits, and not that of another test run.
func labName() string { return fmt.Sprintf("t%d", os.Getpid()%10_000_000) }

func start(t *testing.T, spec lab.Spec) *lab.Lab {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	spec.Name, spec.Temporary, spec.Progress = labName(), true, func(s string) { t.Log(s) }
	spec.Executable = testkit.Binary(t)
	begin := time.Now()
	l, err := lab.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("up in %s", time.Since(begin).Round(time.Millisecond))
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
		nothingLeft(t)
	})
	return l
}

// nothingLeft of any lab of this process: namespaces, links, processes, files.
func nothingLeft(t *testing.T) {
	t.Helper()
	prefix := "pxlab-" + labName()
	if names, err := netns.List(prefix); err != nil || len(names) > 0 {
		t.Errorf("namespaces left: %v, %v", names, err)
	}
	if _, err := os.Stat(filepath.Join("/run/proxima/lab", labName())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("files left: %v", err)
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.Contains(l.Name, "zone-") || strings.HasPrefix(l.Name, prefix) {
			t.Errorf("link left: %s", l.Name)
		}
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commands {
		if line, err := os.ReadFile(c); err == nil && strings.Contains(string(line), "/run/proxima/lab/"+labName()+"/") {
			t.Errorf("process left: %s", strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
}

func answers(t *testing.T, l *lab.Lab, zone, want string) {
	t.Helper()
	for range 5 {
		if who, err := l.Ask(t.Context(), zone); err != nil || who != want {
			t.Fatalf("from %s: answered by %q, %v; want %s", zone, who, err, want)
		}
	}
}

func TestCutHealKillDown(t *testing.T) {
	l := start(t, lab.Spec{Zones: 2, Nodes: 1, Mode: "userspace"})
	if want := netns.HasIPv6(); (l.VIP6() != "") != want {
		t.Fatalf("the service's addresses are %q and %q; this kernel has IPv6: %v", l.VIP(), l.VIP6(), want)
	}
	// Near endpoints are preferred; a view that has the hints takes a moment.
	testkit.Eventually(t, "each zone is served by its own", func() bool {
		a, errA := l.Ask(t.Context(), "zone-a")
		b, errB := l.Ask(t.Context(), "zone-b")
		return errA == nil && errB == nil && a == "web-a-1" && b == "web-b-1"
	})
	testkit.Eventually(t, "everything is well", func() bool { return well(l.Status(t.Context())) })

	if err := l.Cut("zone-b"); err != nil {
		t.Fatal(err)
	}
	s := l.Status(t.Context())
	if s.Zones[0].Link != "up" || s.Zones[1].Link != "cut" {
		t.Errorf("links are %s and %s, want up and cut", s.Zones[0].Link, s.Zones[1].Link)
	}
	// Serving needs neither the control plane nor the other zone.
	answers(t, l, "zone-a", "web-a-1")
	answers(t, l, "zone-b", "web-b-1")
	if reaches(t, "b-1", "10.200.0.2:6443") || reaches(t, "b-1", "10.200.1.11:8080") || reaches(t, "b-1", "[fd00:200:1::11]:8080") {
		t.Error("what is cut off reaches others")
	}

	// The agent of a zone that is cut off dies, and comes back without anybody.
	if err := l.Kill(t.Context(), "b-1"); err != nil {
		t.Fatal(err)
	}
	if s := l.Status(t.Context()); s.Zones[1].Nodes[0].Agent != "dead" || s.Zones[1].Failed == 0 {
		t.Errorf("after its agent was killed zone-b is %+v", s.Zones[1])
	}
	if err := l.Kill(t.Context(), "b-1"); err == nil {
		t.Error("an agent that is dead was killed")
	}
	if err := l.Heal(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "what is healed reaches the control plane", func() bool { return reaches(t, "b-1", "10.200.0.2:6443") })
	testkit.Eventually(t, "everything is well again", func() bool { return well(l.Status(t.Context())) })
}

// TestIPv4Only is a lab as on a machine without IPv6: nothing of it is left out but
// the second family.
func TestIPv4Only(t *testing.T) {
	l := start(t, lab.Spec{Zones: 1, Nodes: 1, Mode: "userspace", IPv4Only: true})
	testkit.Eventually(t, "everything is well", func() bool { return well(l.Status(t.Context())) })
	s := l.Status(t.Context())
	if z := s.Zones[0]; s.VIP6 != "" || z.IPv6 != nil || z.Nodes[0].Address6 != "" {
		t.Errorf("IPv6 in a lab of IPv4: %+v", s)
	}
	consoleOf(t)
	again, err := lab.Open(labName()) // opening it again yields the same
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Heal(t.Context(), ""); err != nil || again.VIP6() != "" {
		t.Errorf("healed: %v; IPv6 address %q", err, again.VIP6())
	}
}

// consoleOf the lab: the pages and what they ask for are served on this machine's loopback.
func consoleOf(t *testing.T) {
	t.Helper()
	p := testkit.Start(t, nil, testkit.Binary(t), "lab", "console", "--lab", labName())
	at, err := url.Parse(strings.TrimSpace(p.FirstLine()))
	if err != nil {
		t.Fatal(err)
	}
	origin := "http://" + at.Host
	ask := func(method, path, body, secret string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, origin+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if method == http.MethodPost {
			r.Header.Set("Origin", origin)
			r.Header.Set("Content-Type", "application/json")
		}
		if secret != "" {
			r.Header.Set("Authorization", "Bearer "+secret)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	if code, text := ask(http.MethodGet, at.Path, "", ""); code != http.StatusOK || !strings.Contains(text, "<!doctype html>") {
		t.Errorf("%s: %d %.200s", at.Path, code, text)
	}
	var session struct{ Secret string }
	code, text := ask(http.MethodPost, at.Path+"session", `{"code": "`+strings.TrimPrefix(at.Fragment, "code=")+`"}`, "")
	if err := json.Unmarshal([]byte(text), &session); err != nil || code != http.StatusOK {
		t.Fatalf("exchange of the code: %d %.200s", code, text)
	}
	if code, text := ask(http.MethodGet, "/proxima/v1/summary/zones", "", session.Secret); code != http.StatusOK || !strings.Contains(text, `"zone-a"`) {
		t.Errorf("zones: %d %.300s", code, text)
	}
}

// TestIPv6Only is a lab without IPv4: joining, DNS, the mode of the kernel and the sample
// service are of IPv6. PROXIMA_SOAK=1: with global and two zones, also the way between zones,
// and rows of the table of failures.
func TestIPv6Only(t *testing.T) {
	if !netns.HasIPv6() {
		t.Skip("this kernel has no IPv6")
	}
	if os.Getenv("PROXIMA_SOAK") == "" {
		l := start(t, lab.Spec{Zones: 1, Nodes: 1, Mode: "auto", IPv6Only: true})
		noIPv4(t, l.Nodes()[0], "control", "client-a")
		testkit.Eventually(t, "everything is well", func() bool { return well(l.Status(t.Context())) })
		return
	}
	l := &zonesLab{Lab: start(t, lab.Spec{Zones: 2, Nodes: 1, Mode: "auto", IPv6Only: true, Global: true}), t: t}
	noIPv4(t, "control", "control-a", "control-b", "gateway-a", "gateway-b", "a-1", "b-1", "client-a", "client-b")
	l.well()
	l.failover()
	l.linkCut()
	l.globalEmptied()
	again, err := lab.Open(labName()) // opening it again yields the same
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Heal(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "everything is well after another process healed it", func() bool {
		s := again.Status(t.Context())
		return s.IPv6Only && wellInZones(s)
	})
}

// noIPv4: machines of the lab have no address of IPv4 but that of the loopback.
func noIPv4(t *testing.T, machines ...string) {
	t.Helper()
	for _, machine := range machines {
		ns := inNamespace(t, machine)
		err := ns.Do(func() error {
			all, err := net.InterfaceAddrs()
			for _, a := range all {
				if p, err := netip.ParsePrefix(a.String()); err != nil || p.Addr().Is4() && !p.Addr().IsLoopback() {
					t.Errorf("%s has address %s, %v", machine, a, err)
				}
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		_ = ns.Close()
	}
}

func well(s *lab.Status) bool {
	for _, z := range s.Zones {
		if z.Link != "up" || !served(&z.Served) || (s.VIP6 != "" && !served(z.IPv6)) {
			return false
		}
		for _, n := range z.Nodes {
			if !slices.Equal(n.Names, addressesOf(s)) || n.Ready != "True" || n.Link != "up" || n.Agent != "running" || n.WorkloadProcess != "running" {
				return false
			}
		}
	}
	return s.ControlPlane == "running"
}

func served(s *lab.Served) bool { return s != nil && s.Failed == 0 && len(s.Answered) > 0 }

// addressesOf the sample service, as its name has them.
func addressesOf(s *lab.Status) []string {
	out := []string{hostOf(s.VIP)}
	if s.VIP6 != "" {
		out = append(out, hostOf(s.VIP6))
	}
	return out
}

func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return host
}

// reaches reports whether a connection from a node of the lab succeeds within half a
// second: what should, is to be asked again on a slow machine.
func reaches(t *testing.T, node, address string) bool {
	t.Helper()
	ns, err := netns.Open("pxlab-" + labName() + "-" + node)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	c, err := ns.DialContext(ctx, "tcp", address)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// TestKilledStarter: a process that has a lab of its own dies; the next Start
// clears away what it left. Down finds everything without the lab's files, too.
func TestKilledStarter(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	const inside = "PROXIMA_TEST_LAB"
	if name := os.Getenv(inside); name != "" {
		_, _ = lab.Start(t.Context(), lab.Spec{
			Name: name, Zones: 1, Nodes: 1, Executable: testkit.Binary(t), Mode: "userspace", Temporary: true,
			Progress: func(s string) {
				if strings.HasPrefix(s, "node:") { // half-way: agents run, workloads do not
					fmt.Println("half-way")
					select {}
				}
			},
		})
		return
	}
	testkit.Binary(t)
	for _, remove := range []bool{false, true} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledStarter$")
		cmd.Env = append(os.Environ(), inside+"="+labName())
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		if n, err := out.Read(buf); !strings.HasPrefix(string(buf[:n]), "half-way") {
			t.Fatalf("the starter printed %q, %v", buf[:n], err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if names, _ := netns.List("pxlab-" + labName()); len(names) == 0 {
			t.Fatal("a killed starter left nothing: this test tests nothing")
		}
		if remove {
			if err := os.RemoveAll(filepath.Join("/run/proxima/lab", labName())); err != nil {
				t.Fatal(err)
			}
			if found, err := lab.Down(t.Context(), labName()); !found || err != nil {
				t.Errorf("Down without the lab's files: %v, %v", found, err)
			}
		} else if _, err := lab.Start(t.Context(), lab.Spec{Name: labName(), Zones: 1, Nodes: 1, Executable: "/nonexistent"}); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
			t.Errorf("a lab without an executable: %v", err) // and what was left is gone, too
		}
		nothingLeft(t)
	}
	if found, err := lab.Down(t.Context(), labName()); found || err != nil {
		t.Errorf("Down of what is not there: %v, %v", found, err)
	}
}

func TestNames(t *testing.T) {
	for _, spec := range []lab.Spec{{Name: "A"}, {Name: "a-b"}, {Name: "ninechars"}, {Zones: 10}, {Nodes: -1}, {}} {
		if _, err := lab.Start(t.Context(), spec); err == nil {
			t.Errorf("%+v is accepted", spec)
		}
	}
	var missing *lab.NotUpError
	if _, err := lab.Open("nosuch"); !errors.As(err, &missing) {
		t.Errorf("opening what is not there: %v", err)
	}
	if _, err := lab.Open("../etc"); err == nil {
		t.Error("a path is taken for a name")
	}
}
