//go:build interop

package pulsar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/proxima-mesh/proxima/internal/feed/pulsar/pulsartest"
	"github.com/proxima-mesh/proxima/test/pulsar/standalone"
)

// side is one of two servers that the same script runs against. What a client observes is noted, and compared afterwards.
type side struct {
	*testing.T
	options pulsar.ClientOptions
	topic   string
	changes *changes
	// put a message on the topic: of an object, or that it is deleted.
	put, remove func(key string)
	// compact the topic; ours needs no call.
	compact func()
	restart func()
	// schema: the topic has anySchema.
	schema func()

	n     int // messages put so far
	seen  []note
	names map[string]int
}

// note is what a step observed.
type note struct{ step, got string }

const anySchema = `{"type":"record","name":"Service","fields":[]}`

// changes are the messages of the topic of ours, in order, which the other server gets as well.
type changes struct {
	list []pulsar.Message
	at   map[string]int // by the property position
}

func (s *side) note(step, format string, args ...any) {
	s.Helper()
	s.seen = append(s.seen, note{step, fmt.Sprintf(format, args...)})
}

// name of a message: its key and its place in the topic, then how often it was delivered before.
func (s *side) name(m pulsar.Message) string {
	out := fmt.Sprintf("%s#%d", m.Key(), s.changes.at[m.Properties()["position"]])
	if m.RedeliveryCount() > 0 {
		out += fmt.Sprintf("+%d", m.RedeliveryCount())
	}
	return out
}

func (s *side) client() pulsar.Client {
	s.Helper()
	c, err := pulsar.NewClient(s.options)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(c.Close)
	return c
}

var serverError = regexp.MustCompile(`server error: (\w+)`)

// code of an error: the server's, or the client's text.
func code(err error) string {
	if err == nil {
		return "fine"
	}
	if m := serverError.FindStringSubmatch(err.Error()); m != nil {
		return m[1]
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "nothing"
	}
	return err.Error()
}

const wait, moment = 10 * time.Second, 400 * time.Millisecond

// take up to n messages; fewer if there are none for a while.
func (s *side) take(in receiver, n int) []pulsar.Message {
	s.Helper()
	var out []pulsar.Message
	for len(out) < n {
		ctx, cancel := context.WithTimeout(s.Context(), wait)
		m, err := in.Receive(ctx)
		cancel()
		if err != nil {
			break
		}
		out = append(out, m)
	}
	return out
}

func (s *side) list(all []pulsar.Message) string {
	var out []string
	for _, m := range all {
		out = append(out, s.name(m))
	}
	return strings.Join(out, " ")
}

// rest is what comes within a moment.
func (s *side) rest(in receiver) (out []pulsar.Message) {
	for {
		ctx, cancel := context.WithTimeout(s.Context(), moment)
		m, err := in.Receive(ctx)
		cancel()
		if err != nil {
			return out
		}
		out = append(out, m)
	}
}

// next reads n messages and what comes after, which is to be nothing.
func (s *side) next(in receiver, n int) string {
	s.Helper()
	all := s.take(in, n)
	return s.list(append(all, s.rest(in)...))
}

type readerReceiver struct{ pulsar.Reader }

func (r readerReceiver) Receive(ctx context.Context) (pulsar.Message, error) { return r.Next(ctx) }

func (s *side) subscribe(c pulsar.Client, options pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	if options.Topic == "" && options.TopicsPattern == "" {
		options.Topic = s.topic
	}
	options.AckWithResponse = true
	if options.NackRedeliveryDelay == 0 {
		options.NackRedeliveryDelay = 100 * time.Millisecond
	}
	if options.SubscriptionName == "" {
		options.SubscriptionName = "s"
	}
	in, err := c.Subscribe(options)
	if err == nil {
		s.Cleanup(in.Close)
	}
	return in, err
}

func (s *side) consumer(c pulsar.Client, options pulsar.ConsumerOptions) pulsar.Consumer {
	s.Helper()
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	in, err := s.subscribe(c, options)
	if err != nil {
		s.Fatal(err)
	}
	return in
}

func (s *side) reader(c pulsar.Client, start pulsar.MessageID, inclusive, compacted bool) readerReceiver {
	s.Helper()
	r, err := c.CreateReader(pulsar.ReaderOptions{Topic: s.topic, StartMessageID: start, StartMessageIDInclusive: inclusive, ReadCompacted: compacted})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(r.Close)
	return readerReceiver{r}
}

func (s *side) fill(keys string) {
	for _, key := range strings.Fields(keys) {
		if name, gone := strings.CutPrefix(key, "-"); gone {
			s.remove(name)
		} else {
			s.put(key)
		}
	}
}

// ids of all messages of the topic.
func (s *side) ids(c pulsar.Client) (out []pulsar.MessageID) {
	s.Helper()
	r := s.reader(c, pulsar.EarliestMessageID(), false, false)
	defer r.Close()
	for _, m := range s.take(r, s.n) {
		out = append(out, m.ID())
	}
	return out
}

var scenarios = []struct {
	name string
	run  func(*side)
}{
	{"exclusive", func(s *side) {
		s.fill("a b")
		c := s.client()
		x := s.consumer(c, pulsar.ConsumerOptions{})
		s.note("all", "%s", s.next(x, 2))
		_, err := s.subscribe(s.client(), pulsar.ConsumerOptions{})
		s.note("a second consumer", "%s", code(err))
		_, err = s.subscribe(s.client(), pulsar.ConsumerOptions{Type: pulsar.Shared})
		s.note("a consumer of another type", "%s", code(err))
		s.fill("c")
		s.note("a new message", "%s", s.next(x, 1))
		x.Close()
		y, err := s.subscribe(c, pulsar.ConsumerOptions{})
		s.note("another after the first has left", "%s", code(err))
		s.note("what was not acknowledged", "%s", s.next(y, 3))
		y.Close()
		z, err := s.subscribe(c, pulsar.ConsumerOptions{Type: pulsar.Shared})
		s.note("another type when nobody is connected", "%s", code(err))
		if err == nil {
			s.note("what the other type gets", "%s", s.next(z, 3))
		}
	}},
	{"initial position", func(s *side) {
		s.fill("a b")
		x, err := s.subscribe(s.client(), pulsar.ConsumerOptions{})
		s.note("from the latest", "%s", code(err))
		s.fill("c")
		s.note("what comes", "%s", s.next(x, 1))
	}},
	{"resume", func(s *side) {
		s.fill("a b c d e")
		c := s.client()
		all := s.take(s.consumer(c, pulsar.ConsumerOptions{}), 5)
		x := s.consumer(s.client(), pulsar.ConsumerOptions{SubscriptionName: "other"})
		other := s.take(x, 5)
		s.note("individual", "%s %s", code(x.Ack(other[0])), code(x.Ack(other[2])))
		s.note("twice", "%s", code(x.Ack(other[2])))
		x.Close()
		c.Close()
		c = s.client()
		y := s.consumer(c, pulsar.ConsumerOptions{})
		s.note("nothing acknowledged", "%s", s.next(y, 5))
		s.note("cumulative", "%s", code(y.AckIDCumulative(all[1].ID())))
		z := s.consumer(c, pulsar.ConsumerOptions{SubscriptionName: "other"})
		s.note("two acknowledged", "%s", s.next(z, 3))
		y.Close()
		y = s.consumer(c, pulsar.ConsumerOptions{})
		s.note("after cumulative", "%s", s.next(y, 3))
		s.note("cumulative backwards", "%s", code(y.AckIDCumulative(all[0].ID())))
		y.Close()
		s.note("after that", "%s", s.next(s.consumer(c, pulsar.ConsumerOptions{}), 3))
	}},
	{"connected over a restart", func(s *side) {
		s.fill("a b")
		x := s.consumer(s.client(), pulsar.ConsumerOptions{})
		r := s.reader(s.client(), pulsar.EarliestMessageID(), false, false)
		s.note("reader before", "%s", s.next(r, 2))
		s.note("before", "%s", s.next(x, 2))
		s.restart() // the real one is killed, and forgets what was acknowledged in the last seconds
		s.fill("c")
		s.note("after", "%s", s.next(x, 3))
		s.note("reader after", "%s", s.next(r, 1))
	}},
	{"acknowledge ahead", func(s *side) {
		s.fill("a b c d e f g h")
		c := s.client()
		ids := s.ids(c)
		x := s.consumer(c, pulsar.ConsumerOptions{ReceiverQueueSize: 1, Type: pulsar.Shared})
		first := s.take(x, 1)
		s.note("before it is delivered", "%s", code(x.AckID(ids[6])))
		s.note("others", "%s", s.list(append(first, append(s.take(x, 6), s.rest(x)...)...)))
		x.Close()
		s.note("all again but that one", "%s", s.next(s.consumer(c, pulsar.ConsumerOptions{Type: pulsar.Shared}), 7))
	}},
	{"shared", func(s *side) {
		options := pulsar.ConsumerOptions{Type: pulsar.Shared, ReceiverQueueSize: 2}
		x, y := s.consumer(s.client(), options), s.consumer(s.client(), options)
		s.fill("a b c d e f g h i j")
		var all []pulsar.Message
		var mu sync.Mutex
		counts := [2]int{}
		var running sync.WaitGroup
		for i, in := range []pulsar.Consumer{x, y} {
			running.Go(func() {
				for {
					got := s.rest(in)
					if len(got) == 0 {
						return
					}
					mu.Lock()
					all, counts[i] = append(all, got...), counts[i]+len(got)
					mu.Unlock()
				}
			})
		}
		running.Wait()
		slices.SortFunc(all, func(a, b pulsar.Message) int { return strings.Compare(s.name(a), s.name(b)) })
		s.note("together", "%s", s.list(all))
		s.note("both have some", "%v", counts[0] > 0 && counts[1] > 0)
		_, err := s.subscribe(s.client(), pulsar.ConsumerOptions{Type: pulsar.KeyShared})
		s.note("another type", "%s", code(err))
		s.note("cumulative", "%v", x.AckCumulative(all[0]) != nil)
		s.note("unsubscribe while there is another", "%s", code(y.Unsubscribe()))
		x.Close()
		left := s.take(y, counts[0])
		slices.SortFunc(left, func(a, b pulsar.Message) int { return strings.Compare(s.name(a), s.name(b)) })
		s.note("what the one that left had comes to the other", "%v", len(left) == counts[0])
		if len(left) > 0 {
			s.note("its redelivery count", "%d", left[0].RedeliveryCount())
		}
	}},
	{"negative acknowledgement, shared", func(s *side) {
		s.fill("a b c")
		x := s.consumer(s.client(), pulsar.ConsumerOptions{Type: pulsar.Shared})
		got := s.take(x, 3)
		for _, m := range got[1:] {
			s.note("ack", "%s", code(x.Ack(m)))
		}
		x.Nack(got[0])
		again := s.take(x, 1)
		s.note("once", "%s", s.list(again))
		x.Nack(again[0])
		again = s.take(x, 1)
		s.note("twice", "%s", s.list(again))
		s.note("acknowledged", "%s", code(x.Ack(again[0])))
		x.Nack(again[0])
		s.note("after it was acknowledged", "%s", s.list(s.rest(x)))
	}},
	{"negative acknowledgement, exclusive", func(s *side) {
		s.fill("a b c d")
		x := s.consumer(s.client(), pulsar.ConsumerOptions{})
		got := s.take(x, 4)
		s.note("ack", "%s", code(x.Ack(got[1])))
		x.Nack(got[0])
		s.note("all of the consumer", "%s", s.next(x, 3))
	}},
	{"redelivery to another, key_shared", func(s *side) {
		s.fill("a a a")
		c := s.client()
		x := s.consumer(c, pulsar.ConsumerOptions{Type: pulsar.KeyShared, Name: "x"})
		s.note("first", "%s", s.next(x, 3))
		y := s.consumer(s.client(), pulsar.ConsumerOptions{Type: pulsar.KeyShared, Name: "y"})
		s.fill("a")
		s.note("the key stays while messages are out", "%v", len(s.rest(y)) == 0)
		x.Close()
		s.note("in order at the other", "%s", s.keys(s.take(y, 4)))
	}},
	{"key_shared", func(s *side) {
		var consumers []pulsar.Consumer
		for i := range 2 {
			consumers = append(consumers, s.consumer(s.client(), pulsar.ConsumerOptions{Type: pulsar.KeyShared, Name: fmt.Sprint("consumer-", i)}))
		}
		const keys, rounds = 16, 4
		for range rounds {
			for k := range keys {
				s.put(fmt.Sprintf("k%02d", k))
			}
		}
		got := make([][]pulsar.Message, len(consumers))
		var running sync.WaitGroup
		for i, in := range consumers {
			running.Go(func() {
				for {
					more := s.rest(in)
					if len(more) == 0 {
						return
					}
					for _, m := range more {
						_ = in.Ack(m)
					}
					got[i] = append(got[i], more...)
				}
			})
		}
		running.Wait()
		owner, perKey, one := map[string]int{}, map[string][]string{}, true
		for i := range got {
			for _, m := range got[i] {
				if o, ok := owner[m.Key()]; ok && o != i {
					one = false
				}
				owner[m.Key()] = i
				perKey[m.Key()] = append(perKey[m.Key()], s.name(m))
			}
		}
		s.note("one consumer for a key", "%v", one)
		s.note("both have some", "%v", len(got[0]) > 0 && len(got[1]) > 0)
		s.note("order of keys", "%v", perKey)
	}},
	{"failover", func(s *side) {
		s.fill("a b c")
		type one struct {
			in     pulsar.Consumer
			client pulsar.Client
			roles  *roles
		}
		var all [2]one
		for i := range all {
			all[i].client, all[i].roles = s.client(), &roles{}
			all[i].in = s.consumer(all[i].client, pulsar.ConsumerOptions{Type: pulsar.Failover, Name: fmt.Sprint("c", i), EventListener: all[i].roles})
		}
		time.Sleep(1500 * time.Millisecond) // the real one waits a second before it changes the active consumer
		active, standby := all[0], all[1]
		if all[1].roles.now() {
			active, standby = all[1], all[0]
		}
		s.note("one is active", "%v", active.roles.now() && !standby.roles.now())
		got := s.take(active.in, 3)
		s.note("the active one gets", "%s", s.keys(got))
		s.note("the other", "%s", s.keys(s.rest(standby.in)))
		s.note("ack", "%s", code(active.in.Ack(got[0])))
		_, err := s.subscribe(s.client(), pulsar.ConsumerOptions{})
		s.note("an exclusive consumer", "%s", code(err))
		active.client.Close()
		s.note("take-over", "%s", s.keys(s.take(standby.in, 2)))
		s.fill("d")
		s.note("then", "%s", s.keys(append(s.take(standby.in, 1), s.rest(standby.in)...)))
		s.note("it was told", "%v", standby.roles.now())
		s.note("unsubscribe", "%s", code(standby.in.Unsubscribe()))
	}},
	{"unsubscribe", func(s *side) {
		s.fill("a b")
		c := s.client()
		x := s.consumer(c, pulsar.ConsumerOptions{})
		for _, m := range s.take(x, 2) {
			s.note("ack", "%s", code(x.Ack(m)))
		}
		s.note("unsubscribe", "%s", code(x.Unsubscribe()))
		s.note("all again", "%s", s.next(s.consumer(c, pulsar.ConsumerOptions{}), 2))
	}},
	{"seek", func(s *side) { // this client cannot seek to the earliest or the latest message; those of Java and Python do
		s.fill("a b")
		time.Sleep(50 * time.Millisecond) // between times of messages, in ms
		middle := time.Now()
		time.Sleep(50 * time.Millisecond)
		s.fill("c d e")
		c := s.client()
		ids := s.ids(c)
		for _, inclusive := range []bool{false, true} {
			for _, to := range []struct {
				name string
				n    int
				seek func(pulsar.Consumer) error
			}{
				{"the third", 3, func(in pulsar.Consumer) error { return in.Seek(ids[2]) }},
				{"the first", 5, func(in pulsar.Consumer) error { return in.Seek(ids[0]) }},
				{"the last", 1, func(in pulsar.Consumer) error { return in.Seek(ids[4]) }},
				{"the middle", 3, func(in pulsar.Consumer) error { return in.SeekByTime(middle) }},
				{"long ago", 5, func(in pulsar.Consumer) error { return in.SeekByTime(middle.Add(-time.Hour)) }},
				{"the future", 0, func(in pulsar.Consumer) error { return in.SeekByTime(middle.Add(time.Hour)) }},
			} {
				in := s.consumer(s.client(), pulsar.ConsumerOptions{StartMessageIDInclusive: inclusive, SubscriptionName: fmt.Sprint(inclusive, strings.ReplaceAll(to.name, " ", "-"))})
				for _, m := range s.take(in, 5) {
					if s.changes.at[m.Properties()["position"]] != 3 {
						_ = in.Ack(m)
					}
				}
				err := to.seek(in)
				n := to.n
				if !inclusive && strings.HasPrefix(to.name, "the ") && to.name != "the middle" && n > 0 {
					n--
				}
				s.note(fmt.Sprintf("%s, inclusive %v", to.name, inclusive), "%s: %s", code(err), s.next(in, n))
				in.Close()
			}
		}
	}},
	{"seek, shared", func(s *side) {
		s.fill("a b c")
		c := s.client()
		ids := s.ids(c)
		options := pulsar.ConsumerOptions{Type: pulsar.Shared, StartMessageIDInclusive: true}
		x, y := s.consumer(s.client(), options), s.consumer(s.client(), options)
		got := append(s.rest(x), s.rest(y)...)
		s.note("before", "%d", len(got))
		s.note("seek", "%s", code(x.Seek(ids[0])))
		deadline := time.Now().Add(wait)
		got = nil
		for len(got) < 3 && time.Now().Before(deadline) {
			got = append(append(got, s.rest(x)...), s.rest(y)...)
		}
		slices.SortFunc(got, func(a, b pulsar.Message) int { return strings.Compare(s.name(a), s.name(b)) })
		s.note("after", "%s", s.list(got))
	}},
	{"reader", func(s *side) {
		c := s.client()
		r := s.reader(c, pulsar.EarliestMessageID(), false, false)
		s.note("nothing yet", "%v", r.HasNext())
		_, err := r.GetLastMessageID()
		s.note("the last of nothing", "%s", code(err))
		s.fill("a b c d")
		s.note("there is a next one", "%v", r.HasNext())
		s.note("earliest", "%s", s.next(r, 4))
		s.note("after all", "%v", r.HasNext())
		ids := s.ids(c)
		last, err := r.GetLastMessageID()
		s.note("the last", "%s: %v", code(err), err == nil && last.LedgerID() == ids[3].LedgerID() && last.EntryID() == ids[3].EntryID())
		for _, inclusive := range []bool{false, true} {
			for i, id := range ids {
				r := s.reader(c, id, inclusive, false)
				n := 3 - i
				if inclusive {
					n++
				}
				s.note(fmt.Sprintf("from %d, inclusive %v, has next", i, inclusive), "%v", r.HasNext())
				s.note(fmt.Sprintf("from %d, inclusive %v", i, inclusive), "%s", s.next(r, n))
				s.note(fmt.Sprintf("from %d, inclusive %v, has next after", i, inclusive), "%v", r.HasNext())
				r.Close()
			}
		}
		r = s.reader(c, pulsar.LatestMessageID(), false, false)
		s.note("latest has next", "%v", r.HasNext())
		r2 := s.reader(c, pulsar.LatestMessageID(), true, false)
		s.note("latest, inclusive, has next", "%v", r2.HasNext())
		s.note("latest, inclusive", "%s", s.next(r2, 1))
		s.fill("e -a")
		s.note("latest", "%s", s.next(r, 2))
		s.note("latest, inclusive, then", "%s", s.next(r2, 2))
		r3 := s.reader(c, pulsar.EarliestMessageID(), false, false)
		all := s.take(r3, 6)
		s.note("a deletion", "%d bytes", len(all[5].Payload()))
		s.note("payload", "%s", all[1].Payload())
		s.note("properties", "%v", all[5].Properties())
		r4 := s.reader(c, pulsar.EarliestMessageID(), false, false)
		s.take(r4, 6)
		s.note("seek by time", "%s", code(r4.SeekByTime(time.Now().Add(-time.Hour))))
		s.note("has next after time", "%v", r4.HasNext())
		s.note("after time", "%s", s.next(r4, 6))
	}},
	{"table view", func(s *side) {
		s.fill("a b a c -b")
		s.schema()
		view, err := s.client().CreateTableView(pulsar.TableViewOptions{
			Topic: s.topic, Schema: pulsar.NewJSONSchema(anySchema, nil), SchemaValueType: reflect.TypeFor[map[string]any](),
		})
		s.note("view", "%s", code(err))
		if err != nil {
			return
		}
		defer view.Close()
		show := func() string {
			var out []string
			for key, value := range view.Entries() {
				out = append(out, fmt.Sprint(key, "=", value))
			}
			slices.Sort(out)
			return strings.Join(out, "\n")
		}
		s.note("at first", "%s", show())
		s.fill("d -a")
		for end := time.Now().Add(wait); time.Now().Before(end) && (!view.ContainsKey("d") || view.ContainsKey("a")); {
			time.Sleep(10 * time.Millisecond)
		}
		s.note("then", "%s", show())
	}},
	{"compacted", func(s *side) {
		s.fill("a b a c -b c d")
		s.compact()
		c := s.client()
		r := s.reader(c, pulsar.EarliestMessageID(), false, true)
		s.note("reader", "%s", s.next(r, 3))
		x := s.consumer(c, pulsar.ConsumerOptions{ReadCompacted: true})
		s.note("consumer", "%s", s.next(x, 3))
		s.fill("a")
		s.note("reader, then", "%s", s.next(r, 1))
		s.note("consumer, then", "%s", s.next(x, 1))
		_, err := s.subscribe(s.client(), pulsar.ConsumerOptions{ReadCompacted: true, Type: pulsar.Shared, SubscriptionName: "shared"})
		s.note("shared", "%s", code(err))
		late := s.reader(c, pulsar.EarliestMessageID(), false, true)
		s.note("a later reader: has next", "%v", late.HasNext())
	}},
	{"small queue", func(s *side) {
		options := pulsar.ConsumerOptions{Type: pulsar.Shared, ReceiverQueueSize: 1}
		x := s.consumer(s.client(), options)
		options.ReceiverQueueSize = 100
		y := s.consumer(s.client(), options)
		s.fill("a b c d e f g h")
		got := s.rest(y)
		s.note("one that takes none does not hold others up", "%v", len(got) >= 4)
		more := append(s.rest(x), s.rest(y)...)
		s.note("together", "%d", len(got)+len(more))
		z, err := s.subscribe(s.client(), pulsar.ConsumerOptions{SubscriptionName: "zero", EnableZeroQueueConsumer: true, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest})
		s.note("zero queue", "%s", code(err))
		if err == nil {
			s.note("one by one", "%s", s.list(s.take(z, 8)))
		}
	}},
	{"last message", func(s *side) {
		s.fill("a b c")
		c := s.client()
		ids := s.ids(c)
		x := s.consumer(c, pulsar.ConsumerOptions{})
		last, err := x.GetLastMessageIDs()
		s.note("last", "%s: %v", code(err), err == nil && len(last) == 1 && last[0].EntryID() == ids[2].EntryID() && last[0].LedgerID() == ids[2].LedgerID())
	}},
	{"topics", func(s *side) {
		s.fill("a")
		c := s.client()
		unknown := s.topic[:strings.LastIndex(s.topic, "/")+1] + "nothing"
		_, err := c.CreateReader(pulsar.ReaderOptions{Topic: unknown, StartMessageID: pulsar.EarliestMessageID()})
		s.note("unknown: reader", "%s", code(err))
		_, err = s.subscribe(c, pulsar.ConsumerOptions{Topic: unknown})
		s.note("unknown: consumer", "%s", code(err))
		_, err = c.TopicPartitions(unknown)
		s.note("unknown: partitions", "%s", code(err))
		parts, err := c.TopicPartitions(s.topic)
		s.note("partitions", "%s: %v", code(err), len(parts) == 1 && parts[0] == s.topic)
		x, err := s.subscribe(c, pulsar.ConsumerOptions{TopicsPattern: s.topic, SubscriptionName: "pattern", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest})
		s.note("pattern", "%s", code(err))
		if err == nil {
			s.note("by pattern", "%s", s.next(x, 1))
		}
		p, err := c.CreateProducer(pulsar.ProducerOptions{Topic: s.topic})
		s.note("producer", "%s", code(err))
		if err == nil {
			p.Close()
		}
		_, err = s.subscribe(c, pulsar.ConsumerOptions{Type: pulsar.KeyShared, SubscriptionName: "ranges", KeySharedPolicy: &pulsar.KeySharedPolicy{
			Mode: pulsar.KeySharedPolicyModeSticky, HashRanges: []int{0, 65535},
		}})
		s.note("key_shared by ranges", "%s", code(err))
	}},
	{"dead letter", func(s *side) {
		s.fill("a b")
		c := s.client()
		dead := s.topic + "-dead"
		x := s.consumer(c, pulsar.ConsumerOptions{Type: pulsar.Shared, DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: dead}})
		got := s.take(x, 2)
		s.note("ack", "%s", code(x.Ack(got[1])))
		x.Nack(got[0])
		again := s.take(x, 1)
		s.note("once more", "%s", s.list(again))
		x.Nack(again[0])
		s.note("not a third time", "%s", s.list(s.rest(x)))
		r, err := s.client().CreateReader(pulsar.ReaderOptions{Topic: dead, StartMessageID: pulsar.EarliestMessageID()})
		s.note("the dead letter topic", "%s", code(err))
		var letters []pulsar.Message
		if err == nil {
			letters = s.take(readerReceiver{r}, 1)
			r.Close()
		}
		s.note("it has", "%s", s.list(letters))
	}},
	{"set aside by the application", func(s *side) { // what those do who may not produce
		s.fill("a b")
		x := s.consumer(s.client(), pulsar.ConsumerOptions{Type: pulsar.Shared})
		var aside []pulsar.Message
		for range 6 {
			ctx, cancel := context.WithTimeout(s.Context(), wait)
			m, err := x.Receive(ctx)
			cancel()
			switch {
			case err != nil:
			case m.Key() == "b":
				_ = x.Ack(m)
				continue
			case m.RedeliveryCount() < 2:
				x.Nack(m)
				continue
			default:
				aside = append(aside, m)
				s.note("ack", "%s", code(x.Ack(m)))
			}
			break
		}
		s.note("aside", "%s", s.list(aside))
		s.note("then", "%s", s.list(s.rest(x)))
	}},
}

// keys are names without the count of redeliveries.
func (s *side) keys(all []pulsar.Message) string {
	var out []string
	for _, m := range all {
		name, _, _ := strings.Cut(s.name(m), "+")
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

// roles of a consumer of a failover subscription.
type roles struct {
	mu sync.Mutex
	is bool
}

func (r *roles) set(is bool) { r.mu.Lock(); r.is = is; r.mu.Unlock() }
func (r *roles) now() bool   { r.mu.Lock(); defer r.mu.Unlock(); return r.is }

// BecameActive implements pulsar.ConsumerEventListener.
func (r *roles) BecameActive(pulsar.Consumer, string, int32) { r.set(true) }

// BecameInactive implements pulsar.ConsumerEventListener.
func (r *roles) BecameInactive(pulsar.Consumer, string, int32) { r.set(false) }

// differences that are wanted, by scenario and step. internal/feed/pulsar/DESIGN.md says why.
var differences = map[string]struct{ ours, real string }{
	"topics: producer":                   {"NotAllowedError", "fine"},
	"topics: key_shared by ranges":       {"NotAllowedError", "fine"},
	"dead letter: the dead letter topic": {"TopicNotFound", "fine"},
	"dead letter: it has":                {"", "a#0"},
}

// TestAsPulsar runs the same script against the server of the change feed and against a real Pulsar with the same messages, and
// compares what clients observe.
func TestAsPulsar(t *testing.T) {
	real := standalone.Start(t, standalone.Config{Settings: map[string]string{
		"allowAutoTopicCreation": "false", "brokerDeleteInactiveTopicsEnabled": "false", "activeConsumerFailoverDelayTimeMillis": "1000",
	}})
	quiet := plog.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil)))
	listed := map[string]bool{}
	for i, c := range scenarios {
		t.Run(c.name, func(t *testing.T) {
			ours := &side{T: t, topic: services, changes: &changes{at: map[string]int{}}}
			p := pulsartest.New(t)
			ours.options = pulsar.ClientOptions{
				URL: "pulsar://" + p.Address, Authentication: pulsar.NewAuthenticationToken(pulsartest.Admin), OperationTimeout: 5 * time.Second, Logger: quiet,
			}
			observer := ours.reader(ours.client(), pulsar.EarliestMessageID(), false, false)
			observed := func() {
				m := next(t, observer)
				ours.changes.at[m.Properties()["position"]] = len(ours.changes.list)
				ours.changes.list = append(ours.changes.list, m)
				ours.n++
			}
			ours.put = func(key string) { p.Put(key, fmt.Sprint(len(ours.changes.list))); observed() }
			ours.remove = func(key string) { p.Delete(key); observed() }
			ours.compact, ours.schema, ours.restart = func() {}, func() {}, p.Restart
			c.run(ours)

			theirs := &side{T: t, topic: fmt.Sprintf("persistent://public/default/t%02d", i), changes: ours.changes}
			theirs.options = pulsar.ClientOptions{URL: real.URL, OperationTimeout: 10 * time.Second, Logger: quiet}
			for _, name := range []string{theirs.topic, theirs.topic + "-dead"} {
				admin(t, real, http.MethodPut, "persistent", name, "", "")
			}
			producer := must(theirs.client().CreateProducer(pulsar.ProducerOptions{Topic: theirs.topic, DisableBatching: true}))(t)
			theirs.put = func(key string) {
				t.Helper()
				m := ours.changes.list[theirs.n]
				if m.Key() != key {
					t.Fatalf("message %d is of %s, not %s", theirs.n, m.Key(), key)
				}
				theirs.n++
				out := &pulsar.ProducerMessage{Key: key, Properties: m.Properties()}
				if len(m.Payload()) > 0 {
					out.Payload = m.Payload()
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if _, err := producer.Send(ctx, out); err != nil {
					t.Fatal(err)
				}
			}
			theirs.remove, theirs.restart = theirs.put, real.Restart
			theirs.compact = func() {
				admin(t, real, http.MethodPut, "persistent", theirs.topic, "/compaction", "")
				for end := time.Now().Add(time.Minute); !strings.Contains(admin(t, real, http.MethodGet, "persistent", theirs.topic, "/compaction", ""), "SUCCESS"); {
					if time.Now().After(end) {
						t.Fatal("the topic is not compacted")
					}
					time.Sleep(200 * time.Millisecond)
				}
			}
			theirs.schema = func() {
				admin(t, real, http.MethodPost, "schemas", theirs.topic, "/schema", fmt.Sprintf(`{"type":"JSON","schema":%q,"properties":{}}`, anySchema))
			}
			c.run(theirs)

			for i := range max(len(ours.seen), len(theirs.seen)) {
				var a, b note
				if i < len(ours.seen) {
					a = ours.seen[i]
				}
				if i < len(theirs.seen) {
					b = theirs.seen[i]
				}
				key := c.name + ": " + a.step
				if a.step == "" {
					key = c.name + ": " + b.step
				}
				if d, ok := differences[key]; ok {
					listed[key] = true
					if d.ours != a.got || d.real != b.got {
						t.Errorf("%s:\nours %q\nreal %q\nand the difference that is listed is %q, %q", key, a.got, b.got, d.ours, d.real)
					}
					continue
				}
				if a != b {
					t.Errorf("%s:\nours %q: %q\nreal %q: %q", key, a.step, a.got, b.step, b.got)
				}
			}
			t.Logf("%d observations: %q", len(ours.seen), ours.seen)
		})
	}
	if !t.Failed() {
		for key := range differences {
			if !listed[key] {
				t.Errorf("the difference %q is not observed", key)
			}
		}
	}
}

// admin asks the REST API of Pulsar for something of a topic.
func admin(t *testing.T, s *standalone.Server, method, kind, topic, what, body string) string {
	t.Helper()
	return request(t, s, method, kind+"/"+strings.TrimPrefix(topic, "persistent://")+what, body)
}

// request calls the REST API of Pulsar.
func request(t *testing.T, s *standalone.Server, method, path, body string) string {
	t.Helper()
	url := s.Admin + "/admin/v2/" + path
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if s.Token != "" {
		req.Header.Set("Authorization", "Bearer "+s.Token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s %s %v", method, url, resp.Status, answer, err)
	}
	return string(answer)
}
