package federation

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/delta"
)

// simStream is one direction of a link, while it is connected.
type simStream struct {
	link      *simLink
	from, to  *simSite
	sender    *Sender
	projected *ProjectedSender
	requests  [][]byte
	responses [][]byte
	lossy     bool
}

// simLink joins a zone and global. Receivers live as long as their site.
type simLink struct {
	sim         *sim
	zone        *simSite
	partitioned bool
	streams     map[Side]*simStream // by the side that sends
	receivers   map[Side]*Receiver  // by the side that receives
	versions    map[Side]bool       // the next stream begins with versions
}

func other(s Side) Side { return AtZone + AtGlobal - s }

func (l *simLink) site(s Side) *simSite {
	if s == AtGlobal {
		return l.sim.global
	}
	return l.zone
}

// connect opens the stream that a side sends on.
func (l *simLink) connect(from Side) {
	to := other(from)
	if l.partitioned || l.streams[from] != nil || !l.site(from).up || !l.site(to).up {
		return
	}
	receiver := l.receiver(to)
	st := &simStream{link: l, from: l.site(from), to: l.site(to)}
	config := SenderConfig{
		Types: simTypes.SentBy(from), StoreEpoch: st.from.epoch, Window: l.sim.window(),
		Scope: func(typ string) *delta.Scope {
			if scope := st.from.scopes[typ]; scope != nil {
				return scope
			}
			return st.from.scopes[typ+l.zone.name]
		},
	}
	if l.sim.v1 {
		requests, err := ProjectedReceiver{receiver}.Connect()
		l.check(err)
		st.projected = NewProjectedSender(config)
		for _, r := range requests {
			st.requests = append(st.requests, mustMarshal(r))
		}
	} else {
		requests, err := receiver.Connect(l.versions[to])
		l.check(err)
		st.sender = NewSender(config)
		for _, r := range requests {
			st.requests = append(st.requests, mustMarshal(r))
		}
	}
	l.versions[to] = false
	l.streams[from] = st
	l.sim.stats["streams"]++
}

// window of a sender.
func (s *sim) window() int {
	if s.script {
		return 4
	}
	return 1 + s.rng.IntN(4)
}

func (l *simLink) check(err error) {
	if err != nil {
		l.sim.fail("%v", err)
	}
}

func mustMarshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// receiver of a side, made from its store if there is none.
func (l *simLink) receiver(side Side) *Receiver {
	if r := l.receivers[side]; r != nil {
		return r
	}
	r, err := NewReceiver(ReceiverConfig{
		Side: side, Zone: l.zone.name, Types: simTypes.ReceivedBy(side), Namespace: "system", Node: &core.Node{Id: l.zone.name},
	}, l.site(side).states(l.zone.name))
	l.check(err)
	l.receivers[side] = r
	return r
}

// cut ends streams: in version 1 both directions are one.
func (l *simLink) cut(from Side, reason string) {
	if l.streams[from] == nil {
		return
	}
	l.sim.note("cut %s from %s: %s", l.zone.name, l.streams[from].from.name, reason)
	delete(l.streams, from)
	if l.sim.v1 {
		delete(l.streams, other(from))
	}
}

// down forgets what a side had in memory.
func (l *simLink) down(side Side) {
	l.cut(AtGlobal, "crash")
	l.cut(AtZone, "crash")
	delete(l.receivers, side)
}

// pump lets the sender send once, and reports whether it did.
func (st *simStream) pump() bool {
	if st.sender != nil {
		m, err := st.sender.Next()
		if err != nil {
			st.link.versions[other(st.from.side)] = errors.Is(err, delta.ErrPosition)
			st.link.cut(st.from.side, err.Error())
			return true
		}
		if m != nil {
			st.responses = append(st.responses, slices.Concat(m.Frame.Data, m.Tail))
		}
		return m != nil
	}
	m, err := st.projected.Next()
	if err != nil {
		st.link.cut(st.from.side, err.Error())
		return true
	}
	if m != nil {
		st.responses = append(st.responses, mustMarshal(m))
	}
	return m != nil
}

// request delivers the oldest request to the sender.
func (st *simStream) request() {
	b := st.requests[0]
	st.requests = st.requests[1:]
	var err error
	if st.sender != nil {
		var r discovery.DeltaDiscoveryRequest
		must(proto.Unmarshal(b, &r))
		err = st.sender.Step(&r)
	} else {
		var r discovery.DiscoveryRequest
		must(proto.Unmarshal(b, &r))
		err = st.projected.Step(&r)
	}
	if err != nil {
		st.link.cut(st.from.side, err.Error())
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// response delivers the oldest response to the receiver. The receiving site may crash
// while it applies it.
func (st *simStream) response(crash bool) {
	b := st.responses[0]
	st.responses = st.responses[1:]
	r := st.link.receivers[st.to.side]
	s := st.link.sim
	var tx *Transaction
	var err error
	if st.sender != nil {
		var m discovery.DeltaDiscoveryResponse
		must(proto.Unmarshal(b, &m))
		tx, err = r.Step(s.now, &m)
	} else {
		var m discovery.DiscoveryResponse
		must(proto.Unmarshal(b, &m))
		tx, err = ProjectedReceiver{r}.Step(s.now, &m)
	}
	if err != nil {
		st.link.cut(st.from.side, err.Error())
		return
	}
	if tx == nil {
		return
	}
	answer, ok := st.link.finish(r, st.to, tx, crash)
	if ok && answer != nil {
		st.requests = append(st.requests, answer)
	}
}

// finish applies a transaction and advances the receiver.
func (l *simLink) finish(r *Receiver, at *simSite, tx *Transaction, crash bool) ([]byte, bool) {
	s := l.sim
	steps := -1
	if crash {
		steps = s.rng.IntN(len(tx.Puts) + len(tx.Deletes) + 1)
	}
	outcome, done := at.apply(l.zone.name, tx, steps)
	s.note("%s applies %s: %d puts, %d deletes, %d refused, done %t",
		at.name, tx.Type, len(tx.Puts), len(tx.Deletes), len(outcome.Refused), done)
	if crash {
		s.crash(at)
		return nil, false
	}
	var answer []byte
	var p Progress
	var err error
	if s.v1 {
		var a *discovery.DiscoveryRequest
		if p, a, err = (ProjectedReceiver{r}).Advance(tx, outcome, s.now); a != nil {
			answer = mustMarshal(a)
		}
	} else if p, err = r.Advance(tx, outcome, s.now); p.Answer != nil {
		answer = mustMarshal(p.Answer)
	}
	l.check(err)
	if p.Checkpoint != nil {
		l.checkpoint(at, tx.Type, *p.Checkpoint, p.Urgent)
	}
	s.noteHeld(r, at, l.zone.name, tx.Type)
	l.checkAnswered(r, at, tx, outcome)
	return answer, true
}

// checkpoint is stored at once, or later, or never.
func (l *simLink) checkpoint(at *simSite, typ string, c Checkpoint, urgent bool) {
	pending := at.pending[l.zone.name]
	if pending == nil {
		pending = map[string]Checkpoint{}
		at.pending[l.zone.name] = pending
	}
	pending[typ] = c
	if urgent || l.sim.script || l.sim.rng.IntN(3) == 0 {
		if at.checkpoints[l.zone.name] == nil {
			at.checkpoints[l.zone.name] = map[string]Checkpoint{}
		}
		maps.Copy(at.checkpoints[l.zone.name], pending)
		clear(pending)
	}
}

// checkAnswered: what is acknowledged is in the store.
func (l *simLink) checkAnswered(r *Receiver, at *simSite, tx *Transaction, o Outcome) {
	for _, put := range tx.Puts {
		stored := at.objects[tx.Type][put.Key]
		if o.Refused[put.Resource] == nil && o.Waiting[put.Resource] == nil &&
			(stored == nil || stored.Annotations[AnnotationSyncVersion] != put.Version) {
			l.sim.fail("%s acknowledged %s %s, which it does not have", at.name, tx.Type, put.Resource)
		}
	}
	if l.sim.rng.IntN(8) > 0 {
		return // the rest takes long
	}
	for _, c := range at.states(l.zone.name) {
		sub := r.sub(c.Type)
		if len(c.Copies) != len(sub.copies) {
			l.sim.fail("%s has %d %s of %s, its receiver %d", at.name, len(c.Copies), c.Type, l.zone.name, len(sub.copies))
		}
	}
}

func (s *sim) crash(site *simSite) {
	s.note("crash %s", site.name)
	s.stats["crash"]++
	site.stop()
	for _, l := range s.links {
		if site.side == AtGlobal || l.zone == site {
			l.down(site.side)
		}
	}
}

// run plays one schedule and returns the problem, if any.
func (s *sim) run(steps int) string {
	s.seed()
	for i := range steps {
		s.step()
		if s.problem != "" {
			return fmt.Sprintf("step %d: %s", i, s.problem)
		}
	}
	s.heal()
	return s.problem
}

// seed gives the sites enough objects for the guard to matter.
func (s *sim) seed() {
	for range 4 {
		s.batch(s.global, "policy")
	}
	for _, z := range s.zones {
		s.batch(z, []string{"dataplane", "service"}[s.rng.IntN(2)])
	}
}

// batch writes or removes many objects of a type.
func (s *sim) batch(at *simSite, typ string) {
	remove := s.rng.IntN(4) == 0
	n := 6 + s.rng.IntN(14)
	s.note("%s: batch of %d %s, remove %t", at.name, n, typ, remove)
	for i := range n {
		if remove {
			at.remove(typ, s.key(typ, i))
		} else {
			at.write(typ, s.key(typ, i), func(*Object) {})
		}
	}
}

func (s *sim) key(typ string, n int) Key {
	k := Key{Name: fmt.Sprintf("o%d", n)}
	if simType(typ).Namespaced {
		k.Namespace = []string{"a", "b", "late"}[n%3]
	}
	return k
}

// ownTypes are the types that a site writes.
func (s *sim) ownTypes(at *simSite) []string {
	if at.side == AtGlobal {
		return []string{"mesh", "policy", "policy", "secret"}
	}
	return []string{"ingress", "dataplane", "dataplane", "service", "policy", "mesh"}
}

func (s *sim) randomWrite() {
	at := s.sites()[s.rng.IntN(3)]
	if !at.up {
		return
	}
	types := s.ownTypes(at)
	typ := types[s.rng.IntN(len(types))]
	key := s.key(typ, s.rng.IntN(8))
	switch s.rng.IntN(8) {
	case 0, 1:
		at.remove(typ, key)
		s.note("%s: remove %s %v", at.name, typ, key)
	case 2:
		at.write(typ, key, func(o *Object) { o.Payload = append([]byte("bad"), o.Payload...) })
		s.note("%s: write invalid %s %v", at.name, typ, key)
	case 3: // as a malicious zone would, or as its mesh changes
		at.write(typ, key, func(o *Object) {
			o.Labels = map[string]string{LabelZone: "west", LabelDisplayName: "forged"}
			o.Mesh = "other"
			o.Annotations["zones"] = "west"
		})
		s.note("%s: write forged %s %v", at.name, typ, key)
	default:
		at.write(typ, key, func(o *Object) {
			o.Annotations["zones"] = []string{"", "east", "west", "east west"}[s.rng.IntN(4)]
		})
		s.note("%s: write %s %v", at.name, typ, key)
	}
}

// step is one event: mostly progress, sometimes a fault.
func (s *sim) step() {
	s.now = s.now.Add(time.Duration(s.rng.IntN(3000)) * time.Millisecond)
	l := s.links[s.rng.IntN(len(s.links))]
	side := AtZone + Side(s.rng.IntN(2))
	switch n := s.rng.IntN(100); {
	case n < 20:
		s.randomWrite()
	case n < 88:
		for range 8 {
			s.progress(l, side, 1<<s.rng.IntN(3))
		}
	case n < 95:
		s.messageFault(l.streams[side])
	default:
		s.siteFault(l)
	}
}

// progress does some of what a link can do.
func (s *sim) progress(l *simLink, side Side, parts int) {
	st := l.streams[side]
	if st == nil {
		l.connect(side)
		return
	}
	if parts&1 != 0 {
		st.pump()
	}
	if parts&2 != 0 && l.streams[side] == st && len(st.requests) > 0 {
		st.request()
	}
	if parts&4 != 0 && l.streams[side] == st && len(st.responses) > 0 {
		st.response(false)
	}
	// The end of a connection that loses something is noticed sooner or later.
	if st.lossy && s.rng.IntN(12) == 0 {
		l.cut(side, "lost")
	}
}

// messageFault loses, repeats or exchanges messages.
func (s *sim) messageFault(st *simStream) {
	if st == nil {
		return
	}
	queue := &st.responses
	if s.rng.IntN(2) == 0 {
		queue = &st.requests
	}
	q := *queue
	if len(q) == 0 {
		return
	}
	i := s.rng.IntN(len(q))
	switch s.rng.IntN(3) {
	case 0:
		*queue, st.lossy = slices.Delete(q, i, i+1), true
		s.stats["drop"]++
		s.note("drop")
	case 1:
		*queue = slices.Insert(q, i+s.rng.IntN(len(q)-i+1), q[i])
		s.stats["duplicate"]++
		s.note("duplicate")
	default:
		j := s.rng.IntN(len(q))
		q[i], q[j] = q[j], q[i]
		st.lossy = st.lossy || i != j
		s.stats["reorder"]++
		s.note("reorder")
	}
}

func (s *sim) siteFault(l *simLink) {
	at := s.sites()[s.rng.IntN(3)]
	switch s.rng.IntN(14) {
	case 0, 1:
		if at.up {
			s.crash(at)
		}
	case 2:
		for _, st := range l.streams {
			if len(st.responses) > 0 && st.to.up {
				st.response(true)
				break
			}
		}
	case 3, 4, 5, 6:
		if !at.up {
			s.note("start %s", at.name)
			at.start()
		}
	case 7:
		l.partitioned = true
		l.cut(AtGlobal, "partition")
		l.cut(AtZone, "partition")
	case 8:
		l.partitioned = false
	case 9:
		jump := time.Duration(s.rng.IntN(600)-300) * time.Second
		s.note("clock jumps by %s", jump)
		if s.now = s.now.Add(jump); jump < 0 {
			s.forgive()
		}
	case 10:
		types := s.ownTypes(at)
		if typ := types[s.rng.IntN(len(types))]; at.up {
			s.batch(at, typ)
		}
	case 11:
		at.backup = &simBackup{objects: copyTables(at.objects), own: copyTables(at.own)}
	case 12:
		if at.backup != nil && s.rng.IntN(3) == 0 {
			s.crash(at)
			s.note("restore %s", at.name)
			at.restore(at.backup)
			at.start()
		}
	case 13:
		if s.rng.IntN(4) == 0 {
			s.crash(at)
			s.note("empty %s", at.name)
			at.wipe()
			at.start()
		}
	}
}

// forgive: after a jump backwards, the checker's minute is not the guard's.
func (s *sim) forgive() {
	for _, window := range s.deleted {
		for i := range window {
			window[i].at = minTime(window[i].at, s.now)
		}
	}
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// settle runs without faults until nothing moves.
func (s *sim) settle() {
	for range 5000 {
		before := s.fingerprint()
		for _, l := range s.links {
			for _, side := range []Side{AtZone, AtGlobal} {
				s.progress(l, side, 7)
			}
		}
		if before == s.fingerprint() {
			return
		}
	}
	s.fail("the sites do not come to rest")
}

// fingerprint changes whenever something happens.
func (s *sim) fingerprint() string {
	var b strings.Builder
	for _, site := range s.sites() {
		fmt.Fprint(&b, site.revision, " ")
	}
	for _, l := range s.links {
		for _, side := range []Side{AtZone, AtGlobal} {
			if st := l.streams[side]; st != nil {
				fmt.Fprint(&b, len(st.requests), len(st.responses), " ")
				if st.sender != nil {
					fmt.Fprint(&b, st.sender.sequence, st.sender.acked, " ")
				} else {
					fmt.Fprint(&b, st.projected.sequence, st.projected.Status().InFlight, " ")
				}
			}
		}
	}
	fmt.Fprint(&b, s.stats["streams"])
	return b.String()
}

// heal ends all faults, lets operators confirm, and compares.
func (s *sim) heal() {
	s.note("heal")
	for _, site := range s.sites() {
		if !site.up {
			site.start()
		}
		s.late[site.name] = true
	}
	for _, l := range s.links {
		l.partitioned = false
		for _, side := range []Side{AtZone, AtGlobal} {
			if st := l.streams[side]; st != nil && st.lossy {
				l.cut(side, "healed")
			}
		}
	}
	s.settle()
	for range 4 { // what one site releases, another may hold
		s.retry()
		s.confirm()
		s.settle()
	}
	for _, site := range s.sites() {
		site.checkOwn()
	}
	for _, l := range s.links {
		s.compare(l, AtZone)
		s.compare(l, AtGlobal)
	}
}

func (s *sim) retry() {
	for _, l := range s.links {
		for side, r := range l.receivers {
			for _, t := range r.config.Types {
				if tx := r.Retry(t.Name); tx != nil {
					l.finish(r, l.site(side), tx, false)
				}
			}
		}
	}
}

func (s *sim) confirm() {
	for _, l := range s.links {
		for side, r := range l.receivers {
			for _, t := range r.Status() {
				for _, held := range t.Held {
					s.stats["held"] += held.Count
					tx, err := r.Confirm(t.Type, held.Owner, held.Token)
					if err != nil {
						s.fail("%v", err)
						return
					}
					l.finish(r, l.site(side), tx, false)
				}
			}
		}
	}
}

// compare: what a side has over a link is what the other side sends.
func (s *sim) compare(l *simLink, from Side) {
	sender, receiver := l.site(from), l.site(other(from))
	for _, t := range simTypes.SentBy(from) {
		want, got := map[string]string{}, map[string]string{}
		refused, taken := map[string]bool{}, map[string]bool{}
		for _, o := range sender.objects[t.Name] {
			if !sender.visible(t, l.zone.name, o) {
				continue
			}
			want[o.Resource()] = string(o.Payload)
			if t.KeepName && receiver.own[t.Name][o.Key] != "" {
				taken[o.Resource()] = true
			} else if strings.HasPrefix(string(o.Payload), "bad") {
				refused[o.Resource()] = true
			}
		}
		for _, o := range receiver.objects[t.Name] {
			if receiver.peerOwns(o.Labels, l.zone.name) {
				got[o.Annotations[AnnotationSyncName]] = string(o.Payload)
			}
		}
		for name := range refused { // the receiver keeps what it had
			delete(want, name)
			delete(got, name)
		}
		for name := range taken {
			delete(want, name)
		}
		if !maps.Equal(want, got) {
			s.fail("%s of %s at %s: %v, want %v", t.Name, sender.name, receiver.name, got, want)
		}
		status := l.receivers[receiver.side].sub(t.Name)
		if !status.complete || len(status.refused)+len(status.waiting) != len(refused)+len(taken) {
			s.fail("%s of %s at %s: complete %t, refused %v, want %v, waiting %v, want %v",
				t.Name, sender.name, receiver.name, status.complete, status.refused, refused, status.waiting, taken)
		}
	}
}

func newSim(seed uint64, v1 bool) *sim {
	s := &sim{
		rng: rand.New(rand.NewPCG(seed, 1)), v1: v1, now: time.Unix(1e9, 0), late: map[string]bool{},
		applied: map[string]simApplied{}, deleted: map[string][]simDeletion{}, stats: map[string]int{}, held: map[string]map[string]bool{},
	}
	s.late["global"] = true
	s.global = newSimSite(s, "global", AtGlobal)
	for _, name := range s.zoneNames() {
		z := newSimSite(s, name, AtZone)
		s.zones = append(s.zones, z)
		s.links = append(s.links, &simLink{
			sim: s, zone: z, streams: map[Side]*simStream{}, receivers: map[Side]*Receiver{}, versions: map[Side]bool{},
		})
	}
	return s
}

// TestSimulation plays random schedules of writes and faults. PROXIMA_SOAK plays many.
// A failing one is repeated by -run 'TestSimulation/v2' with PROXIMA_SEED.
func TestSimulation(t *testing.T) {
	const steps = 150
	n := 1000
	switch {
	case os.Getenv("PROXIMA_SOAK") != "":
		n = 50_000
	case raceDetector: // ten times slower, and there is one goroutine
		n = 150
	}
	for _, version := range []string{"v1", "v2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			total := map[string]int{}
			first, last := uint64(0), uint64(n)
			if one := os.Getenv("PROXIMA_SEED"); one != "" {
				seed, err := strconv.ParseUint(one, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				first, last = seed, seed+1
			}
			for seed := first; seed < last; seed++ {
				s := newSim(seed, version == "v1")
				if problem := s.run(steps); problem != "" {
					t.Fatalf("seed %d: %s\n%s", seed, problem, strings.Join(s.log, "\n"))
				}
				for k, v := range s.stats {
					total[k] += v
				}
			}
			for _, k := range []string{"put", "delete", "confirmed", "held", "crash", "drop", "duplicate", "reorder", "streams"} {
				if last-first > 1 && total[k] < n/20 {
					t.Errorf("%s happened %d times in %d schedules: they do not cover it", k, total[k], n)
				}
			}
			t.Logf("%d schedules: %v", n, total)
		})
	}
}
