package iptables

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// realMode works in a namespace of the test.
func realMode(t *testing.T, v Variant, ns *netns.NS, edit func(*Options)) *Mode {
	t.Helper()
	opts := testOptions()
	opts.Variant, opts.Inside = v, ns.Do
	if edit != nil {
		edit(&opts)
	}
	m, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(context.Background()) })
	return m
}

// readBack is our state in the kernel. Built-in chains have
// the rules of the mode in them alone.
func readBack(t *testing.T, k kernel) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, f := range families {
		for _, name := range tables {
			if there, err := k.holds(t.Context(), f, name); err != nil || !there {
				continue
			}
			saved, err := k.save(t.Context(), f, name, false)
			if err != nil {
				t.Fatal(err)
			}
			s := parse(saved)
			for chain, text := range s.chains {
				out[fmt.Sprint(f, " ", name, " ", chain)] = text
			}
			for _, h := range s.hooks {
				out[fmt.Sprint(f, " ", name, " ", h.chain)] += h.rule + "\n"
			}
		}
	}
	names, err := k.sets()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	if len(names) > 0 {
		out["sets"] = strings.Join(names, "\n")
	}
	return out
}

func forBoth(t *testing.T, f func(t *testing.T, v Variant)) {
	for _, v := range []Variant{Legacy, NFT} {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			f(t, v)
		})
	}
}

// settle waits until the kernel has let go of sets, which it does in its own time,
// and the mode has removed them.
func record(t *testing.T, m *Mode) {
	t.Helper()
	for range 200 {
		m.mu.Lock()
		left := 0
		for _, r := range m.rulesets {
			r.dropSets()
			left += len(r.unused)
		}
		m.mu.Unlock()
		if left == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond) // the kernel sends no notification
	}
	t.Error("unused sets are left")
}

// TestKernelHoldsWhatIsMeant: after random histories and restarts the kernel's own
// words are those of the desired state, and of a fresh install of the last one.
func TestKernelHoldsWhatIsMeant(t *testing.T) {
	forBoth(t, func(t *testing.T, v Variant) {
		for seed := range uint64(3) {
			ns, other := netns.New(t, "pipt-a"), netns.New(t, "pipt-b")
			h := newHistory(seed)
			m := realMode(t, v, ns, nil)
			for i := range 8 {
				if i == 5 {
					_ = m.Close(t.Context())
					m = realMode(t, v, ns, nil)
					apply(t, m, h.all()...)
				}
				apply(t, m, h.step(30)...)
			}
			record(t, m)
			fresh := realMode(t, v, other, nil)
			apply(t, fresh, h.all()...)
			want, got := readBack(t, fresh.kernel), readBack(t, m.kernel)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("seed %d: fresh install (-) and history (+) differ:\n%s", seed, diff)
			}
			printsDesired(t, m, got)
		}
	})
}

// printsDesired compares what the kernel says with the texts of the mode.
func printsDesired(t *testing.T, m *Mode, got map[string]string) {
	t.Helper()
	for _, r := range m.rulesets {
		for _, tb := range r.tables() {
			for chain, text := range tb.desired {
				if have := got[fmt.Sprint(r.config.family, " ", tb.name, " ", chain)]; have != text {
					t.Errorf("%s: the kernel says\n%swant\n%s", chain, have, text)
				}
			}
		}
	}
}

// TestKernelPrintsAddressesSo: addresses, and the masks of tries that split by any
// of their bits, are in the kernel's words. A difference would be repaired for ever.
func TestKernelPrintsAddressesSo(t *testing.T) {
	forBoth(t, func(t *testing.T, v Variant) {
		m := realMode(t, v, netns.New(t, "pipt-print"), nil)
		var all []proxy.Change
		for i := range 60 {
			s := state(i, fmt.Sprintf("[::%x:7]:80", 1+i), fmt.Sprintf("10.7.0.%d:80", 1+i))
			s.IPv6.Cluster[0].Local, s.IPv4.Cluster[0].Local = true, true
			s.Port.Port += uint16(i)
			s.Service.Ports[0] = s.Port
			s.Service.ExternalIPs = []netip.Addr{
				nthAddr("192.0.2.1", 4*i), nthAddr("fd96::", i<<16), nthAddr("::", (1+i)<<16), nthAddr("fd96::", i<<32),
			}
			// These differ in the highest bits alone, and in their ports.
			for _, a := range []string{"5.0.0.9", "69.0.0.9", "133.0.0.9", "197.0.0.9", "2001::9", "6001::9", "a001::9", "e001::9"} {
				s.Service.ExternalIPs = append(s.Service.ExternalIPs, netip.MustParseAddr(a))
			}
			all = append(all, change(s))
		}
		apply(t, m, all...)
		printsDesired(t, m, readBack(t, m.kernel))
	})
}

// TestRestartTouchesNothing, nor does a check that finds all well.
func TestRestartTouchesNothing(t *testing.T) {
	forBoth(t, func(t *testing.T, v Variant) {
		ns := netns.New(t, "pipt-restart")
		h := newHistory(7)
		m := realMode(t, v, ns, nil)
		apply(t, m, h.step(30)...)
		apply(t, m, h.all()...)
		record(t, m)
		before, err := m.kernel.stamp(v4)
		if err != nil {
			t.Fatal(err)
		}
		_ = m.Close(t.Context())
		m = realMode(t, v, ns, nil)
		apply(t, m, h.all()...)
		m.mu.Lock()
		m.check(t.Context(), time.Now().Add(time.Hour))
		m.mu.Unlock()
		if after, err := m.kernel.stamp(v4); err != nil || after != before {
			t.Errorf("tables went from %v to %v, %v", before, after, err)
		}
	})
}

func TestVariantChangeAndCleanup(t *testing.T) {
	forBoth(t, func(t *testing.T, v Variant) {
		other := map[Variant]Variant{Legacy: NFT, NFT: Legacy}[v]
		ns := netns.New(t, "pipt-variant")
		h := newHistory(3)
		h.step(30)
		first := realMode(t, other, ns, nil)
		apply(t, first, h.all()...)
		_ = first.Close(t.Context())
		second := realMode(t, v, ns, nil)
		apply(t, second, h.all()...)
		old, err := openSystem(other, ns.Do)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = old.close() }()
		for what := range readBack(t, old) {
			if what != "sets" {
				t.Errorf("left of the other variant: %s", what)
			}
		}
		if auto := realMode(t, Auto, ns, nil); auto.Variant() != v {
			t.Errorf("a mode that may choose takes %s, want the one that is in use", auto.Variant())
		}
		_ = second.Close(t.Context())
		for range 2 {
			if err := Cleanup(t.Context(), Options{Inside: ns.Do}); err != nil {
				t.Error(err)
			}
		}
		again := realMode(t, v, ns, nil)
		for what := range maps.Keys(readBack(t, again.kernel)) {
			t.Errorf("left after Cleanup: %s", what)
		}
	})
}

func TestCheckHere(t *testing.T) {
	forBoth(t, func(t *testing.T, v Variant) {
		ns := netns.New(t, "pipt-check")
		if err := Check(t.Context(), Options{Variant: v, Inside: ns.Do}); err != nil {
			t.Error(err)
		}
		m := realMode(t, v, ns, nil)
		if left := readBack(t, m.kernel); len(left) > 0 {
			t.Errorf("Check left %v", left)
		}
	})
	if err := Check(t.Context(), Options{Variant: "ebtables"}); err == nil || !strings.Contains(err.Error(), "ebtables") {
		t.Errorf("an unknown variant: %v", err)
	}
}

func TestCommandsThatAreMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := Check(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), "Debian package iptables") {
		t.Errorf("got %v, want the package to install", err)
	}
	if err := Cleanup(t.Context(), Options{}); err != nil {
		t.Errorf("Cleanup without commands: %v", err)
	}
}

// TestStamp: every change of either table by anybody shows.
func TestStamp(t *testing.T) {
	forBoth(t, func(t *testing.T, v Variant) {
		ns := netns.New(t, "pipt-stamp")
		m := realMode(t, v, ns, nil)
		apply(t, m, change(state(1, "10.244.0.1:80")))
		seen := map[stamp]bool{}
		for _, args := range [][]string{
			nil,
			{"-t", "nat", "-A", "OUTPUT", "-p", "udp", "-j", "ACCEPT"},
			{"-t", "filter", "-A", "OUTPUT", "-p", "udp", "-j", "ACCEPT"},
			{"-t", "nat", "-F", chainServices},
			{"-t", "nat", "-F"},
		} {
			if args != nil {
				ns.Run("iptables-"+string(v), append([]string{"-w"}, args...)...)
			}
			s, err := m.kernel.stamp(v4)
			if err != nil || seen[s] {
				t.Errorf("after %v: %v, %v, seen before: %v", args, s, err, seen[s])
			}
			seen[s] = true
		}
	})
}

// TestAffinityHasNoLimitOfClients, where kube-proxy's is 100 per endpoint.
func TestAffinityHasNoLimitOfClients(t *testing.T) {
	forBoth(t, func(t *testing.T, v Variant) {
		ns := netns.New(t, "pipt-clients")
		ns.Run("ip", "route", "add", "default", "dev", "lo")
		ns.Run("ip", "route", "add", "local", "10.8.0.0/16", "dev", "lo")
		s := state(1)
		s.Service.AffinityTimeout = time.Hour
		s.Service.ClusterIPs = s.Service.ClusterIPs[:1]
		s.IPv4.NoCluster = proxy.Accept
		var hosts [3]chan string
		for i := range hosts {
			e := fmt.Sprintf("10.7.0.%d:80", i+1)
			ns.Addr("lo", fmt.Sprintf("10.7.0.%d/32", i+1))
			ln, err := ns.Listen("tcp", e)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = ln.Close() })
			hosts[i] = make(chan string, 1)
			go func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					hosts[i] <- c.RemoteAddr().String()
					_ = c.Close()
				}
			}()
			s.IPv4.Cluster = append(s.IPv4.Cluster, target(e))
		}
		m := realMode(t, v, ns, nil)
		apply(t, m, change(s))
		ask := func(i int) int {
			c, err := dialFrom(t, ns, fmt.Sprintf("10.8.%d.%d", i/250, 1+i%250), "10.96.0.1:80")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			select {
			case <-hosts[0]:
				return 0
			case <-hosts[1]:
				return 1
			case <-hosts[2]:
				return 2
			case <-time.After(5 * time.Second):
				t.Fatal("no backend answers")
				return -1
			}
		}
		const clients = 600
		var first [clients]int
		count := map[int]int{}
		for i := range clients {
			first[i] = ask(i)
			count[first[i]]++
		}
		if len(count) != 3 || count[0] <= 100 {
			t.Errorf("clients went to %v", count)
		}
		_ = m.Close(t.Context())
		m = realMode(t, v, ns, nil)
		apply(t, m, change(s))
		for i := range clients {
			if got := ask(i); got != first[i] {
				t.Fatalf("client %d went from %d to %d", i, first[i], got)
			}
		}
	})
}

func target(e string) proxy.Target {
	return proxy.Target{Addr: netip.MustParseAddrPort(e), Weight: 1}
}

func dialFrom(t *testing.T, ns *netns.NS, from, to string) (c net.Conn, err error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0)), Timeout: 5 * time.Second}
	err = ns.Do(func() error {
		c, err = d.DialContext(t.Context(), "tcp", to)
		return err
	})
	return c, err
}

// TestApplyNeedsNoResync: the kernel's signs distinguish our own changes from
// what others do, and chains that were written are known as if all had been read.
func TestApplyNeedsNoResync(t *testing.T) {
	forBoth(t, func(t *testing.T, v Variant) {
		ns := netns.New(t, "pipt-doubt")
		m := realMode(t, v, ns, nil)
		h := newHistory(11)
		for i := range 12 {
			apply(t, m, h.step(30)...)
			if i == 6 { // another program's, with nothing of ours to repair
				ns.Run("iptables-"+string(v), "-w", "-t", "nat", "-A", "PREROUTING", "-p", "udp", "-j", "ACCEPT")
				m.mu.Lock()
				m.check(t.Context(), m.watch.verified)
				m.mu.Unlock()
			}
			m.mu.Lock()
			now := m.watch.readStamps(m)
			for _, r := range m.rulesets {
				if m.watch.changed(r.config.family, now) {
					t.Errorf("change %d of %s: to be compared, from %v to %v", i, r.config.family, m.watch.stamps[r.config.family], now)
				}
				if v != NFT {
					continue
				}
				want, err := r.fingerprints()
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, m.watch.prints[r.config.family]); diff != "" {
					t.Errorf("change %d of %s: chains as they are (-) and as they are known (+):\n%s", i, r.config.family, diff)
				}
			}
			m.mu.Unlock()
		}
	})
}

// TestAcceptBeforeOurs: another program accepts everything before our jump. Connections
// arrive again after the next look, and its rule stays.
func TestAcceptBeforeOurs(t *testing.T) {
	forBoth(t, func(t *testing.T, v Variant) {
		ns := netns.New(t, "pipt-accept")
		m := realMode(t, v, ns, nil)
		apply(t, m, change(state(1, "10.7.0.1:80")))
		for chain, ours := range map[string]string{"PREROUTING": chainServices, "OUTPUT": chainServices, "POSTROUTING": chainPost} {
			for _, command := range []string{"iptables-", "ip6tables-"} {
				ns.Run(command+string(v), "-w", "-t", "nat", "-I", chain, "-j", "ACCEPT")
				m.mu.Lock()
				m.watch.rest = time.Time{}
				m.check(t.Context(), m.watch.verified)
				m.mu.Unlock()
				rules := strings.Split(strings.TrimSpace(ns.Run(command+string(v), "-w", "-t", "nat", "-S", chain)), "\n")[1:]
				if want := []string{"-A " + chain + " -j " + ours, "-A " + chain + " -j ACCEPT"}; !slices.Equal(rules, want) {
					t.Errorf("%s: %q, want %q", command+string(v), rules, want)
				}
			}
		}
	})
}

// TestFingerprints: every change shows, and what rules counted does not.
func TestFingerprints(t *testing.T) {
	ns := netns.New(t, "pipt-finger")
	ns.Addr("lo", "10.7.0.1/32")
	ns.Run("ip", "route", "add", "default", "dev", "lo")
	ln, err := ns.Listen("tcp", "10.7.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	m := realMode(t, NFT, ns, nil)
	apply(t, m, change(state(1, "10.7.0.1:80")))
	readStamps := func() map[string]map[string]fingerprint {
		t.Helper()
		out, err := m.rulesets[v4].fingerprints()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := readStamps()
	c, err := dialFrom(t, ns, "10.7.0.1", "10.96.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	for _, n := range m.Counts() {
		if n.Connections == 0 {
			t.Fatal("the connection is not counted, so the test does not test")
		}
	}
	if diff := cmp.Diff(before, readStamps()); diff != "" {
		t.Errorf("a connection changed chains:\n%s", diff)
	}
	for _, step := range []struct {
		args  string
		shows bool
	}{
		{"-A PREROUTING -p udp -j ACCEPT", false}, // others' rules in others' chains
		{"-I PREROUTING -p udp -j ACCEPT", true},  // it decides before ours
		{"-D PREROUTING 1", true},
		{"-I PREROUTING -p tcp --dport 8080 -j REDIRECT", false},
		{"-N THEIRS", false},
		{"-A PREROUTING -p sctp -j PROXIMA-SERVICES", true},
		{"-D PREROUTING -p sctp -j PROXIMA-SERVICES", true},
		{"-A PROXIMA-SERVICES -j ACCEPT", true},
		{"-R PROXIMA-SERVICES 1 -j ACCEPT", true},
		{"-N PROXIMA-OTHER", true},
		{"-X PROXIMA-OTHER", true},
		{"-F PROXIMA-T-ROOT", true},
		{"-F", true},
	} {
		before := readStamps()
		ns.Run("iptables-nft", append([]string{"-t", "nat"}, strings.Fields(step.args)...)...)
		if shows := !cmp.Equal(before, readStamps()); shows != step.shows {
			t.Errorf("%s: shows: %v", step.args, shows)
		}
	}
}
