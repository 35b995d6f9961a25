package mirror

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
)

// A registry that loses more than half of at least collapseFrom instances is more likely ill than deserted.
const collapseFrom = 4

// side is what a registry has. It is a Sink.
type side struct {
	hold    time.Duration
	changed func(registry.Service)
	// complete is called when all is known.
	complete func()
	now      func() time.Time

	mu       sync.Mutex
	services map[registry.Service][]*registry.Instance
	since    map[registry.Service]time.Time // of the last change
	synced   bool
	ready    chan struct{}
	// held is until when instances that are missing are held to come back; zero: they are gone.
	held time.Time
	// originals is how many instances there are that are no copies, most how many there were since the last
	// hold.
	originals, most int
}

func newSide(hold time.Duration, changed func(registry.Service), complete func()) *side {
	return &side{
		hold: hold, changed: changed, complete: complete, now: time.Now, services: map[registry.Service][]*registry.Instance{}, since: map[registry.Service]time.Time{},
		ready: make(chan struct{}),
	}
}

// Set implements Sink.
func (s *side) Set(service registry.Service, list []*registry.Instance) {
	s.mu.Lock()
	s.originals += countOriginals(list) - countOriginals(s.services[service])
	if len(list) == 0 {
		delete(s.services, service)
	} else {
		s.services[service] = list
	}
	now := s.now()
	s.since[service] = now
	if now.After(s.held) {
		if s.most >= collapseFrom && s.originals < s.most/2 {
			s.held = now.Add(s.hold)
			s.most = 0
		}
		s.most = max(s.most, s.originals)
	}
	s.mu.Unlock()
	s.changed(service)
}

func countOriginals(list []*registry.Instance) int {
	n := 0
	for _, in := range list {
		if in.MirroredFrom() == "" {
			n++
		}
	}
	return n
}

// Synced implements Sink.
func (s *side) Synced() {
	s.mu.Lock()
	if s.synced {
		s.mu.Unlock()
		return
	}
	s.synced = true
	close(s.ready)
	s.mu.Unlock()
	s.complete()
}

// Disturbed implements Sink.
func (s *side) Disturbed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.most = s.now().Add(s.hold), 0
}

// list of a service, how long instances that are missing are held, and when it changed last; ok is false until all is
// known.
func (s *side) list(service registry.Service) (list []*registry.Instance, held time.Duration, since time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.services[service], s.held.Sub(s.now()), s.since[service], s.synced
}

func (s *side) names() []registry.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.services), registry.Service.Compare)
}

func (s *side) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.originals
}

// identity of an instance among those of its service, in any registry: where it is. Ports tell them apart, and IDs
// those that have none.
type identity string

func identityOf(in *registry.Instance) identity {
	at := netip.AddrPortFrom(in.Address.Unmap(), in.Port).String()
	if in.Port == 0 {
		return identity(fmt.Sprintf("%s/%d/%s", at, in.SecurePort, in.ID))
	}
	return identity(at)
}
