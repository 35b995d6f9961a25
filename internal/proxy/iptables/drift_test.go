package iptables

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

func TestDrift(t *testing.T) {
	for _, unprinted := range []bool{false, true} {
		t.Run(fmt.Sprintf("only by reading all: %v", unprinted), func(t *testing.T) {
			k := newFake()
			k.unprinted = unprinted
			drift(t, k)
		})
	}
}

func drift(t *testing.T, k *fakeKernel) {
	opts := testOptions()
	opts.VerifyInterval = time.Minute
	m, _ := onFake(t, k, opts)
	apply(t, m, change(state(1, "10.244.0.1:80")))
	want, saved := k.everything(), k.saved
	m.watch.verified = time.Now()
	now := time.Now()
	for name, tamper := range map[string]func(t *fakeTable){
		"a chain gone": func(t *fakeTable) {
			t.chains["PREROUTING"], t.chains["OUTPUT"] = nil, nil
			delete(t.chains, chainServices)
		},
		"a chain of our prefix": func(t *fakeTable) { t.chains[prefix+"THEIRS"] = []string{"-j ACCEPT"} },
		"flushed": func(t *fakeTable) {
			for c := range t.chains {
				t.chains[c] = nil
			}
		},
		"a rule gone":     func(t *fakeTable) { t.chains[chainServices] = t.chains[chainServices][1:] },
		"the way in gone": func(t *fakeTable) { t.chains["PREROUTING"] = nil },
		"the way in twice": func(t *fakeTable) {
			t.chains["PREROUTING"] = append(t.chains["PREROUTING"], t.chains["PREROUTING"]...)
		},
		"a stranger that leads to us": func(t *fakeTable) { t.chains["INPUT"] = []string{"-j " + chainServices} },
	} {
		tamper(k.tables[v4][tableNAT])
		k.changes++
		now = now.Add(time.Second)
		m.watch.rest = time.Time{}
		m.check(t.Context(), now)
		if diff := cmp.Diff(want, k.everything()); diff != "" {
			t.Errorf("%s: not repaired:\n%s", name, diff)
		}
	}
	// Two of the cases need the words of the rules.
	if took := k.saved - saved; !k.unprinted && took != 2*len(tables) {
		t.Errorf("repairs took %d readings of tables, want %d", took, 2*len(tables))
	}
	// A repair is checked once more: another change may have come in between.
	m.watch.rest = time.Time{}
	m.check(t.Context(), now.Add(time.Millisecond))
	// A change that leaves no sign is found when it is time.
	k.tables[v4][tableNAT].chains[chainServices][0] = "-j ACCEPT"
	m.check(t.Context(), now.Add(time.Second))
	if k.everything() == want {
		t.Error("the test does not test: the change was seen at once")
	}
	m.check(t.Context(), now.Add(2*time.Minute))
	if diff := cmp.Diff(want, k.everything()); diff != "" {
		t.Errorf("not repaired when it was time:\n%s", diff)
	}
}

// TestChangeDuringApply: what another program changes since the last check, or just
// when Apply is done, is not taken for ours.
func TestChangeDuringApply(t *testing.T) {
	flush := func(k *fakeKernel) {
		for c := range k.tables[v4][tableNAT].chains {
			k.tables[v4][tableNAT].chains[c] = nil
		}
		k.changes++
	}
	for _, unprinted := range []bool{false, true} {
		for when, tamper := range map[string]func(k *fakeKernel){
			"before": flush,
			"at the end": func(k *fakeKernel) {
				k.fault = func(op string) error {
					if op == "restored" {
						k.fault = func(string) error { return nil }
						flush(k)
					}
					return nil
				}
			},
		} {
			t.Run(fmt.Sprintf("%s, only by reading all: %v", when, unprinted), func(t *testing.T) {
				k, fresh := newFake(), newFake()
				k.unprinted = unprinted
				all := []proxy.Change{change(state(1, "10.244.0.1:80")), change(state(2, "10.244.0.2:80"))}
				m, _ := onFake(t, k, testOptions())
				apply(t, m, all[0])
				tamper(k)
				apply(t, m, all[1])
				m.check(t.Context(), m.watch.verified.Add(time.Second))
				m2, _ := onFake(t, fresh, testOptions())
				apply(t, m2, all...)
				if diff := cmp.Diff(fresh.everything(), k.everything()); diff != "" {
					t.Errorf("not repaired at the next look:\n%s", diff)
				}
			})
		}
	}
}

// TestRestEndsForAFlush: after a comparison the next one has to wait, but not if the
// way in is broken.
func TestRestEndsForAFlush(t *testing.T) {
	k := newFake()
	m, _ := onFake(t, k, testOptions())
	apply(t, m, change(state(1, "10.244.0.1:80")))
	now := time.Now()
	m.watch.verified = now
	want := k.everything()
	for _, broken := range []struct {
		chain string
		waits bool
	}{{"PREROUTING", false}, {chainServices, false}, {chainPicks + "ROOT", true}} {
		m.watch.rest = now.Add(time.Hour)
		k.tables[v4][tableNAT].chains[broken.chain] = nil
		k.changes++
		m.check(t.Context(), now)
		if waits := k.everything() != want; waits != broken.waits {
			t.Errorf("%s: its repair waits: %v", broken.chain, waits)
		}
		m.watch.rest = time.Time{}
		m.check(t.Context(), now)
		m.check(t.Context(), now)
		if diff := cmp.Diff(want, k.everything()); diff != "" {
			t.Errorf("%s: not repaired:\n%s", broken.chain, diff)
		}
	}
}

// TestNothingIsComparedInVain: our own changes are no reason to compare.
func TestNothingIsComparedInVain(t *testing.T) {
	k := newFake()
	m, _ := onFake(t, k, testOptions())
	h := newHistory(5)
	for range 20 {
		apply(t, m, h.step(30)...)
		saved, asked := k.saved, 0
		k.fault = func(string) error { asked++; return nil }
		m.check(t.Context(), m.watch.verified)
		k.fault = func(string) error { return nil }
		if k.saved != saved || asked > 0 {
			t.Fatal("tables were compared after a change of ours alone")
		}
	}
}

// TestForeignRulesStay: others' chains and rules are never touched.
func TestForeignRulesStay(t *testing.T) {
	k := newFake()
	theirs := map[string][]string{"PREROUTING": {"-j DOCKER"}, "DOCKER": {"-p tcp -j ACCEPT"}, "OUTPUT": {"-p udp -j ACCEPT"}}
	for c, rules := range theirs {
		k.tables[v4][tableNAT].chains[c] = rules
	}
	before := k.everything()
	m, _ := onFake(t, k, testOptions())
	apply(t, m, change(state(1, "10.244.0.1:80")))
	if got := k.tables[v4][tableNAT].chains["PREROUTING"]; got[0] != "-j "+chainServices || got[1] != "-j DOCKER" {
		t.Errorf("PREROUTING is %v", got)
	}
	if err := cleanup(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, k.everything()); diff != "" {
		t.Errorf("foreign rules changed: %s", diff)
	}
}

// TestBlockedHookMoves: a rule of another program that decides before our jump leaves no
// Service, so ours comes first again; jumps of others may stand before it.
func TestBlockedHookMoves(t *testing.T) {
	const ours, jump = "-j " + chainServices, "-j DOCKER"
	for _, unprinted := range []bool{false, true} {
		for name, c := range map[string]struct{ theirs, want []string }{
			"all are accepted":      {[]string{"-j ACCEPT", ours}, []string{ours, "-j ACCEPT"}},
			"some are accepted":     {[]string{"-s 10.0.0.0/8 -p tcp -j ACCEPT", jump, ours}, []string{ours, "-s 10.0.0.0/8 -p tcp -j ACCEPT", jump}},
			"return":                {[]string{jump, "-j RETURN", ours}, []string{ours, jump, "-j RETURN"}},
			"ours on both sides":    {[]string{ours, "-j ACCEPT", ours}, []string{ours, "-j ACCEPT"}},
			"ours twice behind":     {[]string{"-j ACCEPT", ours, ours}, []string{ours, "-j ACCEPT"}},
			"another program jumps": {[]string{jump, ours}, []string{jump, ours}},
			"a single redirection":  {[]string{"-p tcp -m tcp --dport 8080 -j REDIRECT --to-ports 80", ours}, []string{"-p tcp -m tcp --dport 8080 -j REDIRECT --to-ports 80", ours}},
			"accepted after ours":   {[]string{ours, "-j ACCEPT"}, []string{ours, "-j ACCEPT"}},
		} {
			t.Run(fmt.Sprintf("%s, only by reading all: %v", name, unprinted), func(t *testing.T) {
				k := newFake()
				k.unprinted = unprinted
				k.tables[v4][tableNAT].chains["DOCKER"] = []string{"-p tcp -j ACCEPT"}
				var said strings.Builder
				opts := testOptions()
				opts.Logger = slog.New(slog.NewTextHandler(&said, nil))
				m, _ := onFake(t, k, opts)
				apply(t, m, change(state(1, "10.244.0.1:80")))
				m.watch.verified = time.Now()
				m.check(t.Context(), m.watch.verified) // the prints are known
				for _, start := range []bool{false, true} {
					k.tables[v4][tableNAT].chains["PREROUTING"] = slices.Clone(c.theirs)
					k.changes++
					said.Reset()
					if start {
						again, _ := onFake(t, k, opts)
						apply(t, again, change(state(1, "10.244.0.1:80")))
					} else {
						m.watch.rest = time.Time{}
						m.check(t.Context(), m.watch.verified)
					}
					if diff := cmp.Diff(c.want, k.tables[v4][tableNAT].chains["PREROUTING"]); diff != "" {
						t.Errorf("at the start %v: %s", start, diff)
					}
					blocked := c.theirs[len(c.theirs)-1] == ours && len(c.want) > 1 && c.want[0] == ours && c.want[1] != ours
					if told := strings.Contains(said.String(), "decided before ours"); told != blocked {
						t.Errorf("at the start %v: said %v: %s", start, told, said.String())
					}
				}
			})
		}
	}
}

func TestSetRanges(t *testing.T) {
	opts := testOptions()
	all := []proxy.Change{change(state(1, "10.244.0.1:80")), change(state(2))}
	k, fresh := newFake(), newFake()
	late := opts
	late.ServiceCIDRs = nil
	m, _ := onFake(t, k, late)
	apply(t, m, all...)
	if err := m.SetRanges(opts.ServiceCIDRs); err != nil {
		t.Fatal(err)
	}
	m2, _ := onFake(t, fresh, opts)
	apply(t, m2, all...)
	if diff := cmp.Diff(fresh.everything(), k.everything()); diff != "" {
		t.Errorf("known from the start (-) and learned late (+) differ:\n%s", diff)
	}
}
