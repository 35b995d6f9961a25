package federation

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/delta"
)

// TestResumeCost: a zone that missed 1,000 of many changes receives these, and neither the state nor the earlier history.
// With PROXIMA_SOAK=1 of 1,000,000.
func TestResumeCost(t *testing.T) {
	const objects, missed = 10_000, 1_000
	changes := 50_000
	if os.Getenv("PROXIMA_SOAK") != "" {
		changes = 1_000_000
	}
	scope := delta.NewScope(delta.Options{})
	if _, err := scope.Replace(delta.Position{Epoch: 1, Sequence: 1}, nil); err != nil {
		t.Fatal(err)
	}
	sequence := uint64(1)
	commit := func(name string, removed bool) (size int) {
		sequence++
		o := &Object{Key: Key{Namespace: "a", Name: name}, Payload: fmt.Appendf(nil, `{"spec":{"revision":%d,"text":"%0200d"}}`, sequence, 0)}
		c := delta.Change{Resource: delta.Resource{Type: "policy", Name: o.Resource()}, Removed: removed}
		if !removed {
			body, err := o.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			c.Resource.Body = body
		}
		if _, err := scope.Apply(delta.Position{Epoch: 1, Sequence: sequence}, []delta.Change{c}); err != nil {
			t.Fatal(err)
		}
		return len(c.Resource.Name) + len(c.Resource.Body)
	}
	receiver, err := NewReceiver(ReceiverConfig{Side: AtZone, Zone: "east", Types: simTypes.ReceivedBy(AtZone), Namespace: "system"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// stream of the zone until it has all.
	stream := func() (got, bytes, asked int) {
		sender := NewSender(SenderConfig{
			Types: simTypes.SentBy(AtGlobal), StoreEpoch: "e", Scope: func(string) *delta.Scope { return scope }, Window: 2,
		})
		requests, err := receiver.Connect(false)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range requests {
			if r.TypeUrl == "policy" {
				asked += proto.Size(r)
				if err := sender.Step(r); err != nil {
					t.Fatal(err)
				}
			}
		}
		for {
			m, err := sender.Next()
			if err != nil {
				t.Fatal(err)
			}
			if m == nil {
				return got, bytes, asked
			}
			var d discovery.DeltaDiscoveryResponse
			if err := proto.Unmarshal(append(append([]byte{}, m.Frame.Data...), m.Tail...), &d); err != nil {
				t.Fatal(err)
			}
			got += len(d.Resources) + len(d.RemovedResources)
			bytes += proto.Size(&d)
			tx, err := receiver.Step(noon, &d)
			if err != nil {
				t.Fatal(err)
			}
			p, err := receiver.Advance(tx, Outcome{}, noon)
			if err != nil {
				t.Fatal(err)
			}
			if p.Answer != nil {
				if err := sender.Step(p.Answer); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for i := range objects {
		commit(fmt.Sprintf("p%d", i), false)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range changes - missed {
		commit(fmt.Sprintf("p%d", random.IntN(objects)), false)
	}
	if got, _, _ := stream(); got != objects {
		t.Fatalf("%d of %d objects at first", got, objects)
	}

	size := 0
	for i := range missed {
		switch {
		case i < 100:
			size += commit(fmt.Sprintf("p%d", i), true)
		case i < 200:
			size += commit(fmt.Sprintf("new%d", i), false)
		default:
			size += commit(fmt.Sprintf("p%d", i), false)
		}
	}
	got, bytes, asked := stream()
	t.Logf("%d changes, %d of them missed, of %d bytes: received %d of %d bytes, asked for with %d bytes", changes, missed, size, got, bytes, asked)
	if got < missed || got > missed*11/10 {
		t.Errorf("%d changes were received", got)
	}
	if bytes > size*12/10 || asked > 1000 {
		t.Errorf("%d bytes were received for changes of %d, and asked for with %d", bytes, size, asked)
	}
	for _, s := range receiver.Status() {
		if s.Type == "policy" && s.Copies != objects {
			t.Errorf("the zone has %d objects", s.Copies)
		}
	}
}
