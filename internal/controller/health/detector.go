package health

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
)

const (
	// HeartbeatInterval at which agents say on their streams that they are there.
	HeartbeatInterval = time.Second
	// StallAfter is how long a stream may be silent before its machine is probed.
	StallAfter = 3 * time.Second
	// ProbeTimeout is how long a witness waits for an answer. It sends several packets
	// meanwhile, so that a lossy network does not look like a dead machine.
	ProbeTimeout = 700 * time.Millisecond
	// MaxProbes that one witness has in flight.
	MaxProbes = 32

	// witnesses that probe a machine at a time.
	witnesses = 2
	// freshWithin: an agent that was heard within this time may be a witness.
	freshWithin = 2 * HeartbeatInterval
	// resultWithin bounds the wait for a witness that does not report.
	resultWithin = ProbeTimeout + time.Second
	// stepGap is the gap between two steps after which this process was not running: what
	// was not heard meanwhile says nothing.
	stepGap = time.Second

	// A stalled machine is probed again: after retryFailed where the witnesses could not,
	// after retryFirst where they could, then at growing intervals.
	retryFailed    = 500 * time.Millisecond
	retryFirst     = 2 * time.Second
	retryAnswering = 10 * time.Second
	retrySilent    = time.Minute
	// renewalGrace: a machine whose stream is stalled and that renews its lease is alive;
	// it renews every 10 s.
	renewalGrace = 15 * time.Second

	// A live agent is probed, too: only where probes get through does silence mean
	// something.
	checkEvery       = 5 * time.Minute
	checkRetry       = 5 * time.Second
	checkUnfit       = time.Minute
	checkUnwitnessed = time.Second
	checkTries       = 3
	evidenceKept     = time.Minute
)

// Outcome of a probe of a machine's agent.
type Outcome uint8

// The outcomes.
const (
	// Failed: the probe could not be sent, or the witness did not report.
	Failed Outcome = iota
	// Silent: nothing came back.
	Silent
	// Refused: the machine answered that no agent is there.
	Refused
	// Answered: the agent answered.
	Answered
)

func (o Outcome) String() string {
	return [...]string{"failed", "silent", "refused", "answered"}[o]
}

// Probe is an order to a witness: ask whether the agent of Node answers at Addr.
type Probe struct {
	ID            uint64
	Witness, Node string
	Addr          netip.AddrPort
}

// Suspect is a machine that is probably gone: its stream is stalled, and the agents
// that probed it got no answer.
type Suspect struct {
	Node      string
	Zone      locality.Zone
	Since     time.Time
	Witnesses []string
}

// Evidence is what agents of other zones found out about a machine.
type Evidence struct {
	At time.Time
	// Alive: the agent answers. Otherwise the machine is silent, or has no agent.
	Alive     bool
	Witnesses []string
}

// Detector decides which machines are suspect, and who is to probe whom. The zero value
// is ready. It reads no clock and does no I/O; the caller carries probes to witnesses
// and brings their results back. Not safe for concurrent use.
type Detector struct {
	members  map[string]*member
	order    []*member         // by name; nil: to be made
	probes   map[uint64]*probe // in flight, by ID
	lastID   uint64
	rotation int // rotates the choice of witnesses
	last     time.Time
	changes  uint64 // of the set of suspects
	stats    DetectorStats
}

// DetectorStats count what happened since the start.
type DetectorStats struct {
	// Stalls of streams, and Suspicions that came of them.
	Stalls, Suspicions uint64
	// Outcomes of probes.
	Outcomes [Answered + 1]uint64
}

// member is a node: its object, its stream, or both.
type member struct {
	name string
	zone locality.Zone
	// known: there is a Node object. Others are not probed.
	known bool
	// attended: it has, or had, a stream that did not end with a goodbye.
	attended  bool
	connected bool
	heard     time.Time
	addr      netip.AddrPort // invalid: it answers no probes
	inFlight  int            // probes that it carries out

	stalled    bool
	graceUntil time.Time
	stall      *round
	nextStall  time.Time
	pause      time.Duration
	suspect    *Suspect

	confirm  *round
	evidence Evidence

	// proven: a probe has been answered, so silence means something.
	proven    bool
	check     *round
	nextCheck time.Time
	misses    int // checks in a row without an answer
}

// round is one try to find out about a machine.
type round struct {
	waiting  int
	silent   []string
	answered []string
	refused  []string
}

type purpose uint8

const (
	forStall purpose = iota
	forConfirmation
	forCheck
)

type probe struct {
	Probe
	purpose purpose
	sent    time.Time
}

func (d *Detector) member(name string) *member {
	m := d.members[name]
	if m == nil {
		if d.members == nil {
			d.members, d.probes = map[string]*member{}, map[uint64]*probe{}
		}
		m = &member{name: name}
		d.members[name], d.order = m, nil
	}
	return m
}

func (d *Detector) remove(m *member) {
	delete(d.members, m.name)
	d.order = nil
}

// sorted members. The list is not to be changed.
func (d *Detector) sorted() []*member {
	if d.order == nil {
		d.order = slices.SortedFunc(maps.Values(d.members), func(a, b *member) int { return cmp.Compare(a.name, b.name) })
	}
	return d.order
}

// SetNode notes that there is a Node object, and its zone.
func (d *Detector) SetNode(name string, zone locality.Zone) {
	m := d.member(name)
	m.known, m.zone = true, zone
}

// ForgetNode notes that the Node object is gone: the machine is not suspect, and is
// neither probed nor a witness. Idempotent.
func (d *Detector) ForgetNode(name string) {
	m := d.members[name]
	if m == nil {
		return
	}
	m.known = false
	d.trust(m)
	if !m.connected {
		d.remove(m)
	}
}

// Attend notes a new stream of a node's agent, which answers probes at addr (invalid: it
// does not).
func (d *Detector) Attend(name string, addr netip.AddrPort, now time.Time) {
	m := d.member(name)
	if m.addr != addr {
		m.proven, m.misses = false, 0
	}
	m.attended, m.connected, m.addr, m.nextCheck = true, true, addr, now
	d.Heard(name, now)
}

// Heard notes a sign of life on the stream.
func (d *Detector) Heard(name string, now time.Time) {
	m := d.members[name]
	if m == nil {
		return
	}
	m.heard, m.stalled, m.graceUntil = now, false, time.Time{}
	d.trust(m)
}

// trust ends a suspicion, and the probes that could start one.
func (d *Detector) trust(m *member) {
	d.setSuspect(m, nil)
	m.stall, m.pause, m.nextStall = nil, 0, time.Time{}
}

func (d *Detector) setSuspect(m *member, s *Suspect) {
	if (m.suspect == nil) != (s == nil) {
		d.changes++
	}
	m.suspect = s
}

// Changes counts changes of the set of suspects.
func (d *Detector) Changes() uint64 { return d.changes }

// Detach notes the end of a stream. An agent that said goodbye is not searched for: its
// lease decides.
func (d *Detector) Detach(name string, goodbye bool) {
	m := d.members[name]
	if m == nil {
		return
	}
	m.connected = false
	if goodbye {
		m.attended = false
		d.trust(m)
	}
	if !m.known {
		d.remove(m)
	}
}

// Renewed notes that the machine renewed its lease: it lives, whatever its stream says.
func (d *Detector) Renewed(name string, now time.Time) {
	m := d.members[name]
	if m == nil {
		return
	}
	if m.stalled {
		m.graceUntil = now.Add(renewalGrace)
	}
	d.trust(m)
}

// Confirm asks for evidence about machines whose leases are late. It comes from agents
// of other zones, or of the same where there are no others.
func (d *Detector) Confirm(names []string, now time.Time) (orders []Probe) {
	for _, name := range names {
		m := d.members[name]
		switch {
		case m == nil || !m.known || m.confirm != nil || !m.addr.IsValid():
		case m.connected && now.Sub(m.heard) < freshWithin:
			m.evidence = Evidence{At: now, Alive: true, Witnesses: []string{"its own stream"}}
		case m.proven:
			orders = append(orders, d.start(m, forConfirmation, d.choose(m, witnesses, true, now), now)...)
		}
	}
	return orders
}

// Evidence about a machine, if there is any of the last minute.
func (d *Detector) Evidence(name string, now time.Time) (Evidence, bool) {
	m := d.members[name]
	if m == nil || m.evidence.At.IsZero() || now.Sub(m.evidence.At) > evidenceKept {
		return Evidence{}, false
	}
	return m.evidence, true
}

// Step looks at all machines, and returns the probes that are to be made. It is to be
// called at least every 100 ms.
func (d *Detector) Step(now time.Time) (orders []Probe) {
	if !d.last.IsZero() && now.Sub(d.last) > stepGap {
		d.wasAway(now)
	}
	d.last = now
	for id, p := range d.probes {
		if now.Sub(p.sent) > resultWithin {
			d.Result(p.Witness, id, Failed, now)
		}
	}
	for _, m := range d.sorted() {
		if !m.known || !m.attended {
			continue
		}
		if now.Sub(m.heard) >= StallAfter {
			orders = append(orders, d.probeStalled(m, now)...)
		} else if m.connected && m.addr.IsValid() && m.check == nil && !now.Before(m.nextCheck) {
			orders = append(orders, d.startCheck(m, now)...)
		}
	}
	return orders
}

// wasAway starts the clocks of all streams again.
func (d *Detector) wasAway(now time.Time) {
	for _, m := range d.members {
		if !m.stalled {
			m.heard = now
		}
		m.inFlight, m.stall, m.confirm, m.check = 0, nil, nil, nil
	}
	clear(d.probes)
}

// probeStalled starts probes of a machine whose stream is stalled.
func (d *Detector) probeStalled(m *member, now time.Time) []Probe {
	if !m.stalled {
		m.stalled = true
		d.stats.Stalls++
	}
	if m.stall != nil || !m.proven || now.Before(m.nextStall) || now.Before(m.graceUntil) {
		return nil
	}
	return d.start(m, forStall, d.choose(m, witnesses, false, now), now)
}

// startCheck finds out whether probes get through to a live agent.
func (d *Detector) startCheck(m *member, now time.Time) []Probe {
	chosen := d.choose(m, 1, false, now)
	if len(chosen) == 0 {
		m.nextCheck = now.Add(checkUnwitnessed)
	}
	return d.start(m, forCheck, chosen, now)
}

func (d *Detector) start(m *member, why purpose, by []*member, now time.Time) (orders []Probe) {
	if len(by) == 0 {
		return nil
	}
	r := &round{waiting: len(by)}
	switch why {
	case forStall:
		m.stall = r
	case forConfirmation:
		m.confirm = r
	case forCheck:
		m.check = r
	}
	for _, w := range by {
		d.lastID++
		w.inFlight++
		p := Probe{ID: d.lastID, Witness: w.name, Node: m.name, Addr: m.addr}
		d.probes[p.ID] = &probe{Probe: p, purpose: why, sent: now}
		orders = append(orders, p)
	}
	return orders
}

// choose up to n witnesses for a machine. The first is of another zone, if there is one;
// with others, all are. Without others, the second is of the machine's own zone, if
// there is one, as the fault may lie between zones.
func (d *Detector) choose(m *member, n int, others bool, now time.Time) []*member {
	var near, far []*member
	for _, w := range d.sorted() {
		switch {
		case w == m || !w.known || !w.connected || now.Sub(w.heard) >= freshWithin || w.inFlight >= MaxProbes || !sameHost(w, m):
		case w.zone == m.zone:
			near = append(near, w)
		default:
			far = append(far, w)
		}
	}
	d.rotation++
	near, far = rotate(near, d.rotation), rotate(far, d.rotation)
	var order []*member
	switch {
	case len(far) == 0:
		order = near
	case others:
		order = far
	case len(near) > 0:
		order = append([]*member{far[0], near[0]}, far[1:]...)
	default:
		order = far
	}
	return order[:min(n, len(order))]
}

// sameHost: a machine that reached the control plane over loopback is reached by others
// that did, and by no others.
func sameHost(w, m *member) bool {
	return !m.addr.Addr().IsLoopback() || w.addr.Addr().IsLoopback()
}

func rotate(list []*member, by int) []*member {
	if len(list) == 0 {
		return nil
	}
	i := by % len(list)
	return append(slices.Clone(list[i:]), list[:i]...)
}

// Result takes a witness's report. One of a probe that it does not have in flight is ignored.
func (d *Detector) Result(witness string, id uint64, o Outcome, now time.Time) {
	p := d.probes[id]
	if p == nil || p.Witness != witness || o > Answered {
		return
	}
	delete(d.probes, id)
	d.stats.Outcomes[o]++
	if w := d.members[p.Witness]; w != nil {
		w.inFlight--
	}
	m := d.members[p.Node]
	if m == nil {
		return
	}
	r := map[purpose]*round{forStall: m.stall, forConfirmation: m.confirm, forCheck: m.check}[p.purpose]
	if r == nil {
		return
	}
	r.note(p.Witness, o)
	switch p.purpose {
	case forStall:
		d.judgeStall(m, r, now)
	case forConfirmation:
		m.judgeConfirmation(r, now)
	case forCheck:
		m.judgeCheck(o, now)
	}
}

func (r *round) note(witness string, o Outcome) {
	r.waiting--
	switch o {
	case Answered:
		r.answered = append(r.answered, witness)
	case Refused:
		r.refused = append(r.refused, witness)
	case Silent:
		r.silent = append(r.silent, witness)
	}
}

// judgeStall: one sign of life clears a machine, and all witnesses must have met
// silence to make it suspect.
func (d *Detector) judgeStall(m *member, r *round, now time.Time) {
	longest := retryAnswering
	switch {
	case len(r.answered)+len(r.refused) > 0:
		d.setSuspect(m, nil)
	case r.waiting > 0:
		return
	case len(r.silent) == 0 || len(r.silent) < min(witnesses, len(d.choose(m, witnesses, false, now))):
		m.stall, m.nextStall = nil, now.Add(retryFailed) // a witness could not probe: others do
		return
	default:
		longest = retrySilent
		if m.suspect == nil {
			d.setSuspect(m, &Suspect{Node: m.name, Zone: m.zone, Since: now})
			d.stats.Suspicions++
		}
		m.suspect.Witnesses = r.silent
	}
	m.stall, m.pause = nil, min(max(retryFirst, 2*m.pause), longest)
	m.nextStall = now.Add(m.pause)
}

func (m *member) judgeConfirmation(r *round, now time.Time) {
	switch {
	case len(r.answered) > 0:
		m.evidence = Evidence{At: now, Alive: true, Witnesses: r.answered}
	case r.waiting > 0:
		return
	case len(r.silent)+len(r.refused) > 0:
		m.evidence = Evidence{At: now, Witnesses: append(r.silent, r.refused...)}
	}
	m.confirm = nil
}

func (m *member) judgeCheck(o Outcome, now time.Time) {
	m.check = nil
	switch {
	case o == Answered:
		m.proven, m.misses, m.nextCheck = true, 0, now.Add(checkEvery)
	case m.stalled || o == Failed:
		m.nextCheck = now.Add(checkRetry)
	default:
		m.misses++
		m.nextCheck = now.Add(checkRetry)
		if m.misses >= checkTries {
			m.proven, m.nextCheck = false, now.Add(checkUnfit)
		}
	}
}

// Suspects by name.
func (d *Detector) Suspects() []Suspect {
	var out []Suspect
	for _, m := range d.sorted() {
		if m.suspect != nil {
			out = append(out, *m.suspect)
		}
	}
	return out
}

// Unreachable are live agents that do not get the probes of others, by name: should such
// a machine die, only its lease shows it.
func (d *Detector) Unreachable() []string {
	var out []string
	for _, m := range d.sorted() {
		if m.known && m.connected && m.misses >= checkTries {
			out = append(out, m.name)
		}
	}
	return out
}

// Stats so far.
func (d *Detector) Stats() DetectorStats { return d.stats }
