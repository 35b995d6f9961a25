package iptables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// packet is what the tries look at.
type packet struct {
	dst   netip.Addr
	proto string
	port  uint16
}

// walk follows a packet through chains as the kernel does. It returns the target of
// the rule outside of the trie that took it, and how many rules it met.
func walk(t testing.TB, chains map[string]string, root string, p packet) (target string, met int) {
	t.Helper()
	for at := root; ; {
		next := ""
		for line := range strings.Lines(chains[at]) {
			words := strings.Fields(line)[2:]
			met++
			if !matches(t, words[:len(words)-2], p) {
				continue
			}
			next = words[len(words)-1]
			break
		}
		if _, ours := chains[next]; !ours {
			return next, met
		}
		at = next
	}
}

func matches(t testing.TB, words []string, p packet) bool {
	t.Helper()
	for i := 0; i < len(words); i += 2 {
		value := words[i+1]
		switch words[i] {
		case "-d", "-s":
			if !masked(t, value, p.dst) {
				return false
			}
		case "-p":
			if value != p.proto {
				return false
			}
		case "-m":
		case "--dport":
			low, high, ranged := strings.Cut(value, ":")
			if !ranged {
				high = low
			}
			a, err1 := strconv.Atoi(low)
			b, err2 := strconv.Atoi(high)
			if err1 != nil || err2 != nil {
				t.Fatalf("port %q", value)
			}
			if int(p.port) < a || int(p.port) > b {
				return false
			}
		default:
			t.Fatalf("unknown condition %q", words[i])
		}
	}
	return true
}

func masked(t testing.TB, cond string, a netip.Addr) bool {
	t.Helper()
	if p, err := netip.ParsePrefix(cond); err == nil {
		return p.Contains(a)
	}
	value, mask, _ := strings.Cut(cond, "/")
	v, m, b := netip.MustParseAddr(value).AsSlice(), netip.MustParseAddr(mask).AsSlice(), a.AsSlice()
	if len(v) != len(b) {
		return false
	}
	for i := range b {
		if b[i]&m[i] != v[i] {
			return false
		}
	}
	return true
}

// world is a trie with the chains that it reported.
type world struct {
	trie   *trie
	chains map[string]string
}

func newWorld(f family) *world {
	w := &world{newTrie(chainDispatch, f, "-d", f.digits()), map[string]string{chainDispatch + "ROOT": ""}}
	w.trie.pairs = true
	return w
}

func (w *world) set(rules map[key]string) (changed int) { return w.setPicks(rules, nil) }

func (w *world) setPicks(rules, picks map[key]string) (changed int) {
	out := map[string]*string{}
	w.trie.set(rules, picks, out)
	for chain, text := range out {
		if text == nil {
			if _, had := w.chains[chain]; had {
				changed++
			}
			delete(w.chains, chain)
			continue
		}
		if w.chains[chain] != *text {
			changed++
		}
		w.chains[chain] = *text
	}
	return changed
}

func frontend(a netip.Addr, p proxy.Protocol, port uint16) (key, string) {
	proto := strings.ToLower(string(p))
	return portKey(addrKey(a), p, port), fmt.Sprintf("-d %s -p %s -m %[2]s --dport %d -g %s:%[2]s:%[3]d", host(a), proto, port, a)
}

// picking is the same with n rules in the chain of picks, the last of which matches.
func picking(a netip.Addr, p proxy.Protocol, port uint16, n int) (k key, rule, picks string) {
	k, last := frontend(a, p, port)
	match, _, _ := strings.Cut(last, "-g ")
	never := match + "-p none -g never\n"
	return k, match + "-g " + chainPicks, strings.Repeat(never, n-1) + last
}

func rest(a netip.Addr) (key, string) {
	return restKey(a), "-d " + host(a) + " -g rest:" + a.String()
}

// population of virtual addresses and how many rules a packet may meet at most.
var populations = map[string]struct {
	n    int
	addr func(i int) netip.Addr
	most int
}{
	"few":                     {5, func(i int) netip.Addr { return nthAddr("10.96.0.0", i) }, 25},
	"sequential":              {10000, func(i int) netip.Addr { return nthAddr("10.96.0.0", i) }, 100},
	"random":                  {10000, func(i int) netip.Addr { return nthAddr("10.96.0.0", i*7919%65536) }, 100},
	"chosen: one low nibble":  {4096, func(i int) netip.Addr { return nthAddr("10.96.0.0", i*16) }, 100},
	"chosen: one low byte":    {2000, func(i int) netip.Addr { return nthAddr("10.0.0.0", i*256) }, 100},
	"chosen: high bits only":  {250, func(i int) netip.Addr { return nthAddr("1.0.0.1", i<<24) }, 100},
	"IPv6, sequential":        {10000, func(i int) netip.Addr { return nthAddr("fd96::", i) }, 100},
	"IPv6, chosen: high bits": {3000, func(i int) netip.Addr { return nthAddr("fd96::1", i<<40) }, 100},
}

func TestEveryPacketFindsItsRule(t *testing.T) {
	for name, p := range populations {
		t.Run(name, func(t *testing.T) {
			w := newWorld(familyOf(p.addr(0)))
			all, picksChain := map[key]string{}, map[key]string{}
			for i := range p.n {
				if i%2 == 1 {
					k, rule := frontend(p.addr(i), proxy.TCP, 443)
					all[k] = rule
				}
				k, rule, picks := picking(p.addr(i), proxy.TCP, 80, 3)
				all[k], picksChain[k] = rule, picks
				k, rule = rest(p.addr(i))
				all[k] = rule
			}
			w.setPicks(all, picksChain)
			worst, sum := 0, 0
			for i := range p.n {
				a := p.addr(i)
				got, met := walk(t, w.chains, chainDispatch+"ROOT", packet{a, "tcp", 80})
				if want := a.String() + ":tcp:80"; got != want {
					t.Fatalf("%s goes to %q, want %q", a, got, want)
				}
				worst, sum = max(worst, met), sum+met
				if got, _ := walk(t, w.chains, chainDispatch+"ROOT", packet{a, "udp", 80}); got != "rest:"+a.String() {
					t.Fatalf("another port of %s goes to %q", a, got)
				}
			}
			if got, _ := walk(t, w.chains, chainDispatch+"ROOT", packet{netip.MustParseAddr("192.0.2.77"), "tcp", 80}); got != "" {
				t.Errorf("an unassigned address goes to %q", got)
			}
			t.Logf("%d addresses: %d chains, at most %d rules for a packet, %d on average", p.n, len(w.chains), worst, sum/p.n)
			if worst > p.most {
				t.Errorf("a packet meets %d rules, want %d at most", worst, p.most)
			}
		})
	}
}

// One address with thousands of ports splits by port.
func TestManyPortsOfOneAddress(t *testing.T) {
	for _, withRest := range []bool{false, true} {
		w := newWorld(v4)
		a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.96.0.1")
		all := map[key]string{}
		put := func(k key, rule string) { all[k] = rule }
		for i := range 5000 {
			put(frontend(a, proxy.TCP, uint16(1000+i)))
		}
		put(frontend(a, proxy.UDP, 1000))
		put(frontend(b, proxy.TCP, 80))
		wantRest := ""
		if withRest {
			put(rest(a))
			wantRest = "rest:" + a.String()
		}
		w.set(all)
		for i := range 5000 {
			got, met := walk(t, w.chains, chainDispatch+"ROOT", packet{a, "tcp", uint16(1000 + i)})
			if want := fmt.Sprintf("%s:tcp:%d", a, 1000+i); got != want || met > 70 {
				t.Fatalf("port %d goes to %q after %d rules", 1000+i, got, met)
			}
		}
		for p, want := range map[packet]string{
			{a, "udp", 1000}: a.String() + ":udp:1000", {b, "tcp", 80}: b.String() + ":tcp:80",
			{a, "udp", 1001}: wantRest, {a, "tcp", 999}: wantRest, {a, "tcp", 6000}: wantRest,
			{a, "tcp", 65535}: wantRest, {a, "icmp", 0}: wantRest, {b, "tcp", 81}: "",
		} {
			if got, _ := walk(t, w.chains, chainDispatch+"ROOT", p); got != want {
				t.Errorf("rest %v: %v goes to %q, want %q", withRest, p, got, want)
			}
		}
	}
}

// TestTrieForgetsItsHistory compares with a trie made at once, after every change.
func TestTrieForgetsItsHistory(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := newWorld(v4)
		current, picksChain := map[key]string{}, map[key]string{}
		bases := []string{"10.96.0.0", "10.96.1.0", "192.0.2.0"}
		for step := range 60 {
			changes, picks := map[key]string{}, map[key]string{}
			for range 1 + r.IntN(30) {
				a := nthAddr(bases[r.IntN(len(bases))], r.IntN(64)*(1+r.IntN(2)*15))
				k, rule := frontend(a, []proxy.Protocol{proxy.TCP, proxy.UDP}[r.IntN(2)], uint16(80+r.IntN(20)*(1+r.IntN(30))))
				delete(picks, k)
				switch r.IntN(4) {
				case 0:
					k, rule = rest(a)
				case 1:
					var text string
					k, rule, text = picking(a, proxy.TCP, uint16(80+r.IntN(20)), 1+r.IntN(4))
					picks[k] = text
				}
				if r.IntN(5) < 2+step/20 {
					rule = ""
				}
				changes[k] = rule
			}
			if step%10 == 9 { // most at once
				for k := range current {
					if r.IntN(8) > 0 {
						changes[k] = ""
					}
				}
			}
			for k, rule := range changes {
				if current[k], picksChain[k] = rule, picks[k]; rule == "" {
					delete(current, k)
				}
			}
			w.setPicks(changes, picks)
			fresh := newWorld(v4)
			fresh.setPicks(current, picksChain)
			if diff := cmp.Diff(fresh.chains, w.chains); diff != "" {
				t.Fatalf("seed %d, step %d: fresh (-) and changed (+) differ:\n%s", seed, step, diff)
			}
		}
	}
}

func TestOneChangeTouchesOnePath(t *testing.T) {
	w := newWorld(v4)
	all := map[key]string{}
	for i := range 10000 {
		k, rule := frontend(nthAddr("10.96.0.0", i), proxy.TCP, 80)
		all[k] = rule
	}
	w.set(all)
	for i := range 200 {
		k, rule := frontend(nthAddr("10.96.0.0", 20000+37*i), proxy.TCP, 80)
		if n := w.set(map[key]string{k: rule}); n > 8 {
			t.Errorf("adding a rule changed %d chains", n)
		}
		if n := w.set(map[key]string{k: ""}); n > 8 {
			t.Errorf("removing a rule changed %d chains", n)
		}
	}
}

func TestChainNames(t *testing.T) {
	w := newWorld(v6)
	all := map[key]string{}
	r := rand.New(rand.NewPCG(1, 1))
	for range 3000 {
		var b [16]byte
		for i := range b { // few differences, anywhere
			if r.IntN(8) == 0 {
				b[i] = byte(1 << r.IntN(8))
			}
		}
		k, rule := frontend(netip.AddrFrom16(b), proxy.TCP, 80)
		all[k] = rule
	}
	w.set(all)
	for _, name := range slices.Sorted(maps.Keys(w.chains)) {
		if len(name) > 28 {
			t.Errorf("%s is too long for a chain", name)
		}
	}
	for _, rule := range all {
		a, _, _ := strings.Cut(strings.Fields(rule)[1], "/")
		addr := netip.MustParseAddr(a)
		if got, _ := walk(t, w.chains, chainDispatch+"ROOT", packet{addr, "tcp", 80}); got != addr.String()+":tcp:80" {
			t.Fatalf("%s goes to %q", addr, got)
		}
	}
}

// The rest of an address is in every chain below the one where its ports split.
func TestRestComesAndGoes(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.1")
	all := map[key]string{}
	for i := range 300 {
		k, rule := frontend(a, proxy.TCP, uint16(1000+i))
		all[k] = rule
	}
	k, rule := frontend(a, proxy.UDP, 1000) // so that it splits by protocol either way
	all[k] = rule
	w := newWorld(v4)
	w.set(all)
	for _, there := range []bool{true, false} {
		k, rule := rest(a)
		if !there {
			rule = ""
		}
		w.set(map[key]string{k: rule})
		if all[k] = rule; !there {
			delete(all, k)
		}
		fresh := newWorld(v4)
		fresh.set(all)
		for chain, want := range fresh.chains {
			if got := w.chains[chain]; got != want {
				t.Fatalf("rest there: %v: chain is\n%s\nwant\n%s", there, got, want)
			}
		}
	}
}
