package xds

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/xds/build"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

// unanswered is why a proxy is behind that says nothing.
const unanswered = "it has not answered"

// maxReason of a refusal, in bytes: the whole text is in the conditions of the Dataplane.
const maxReason = 200

// maxGone is for how many looks it is remembered what a proxy without a stream had taken.
const maxGone = 60

// Acknowledgements says which proxies of a server have taken which policies and routes. It belongs to
// one goroutine at a time.
type Acknowledgements struct {
	server   *Server
	tracker  *insight.Tracker
	sequence uint64
	versions map[policy.Source]build.Applied
	known    map[catalog.Key]*progress // by Dataplane, of the newest stream
}

// progress of one stream.
type progress struct {
	number uint64
	// settled is the newest sequence by which it had taken or refused everything, clean that by
	// which it had taken everything.
	settled, clean uint64
	// moved is what the connection said last; behind: it has not taken everything.
	moved  uint64
	behind bool
	// gone counts looks without a stream.
	gone int
	// blamed are the policies that a refused resource is put down to, by what was refused.
	blamed map[delta.Quarantined][]policy.Source
}

// NewAcknowledgements follows a server.
func NewAcknowledgements(s *Server) *Acknowledgements {
	return &Acknowledgements{
		server: s, tracker: insight.NewTracker(), versions: map[policy.Source]build.Applied{}, known: map[catalog.Key]*progress{},
	}
}

// Look at the proxies, and return what has changed since the last call, or with whole everything. It
// looks closely at all of them after a change of policies, and else at those that have changed or are
// behind.
func (a *Acknowledgements) Look(whole bool) []insight.Acknowledged {
	sequence := a.server.config.Builder.Sequence()
	all := sequence != a.sequence
	if all {
		a.sequence = sequence
		a.readVersions()
	}
	newest := a.server.newest()
	for key, p := range a.known {
		if newest[key] != nil {
			continue
		}
		a.tracker.Set(key, nil)
		if p.gone++; p.gone > maxGone {
			delete(a.known, key)
		}
	}
	for key, st := range newest {
		p := a.known[key]
		if p == nil || p.number != st.number {
			next := &progress{number: st.number, behind: true}
			if p != nil { // it has what it had
				next.clean = p.clean
			}
			p = next
			a.known[key] = p
		}
		if all || p.behind || st.nacked.Swap(false) || p.moved != st.connection.Moved() {
			a.look(p, st)
		}
	}
	out := a.tracker.Take(whole)
	for i := range out {
		out[i].Version = a.versions[out[i].Policy].Version
	}
	return out
}

// readVersions of policies and routes.
func (a *Acknowledgements) readVersions() {
	next := map[policy.Source]build.Applied{}
	a.server.config.Builder.Policies(func(source policy.Source, applied build.Applied) {
		next[source] = applied
		if a.versions[source].Version != applied.Version {
			a.tracker.Touch(source)
		}
	})
	a.versions = next
}

// newest stream of each Dataplane. Gateways have none.
func (s *Server) newest() map[catalog.Key]*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[catalog.Key]*stream, len(s.streams))
	for _, st := range s.streams {
		if st.info.Client.Gateway != build.NoRole {
			continue
		}
		if before := out[st.info.Client.Dataplane]; before == nil || before.number < st.number {
			out[st.info.Client.Dataplane] = st
		}
	}
	return out
}

// look at a proxy.
func (a *Acknowledgements) look(p *progress, st *stream) {
	builder := a.server.config.Builder
	p.moved = st.connection.Moved()
	before := builder.Sequence() // what a stream has by now, it has of at least that
	settled, refused, uses := st.taken()
	if settled {
		p.settled = before
	}
	if settled && len(refused) == 0 {
		p.clean, p.blamed = before, nil
	}
	concern := builder.Concerned(st.info.Client.Dataplane, uses)
	next := map[policy.Source]string{}
	p.behind = !settled || len(refused) > 0
	for _, sources := range append(slices.Collect(maps.Values(concern.Backends)), concern.Own) {
		for _, source := range sources {
			next[source] = ""
			if a.versions[source].Sequence > p.settled || p.settled == 0 {
				next[source], p.behind = unanswered, true
			}
		}
	}
	if st.info.Variant == build.Direct {
		for _, source := range concern.Own {
			if fields := a.versions[source].Supervised; len(fields) > 0 && next[source] == "" {
				next[source] = "its Envoy has no supervisor, which enforces " + strings.Join(fields, ", ")
			}
		}
	}
	a.blame(p, concern, refused)
	for one, sources := range p.blamed {
		for _, source := range sources {
			if _, concerns := next[source]; concerns {
				next[source] = refusal(one)
			}
		}
	}
	if len(next) == 0 {
		next = nil // nothing concerns it
	}
	a.tracker.Set(st.info.Client.Dataplane, next)
}

func refusal(one delta.Quarantined) string {
	reason := one.Reason
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	return fmt.Sprintf("it refuses %s %s: %s", one.Type[strings.LastIndexAny(one.Type, "./")+1:], one.Name, reason)
}

// blame the policies of which a refused resource is made: of those, the ones that have changed since the
// proxy had taken everything, else all.
func (a *Acknowledgements) blame(p *progress, concern build.Concern, refused []delta.Quarantined) {
	next := map[delta.Quarantined][]policy.Source{}
	for _, one := range refused {
		if sources, known := p.blamed[one]; known {
			next[one] = sources
			continue
		}
		of := slices.DeleteFunc(slices.Clone(concern.Own), func(s policy.Source) bool {
			return s.Kind != "ProxyPatch" && one.Type != build.ListenerType && one.Type != wire.Settings
		})
		if service, ok := build.ServiceOf(one.Name); ok {
			of = append(of, concern.Backends[service]...)
		}
		fresh := slices.DeleteFunc(slices.Clone(of), func(s policy.Source) bool { return p.clean == 0 || a.versions[s].Sequence <= p.clean })
		if len(fresh) > 0 {
			of = fresh
		}
		next[one] = of
	}
	p.blamed = next
}

// taken says what the client has taken: whether everything is answered, what it refuses, and the Services
// of the clusters that it asked for by name.
func (st *stream) taken() (settled bool, refused []delta.Quarantined, uses []catalog.Key) {
	st.mu.Lock()
	defer st.mu.Unlock()
	settled = st.session.Settled()
	st.session.Refused(func(one delta.Quarantined) { refused = append(refused, one) })
	slices.SortFunc(refused, func(x, y delta.Quarantined) int {
		return cmp.Or(cmp.Compare(x.Type, y.Type), cmp.Compare(x.Name, y.Name))
	})
	if st.info.Variant == build.GRPC {
		st.session.Sent(func(ref delta.Ref, _ string, _ bool) {
			if service, ok := build.ServiceOf(ref.Name); ok && ref.Type == build.ClusterType {
				uses = append(uses, service)
			}
		})
	}
	return settled, refused, uses
}
