package pulsar

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/feed/pulsar/pulsartest"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar/wire"
)

// lease of instances in these tests.
const lease = time.Second

// owner of the topic that has been claimed, and another instance.
func owner(t *testing.T, all []*pulsartest.Plane) (has, other *pulsartest.Plane) {
	t.Helper()
	a, b := all[0].Server.Status(), all[1].Server.Status()
	switch {
	case a.Topics == 1 && b.Topics == 0:
		return all[0], all[1]
	case a.Topics == 0 && b.Topics == 1:
		return all[1], all[0]
	}
	t.Fatalf("the instances serve %d and %d topics: one of them must serve it", a.Topics, b.Topics)
	return nil, nil
}

// eventually returns the next message of a consumer whose instance may change.
func eventually(t *testing.T, c receiver) pulsar.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	m, err := c.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func eventuallyTrue(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// TestInstances: clients that ask different instances for a topic come to one, so a subscription is exclusive, and its consumers share its messages.
func TestInstances(t *testing.T) {
	all := pulsartest.Instances(t, 2, lease)
	clients := []pulsar.Client{connect(t, all[0], pulsartest.Reader), connect(t, all[1], pulsartest.Reader)}
	exclusive := pulsar.ConsumerOptions{Topic: services, SubscriptionName: "one", Type: pulsar.Exclusive, AckWithResponse: true}
	first := must(clients[1].Subscribe(exclusive))(t)
	if _, err := clients[0].Subscribe(exclusive); err == nil || !strings.Contains(err.Error(), "exclusive") {
		t.Errorf("a second consumer, by the other instance: %v", err)
	}
	if has, _ := owner(t, all); has != all[1] {
		t.Error("the instance that was asked first does not serve the topic")
	}
	shared := pulsar.ConsumerOptions{Topic: services, SubscriptionName: "all", Type: pulsar.Shared, AckWithResponse: true, ReceiverQueueSize: 1}
	failover := pulsar.ConsumerOptions{Topic: services, SubscriptionName: "either", Type: pulsar.Failover, AckWithResponse: true}
	var sharing, standing [2]pulsar.Consumer
	for i, c := range clients {
		sharing[i], standing[i] = must(c.Subscribe(shared))(t), must(c.Subscribe(failover))(t)
	}
	at := []int64{all[0].Put("a", "1"), all[0].Put("b", "2")}
	expect(t, next(t, first), "a", at[0])
	if x, y := next(t, sharing[0]), next(t, sharing[1]); x.ID().EntryID()+y.ID().EntryID() != at[0]+at[1] {
		t.Errorf("consumers that share got %v and %v", x.ID(), y.ID())
	}
	expect(t, next(t, standing[0]), "a", at[0])
	expect(t, next(t, standing[0]), "b", at[1])
	nothing(t, standing[1])
	r := must(clients[0].CreateReader(pulsar.ReaderOptions{Topic: services, StartMessageID: pulsar.EarliestMessageID()}))(t)
	defer r.Close()
	expect(t, must(r.Next(t.Context()))(t), "a", at[0])

	// A client that comes to the wrong instance all the same is refused, and told which is the right one.
	_, other := owner(t, all)
	refusal := subscribeAt(t, other.Address)
	if refusal.GetError() != wire.ServerError_SERVICE_NOT_READY || !strings.Contains(refusal.GetMessage(), all[1].Address) {
		t.Errorf("at the wrong instance: %v", refusal)
	}
}

// subscribeAt subscribes at an instance without a lookup, and returns the refusal.
func subscribeAt(t *testing.T, address string) *wire.Error {
	t.Helper()
	n := must(net.Dial("tcp", address))(t)
	defer n.Close()
	_ = n.SetDeadline(time.Now().Add(10 * time.Second))
	for _, cmd := range []*wire.Command{
		{Type: new(int32(2)), Connect: &wire.Connect{ClientVersion: new("test"), ProtocolVersion: new(int32(17)), AuthMethodName: new("token"), AuthData: []byte(pulsartest.Reader)}},
		{Type: new(int32(4)), Subscribe: &wire.Subscribe{
			Topic: new(services), Subscription: new("one"), Type: wire.Subscribe_EXCLUSIVE.Enum(), Consumer: new(uint64(1)), Request: new(uint64(1)),
		}},
	} {
		command := must(proto.Marshal(cmd))(t)
		frame := binary.BigEndian.AppendUint32(nil, uint32(len(command)+4))
		frame = binary.BigEndian.AppendUint32(frame, uint32(len(command)))
		must(n.Write(append(frame, command...)))(t)
	}
	for {
		var size [4]byte
		must(io.ReadFull(n, size[:]))(t)
		frame := make([]byte, binary.BigEndian.Uint32(size[:]))
		must(io.ReadFull(n, frame))(t)
		cmd := &wire.Command{}
		if err := proto.Unmarshal(frame[4:4+binary.BigEndian.Uint32(frame)], cmd); err != nil {
			t.Fatal(err)
		}
		if cmd.Connected == nil && cmd.Ping == nil {
			return cmd.Error
		}
	}
}

// TestTakeOver: when the instance ends that serves a topic, or does not reach the store any more, another one goes on where the subscription was.
func TestTakeOver(t *testing.T) {
	for _, how := range []string{"ends", "cut"} {
		t.Run(how, func(t *testing.T) {
			all := pulsartest.Instances(t, 2, lease)
			c := must(pulsar.NewClient(pulsar.ClientOptions{
				URL: "pulsar://" + all[0].Address + "," + all[1].Address, Authentication: pulsar.NewAuthenticationToken(pulsartest.Reader), Logger: plog.NewLoggerWithSlog(slog.New(slog.DiscardHandler)),
			}))(t)
			defer c.Close()
			in := must(c.Subscribe(pulsar.ConsumerOptions{
				Topic: services, SubscriptionName: "s", Type: pulsar.Shared, AckWithResponse: true, ReceiverQueueSize: 10,
			}))(t)
			has, other := owner(t, all)
			var at []int64
			for n := range 6 {
				at = append(at, other.Put("k"+strconv.Itoa(n), "1"))
			}
			for n := range 4 {
				m := next(t, in)
				expect(t, m, "k"+strconv.Itoa(n), at[n])
				if n%2 == 0 {
					if err := in.Ack(m); err != nil {
						t.Fatal(err)
					}
				}
			}
			eventuallyTrue(t, "what is acknowledged is written", func() bool {
				s, err := other.Cursors.Get(t.Context(), "pulsar/blue/shop/services/s")
				return err == nil && int64(s.Mark) >= at[0] && len(s.Acked) == 1
			})
			if how == "ends" {
				has.Stop()
			} else {
				has.Cut(true)
			}
			// Nothing is lost, and what was acknowledged does not come again. What waits in the client may come from before.
			last := other.Put("last", "1")
			missing := map[int64]bool{at[1]: true, at[3]: true, at[4]: true, at[5]: true, last: true}
			for len(missing) > 0 {
				m := eventually(t, in)
				p := m.ID().EntryID()
				if p == at[0] || p == at[2] {
					t.Errorf("%s was acknowledged, and comes again", m.Key())
				}
				if other.Server.Status().Topics == 0 {
					continue // it is of the former owner, which may not write its acknowledgement
				}
				if err := in.Ack(m); err == nil {
					delete(missing, p)
				}
			}
			if how == "cut" {
				has.Cut(false)
			}
			eventuallyTrue(t, "all is acknowledged", func() bool {
				s, err := other.Cursors.Get(t.Context(), "pulsar/blue/shop/services/s")
				return err == nil && int64(s.Mark) >= last && len(s.Acked) == 0
			})
			if n := has.Server.Status().Topics; n != 0 {
				t.Errorf("the former owner serves %d topics", n)
			}
		})
	}
}
