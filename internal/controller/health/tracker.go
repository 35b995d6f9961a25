// Package health marks as not ready what has stopped saying that it lives: Nodes
// by their Lease in kube-node-lease, Dataplanes by the lease in their status.
//
// Tracker decides, purely; Controller watches and writes. Enter at New. It never
// marks anything ready: whoever renews a lease also sets its own condition right.
// It never believes a clock but its own: a lease's age counts from when its last
// renewal was seen here.
package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/resource"
)

const (
	// DefaultDuration of a lease that does not say: dead after 40 s, as in
	// Kubernetes (node-monitor-grace-period before 1.32).
	DefaultDuration = 40 * time.Second
	// awayAfter is the gap after which this control plane counts as having been
	// away: one heartbeat (agents renew every 10 s).
	awayAfter = 10 * time.Second
	// heldShare of leases that run out together is more likely a fault on this
	// side (the same share as Eureka's self-preservation).
	heldShare = 0.15
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
	// Renewed is the holder's own word; it is only compared for change.
	Renewed time.Time
	// Duration after which the holder is dead; 0: DefaultDuration.
	Duration time.Duration
	// Unit groups leases that fall together, as a node and its workloads.
	Unit string
	// Down: the holder is marked already.
	Down bool
}

type tracked struct {
	Lease
	seen time.Time // when Renewed last changed, by our clock
}

// Tracker decides who is dead. The zero value is ready. Not safe for concurrent
// use; it reads no clock.
type Tracker struct {
	leases map[Key]*tracked
	last   time.Time
}

// Verdict of one look at all leases.
type Verdict struct {
	// Dead are to be marked, in a stable order. Empty while Held.
	Dead []Key
	// Held: too many run out together, nothing is to be marked; Reason says so.
	Held   bool
	Reason string
	// Leases that are kept up or were until just now; Late of them have missed
	// their renewals.
	Leases, Late int
	// Restarted: this control plane was away and all clocks started anew.
	Restarted bool
}

// Observe notes a lease as it is now. Telling the same again changes nothing.
func (t *Tracker) Observe(key Key, l Lease, now time.Time) {
	if l.Duration <= 0 {
		l.Duration = DefaultDuration
	}
	if t.leases == nil {
		t.leases = map[Key]*tracked{}
	}
	have := t.leases[key]
	if have == nil || !have.Renewed.Equal(l.Renewed) {
		t.leases[key] = &tracked{Lease: l, seen: now}
		return
	}
	have.Lease = l
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
// having been away and starts all clocks anew.
func (t *Tracker) Advance(now time.Time) Verdict {
	var v Verdict
	if gap := now.Sub(t.last); t.last.IsZero() || gap > awayAfter {
		v.Restarted = !t.last.IsZero()
		for _, l := range t.leases {
			l.seen = now
		}
	}
	t.last = now
	units := map[string]struct{}{}
	for key, l := range t.leases {
		if l.Down {
			continue
		}
		v.Leases++
		age := now.Sub(l.seen)
		// Renewals of different holders come at different moments of a heartbeat.
		// When the first of them is dead, those that stopped together with it are
		// late by three quarters at least: that is how a wave is seen before its
		// first victim is marked.
		if age >= l.Duration*3/4 {
			v.Late++
			units[l.Unit] = struct{}{}
		}
		if age >= l.Duration {
			v.Dead = append(v.Dead, key)
		}
	}
	slices.SortFunc(v.Dead, func(a, b Key) int { return strings.Compare(a.String(), b.String()) })
	// One machine alone may be more than the share, in a small installation; that
	// is a dead machine, not a fault on this side.
	if len(v.Dead) > 0 && len(units) > 1 && float64(v.Late) > heldShare*float64(v.Leases) {
		v.Held = true
		v.Reason = fmt.Sprintf("%d of %d leases ran out together, more than %.0f %%: the fault is probably on the control plane's side, "+
			"so nothing is marked not ready; check its network and store (first: %s)", v.Late, v.Leases, 100*heldShare, v.Dead[0])
		v.Dead = nil
	}
	return v
}
