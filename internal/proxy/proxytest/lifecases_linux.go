package proxytest

import (
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// affinityCases: sessionAffinity ClientIP.
var affinityCases = []kernelCase{
	{name: "affinity sticks", run: affinitySticks},
	{name: "affinity is shared by a service's addresses", run: affinityShared},
	{name: "affinity lapses", needs: []Feature{RandomPick}, run: affinityLapses},
	{name: "affinity leaves an endpoint that is gone", run: affinityMoves},
	{name: "affinity survives a restart", run: affinityRestart},
}

// affinityClients outside, of addresses of their own. As they choose among three
// endpoints, all agreeing by chance happens once in 3^12.
const affinityClients = 12

func (k *kernel) sticky(timeout time.Duration, pods ...string) *kernelService {
	s := k.openService(0, k.all(pods...)...)
	s.AffinityTimeout = timeout
	return s
}

// choices of all clients, asking once each.
func (k *kernel) choices(to netip.AddrPort) []string {
	k.Helper()
	var out []string
	for i := range affinityClients {
		who := k.ask(1, k.outside(i), proxy.TCP, to)[0].who
		if k.net.backends[who] == nil {
			k.Fatalf("client %d asks %s: %s", i, to, who)
		}
		out = append(out, who)
	}
	return out
}

func (k *kernel) same(when string, before, after []string) {
	k.Helper()
	for i := range before {
		if before[i] != after[i] {
			k.Errorf("%s: client %d went from %s to %s", when, i, before[i], after[i])
		}
	}
}

func affinitySticks(k *kernel) {
	k.apply(k.sticky(time.Hour, local1, remote1, remote2))
	for _, c := range []client{k.pod(), k.node(), k.outside(0), k.outside(1)} {
		for _, proto := range both {
			for _, to := range []netip.AddrPort{k.at(k.vip(0)), k.at(k.external(0))} {
				answers := k.ask(20, c, proto, to)
				for _, a := range answers {
					if a.who != answers[0].who {
						k.Fatalf("%s asks %s %s: answered by %s and %s", c.name, proto, to, answers[0].who, a.who)
					}
				}
			}
		}
	}
	distinct := map[string]bool{}
	for _, who := range k.choices(k.at(k.vip(0))) {
		distinct[who] = true
	}
	if len(distinct) < 2 {
		k.Errorf("%d clients share one endpoint: %v", affinityClients, distinct)
	}
}

// slower is a time on a machine that takes PROXIMA_TEST_SLOWER times as long, such as an emulated one.
func slower(d time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv("PROXIMA_TEST_SLOWER")); err == nil && n > 0 {
		return d * time.Duration(n)
	}
	return d
}

func affinityShared(k *kernel) {
	k.apply(k.sticky(time.Hour, local1, remote1, remote2))
	first := k.choices(k.at(k.vip(0)))
	for what, to := range k.everyKind(0) {
		k.same(what, first, k.choices(to))
	}
}

// affinityLapses: a client that goes on asking stays, one that rested for the
// timeout chooses again.
func affinityLapses(k *kernel) {
	k.apply(k.sticky(slower(time.Second), local1, remote1, remote2))
	first := k.choices(k.at(k.vip(0)))
	for range 2 {
		time.Sleep(slower(700 * time.Millisecond)) // the passing of time is what is tested
		k.same("within the timeout", first, k.choices(k.at(k.vip(0))))
	}
	time.Sleep(slower(1300 * time.Millisecond))
	moved := false
	for i, who := range k.choices(k.at(k.vip(0))) {
		moved = moved || who != first[i]
	}
	if !moved {
		k.Errorf("all clients are where they were, 1.3 s after a timeout of 1 s began, times PROXIMA_TEST_SLOWER")
	}
}

func affinityMoves(k *kernel) {
	k.apply(k.sticky(time.Hour, local1, remote1, remote2))
	first := k.choices(k.at(k.vip(0)))
	k.apply(k.sticky(time.Hour, local1, remote1))
	second := k.choices(k.at(k.vip(0)))
	for i := range first {
		if second[i] == remote2 || (first[i] != remote2 && second[i] != first[i]) {
			k.Errorf("client %d went from %s to %s when %s went", i, first[i], second[i], remote2)
		}
	}
	k.same("after the move", second, k.choices(k.at(k.vip(0))))
}

func affinityRestart(k *kernel) {
	k.apply(k.sticky(time.Hour, local1, remote1, remote2))
	first := k.choices(k.at(k.vip(0)))
	k.restart(nil)
	k.same("after a restart", first, k.choices(k.at(k.vip(0))))
	k.same("after a restart, at another address", first, k.choices(k.at(k.external(0))))
}

// lifeCases: the agent ends and returns, and another program corrupts its state.
var lifeCases = []kernelCase{
	{name: "traffic goes on without an agent", needs: []Feature{SurvivesRestart}, run: survivesRestart},
	{name: "a restart finds everything", run: restarted},
	{name: "a restart after changes", run: restartedChanged},
	{name: "drift is repaired", needs: []Feature{Repair}, run: repaired},
	{name: "clean-up leaves nothing", run: cleanedUp},
}

func survivesRestart(k *kernel) {
	k.apply(k.openService(0, k.on(remote1)))
	sessions := []*session{
		k.session(k.pod(), proxy.TCP, k.at(k.vip(0))),
		k.session(k.outside(0), proxy.TCP, k.at(k.external(0))),
		k.session(k.outside(0), proxy.UDP, k.nodeAt(k.nodePort(0))),
	}
	k.restart(func() {
		for _, s := range sessions {
			s.lives("no agent runs")
		}
		k.reaches(k.pod(), proxy.TCP, k.at(k.vip(0)), remote1)
		k.reaches(k.outside(0), proxy.UDP, k.at(k.external(0)), remote1)
	})
	for _, s := range sessions {
		s.lives("the agent is back")
	}
}

func restarted(k *kernel) {
	k.apply(k.openService(0, k.all(local1, remote1)...), k.svc(1))
	k.restart(nil)
	for _, to := range k.everyKind(0) {
		k.reaches(k.pod(), proxy.TCP, to, local1, remote1)
	}
	k.turnedAway(k.pod(), proxy.TCP, k.at(k.vip(1)))
	// And goes on from there.
	k.apply(k.openService(0, k.on(remote1)), k.svc(1, k.on(local1)))
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(0)), remote1)
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(1)), local1)
}

// restartedChanged: what happened while no agent ran.
func restartedChanged(k *kernel) {
	k.apply(k.openService(0, k.all(local1, remote1)...), k.openService(1, k.on(remote1)))
	gone := k.session(k.outside(0), proxy.UDP, k.at(k.external(1)))
	k.restart(func() {
		k.changes([]*kernelService{k.openService(0, k.on(remote1)), k.svc(2, k.on(local1))})
	})
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(0)), remote1)
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(2)), local1)
	var checks []func()
	for _, to := range k.everyKind(1) {
		checks = append(checks, func() { k.notServed(k.pod(), proxy.TCP, to) })
	}
	together(checks...)
	if a := gone.again(timeout); a.who != whoRefused && a.who != whoSilent {
		k.Errorf("a flow is answered by %s though its service went while no agent ran", a.who)
	}
}

// cleanedUp: without a mode, packets go where they would on any machine, which
// for a cluster address is astray.
func cleanedUp(k *kernel) {
	if _, ends := k.env.Lacks[SurvivesRestart]; !ends && k.env.Cleanup == nil {
		k.Skip("the environment names no clean-up")
	}
	k.apply(k.openService(0, k.on(remote1)), k.svc(1))
	k.restart(func() {
		if k.env.Cleanup != nil {
			if err := k.env.Cleanup(); err != nil {
				k.Fatalf("cleaning up: %v", err)
			}
		}
		for _, proto := range both {
			for i := range 3 { // a service, one without endpoints, none
				k.reaches(k.pod(), proto, k.at(k.vip(i)), whoLeaked)
				k.reaches(k.node(), proto, k.at(k.vip(i)), whoLeaked)
			}
			k.turnedAway(k.outside(0), proto, k.nodeAt(k.nodePort(0)))
		}
	})
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(0)), remote1)
}

func repaired(k *kernel) {
	if len(k.env.Corruptions) == 0 {
		k.Fatal("the environment names no corruption, nor why there is none")
	}
	s, empty := k.openService(0, k.all(local1, remote1)...), k.svc(1)
	k.apply(s, empty)
	for _, d := range k.env.Corruptions {
		if err := d.Do(); err != nil {
			k.Fatalf("%s: %v", d.Name, err)
		}
		took := k.untilWhole(local1, remote1)
		// The promise is 1 s. It is logged and not judged: on a machine that is
		// busy with other tests, the programs that repair wait for their turn.
		k.Logf("%s: whole after %s", d.Name, took.Round(time.Millisecond))
		for _, proto := range both {
			k.reaches(k.pod(), proto, k.at(k.vip(0)), local1, remote1)
			k.reaches(k.outside(0), proto, k.at(k.external(0)), local1, remote1)
		}
		// And the mode goes on from there.
		k.apply(k.openService(0, k.on(remote1)), empty)
		k.reaches(k.pod(), proxy.TCP, k.at(k.vip(0)), remote1)
		k.apply(s, empty)
		k.reaches(k.pod(), proxy.TCP, k.at(k.vip(0)), local1, remote1)
	}
	if !k.lacks(UnallocatedDrop) {
		k.unanswered(k.pod(), proxy.TCP, k.at(k.vip(2)))
	}
}

// repairPatience bounds hangs; nothing is measured by it.
const repairPatience = 30 * time.Second

// untilWhole asks at all addresses until everybody is served who should be, and
// refused who should be, and returns when the last question was put of which
// that was not so.
func (k *kernel) untilWhole(served ...string) time.Duration {
	k.Helper()
	want := map[netip.AddrPort][]string{
		k.at(k.vip(1)):                   {whoRefused}, // no endpoint
		netip.AddrPortFrom(k.vip(0), 81): {whoRefused}, // no such port
	}
	for _, to := range k.everyKind(0) {
		want[to] = served
	}
	begin := time.Now()
	var last time.Duration
	for time.Since(begin) < repairPatience {
		wrong := false
		for to, who := range want {
			for range 3 {
				asked := time.Since(begin)
				a, err := k.pod().ask(proxy.TCP, to, timeout)
				if err != nil || !slices.Contains(who, a.who) {
					last, wrong = asked, true
				}
			}
		}
		if !wrong {
			return last
		}
	}
	k.Fatalf("not repaired within %s", repairPatience)
	return 0
}
