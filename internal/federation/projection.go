package federation

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// ProjectedSender is a Sender in protocol version 1: each response has all objects of
// a type (state of the world). It follows a Sender within the process and sends the
// sum of its responses, one type at a time until the peer has answered.
type ProjectedSender struct {
	sender   *Sender
	types    []*projected
	turn     int
	sequence uint64
}

// projected is one type.
type projected struct {
	name      string
	resources map[string]*discovery.Resource
	// position that resources have reached, and whether it is to be sent.
	position string
	unsent   bool
	// outstanding is the response that is not answered; 0: none. acked is the last one
	// that was.
	outstanding, acked uint64
	refused            []Refusal
	refusals           int
}

// NewProjectedSender starts a stream.
func NewProjectedSender(c SenderConfig) *ProjectedSender {
	p := &ProjectedSender{sender: NewSender(c)}
	for _, t := range c.Types {
		p.types = append(p.types, &projected{name: t.Name, resources: map[string]*discovery.Resource{}})
	}
	return p
}

// Step takes a request. It never blocks. An error ends the stream.
func (p *ProjectedSender) Step(r *discovery.DiscoveryRequest) error {
	if r.GetResponseNonce() == "" {
		if len(r.GetResourceNames()) > 0 {
			return fmt.Errorf("%w: subscription of %.80q by name", ErrProtocol, r.GetTypeUrl())
		}
		return p.sender.Step(&discovery.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), Node: r.GetNode()})
	}
	i := slices.IndexFunc(p.types, func(t *projected) bool { return t.name == r.GetTypeUrl() })
	if i < 0 {
		return fmt.Errorf("%w: answer of type %.80q", ErrProtocol, r.GetTypeUrl())
	}
	sequence, err := parseSequence(r.GetResponseNonce())
	if err != nil {
		return err
	}
	t := p.types[i]
	if sequence != t.outstanding && sequence != t.acked {
		return nil // repeated
	}
	t.outstanding, t.acked = 0, sequence
	t.refused, t.refusals, err = parseRefusals(r)
	return err
}

// Next returns the next response to send, or nil if there is none at present. An error
// ends the stream.
func (p *ProjectedSender) Next() (*discovery.DiscoveryResponse, error) {
	for {
		m, err := p.sender.Next()
		if err != nil {
			return nil, err
		}
		if m == nil {
			break
		}
		if err := p.fold(m); err != nil {
			return nil, err
		}
	}
	for range p.types {
		t := p.types[p.turn%len(p.types)]
		p.turn++
		if t.unsent && t.outstanding == 0 {
			return p.response(t)
		}
	}
	return nil, nil
}

// Full reports whether something is not sent until the peer answers.
func (p *ProjectedSender) Full() bool {
	return slices.ContainsFunc(p.types, func(t *projected) bool { return t.unsent && t.outstanding != 0 })
}

// fold adds a response of the sender to the state.
func (p *ProjectedSender) fold(m *Message) error {
	var d discovery.DeltaDiscoveryResponse
	if err := proto.Unmarshal(slices.Concat(m.Frame.Data, m.Tail), &d); err != nil {
		return fmt.Errorf("project response of %s: %w", m.Frame.Type, err)
	}
	i := slices.IndexFunc(p.types, func(t *projected) bool { return t.name == d.GetTypeUrl() })
	t := p.types[i]
	for _, r := range d.GetResources() {
		t.resources[r.GetName()] = r
	}
	for _, name := range d.GetRemovedResources() {
		delete(t.resources, name)
	}
	if position := d.GetSystemVersionInfo(); position != "" {
		t.position, t.unsent = position, true
	}
	return p.sender.Step(&discovery.DeltaDiscoveryRequest{TypeUrl: d.GetTypeUrl(), ResponseNonce: d.GetNonce()})
}

func (p *ProjectedSender) response(t *projected) (*discovery.DiscoveryResponse, error) {
	r := &discovery.DiscoveryResponse{VersionInfo: t.position, TypeUrl: t.name, ControlPlane: controlPlane(p.sender.config.StoreEpoch)}
	for _, name := range slices.Sorted(maps.Keys(t.resources)) {
		body, err := anypb.New(t.resources[name])
		if err != nil {
			return nil, fmt.Errorf("project %s %s: %w", t.name, name, err)
		}
		r.Resources = append(r.Resources, body)
	}
	p.sequence++
	r.Nonce = strconv.FormatUint(p.sequence, 10)
	t.unsent, t.outstanding = false, p.sequence
	return r, nil
}

// Status describes the stream, as of a Sender.
func (p *ProjectedSender) Status() SenderStatus {
	out := p.sender.Status()
	out.InFlight = 0
	for i, t := range p.types {
		out.Types[i].Refused, out.Types[i].Refusals = slices.Clone(t.refused), t.refusals
		if t.outstanding != 0 {
			out.InFlight++
		}
	}
	return out
}

// ProjectedReceiver is a Receiver in protocol version 1. Transactions that it returns
// are finished by its own Advance.
type ProjectedReceiver struct{ *Receiver }

// Connect begins a stream and returns its first requests.
func (p ProjectedReceiver) Connect() ([]*discovery.DiscoveryRequest, error) {
	requests, err := p.Receiver.Connect(true)
	if err != nil {
		return nil, err
	}
	var out []*discovery.DiscoveryRequest
	for _, r := range requests {
		out = append(out, &discovery.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), Node: r.GetNode()})
	}
	return out, nil
}

// Step takes a response: what it lacks is removed.
func (p ProjectedReceiver) Step(now time.Time, m *discovery.DiscoveryResponse) (*Transaction, error) {
	d := &discovery.DeltaDiscoveryResponse{
		TypeUrl: m.GetTypeUrl(), SystemVersionInfo: m.GetVersionInfo(), Nonce: m.GetNonce(), ControlPlane: m.GetControlPlane(),
	}
	if m.GetVersionInfo() == "" {
		return nil, fmt.Errorf("%w: response of %.80q without a version", ErrProtocol, m.GetTypeUrl())
	}
	present := map[string]bool{}
	readable := true
	for i, body := range m.GetResources() {
		r := &discovery.Resource{}
		if err := body.UnmarshalTo(r); err != nil {
			// Its name is not known, so that nothing can be said to be gone.
			readable, r = false, &discovery.Resource{Name: fmt.Sprintf("#%d", i)}
		}
		present[r.GetName()] = true
		d.Resources = append(d.Resources, r)
	}
	if sub := p.sub(m.GetTypeUrl()); sub != nil && readable {
		d.RemovedResources = sub.without(present)
	}
	return p.Receiver.Step(now, d)
}

// without returns all that the peer once had, but for what it has.
func (f *followed) without(present map[string]bool) []string {
	var out []string
	add := func(name string) {
		if !present[name] {
			out = append(out, name)
		}
	}
	for name := range f.copies {
		add(name)
	}
	for name := range f.refused {
		add(name)
	}
	for name := range f.waiting {
		add(name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Advance records that the pending transaction is durable. The answer, if any, is in
// the result's stead.
func (p ProjectedReceiver) Advance(tx *Transaction, o Outcome, now time.Time) (Progress, *discovery.DiscoveryRequest, error) {
	progress, err := p.Receiver.Advance(tx, o, now)
	if err != nil || progress.Answer == nil {
		return progress, nil, err
	}
	a := progress.Answer
	progress.Answer = nil
	return progress, &discovery.DiscoveryRequest{
		TypeUrl: a.GetTypeUrl(), ResponseNonce: a.GetResponseNonce(), ErrorDetail: a.GetErrorDetail(),
		VersionInfo: tx.sub.checkpoint.Position,
	}, nil
}
