package federation

import (
	"errors"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/proxima-mesh/proxima/internal/delta"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func newTestReceiver(t testing.TB, side Side) *Receiver {
	t.Helper()
	r, err := NewReceiver(ReceiverConfig{Side: side, Zone: "east", Types: simTypes.ReceivedBy(side), Namespace: "system"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Connect(false); err != nil {
		t.Fatal(err)
	}
	return r
}

func resourceOf(t testing.TB, typ string, o *Object) *discovery.Resource {
	t.Helper()
	body, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return &discovery.Resource{Name: o.Resource(), Version: delta.VersionOf(body), Resource: &anypb.Any{TypeUrl: typ, Value: body}}
}

func responseOf(typ, nonce string, resources ...*discovery.Resource) *discovery.DeltaDiscoveryResponse {
	return &discovery.DeltaDiscoveryResponse{
		TypeUrl: typ, Nonce: nonce, SystemVersionInfo: "1:2", Resources: resources, ControlPlane: &core.ControlPlane{Identifier: "e"},
	}
}

// TestForged: global overwrites what a zone says of the origin of its objects.
func TestForged(t *testing.T) {
	r := newTestReceiver(t, AtGlobal)
	forged := &Object{
		Key: Key{Namespace: "a", Name: "web"}, Payload: []byte("{}"),
		Labels: map[string]string{
			LabelOrigin: OriginGlobal, LabelZone: "west", LabelDisplayName: "admin", LabelSourceNamespace: "kube-system", "app": "web",
		},
		Annotations: map[string]string{AnnotationSyncName: "x/y", AnnotationSyncVersion: "1"},
	}
	res := resourceOf(t, "dataplane", forged)
	tx, err := r.Step(noon, responseOf("dataplane", "1", res))
	if err != nil || len(tx.Puts) != 1 {
		t.Fatal(tx, err)
	}
	put := tx.Puts[0]
	want := map[string]string{LabelOrigin: OriginZone, LabelZone: "east", LabelDisplayName: "web", LabelSourceNamespace: "a", "app": "web"}
	if diff := cmp.Diff(want, put.Object.Labels); diff != "" {
		t.Error(diff)
	}
	want = map[string]string{AnnotationSyncName: "a/web", AnnotationSyncVersion: res.Version}
	if diff := cmp.Diff(want, put.Object.Annotations); diff != "" {
		t.Error(diff)
	}
	if put.Owner != (Owner{Zone: "east"}) || put.Key.Namespace != "system" || put.Key != put.Object.Key {
		t.Errorf("%+v", put)
	}
}

// TestRelayed: a zone takes the objects of other zones from global, but not its own.
func TestRelayed(t *testing.T) {
	r := newTestReceiver(t, AtZone)
	var all []*discovery.Resource
	for name, zone := range map[string]string{"a": "west", "b": "east", "c": "", "d": "We$t"} {
		o := &Object{Key: Key{Namespace: "system", Name: name}, Labels: map[string]string{LabelDisplayName: "in", LabelSourceNamespace: "x"}}
		if zone != "" {
			o.Labels[LabelZone] = zone
		}
		all = append(all, resourceOf(t, "ingress", o))
	}
	tx, err := r.Step(noon, responseOf("ingress", "1", all...))
	if err != nil || len(tx.Puts) != 1 || len(tx.invalid) != 3 {
		t.Fatalf("%+v, %v", tx, err)
	}
	put := tx.Puts[0]
	want := map[string]string{LabelOrigin: OriginZone, LabelZone: "west", LabelDisplayName: "in", LabelSourceNamespace: "x"}
	if diff := cmp.Diff(want, put.Object.Labels); diff != "" || put.Key.Name != "a" {
		t.Error(put.Key, diff)
	}
}

// TestInvalidResources are refused one by one.
func TestInvalidResources(t *testing.T) {
	r := newTestReceiver(t, AtZone)
	valid := func(name string) *discovery.Resource {
		return resourceOf(t, "policy", &Object{Key: Key{Namespace: "a", Name: name}})
	}
	bad := map[string]func(*discovery.Resource){
		"a/other-type":    func(r *discovery.Resource) { r.Resource.TypeUrl = "mesh" },
		"a/no-version":    func(r *discovery.Resource) { r.Version = "" },
		"a/no-body":       func(r *discovery.Resource) { r.Resource = nil },
		"a/garbage":       func(r *discovery.Resource) { r.Resource.Value = []byte("\xff") },
		"a/another-name":  func(r *discovery.Resource) { r.Resource.Value = valid("x").Resource.Value },
		"a/cluster-scope": func(r *discovery.Resource) { *r = *resourceOf(t, "policy", &Object{Key: Key{Name: "cluster-scope"}}) },
		"a/upper": func(r *discovery.Resource) {
			*r = *resourceOf(t, "policy", &Object{Key: Key{Namespace: "a", Name: "Upper"}})
		},
		"a/large": func(r *discovery.Resource) { r.Resource.Value = make([]byte, maxObject+1) },
		"a/label": func(r *discovery.Resource) {
			*r = *resourceOf(t, "policy", &Object{Key: Key{Namespace: "a", Name: "label"}, Labels: map[string]string{"x": "\n"}})
		},
		"a/unicode-label": func(r *discovery.Resource) {
			*r = *resourceOf(t, "policy", &Object{Key: Key{Namespace: "a", Name: "unicode-label"}, Labels: map[string]string{"é": "x"}})
		},
	}
	all := []*discovery.Resource{valid("good")}
	for name, spoil := range bad {
		res := valid(strings.TrimPrefix(name, "a/"))
		spoil(res)
		all = append(all, res)
	}
	tx, err := r.Step(noon, responseOf("policy", "1", all...))
	if err != nil {
		t.Fatal(err)
	}
	if len(tx.Puts) != 1 || tx.Puts[0].Resource != "a/good" || len(tx.invalid) != len(bad) {
		t.Errorf("%d puts, %d refused: %+v", len(tx.Puts), len(tx.invalid), tx.invalid)
	}
	p, err := r.Advance(tx, Outcome{}, noon)
	if err != nil || p.Answer.GetErrorDetail() == nil || p.Checkpoint.Position != "" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestProtocolErrors(t *testing.T) {
	r := newTestReceiver(t, AtZone)
	for name, m := range map[string]*discovery.DeltaDiscoveryResponse{
		"another direction": responseOf("dataplane", "1"),
		"a gap":             responseOf("policy", "2"),
		"no nonce":          responseOf("policy", ""),
		"a signed nonce":    responseOf("policy", "+1"),
		"a bad position":    {TypeUrl: "policy", Nonce: "1", SystemVersionInfo: "x", ControlPlane: &core.ControlPlane{Identifier: "e"}},
		"no epoch":          {TypeUrl: "policy", Nonce: "1", SystemVersionInfo: "1:1"},
	} {
		if _, err := r.Step(noon, m); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	tx, err := r.Step(noon, responseOf("policy", "1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Step(noon, responseOf("policy", "2")); !errors.Is(err, ErrPending) {
		t.Error(err)
	}
	if _, err := r.Connect(false); !errors.Is(err, ErrPending) {
		t.Error(err)
	}
	if _, err := r.Advance(&Transaction{}, Outcome{}, noon); err == nil {
		t.Error("another transaction was advanced")
	}
	if _, err := r.Advance(tx, Outcome{}, noon); err != nil {
		t.Error(err)
	}
}

func newTestSender(t testing.TB) (*Sender, *delta.Scope) {
	t.Helper()
	scope := delta.NewScope(delta.Options{})
	if _, err := scope.Replace(delta.Position{Epoch: 1, Sequence: 1}, nil); err != nil {
		t.Fatal(err)
	}
	s := NewSender(SenderConfig{
		Types: simTypes.SentBy(AtGlobal), StoreEpoch: "e", Scope: func(string) *delta.Scope { return scope }, Window: 2,
	})
	return s, scope
}

// TestUnsupportedType: silence, as an empty response would delete what the peer has.
func TestUnsupportedType(t *testing.T) {
	s, _ := newTestSender(t)
	for range 2 {
		if err := s.Step(&discovery.DeltaDiscoveryRequest{TypeUrl: "future"}); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := s.Next(); m != nil || err != nil {
		t.Error(m, err)
	}
	if got := s.Status().Unsupported; len(got) != 1 || got[0] != "future" {
		t.Error(got)
	}
}

// TestWindow: a slow peer is sent two responses, and then each name once.
func TestWindow(t *testing.T) {
	s, scope := newTestSender(t)
	if err := s.Step(&discovery.DeltaDiscoveryRequest{TypeUrl: "policy"}); err != nil {
		t.Fatal(err)
	}
	set := func(sequence uint64, name string) {
		t.Helper()
		_, err := scope.Apply(delta.Position{Epoch: 1, Sequence: sequence}, []delta.Change{{
			Resource: delta.Resource{Type: "policy", Name: name, Body: []byte{byte(sequence)}},
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	next := func() *discovery.DeltaDiscoveryResponse {
		t.Helper()
		m, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if m == nil {
			return nil
		}
		var d discovery.DeltaDiscoveryResponse
		if err := proto.Unmarshal(append(append([]byte{}, m.Frame.Data...), m.Tail...), &d); err != nil {
			t.Fatal(err)
		}
		return &d
	}
	if d := next(); d.GetNonce() != "1" || d.GetControlPlane().GetIdentifier() != "e" {
		t.Error(d)
	}
	set(2, "a/x")
	next()
	for i := range uint64(100) {
		set(3+i, "a/x")
		if d := next(); d != nil {
			t.Fatalf("beyond the window: %v", d)
		}
	}
	if err := s.Step(&discovery.DeltaDiscoveryRequest{TypeUrl: "policy", ResponseNonce: "2"}); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
	if err := s.Step(&discovery.DeltaDiscoveryRequest{TypeUrl: "policy", ResponseNonce: "1"}); err != nil {
		t.Error(err)
	}
	if d := next(); len(d.GetResources()) != 1 || d.GetSystemVersionInfo() != "1:102" {
		t.Error(d)
	}
}

// TestFramesAreShared: what streams are sent is one piece of memory, but for some bytes.
func TestFramesAreShared(t *testing.T) {
	_, scope := newTestSender(t)
	if _, err := scope.Apply(delta.Position{Epoch: 1, Sequence: 2}, []delta.Change{{
		Resource: delta.Resource{Type: "policy", Name: "a/x", Body: make([]byte, 10_000)},
	}}); err != nil {
		t.Fatal(err)
	}
	var first *Message
	for zone := range 100 {
		s := NewSender(SenderConfig{Types: simTypes.SentBy(AtGlobal), StoreEpoch: "e", Scope: func(string) *delta.Scope { return scope }})
		if err := s.Step(&discovery.DeltaDiscoveryRequest{TypeUrl: "policy"}); err != nil {
			t.Fatal(err)
		}
		m, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = m
		}
		parts := m.Parts()
		if &parts[0][0] != &first.Frame.Data[0] || len(parts[1]) > 60 {
			t.Fatalf("zone %d: a frame of its own, or %d bytes more", zone, len(parts[1]))
		}
	}
}

func TestTypes(t *testing.T) {
	for name, types := range map[string][]Type{
		"twice":        {{Name: "a", Direction: GlobalToZone}, {Name: "a", Direction: GlobalToZone}},
		"no name":      {{Direction: GlobalToZone}},
		"no direction": {{Name: "a"}},
		"up, selected": {{Name: "a", Direction: ZoneToGlobal, FanOut: SelectedZones}},
	} {
		if _, err := NewTypes(types...); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// FuzzParseObject: what is accepted can be marshalled, and is the same again.
func FuzzParseObject(f *testing.F) {
	seed, _ := (&Object{Key: Key{Namespace: "a", Name: "x"}, Labels: map[string]string{"a": "b"}, Payload: []byte("{}")}).Marshal()
	f.Add(seed)
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ParseObject(b)
		if err != nil {
			return
		}
		again, err := o.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if p, err := ParseObject(again); err != nil || p.Resource() != o.Resource() {
			t.Fatalf("%+v, %v", p, err)
		}
	})
}

// FuzzReceiver: whatever a peer sends, a receiver keeps to its own objects, and its
// answers are accepted by a sender's parser.
func FuzzReceiver(f *testing.F) {
	good, _ := proto.Marshal(responseOf("dataplane", "1", resourceOf(f, "dataplane", &Object{Key: Key{Namespace: "a", Name: "x"}})))
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m discovery.DeltaDiscoveryResponse
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		r := newTestReceiver(t, AtGlobal)
		tx, err := r.Step(noon, &m)
		if err != nil || tx == nil {
			return
		}
		for _, put := range tx.Puts {
			if owner, ok := OwnerOf(put.Object.Labels); !ok || owner.Zone != "east" || put.Key.Namespace != "system" {
				t.Fatalf("%+v", put)
			}
		}
		p, err := r.Advance(tx, Outcome{}, noon)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := parseRefusals(p.Answer); err != nil {
			t.Fatal(err)
		}
		if _, err := proto.Marshal(p.Answer); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzProjectedReceiver is the same in protocol version 1.
func FuzzProjectedReceiver(f *testing.F) {
	body, _ := anypb.New(resourceOf(f, "dataplane", &Object{Key: Key{Namespace: "a", Name: "x"}}))
	good, _ := proto.Marshal(&discovery.DiscoveryResponse{
		TypeUrl: "dataplane", Nonce: "1", VersionInfo: "1:1", Resources: []*anypb.Any{body}, ControlPlane: &core.ControlPlane{Identifier: "e"},
	})
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m discovery.DiscoveryResponse
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		r := ProjectedReceiver{newTestReceiver(t, AtGlobal)}
		tx, err := r.Step(noon, &m)
		if err != nil || tx == nil {
			return
		}
		if _, _, err := r.Advance(tx, Outcome{}, noon); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzSender: whatever a peer requests, a sender comes to the end of its responses.
func FuzzSender(f *testing.F) {
	first, _ := proto.Marshal(&discovery.DeltaDiscoveryRequest{
		TypeUrl: "policy", InitialResourceVersions: map[string]string{"seen": "1:1", "": "1:1", "a/x": "y"},
	})
	f.Add(first, first)
	answer, _ := proto.Marshal(&discovery.DeltaDiscoveryRequest{TypeUrl: "policy", ResponseNonce: "1"})
	f.Add(first, answer)
	f.Fuzz(func(t *testing.T, a, b []byte) {
		s, _ := newTestSender(t)
		for _, b := range [][]byte{a, b} {
			var m discovery.DeltaDiscoveryRequest
			if proto.Unmarshal(b, &m) != nil || s.Step(&m) != nil {
				return
			}
			for range 100 {
				if m, err := s.Next(); m == nil || err != nil {
					break
				}
			}
			if m, err := s.Next(); m != nil && err == nil {
				t.Fatal("there is no end")
			}
		}
	})
}
