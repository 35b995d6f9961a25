package stream

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/federation"
)

// Link is what one end knows of the synchronisation with its peer, over all streams since the program started.
type Link struct {
	// Epoch of the peer's store, as its messages say; empty: none has come.
	Epoch string
	// Lag of what this end sends.
	Lag Lag
	// PeerLag of what the peer sends, as the peer measures it. Of zones alone, at global.
	PeerLag Lag
	// Refused is the last refusal of each type, by type.
	Refused []LastRefusal
	// Buckets of the lag of all changes since the program started, and their sum in seconds and count.
	Buckets map[float64]uint64
	Sum     float64
	Count   uint64
}

// LastRefusal is the last NACK of a type.
type LastRefusal struct {
	Type string
	// ByPeer: the peer refused what this end sent. Otherwise this end refused.
	ByPeer bool
	// Resource is the first that is refused, in the words of the protocol; empty: the peer does not name one.
	Resource, Reason string
	At               time.Time
}

// link keeps a Link. The zero value is empty. Safe for concurrent use.
type link struct {
	mu      sync.Mutex
	sent    histogram
	peerLag Lag
	epoch   string
	refused map[string]LastRefusal
	meter   *meter // of the stream that sends; nil: there was none
}

func (l *link) status() Link {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	out := Link{Epoch: l.epoch, Lag: l.sent.lag(now), PeerLag: l.peerLag, Sum: l.sent.sum, Count: l.sent.count, Buckets: make(map[float64]uint64, len(lagBounds))}
	for i, bound := range lagBounds {
		out.Buckets[bound] = l.sent.upTo[i]
	}
	if at := l.meter.oldest(); !at.IsZero() {
		out.Lag.Waiting = now.Sub(at)
	}
	out.Refused = slices.SortedFunc(maps.Values(l.refused), func(a, b LastRefusal) int { return strings.Compare(a.Type, b.Type) })
	return out
}

// from takes the epoch of a message of the peer.
func (l *link) from(c *core.ControlPlane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id := c.GetIdentifier(); id != "" && len(id) <= 128 {
		l.epoch = id
	}
}

// answer is an ACK or NACK.
type answer interface {
	GetTypeUrl() string
	GetResponseNonce() string
	GetErrorDetail() *spb.Status
}

// answering notes what this end answers.
func (l *link) answering(m proto.Message) {
	if a, ok := m.(answer); ok {
		l.answered(a, false)
	}
}

// maxRefusedTypes bounds what a peer can make a link remember.
const maxRefusedTypes = 64

// answered notes a NACK; an ACK is none.
func (l *link) answered(a answer, byPeer bool) {
	if a.GetErrorDetail() == nil {
		return
	}
	one := LastRefusal{Type: a.GetTypeUrl(), ByPeer: byPeer, Reason: a.GetErrorDetail().GetMessage(), At: time.Now()}
	if all, err := federation.Refusals(a); err == nil && len(all) > 0 {
		one.Resource, one.Reason = all[0].Resource, all[0].Reason
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused == nil {
		l.refused = map[string]LastRefusal{}
	}
	if _, known := l.refused[one.Type]; known || len(l.refused) < maxRefusedTypes {
		l.refused[one.Type] = one
	}
}

// meter follows the responses of one stream that sends. Safe for concurrent use.
type meter struct {
	link *link

	mu sync.Mutex
	// dirty since then: there may be changes that are not sent; zero: there are none.
	dirty time.Time
	// waiting are the responses without an answer, by nonce, and since when the first of their changes is there; zero: they are
	// what the stream began with.
	waiting map[string]time.Time
	// whole types: the peer was sent all that there was when the stream began.
	whole map[string]bool
}

func (l *link) newMeter() *meter {
	m := &meter{link: l, waiting: map[string]time.Time{}, whole: map[string]bool{}}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.meter = m
	return m
}

func (m *meter) meters() *meter { return m }

// end of the stream: what it has not confirmed is sent again by the next one, as what that begins with.
func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dirty = time.Time{}
	clear(m.waiting)
}

// changed notes that there may be something new.
func (m *meter) changed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dirty.IsZero() {
		m.dirty = time.Now()
	}
}

// sent notes a response; complete: it ends a batch.
func (m *meter) sent(nonce, typ string, complete bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := m.dirty
	if since.IsZero() {
		since = time.Now()
	}
	if !m.whole[typ] {
		since, m.whole[typ] = time.Time{}, complete
	}
	m.waiting[nonce] = since
}

// idle notes that there is nothing to send; full: but for what waits for answers.
func (m *meter) idle(full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !full {
		m.dirty = time.Time{}
	}
}

// answered notes an answer that the sender has taken.
func (m *meter) answered(a answer) {
	if a.GetResponseNonce() == "" {
		return
	}
	now := time.Now()
	m.mu.Lock()
	since, ok := m.waiting[a.GetResponseNonce()]
	delete(m.waiting, a.GetResponseNonce())
	m.mu.Unlock()
	if ok && !since.IsZero() {
		m.link.mu.Lock()
		m.link.sent.add(now.Sub(since), now)
		m.link.mu.Unlock()
	}
	m.link.answered(a, true)
}

// oldest is since when the oldest change is not confirmed; zero: there is none.
func (m *meter) oldest() time.Time {
	if m == nil {
		return time.Time{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out time.Time
	for _, at := range m.waiting {
		if !at.IsZero() && (out.IsZero() || at.Before(out)) {
			out = at
		}
	}
	return out
}

// text of a lag in the metadata of a health check: microseconds and counts.
func (l Lag) text() string {
	return fmt.Sprintf("%d %d %d %d", l.Samples, l.P50.Microseconds(), l.P99.Microseconds(), l.Waiting.Microseconds())
}

// parseLag reads the text of a Lag.
func parseLag(text string) (out Lag, ok bool) {
	fields := strings.Fields(text)
	if len(fields) != 4 {
		return Lag{}, false
	}
	var n [4]uint64
	for i, f := range fields {
		v, err := strconv.ParseUint(f, 10, 52) // a year and more, in microseconds
		if err != nil {
			return Lag{}, false
		}
		n[i] = v
	}
	of := func(us uint64) time.Duration { return min(time.Duration(us), 1<<52) * time.Microsecond } //nolint:gosec // below 2^52
	return Lag{Samples: n[0], P50: of(n[1]), P99: of(n[2]), Waiting: of(n[3])}, true
}
