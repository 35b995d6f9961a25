// Package health notices machines and workloads that are gone: it marks as not ready the
// Nodes whose Lease in kube-node-lease ran out and the Dataplanes whose lease in their
// status did, and it names the nodes that are suspect before that.
//
// Tracker decides about leases and Detector about suspicion, purely; Controller and
// Monitor watch, write and send. Enter at New and NewMonitor. It never marks anything
// ready: the holder of a lease sets its own condition right when it renews. It never
// believes a clock but its own: a lease's age counts from when its last renewal was seen
// here. See DESIGN.md.
package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
)

const (
	// DefaultDuration of a lease that does not say: dead after 40 s, as in
	// Kubernetes (node-monitor-grace-period before 1.32).
	DefaultDuration = 40 * time.Second
	// awayAfter is the gap after which this control plane counts as having been
	// away: one heartbeat (agents renew every 10 s).
	awayAfter = 10 * time.Second
	// waveShare of leases that run out together may be a fault on this side (the same
	// share as Eureka's self-preservation).
	waveShare = 0.15
	// sampleSize is how many late machines of a zone witnesses probe.
	sampleSize = 3
	// heldFor is how many durations of a lease, counted from its last renewal, an expiry
	// in a wave is held without witnesses.
	heldFor = 2
)

// Key names the holder of a lease.
type Key struct {
	Kind string // Node or Dataplane
	resource.Key
}

func (k Key) String() string {
	return strings.ToLower(k.Kind) + " " + strings.TrimPrefix(k.Key.String(), "/")
}

// Lease is what is known of one.
type Lease struct {
	// Renewed is as the holder wrote it; it is only compared for change.
	Renewed time.Time
	// Duration after which the holder is dead; 0: DefaultDuration.
	Duration time.Duration
	// Machine is the node that the holder is, or runs on; empty: not known.
	Machine string
	// Down: the holder is marked already.
	Down bool
}

type tracked struct {
	Lease
	seen time.Time // when Renewed last changed, by our clock
	// wave: it was late in a wave, and has not been renewed since. by is what confirmed
	// its expiry, if anything did: it counts for no other wave then.
	wave bool
	by   string
}

func (l *tracked) late(now time.Time) bool { return now.Sub(l.seen) >= l.Duration*3/4 }

// Witnesses return what is known of machines besides their leases.
type Witnesses interface {
	// Zone of a machine; empty: none, or not known.
	Zone(machine string) locality.Zone
	// Evidence of agents of other zones about a machine, if there is any.
	Evidence(machine string) (Evidence, bool)
}

// Tracker decides who is dead. The zero value is ready. Not safe for concurrent
// use; it reads no clock.
type Tracker struct {
	leases map[Key]*tracked
	last   time.Time
}

// Verdict of one look at all leases.
type Verdict struct {
	// Dead are to be marked, in a stable order.
	Dead []Death
	// Held have run out and are not to be marked yet, in a stable order.
	Held []Held
	// Probe are machines about which evidence is wanted, by name.
	Probe []string
	// Leases that are kept up or were until just now; Late of them have missed
	// their renewals. Wave: so many are late that expiries need confirmation.
	Leases, Late int
	Wave         bool
	// Restarted: this control plane was away and all clocks started again.
	Restarted bool
}

// Death is an expiry that is to be marked.
type Death struct {
	Key
	// Zone of its machine.
	Zone locality.Zone
	// Wave: it ran out together with many others; By says what confirmed it.
	Wave bool
	By   string
}

// Held is an expiry that is not marked yet.
type Held struct {
	Key
	Zone locality.Zone
	// Reason why not, and Until when at most; zero: without limit.
	Reason string
	Until  time.Time
}

// Observe notes a lease as it is now. The same again changes nothing. It returns whether
// the lease was renewed.
func (t *Tracker) Observe(key Key, l Lease, now time.Time) (renewed bool) {
	if l.Duration <= 0 {
		l.Duration = DefaultDuration
	}
	if t.leases == nil {
		t.leases = map[Key]*tracked{}
	}
	have := t.leases[key]
	if have == nil || !have.Renewed.Equal(l.Renewed) {
		t.leases[key] = &tracked{Lease: l, seen: now}
		return have != nil
	}
	have.Lease = l
	return false
}

// Forget drops a lease. Idempotent.
func (t *Tracker) Forget(key Key) { delete(t.leases, key) }

// Renewed is the renewal that the tracker knows of; ok=false: no such lease.
func (t *Tracker) Renewed(key Key) (renewed time.Time, ok bool) {
	if l := t.leases[key]; l != nil {
		return l.Renewed, true
	}
	return time.Time{}, false
}

// Advance looks at all leases. It is to be called at least every 5 s, and only
// while this control plane sees renewals; after a longer gap it takes itself for
// having been away and starts all clocks again.
func (t *Tracker) Advance(now time.Time, w Witnesses) Verdict {
	var v Verdict
	if gap := now.Sub(t.last); t.last.IsZero() || gap > awayAfter {
		v.Restarted = !t.last.IsZero()
		for _, l := range t.leases {
			l.seen, l.wave, l.by = now, false, ""
		}
	}
	t.last = now
	s := t.survey(now, w, &v)
	// One machine alone may be more than the share, in a small installation; that
	// is a dead machine, not a fault on this side.
	v.Wave = len(s.lateUnits) > 1 && float64(v.Late) > waveShare*float64(v.Leases)
	unconfirmed := false
	for _, key := range slices.SortedFunc(maps.Keys(s.late), compareKeys) {
		l := s.late[key]
		l.wave = l.wave || v.Wave
		unconfirmed = unconfirmed || l.wave && l.by == ""
		if now.Sub(l.seen) < l.Duration {
			continue
		}
		zone := w.Zone(l.Machine)
		if !l.wave {
			v.Dead = append(v.Dead, Death{Key: key, Zone: zone})
			continue
		}
		why := ""
		if l.by == "" {
			l.by, why = s.judge(l, zone)
		}
		if until := l.seen.Add(heldFor * l.Duration); l.by == "" && now.Before(until) {
			v.Held = append(v.Held, Held{Key: key, Zone: zone, Reason: why, Until: until})
			continue
		}
		l.by = cmp.Or(l.by, "not renewed for twice its duration")
		v.Dead = append(v.Dead, Death{Key: key, Zone: zone, Wave: true, By: l.by})
	}
	if unconfirmed {
		v.Probe = s.sample()
	}
	return v
}

func compareKeys(a, b Key) int { return strings.Compare(a.String(), b.String()) }

// survey is what one look finds.
type survey struct {
	now  time.Time
	w    Witnesses
	late map[Key]*tracked
	// lateUnits are machines, and holders without one, that have a late lease.
	lateUnits map[string]bool
	// renewing machines have a lease that is not late; renewals counts leases that were
	// renewed just now.
	renewing map[string]bool
	renewals int
	zones    map[locality.Zone]*zone
}

// zone is what is known of the late machines of one.
type zone struct {
	late []string // by name, each once
	// silent and alive are those with evidence.
	silent, alive []string
	witnesses     []string
}

// survey sorts leases, and the evidence about late machines, by zone.
func (t *Tracker) survey(now time.Time, w Witnesses, v *Verdict) *survey {
	s := &survey{
		now: now, w: w, late: map[Key]*tracked{}, lateUnits: map[string]bool{},
		renewing: map[string]bool{}, zones: map[locality.Zone]*zone{},
	}
	lateSince := map[string]time.Time{}
	for key, l := range t.leases {
		if l.Down {
			continue
		}
		v.Leases++
		unit := cmp.Or(l.Machine, key.String())
		// Renewals of different holders come at different moments of a heartbeat.
		// When the first of them is dead, those that stopped together with it are
		// late by three quarters at least: that is how a wave is seen before its
		// first victim is marked.
		if !l.late(now) {
			s.renewing[unit] = true
			if now.Sub(l.seen) <= l.Duration/2 {
				s.renewals++
			}
			continue
		}
		s.late[key] = l
		if l.by == "" {
			v.Late++
			s.lateUnits[unit] = true
		}
		at := l.seen.Add(l.Duration * 3 / 4)
		if since, ok := lateSince[unit]; l.Machine != "" && (!ok || at.Before(since)) {
			lateSince[unit] = at
		}
	}
	for _, machine := range slices.Sorted(maps.Keys(lateSince)) {
		s.note(machine, lateSince[machine])
	}
	return s
}

// note takes in the evidence about a late machine. Only what was found since it is late
// counts.
func (s *survey) note(machine string, since time.Time) {
	name := s.w.Zone(machine)
	z := s.zones[name]
	if z == nil {
		z = &zone{}
		s.zones[name] = z
	}
	if s.renewing[machine] {
		return // a workload on it is late, not the machine
	}
	z.late = append(z.late, machine)
	switch e, ok := s.w.Evidence(machine); {
	case !ok || e.At.Before(since):
	case e.Alive:
		z.alive = append(z.alive, machine)
	default:
		z.silent = append(z.silent, machine)
		for _, by := range e.Witnesses {
			if !slices.Contains(z.witnesses, by) {
				z.witnesses = append(z.witnesses, by)
			}
		}
	}
}

// judge an expiry of a wave: by is what confirms it, or why says why nothing does.
func (s *survey) judge(l *tracked, name locality.Zone) (by, why string) {
	z := s.zones[name]
	switch {
	case l.Machine != "" && s.renewing[l.Machine]:
		return "its machine renews other leases", ""
	case s.renewals == 0:
		return "", "no lease is renewed at all: the fault is probably on the control plane's side; check its network and store"
	case z == nil || len(z.late) == 0:
		return "", "it is not known to run on a machine that could be probed"
	case slices.Contains(z.alive, l.Machine):
		return "", "its agent answers other agents, but its renewals do not arrive: can it reach the API?"
	case slices.Contains(z.silent, l.Machine):
		return "no answer to " + strings.Join(z.witnesses, ", "), ""
	case len(z.alive) == 0 && len(z.silent) >= min(sampleSize, len(z.late)):
		return fmt.Sprintf("no answer of %s to %s", strings.Join(z.silent, ", "), strings.Join(z.witnesses, ", ")), ""
	}
	return "", "no agent of another machine has been able to probe it"
}

// sample names the late machines of each zone that are to be probed: those without
// evidence first.
func (s *survey) sample() (out []string) {
	for _, z := range s.zones {
		unknown, known := []string{}, []string{}
		for _, machine := range z.late {
			if slices.Contains(z.silent, machine) || slices.Contains(z.alive, machine) {
				known = append(known, machine)
			} else {
				unknown = append(unknown, machine)
			}
		}
		all := append(unknown, known...)
		out = append(out, all[:min(sampleSize, len(all))]...)
	}
	slices.Sort(out)
	return out
}
