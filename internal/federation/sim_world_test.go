package federation

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/delta"
)

// The types of the simulation: every combination of flags that matters.
var simTypes = mustTypes(
	Type{Name: "mesh", Direction: GlobalToZone, KeepName: true},
	Type{Name: "policy", Direction: GlobalToZone, Namespaced: true},
	Type{Name: "secret", Direction: GlobalToZone, Namespaced: true, KeepName: true, FanOut: SelectedZones},
	Type{Name: "ingress", Direction: ZoneToZones, Namespaced: true, Transient: true},
	Type{Name: "dataplane", Direction: ZoneToGlobal, Namespaced: true, Transient: true},
	Type{Name: "service", Direction: ZoneToGlobal, Namespaced: true, LabelName: true},
)

func mustTypes(types ...Type) *Types {
	t, err := NewTypes(types...)
	if err != nil {
		panic(err)
	}
	return t
}

func simType(name string) Type {
	i := slices.IndexFunc(simTypes.all, func(t Type) bool { return t.Name == name })
	return simTypes.all[i]
}

// simSite is a control plane: a store, which survives a crash, and what it has in memory.
type simSite struct {
	sim  *sim
	name string
	side Side

	// Durable.
	epoch       string
	revision    uint64
	objects     map[string]map[Key]*Object
	checkpoints map[string]map[string]Checkpoint // by zone of the link, type
	backup      *simBackup
	wiped       bool // it has had another store
	// own is what only local writes have made of this site's own objects.
	own map[string]map[Key]string

	// In memory; nil maps while the site is down.
	up      bool
	starts  int
	scopes  map[string]*delta.Scope // by type, or type and zone
	pending map[string]map[string]Checkpoint
}

type simBackup struct {
	objects  map[string]map[Key]*Object
	own      map[string]map[Key]string
	revision uint64
}

func copyTables[V any](in map[string]map[Key]V) map[string]map[Key]V {
	out := map[string]map[Key]V{}
	for typ, table := range in {
		out[typ] = maps.Clone(table)
	}
	return out
}

func newSimSite(s *sim, name string, side Side) *simSite {
	site := &simSite{sim: s, name: name, side: side, checkpoints: map[string]map[string]Checkpoint{}}
	site.wipe()
	site.wiped = false
	site.start()
	return site
}

// wipe makes the store empty, with another epoch.
func (s *simSite) wipe() {
	s.sim.epochs++
	s.wiped = true
	s.epoch, s.revision = fmt.Sprintf("%s-%d", s.name, s.sim.epochs), 1
	s.objects, s.own = map[string]map[Key]*Object{}, map[string]map[Key]string{}
	for _, t := range simTypes.all {
		s.objects[t.Name], s.own[t.Name] = map[Key]*Object{}, map[Key]string{}
	}
	clear(s.checkpoints)
	for id := range s.sim.held {
		if strings.HasPrefix(id, s.name+"|") {
			delete(s.sim.held, id)
		}
	}
}

// restore brings back a backup, with another epoch.
func (s *simSite) restore(b *simBackup) {
	s.wipe()
	s.objects, s.own = copyTables(b.objects), copyTables(b.own)
}

func (s *simSite) start() {
	s.up = true
	s.starts++
	s.pending = map[string]map[string]Checkpoint{}
	s.scopes = map[string]*delta.Scope{}
	for _, t := range simTypes.SentBy(s.side) {
		for _, zone := range s.audiences(t) {
			options := delta.Options{Tombstones: 8, FrameSize: 400}
			if s.sim.script {
				options.Tombstones = 16
			}
			scope := delta.NewScope(options)
			var all []delta.Resource
			for _, o := range s.objects[t.Name] {
				if s.visible(t, zone, o) {
					all = append(all, s.resource(t, o))
				}
			}
			if _, err := scope.Replace(s.position(t, zone), all); err != nil {
				panic(err)
			}
			s.scopes[t.Name+zone] = scope
		}
	}
}

func (s *simSite) stop() { s.up, s.scopes, s.pending = false, nil, nil }

// audiences are the zones that have a scope of their own; "" is all.
func (s *simSite) audiences(t Type) []string {
	if s.side == AtGlobal && (t.Direction == ZoneToZones || t.FanOut == SelectedZones) {
		return s.sim.zoneNames()
	}
	return []string{""}
}

func (s *simSite) visible(t Type, zone string, o *Object) bool {
	peer := zone
	if s.side == AtZone {
		peer = s.name
	}
	return t.Leaves(s.side, peer, o.Labels) && (t.FanOut != SelectedZones || strings.Contains(o.Annotations["zones"], zone))
}

func (s *simSite) position(t Type, zone string) delta.Position {
	return delta.Position{Epoch: StreamEpoch(s.epoch, t.Name, zone), Sequence: s.revision}
}

func (s *simSite) resource(t Type, o *Object) delta.Resource {
	body, err := o.Marshal()
	if err != nil {
		panic(err)
	}
	return delta.Resource{Type: t.Name, Name: o.Resource(), Body: body}
}

// commit changes the store and what streams see of it.
func (s *simSite) commit(typ string, key Key, o *Object) {
	s.revision++
	old := s.objects[typ][key]
	if o == nil {
		delete(s.objects[typ], key)
	} else {
		s.objects[typ][key] = o
	}
	t := simType(typ)
	if !s.up || !t.sentBy(s.side) {
		return
	}
	for _, zone := range s.audiences(t) {
		c := delta.Change{Resource: delta.Resource{Type: typ, Name: ResourceName(key)}, Removed: true}
		if o != nil && s.visible(t, zone, o) {
			c = delta.Change{Resource: s.resource(t, o)}
		} else if old == nil || !s.visible(t, zone, old) {
			continue
		}
		if _, err := s.scopes[typ+zone].Apply(s.position(t, zone), []delta.Change{c}); err != nil {
			panic(err)
		}
	}
}

// write is a local write of an object that the site owns.
func (s *simSite) write(typ string, key Key, mutate func(*Object)) {
	old := s.objects[typ][key]
	if old != nil {
		if _, labelled := OwnerOf(old.Labels); labelled {
			return // a copy, which is not ours to write
		}
	}
	s.sim.counter++
	o := &Object{Key: key, Mesh: "m", Annotations: map[string]string{}, Payload: []byte(strconv.Itoa(s.sim.counter))}
	mutate(o)
	s.own[typ][key] = string(o.Payload)
	s.commit(typ, key, o)
}

func (s *simSite) remove(typ string, key Key) {
	if o := s.objects[typ][key]; o != nil {
		if _, labelled := OwnerOf(o.Labels); !labelled {
			delete(s.own[typ], key)
			s.commit(typ, key, nil)
		}
	}
}

// peerOwns reports whether a copy arrives over the link of a zone.
func (s *simSite) peerOwns(labels map[string]string, zone string) bool {
	owner, labelled := OwnerOf(labels)
	if s.side == AtGlobal {
		return labelled && owner.Zone == zone
	}
	return labelled
}

// states is the durable state of what arrives over the link of a zone.
func (s *simSite) states(zone string) []State {
	var out []State
	for _, t := range simTypes.ReceivedBy(s.side) {
		state := State{Type: t.Name, Checkpoint: s.checkpoints[zone][t.Name]}
		for key, o := range s.objects[t.Name] {
			if s.peerOwns(o.Labels, zone) {
				owner, _ := OwnerOf(o.Labels)
				state.Copies = append(state.Copies, Copy{
					Resource: o.Annotations[AnnotationSyncName], Version: o.Annotations[AnnotationSyncVersion], Key: key, Owner: owner,
				})
			}
		}
		out = append(out, state)
	}
	return out
}

// apply does what a transaction says; steps < 0: all of it, else the site crashes
// after so many.
func (s *simSite) apply(zone string, tx *Transaction, steps int) (Outcome, bool) {
	o := Outcome{Refused: map[string]error{}, Waiting: map[string]error{}}
	step := func() bool { steps--; return steps != -1 }
	for _, put := range tx.Puts {
		if !step() {
			return o, false
		}
		existing := s.objects[tx.Type][put.Key]
		switch {
		case existing != nil && !s.peerOwns(existing.Labels, zone):
			o.Waiting[put.Resource] = errors.New("the name is taken")
			continue
		case strings.HasPrefix(string(put.Object.Payload), "bad"):
			o.Refused[put.Resource] = errors.New("invalid payload")
			continue
		case put.Key.Namespace == "late" && !s.sim.late[s.name]:
			o.Waiting[put.Resource] = errors.New("the namespace does not exist")
			continue
		}
		s.sim.checkPut(s, zone, tx, put, existing)
		s.commit(tx.Type, put.Key, put.Object)
		if put.Replaces != nil {
			s.commit(tx.Type, put.Replaces.Key, nil)
		}
	}
	for _, c := range tx.Deletes {
		if !step() {
			return o, false
		}
		if existing := s.objects[tx.Type][c.Key]; existing != nil && s.peerOwns(existing.Labels, zone) {
			s.sim.checkDelete(s, zone, tx, c, existing)
			s.commit(tx.Type, c.Key, nil)
		}
	}
	return o, true
}

// checkOwn verifies that nothing but local writes has touched the site's own objects.
func (s *simSite) checkOwn() {
	for typ, want := range s.own {
		got := map[Key]string{}
		for key, o := range s.objects[typ] {
			if _, labelled := OwnerOf(o.Labels); !labelled {
				got[key] = string(o.Payload)
			}
		}
		if !maps.Equal(got, want) {
			s.sim.fail("own objects of %s of type %s: %v, want %v", s.name, typ, got, want)
		}
	}
}

// sim is one schedule.
type sim struct {
	rng     *rand.Rand
	v1      bool
	script  bool // a transcript, which leaves nothing to chance
	now     time.Time
	global  *simSite
	zones   []*simSite
	links   []*simLink
	late    map[string]bool // sites that have the namespace "late"
	counter int
	epochs  int
	log     []string
	problem string
	// applied is the newest payload of each copy, and whether it was deleted.
	applied map[string]simApplied
	// deleted without confirmation, by site, link, type and owner.
	deleted map[string][]simDeletion
	stats   map[string]int
	// held removals that only a confirmation may apply, by site, link and type.
	held map[string]map[string]bool
}

// noteHeld remembers what a receiver holds, over its crashes.
func (s *sim) noteHeld(r *Receiver, at *simSite, zone, typ string) {
	names := map[string]bool{}
	for _, g := range r.sub(typ).guards {
		for name := range g.held {
			names[name] = true
		}
	}
	s.held[strings.Join([]string{at.name, zone, typ}, "|")] = names
}

type simApplied struct {
	counter int
	gone    bool
	epoch   string
}

type simDeletion struct {
	at     time.Time
	total  int
	guilty bool
}

func (s *sim) zoneNames() []string { return []string{"east", "west"} }

func (s *sim) fail(format string, args ...any) {
	if s.problem == "" {
		s.problem = fmt.Sprintf(format, args...)
		s.note("FAIL %s", s.problem)
	}
}

func (s *sim) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *sim) sites() []*simSite { return append([]*simSite{s.global}, s.zones...) }

func (s *sim) site(owner Owner) *simSite {
	for _, z := range s.zones {
		if z.name == owner.Zone {
			return z
		}
	}
	return s.global
}

// checkPut: what an owner deleted or replaced does not come back, and what is written
// carries the labels of its true owner.
func (s *sim) checkPut(at *simSite, zone string, tx *Transaction, put Put, existing *Object) {
	s.stats["put"]++
	owner, labelled := OwnerOf(put.Object.Labels)
	if !labelled || owner != put.Owner || at.side == AtGlobal && owner.Zone != zone || at.side == AtZone && owner.Zone == at.name {
		s.fail("%s stores %s %s of %s as %v", at.name, tx.Type, put.Resource, zone, put.Object.Labels)
	}
	if s.script {
		return
	}
	counter, _ := strconv.Atoi(string(put.Object.Payload))
	id := strings.Join([]string{at.name, zone, tx.Type, put.Resource}, "|")
	// Whatever the sender restored may be old.
	sender := s.global
	if at.side == AtGlobal {
		sender = s.site(Owner{Zone: zone})
	}
	epoch := sender.epoch + s.site(put.Owner).epoch + at.epoch
	// What global relays may be of its owner's store before that was restored, and newer.
	relayed := at.side == AtZone && owner.Zone != "" && s.site(owner).wiped
	if last, ok := s.applied[id]; ok && !relayed && last.epoch == epoch && (counter < last.counter || counter == last.counter && last.gone) {
		s.fail("%s: %s goes back from %+v to %d", at.name, id, last, counter)
	}
	s.applied[id] = simApplied{counter: counter, epoch: epoch}
}

// checkDelete: deletions without confirmation are few, unless the owner is alive and
// did delete objects of a transient type.
func (s *sim) checkDelete(at *simSite, zone string, tx *Transaction, c Copy, existing *Object) {
	s.stats["delete"]++
	if s.script {
		return
	}
	id := strings.Join([]string{at.name, zone, tx.Type, c.Resource}, "|")
	last := s.applied[id]
	last.gone = true
	s.applied[id] = last
	if tx.confirms != nil {
		s.stats["confirmed"]++
		return
	}
	if s.held[strings.Join([]string{at.name, zone, tx.Type}, "|")][c.Resource] {
		s.fail("%s deleted %s %s, which was held", at.name, tx.Type, c.Resource)
	}
	t := simType(tx.Type)
	sender := s.global
	if at.side == AtGlobal {
		sender = s.site(Owner{Zone: zone})
	}
	guilty := !t.Transient || !strings.HasPrefix(last.epoch, sender.epoch)
	// A restart forgets the minute, as DESIGN.md says.
	id = strings.Join([]string{at.name, zone, tx.Type, c.Owner.String(), strconv.Itoa(at.starts)}, "|")
	if guilty {
		total := 0
		for _, o := range at.objects[tx.Type] {
			if owner, labelled := OwnerOf(o.Labels); labelled && owner == c.Owner {
				total++
			}
		}
		s.deleted[id] = append(s.deleted[id], simDeletion{at: s.now, total: total, guilty: guilty})
	}
	s.deleted[id] = slices.DeleteFunc(s.deleted[id], func(d simDeletion) bool { return s.now.Sub(d.at) >= guardPeriod })
	if window := s.deleted[id]; len(window) > 0 && len(window) > max(guardCount, window[0].total*guardPercent/100) {
		s.fail("%s deleted %d of %d %s of %s within a minute", at.name, len(window), window[0].total, tx.Type, c.Owner)
	}
}
