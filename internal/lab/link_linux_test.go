package lab_test

import (
	"encoding/binary"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestLink: a path gets a delay and a loss, in both families, while others stay as they were;
// the relay is shown, replaced, restarted, and gone after a reset. Two machines of a zone are
// cut off from each other alone.
func TestLink(t *testing.T) {
	l := start(t, lab.Spec{Zones: 2, Nodes: 2, Mode: "userspace"})
	const delay = 40 * time.Millisecond
	if err := l.Link(t.Context(), "zone-a", "zone-b", lab.Quality{Delay: delay}); err != nil {
		t.Fatal(err)
	}
	want := []lab.LinkStatus{{From: "zone-a", To: "zone-b", Delay: "40ms", Loss: "0%", Relay: "running"}}
	if s := l.Status(t.Context()); !slices.Equal(s.Links, want) {
		t.Errorf("links: %+v, want %+v", s.Links, want)
	}
	for _, vip := range []string{"10.200.2.11:8080", "[fd00:200:2::11]:8080"} {
		if l.VIP6() == "" && vip[0] == '[' {
			continue
		}
		if took := connected(t, "client-a", vip); took < 2*delay {
			t.Errorf("a round trip to %s took %s, want at least %s", vip, took, 2*delay)
		}
	}
	quick := func() bool { return connected(t, "client-a", "10.200.1.12:8080") < 2*delay }
	testkit.Eventually(t, "the own zone is as near as ever", quick)

	// Another delay replaces it, also by the names in the other order; the relay dies and is
	// started again.
	if err := l.Link(t.Context(), "zone-b", "zone-a", lab.Quality{Delay: 2 * delay, Loss: 0.5}); err != nil {
		t.Fatal(err)
	}
	if s := l.Status(t.Context()).Links; len(s) != 1 || s[0].Delay != "80ms" || s[0].Loss != "50%" {
		t.Errorf("links: %+v", s)
	}
	if lost := lost(t, "client-a", "10.200.2.11", 200); lost < 60 || lost > 140 {
		t.Errorf("%d of 200 packets were lost, want about half", lost)
	}
	killRelay(t)
	testkit.Eventually(t, "without its relay the path is as it was", func() bool { return connected(t, "client-a", "10.200.2.11:8080") < 2*delay })
	if s := l.Status(t.Context()).Links; len(s) != 1 || s[0].Relay != "dead" {
		t.Errorf("links: %+v", s)
	}
	if err := l.Heal(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if s := l.Status(t.Context()).Links; len(s) != 1 || s[0].Relay != "running" {
		t.Errorf("links: %+v", s)
	}
	if err := l.Link(t.Context(), "zone-a", "zone-b", lab.Quality{}); err != nil {
		t.Fatal(err)
	}
	if s := l.Status(t.Context()).Links; len(s) != 0 {
		t.Errorf("links: %+v", s)
	}
	testkit.Eventually(t, "the path is as it was", func() bool { return connected(t, "client-a", "10.200.2.11:8080") < 2*delay })

	for _, bad := range [][2]string{{"a-1", "a-2"}, {"zone-a", "a-1"}, {"zone-a", "zone-a"}, {"zone-a", "nowhere"}} {
		if err := l.Link(t.Context(), bad[0], bad[1], lab.Quality{Delay: delay}); err == nil {
			t.Errorf("a link between %s and %s", bad[0], bad[1])
		}
	}

	if err := l.CutBetween("a-1", "a-2"); err != nil {
		t.Fatal(err)
	}
	if reaches(t, "a-1", "10.200.1.12:8080") || reaches(t, "a-2", "10.200.1.11:8080") || !reaches(t, "a-1", "10.200.2.11:8080") {
		t.Error("a-1 and a-2 are not the two that are cut off from each other")
	}
	if s := l.Status(t.Context()); len(s.Cuts) != 1 {
		t.Errorf("cuts: %v", s.Cuts)
	}
	if err := l.Heal(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "they reach each other", func() bool { return reaches(t, "a-1", "10.200.1.12:8080") })
	if s := l.Status(t.Context()); len(s.Cuts) != 0 {
		t.Errorf("cuts: %v", s.Cuts)
	}
}

// connected is how long a connection from a place takes.
func connected(t *testing.T, place, address string) time.Duration {
	t.Helper()
	ns := inNamespace(t, place)
	defer ns.Close()
	begin := time.Now()
	c, err := ns.DialContext(t.Context(), "tcp", address)
	if err != nil {
		return -1
	}
	_ = c.Close()
	return time.Since(begin)
}

// lost counts packets that do not reach an address of node b-1.
func lost(t *testing.T, from, to string, packets int) int {
	t.Helper()
	there, here := inNamespace(t, "b-1"), inNamespace(t, from)
	defer there.Close()
	defer here.Close()
	server, err := there.ListenPacket("udp", net.JoinHostPort(to, "9999"))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := here.DialContext(t.Context(), "udp", net.JoinHostPort(to, "9999"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range packets {
		if _, err := client.Write(binary.BigEndian.AppendUint32(nil, uint32(i))); err != nil {
			t.Fatal(err)
		}
	}
	got, buf := 0, make([]byte, 16)
	for {
		// Much longer than the delay, also on a busy computer.
		if err := server.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := server.ReadFrom(buf); err != nil {
			return packets - got
		}
		got++
	}
}

// killRelay ends the processes in the router's namespace: the relay alone is there.
func killRelay(t *testing.T) {
	t.Helper()
	ns := inNamespace(t, "core")
	defer ns.Close()
	if pids, err := ns.Processes(); err != nil || len(pids) != 1 {
		t.Fatalf("processes of the router: %v, %v", pids, err)
	}
	if err := ns.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
}
