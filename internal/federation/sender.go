package federation

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	"github.com/proxima-mesh/proxima/internal/delta"
)

const (
	// cursorKey and seenKey stand for positions among the versions of resources,
	// which have a slash in their names. The cursor is the position up to which the
	// receiver is complete; seen is the newest that it has seen of any instance.
	cursorKey = ""
	seenKey   = "seen"
	// defaultWindow is how many responses may be unacknowledged in a stream.
	defaultWindow = 8
	// maxRefusals are listed by name in a NACK.
	maxRefusals = 100
)

// SenderConfig configures a Sender.
type SenderConfig struct {
	// Types that the stream carries, in the order in which they are wanted first.
	Types []Type
	// Scope returns the state of a type, as the peer may see it; all its resources
	// have the type's name as delta.Resource.Type. nil: the type is not served yet.
	Scope func(typ string) *delta.Scope
	// Behind is called when a peer has seen more of a type than its scope has: the state of
	// another instance, which read the store later. It must not block; nil: nothing is done.
	Behind func(typ string)
	// StoreEpoch identifies the history of the local store.
	StoreEpoch string
	// Window is how many responses may be sent ahead of their acknowledgement; 0: 8.
	// A peer that is slower gets each name once, newest, when it is ready.
	Window int
}

// Sender is the sending end of one stream: Step takes what the receiver says, Next
// gives what is to be sent. It belongs to one goroutine at a time; senders that share
// scopes are independent of each other.
type Sender struct {
	config SenderConfig
	subs   []*served // in the order of config.Types
	turn   int
	// sequence is the nonce of the last response; acked that of the last one that
	// was acknowledged.
	sequence, acked uint64
	inFlight        []inFlight
	unsupported     []string
}

// inFlight is a response that is not acknowledged.
type inFlight struct {
	sequence uint64
	sub      *served
}

// served is one subscription.
type served struct {
	typ      Type
	session  *delta.Session // nil until the receiver subscribes
	acked    uint64         // sequence of the last response that was acknowledged
	refused  []Refusal
	refusals int
}

// Refusal is a resource that a receiver does not take.
type Refusal struct {
	Resource, Reason string
	// Waiting: it is valid, and will be applied when something else has happened.
	Waiting bool
}

// NewSender starts a stream.
func NewSender(c SenderConfig) *Sender {
	c.Window = cmp.Or(c.Window, defaultWindow)
	s := &Sender{config: c}
	for _, t := range c.Types {
		s.subs = append(s.subs, &served{typ: t})
	}
	return s
}

// Step takes a request. It never blocks. An error ends the stream: ErrProtocol, or
// ErrBehind.
func (s *Sender) Step(r *discovery.DeltaDiscoveryRequest) error {
	i := slices.IndexFunc(s.subs, func(sub *served) bool { return sub.typ.Name == r.GetTypeUrl() })
	switch {
	case r.GetTypeUrl() == "":
		return fmt.Errorf("%w: request without a type", ErrProtocol)
	case i < 0:
		// A peer of another version. An empty response would say that there are no
		// objects, so there is none.
		if r.GetResponseNonce() == "" && !slices.Contains(s.unsupported, r.GetTypeUrl()) && len(s.unsupported) < maxUnsupported {
			s.unsupported = append(s.unsupported, r.GetTypeUrl())
		}
		return nil
	case r.GetResponseNonce() != "":
		return s.answered(s.subs[i], r)
	case s.subs[i].session != nil:
		return nil // repeated
	}
	return s.subscribe(s.subs[i], r)
}

// maxUnsupported bounds what a peer can make the sender remember.
const maxUnsupported = 64

func (s *Sender) subscribe(sub *served, r *discovery.DeltaDiscoveryRequest) error {
	if len(r.GetResourceNamesSubscribe())+len(r.GetResourceNamesUnsubscribe()) > 0 {
		return fmt.Errorf("%w: subscription of %s by name", ErrProtocol, sub.typ.Name)
	}
	scope := s.config.Scope(sub.typ.Name)
	if scope == nil {
		return fmt.Errorf("subscribe to %s: %w: it is not served yet", sub.typ.Name, ErrBehind)
	}
	versions := r.GetInitialResourceVersions()
	for _, key := range []string{seenKey, cursorKey} {
		text, ok := versions[key]
		if !ok {
			continue
		}
		seen, err := delta.ParsePosition(text)
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w: %w", sub.typ.Name, ErrProtocol, err)
		}
		if at, filled := scope.Position(); filled && at.Epoch == seen.Epoch && at.Sequence < seen.Sequence {
			if s.config.Behind != nil {
				s.config.Behind(sub.typ.Name)
			}
			return fmt.Errorf("subscribe to %s at %s: %w, at %s", sub.typ.Name, seen, ErrBehind, at)
		}
	}
	delete(versions, seenKey)
	session := delta.NewSession(scope)
	if err := session.Step(delta.Request{Type: sub.typ.Name, Versions: versions}); err != nil {
		return fmt.Errorf("subscribe to %s: %w: %w", sub.typ.Name, ErrProtocol, err)
	}
	sub.session = session
	return nil
}

// answered takes an ACK or NACK. They come in the order of the responses.
func (s *Sender) answered(sub *served, r *discovery.DeltaDiscoveryRequest) error {
	sequence, err := parseSequence(r.GetResponseNonce())
	if err != nil {
		return err
	}
	if sequence <= s.acked {
		if sequence == sub.acked { // what the peer refuses has changed
			sub.refused, sub.refusals, err = parseRefusals(r)
		}
		return err
	}
	if len(s.inFlight) == 0 || s.inFlight[0].sequence != sequence || s.inFlight[0].sub != sub {
		return fmt.Errorf("%w: answer to response %d of %s, expected one to %d", ErrProtocol, sequence, sub.typ.Name, s.acked+1)
	}
	s.acked, sub.acked, s.inFlight = sequence, sequence, s.inFlight[1:]
	sub.refused, sub.refusals, err = parseRefusals(r)
	return err
}

// Full reports whether nothing more is sent until the peer answers.
func (s *Sender) Full() bool { return len(s.inFlight) >= s.config.Window }

// Message is a response to send: the frame's bytes, which streams share and nothing
// may change, followed by those of this stream. The concatenation is a
// DeltaDiscoveryResponse.
type Message struct {
	Frame *delta.Frame
	Tail  []byte
	// Nonce of the response, which is in Tail.
	Nonce string
}

// Parts of the encoded message.
func (m *Message) Parts() [][]byte { return [][]byte{m.Frame.Data, m.Tail} }

// Next returns the next response to send, or nil if there is none at present: the
// peer has everything, or is too far behind with its answers. What it returns counts
// as sent. An error (delta.ErrPosition) ends the stream; the peer comes back with the
// versions of its resources.
func (s *Sender) Next() (*Message, error) {
	if len(s.inFlight) >= s.config.Window {
		return nil, nil
	}
	for range s.subs {
		sub := s.subs[s.turn%len(s.subs)]
		if sub.session == nil {
			s.turn++
			continue
		}
		f, err := sub.session.Next()
		if err != nil {
			return nil, fmt.Errorf("serve %s: %w", sub.typ.Name, err)
		}
		// A type is completed before the next one starts, as later types refer to it.
		if f == nil || f.Complete {
			s.turn++
		}
		if f != nil {
			s.sequence++
			s.inFlight = append(s.inFlight, inFlight{s.sequence, sub})
			return &Message{Frame: f, Tail: tail(s.sequence, s.config.StoreEpoch), Nonce: strconv.FormatUint(s.sequence, 10)}, nil
		}
	}
	return nil, nil
}

// tail is what differs from stream to stream. Appended to a message, a scalar field
// replaces an earlier one (protobuf encoding, "Last One Wins").
func tail(sequence uint64, storeEpoch string) []byte {
	b, _ := proto.Marshal(&discovery.DeltaDiscoveryResponse{ // it cannot fail: all is valid UTF-8
		Nonce: strconv.FormatUint(sequence, 10), ControlPlane: controlPlane(storeEpoch),
	})
	return b
}

func controlPlane(storeEpoch string) *core.ControlPlane {
	return &core.ControlPlane{Identifier: storeEpoch}
}

// parseSequence reads a nonce.
func parseSequence(nonce string) (uint64, error) {
	n, err := strconv.ParseUint(nonce, 10, 64)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != nonce {
		return 0, fmt.Errorf("%w: nonce %.40q", ErrProtocol, nonce)
	}
	return n, nil
}

// parseRefusals reads the refused resources of an answer; none of an ACK.
func parseRefusals(r interface{ GetErrorDetail() *spb.Status }) (list []Refusal, total int, err error) {
	detail := r.GetErrorDetail()
	if detail == nil {
		return nil, 0, nil
	}
	for _, d := range detail.GetDetails() {
		var m federationv1.Refusals
		if !d.MessageIs(&m) {
			continue
		}
		if err := d.UnmarshalTo(&m); err != nil {
			return nil, 0, fmt.Errorf("%w: refusals: %w", ErrProtocol, err)
		}
		for _, f := range m.GetRefusals() {
			if len(list) < maxRefusals {
				list = append(list, Refusal{Resource: f.GetName(), Reason: f.GetReason(), Waiting: f.GetWaiting()})
			}
		}
		return list, max(int(m.GetTotal()), len(list)), nil
	}
	// A receiver that does not name resources.
	return []Refusal{{Reason: detail.GetMessage()}}, 1, nil
}

// Refusals are the resources that an answer refuses, the first of them; none of an ACK. Errors: ErrProtocol.
func Refusals(r interface{ GetErrorDetail() *spb.Status }) ([]Refusal, error) {
	list, _, err := parseRefusals(r)
	return list, err
}

// SenderStatus describes a stream.
type SenderStatus struct {
	Types []SentType
	// InFlight responses are not acknowledged.
	InFlight int
	// Unsupported types were asked for and are not known here.
	Unsupported []string
}

// SentType describes one subscription.
type SentType struct {
	Type string
	// Subscribed: the peer follows the type.
	Subscribed bool
	// Sent is the last position sent.
	Sent delta.Position
	// Unsent counts changes, before coalescing.
	Unsent uint64
	// Refused are resources that the peer does not take, at most 100; Refusals counts
	// all.
	Refused  []Refusal
	Refusals int
}

// Status describes the stream.
func (s *Sender) Status() SenderStatus {
	out := SenderStatus{InFlight: len(s.inFlight), Unsupported: slices.Clone(s.unsupported)}
	for _, sub := range s.subs {
		t := SentType{Type: sub.typ.Name, Refused: slices.Clone(sub.refused), Refusals: sub.refusals}
		if sub.session != nil {
			status := sub.session.Status()[0]
			t.Subscribed, t.Sent, t.Unsent = true, status.Sent, status.Unsent
		}
		out.Types = append(out.Types, t)
	}
	return out
}
