package federation

import (
	"errors"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/proxima-mesh/proxima/internal/delta"
)

// partOf is a response that is not the last one of its batch.
func partOf(m *discovery.DeltaDiscoveryResponse) *discovery.DeltaDiscoveryResponse {
	m.SystemVersionInfo = ""
	return m
}

func removalOf(typ, nonce string, names ...string) *discovery.DeltaDiscoveryResponse {
	m := responseOf(typ, nonce)
	m.RemovedResources = names
	return m
}

// play gives responses to a receiver, whose store takes all but what is refused.
func play(
	t *testing.T, r *Receiver, refused map[string]error, responses ...*discovery.DeltaDiscoveryResponse,
) (deletes int, last Progress) {
	t.Helper()
	for _, m := range responses {
		tx, err := r.Step(noon, m)
		if err != nil {
			t.Fatal(err)
		}
		deletes += len(tx.Deletes)
		if last, err = r.Advance(tx, Outcome{Refused: refused}, noon); err != nil {
			t.Fatal(err)
		}
	}
	return deletes, last
}

func policyOf(t *testing.T, name string) *discovery.Resource {
	t.Helper()
	return resourceOf(t, "policy", &Object{Key: Key{Namespace: "a", Name: name}})
}

// TestBackInTheBatch: a removal is void if a later response of the batch has the resource.
func TestBackInTheBatch(t *testing.T) {
	r := newTestReceiver(t, AtZone)
	deletes, _ := play(t, r, nil,
		responseOf("policy", "1", policyOf(t, "x"), policyOf(t, "y")),
		partOf(removalOf("policy", "2", "a/x", "a/y")), responseOf("policy", "3", policyOf(t, "x")))
	if got := r.Status()[1].Copies; deletes != 1 || got != 1 {
		t.Errorf("%d deletions, %d copies", deletes, got)
	}
}

// TestBrokenBatch: removals of a batch that was not completed do not count.
func TestBrokenBatch(t *testing.T) {
	r := newTestReceiver(t, AtZone)
	play(t, r, nil, responseOf("policy", "1", policyOf(t, "x")), partOf(removalOf("policy", "2", "a/x")))
	if _, err := r.Connect(false); err != nil {
		t.Fatal(err)
	}
	if deletes, _ := play(t, r, nil, responseOf("policy", "1")); deletes != 0 {
		t.Error("a removal outlived its stream")
	}
}

// TestPositionAfterRestart: a receiver that is made again has not got what was refused
// before, so its position stays until the batch is complete.
func TestPositionAfterRestart(t *testing.T) {
	r := newTestReceiver(t, AtZone)
	refused := map[string]error{"a/bad": errors.New("no")}
	_, p := play(t, r, refused, responseOf("policy", "1", policyOf(t, "good"), policyOf(t, "bad")))
	if p.Checkpoint == nil || p.Checkpoint.Position != "" || p.Checkpoint.Seen != "1:2" {
		t.Fatalf("%+v", p.Checkpoint)
	}
	again, err := NewReceiver(r.config, []State{{Type: "policy", Copies: []Copy{r.sub("policy").copies["a/good"]}, Checkpoint: *p.Checkpoint}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Connect(false); err != nil {
		t.Fatal(err)
	}
	if _, p = play(t, again, refused, partOf(responseOf("policy", "1", policyOf(t, "new")))); p.Checkpoint != nil {
		t.Errorf("the position has moved: %+v", p.Checkpoint)
	}
	if _, p = play(t, again, refused, responseOf("policy", "2", policyOf(t, "bad"))); again.sub("policy").checkpoint.Position != "" {
		t.Errorf("the position passes what is refused: %+v", p.Checkpoint)
	}
}

// TestProjectedWindow: in protocol version 1 a type has one response without an answer.
func TestProjectedWindow(t *testing.T) {
	_, scope := newTestSender(t)
	p := NewProjectedSender(SenderConfig{Types: simTypes.SentBy(AtGlobal), StoreEpoch: "e", Scope: func(string) *delta.Scope { return scope }})
	if err := p.Step(&discovery.DiscoveryRequest{TypeUrl: "policy"}); err != nil {
		t.Fatal(err)
	}
	var sent []*discovery.DiscoveryResponse
	for n := range uint64(5) {
		if _, err := scope.Apply(delta.Position{Epoch: 1, Sequence: 2 + n}, []delta.Change{{
			Resource: delta.Resource{Type: "policy", Name: "a/x", Body: []byte{byte(n)}},
		}}); err != nil {
			t.Fatal(err)
		}
		m, err := p.Next()
		if err != nil {
			t.Fatal(err)
		}
		if m != nil {
			sent = append(sent, m)
		}
	}
	if len(sent) != 1 {
		t.Fatalf("%d responses without an answer", len(sent))
	}
	if err := p.Step(&discovery.DiscoveryRequest{TypeUrl: "policy", ResponseNonce: sent[0].Nonce}); err != nil {
		t.Fatal(err)
	}
	if m, err := p.Next(); err != nil || m.GetVersionInfo() != "1:6" || len(m.GetResources()) != 1 {
		t.Errorf("%v, %v", m, err)
	}
}

// TestRefusedAndTakenBack: what was refused and is again as it was ends the refusal.
func TestRefusedAndTakenBack(t *testing.T) {
	r := newTestReceiver(t, AtZone)
	first := policyOf(t, "x")
	second := resourceOf(t, "policy", &Object{Key: Key{Namespace: "a", Name: "x"}, Payload: []byte("2")})
	play(t, r, nil, responseOf("policy", "1", first))
	if _, p := play(t, r, map[string]error{"a/x": errors.New("no")}, responseOf("policy", "2", second)); p.Answer.GetErrorDetail() == nil {
		t.Error("no refusal")
	}
	if _, p := play(t, r, nil, responseOf("policy", "3", first)); p.Answer.GetErrorDetail() != nil {
		t.Errorf("still refused: %v", p.Answer)
	}
}
