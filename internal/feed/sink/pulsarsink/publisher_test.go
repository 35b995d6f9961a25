package pulsarsink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/feed/sink"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
)

// objects of the tests cannot be decoded but for those whose value is "{}".
type objects struct{}

func (objects) ObjectOf(key string) (*resource.Descriptor, resource.Key, bool) {
	part := strings.Split(key, "/")
	return kind.Service, resource.Key{Namespace: part[0], Name: part[1]}, true
}
func (objects) Prefix(*resource.Descriptor, resource.Key) string { return "" }
func (objects) Decode(_ context.Context, key string, value []byte, _ store.Revision) (resource.Object, error) {
	if string(value) != "{}" {
		return nil, errors.New("no object")
	}
	o := kind.Service.New()
	o.SetName(key)
	return o, nil
}

// topic is a broker in memory, with faults.
type topic struct {
	mu      sync.Mutex
	log     []*message
	dedup   bool
	owner   *fakeSession
	late    []*message // handed over by lost sessions, and not there yet
	highest int64      // sequence ID that was pushed last
	// fault decides what happens to a send.
	fault func() fault
}

type fault int

const (
	none     fault = iota
	lostAck        // the message is there, and its acknowledgement is not
	lostSend       // the connection is lost before
	lateSend       // as lostAck, but the message is there later, if the broker deduplicates
)

func (b *topic) connect(context.Context) (session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owner != nil {
		b.owner.drop()
	}
	b.owner = &fakeSession{topic: b, gone: make(chan struct{})}
	return b.owner, nil
}
func (*topic) close() {}

type fakeSession struct {
	topic *topic
	gone  chan struct{}
	once  sync.Once
}

func (s *fakeSession) drop()                 { s.once.Do(func() { close(s.gone) }) }
func (s *fakeSession) lost() <-chan struct{} { return s.gone }
func (s *fakeSession) close()                { s.drop() }
func (s *fakeSession) why() error            { return nil }
func (s *fakeSession) flush(context.Context) {}
func (s *fakeSession) isLost() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

func (s *fakeSession) end(context.Context) (end, error) {
	b := s.topic
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.log) == 0 {
		return end{}, nil
	}
	last := b.log[len(b.log)-1]
	return end{last.position, last.properties["epoch"]}, nil
}

func (s *fakeSession) send(_ context.Context, m *message, done func(bool, error)) {
	b := s.topic
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.isLost() || b.owner != s {
		return // nobody answers
	}
	if len(b.late) > 0 { // what was handed over earlier comes before
		b.log, b.late = append(b.log, b.late...), nil
	}
	if b.dedup && m.position <= b.highest {
		done(true, nil)
		return
	}
	switch f := b.fault(); {
	case f == lateSend && b.dedup:
		b.late, b.highest = append(b.late, m), m.position
		s.drop()
	case f == lostSend:
		s.drop()
	default:
		b.log, b.highest = append(b.log, m), m.position
		if f == lostAck {
			s.drop()
			return
		}
		done(false, nil)
	}
}

func entries(from, to int) (out []*seglog.Entry) {
	for i := from; i <= to; i++ {
		e := &seglog.Entry{Position: seglog.Position(i), Kind: seglog.Put, Key: fmt.Sprintf("shop/s%d", i%3), Value: []byte("{}"), Time: time.Unix(int64(i), 0)}
		if i%5 == 0 {
			e.Kind, e.PrevValue, e.Value = seglog.Delete, e.Value, nil
		}
		out = append(out, e)
	}
	return out
}

func batch(after, to int) *sink.Batch {
	return &sink.Batch{After: seglog.Position(after), Next: seglog.Position(to), Entries: entries(after+1, to)}
}

func newTest(b broker) *publisher {
	return newPublisher(Config{Objects: objects{}, Epoch: "e", Topic: "proxima"}, b, slog.New(slog.DiscardHandler))
}

func (b *topic) positions() (out []int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.log {
		out = append(out, m.position)
	}
	return out
}

// Whatever happens to connections, acknowledgements and the publisher, the topic has each change once, in order.
func TestExactlyOnce(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		b := &topic{dedup: seed%2 == 0}
		b.fault = func() fault {
			if rnd.IntN(4) > 0 {
				return none
			}
			return fault(rnd.IntN(4))
		}
		const last = 60
		p, mark := newTest(b), 0
		for tries := 0; mark < last; tries++ {
			if tries > 5000 {
				t.Fatalf("seed %d: stuck at %d", seed, mark)
			}
			to, err := p.Deliver(t.Context(), batch(mark, min(last, mark+1+rnd.IntN(10))))
			if to > 0 && rnd.IntN(5) > 0 { // else killed before the cursor was written
				mark = max(mark, int(to))
			} else {
				p = newTest(b)
			}
			if err != nil && !errors.Is(err, errLost) && !errors.Is(err, errTwice) {
				t.Fatal(err)
			}
		}
		got := b.positions()
		if len(got) != last || !slices.IsSorted(got) || len(slices.Compact(got)) != last {
			t.Fatalf("seed %d: %v", seed, got)
		}
	}
}

func steady() *topic { return &topic{fault: func() fault { return none }} }

func TestMessages(t *testing.T) {
	b := steady()
	p := newTest(b)
	all := batch(0, 5)
	all.Entries[1].Value = []byte("?") // cannot be decoded
	if to, err := p.Deliver(t.Context(), all); err != nil || to != 5 {
		t.Fatal(to, err)
	}
	if m := b.log[0]; m.key != "services/shop/s1" || m.properties["position"] != "1" || m.properties["epoch"] != "e" || m.properties["operation"] != "put" ||
		!m.time.Equal(time.Unix(1, 0)) || !strings.Contains(string(m.payload), `"name":"shop/s1"`) {
		t.Errorf("%+v %s", m, m.payload)
	}
	if m := b.log[1]; m.properties["problem"] == "" || !strings.Contains(string(m.payload), `"name":"s2"`) {
		t.Errorf("%+v %s", m, m.payload)
	}
	if m := b.log[4]; m.key != "services/shop/s2" || len(m.payload) != 0 || m.properties["operation"] != "delete" {
		t.Errorf("a deletion: %+v %s", m, m.payload)
	}
	to, err := p.Deliver(t.Context(), &sink.Batch{After: 5, Next: 9, Expired: true})
	if m := b.log[5]; err != nil || to != 9 || m.key != "" || m.properties["operation"] != "expired" || !strings.Contains(string(m.payload), `"after":5`) {
		t.Errorf("%v %d: %+v", err, to, m)
	}
	// Known already: nothing is published.
	if to, err := newTest(b).Deliver(t.Context(), &sink.Batch{After: 5, Next: 9, Expired: true}); err != nil || to != 9 || len(b.log) != 6 {
		t.Errorf("%v %d, %d messages", err, to, len(b.log))
	}
}

// What another control plane has published is no reason to leave something out.
func TestOtherEpoch(t *testing.T) {
	b := steady()
	b.log = []*message{{position: 3, properties: map[string]string{"epoch": "other"}}}
	if _, err := newTest(b).Deliver(t.Context(), batch(1, 5)); err == nil || !strings.Contains(err.Error(), "another control plane") {
		t.Error(err)
	}
	if to, err := newTest(b).Deliver(t.Context(), batch(3, 5)); err != nil || to != 5 || len(b.log) != 3 { // after a restore
		t.Error(to, err)
	}
}

// Who has lost the topic to another publisher publishes nothing more.
func TestFenced(t *testing.T) {
	b := steady()
	old, next := newTest(b), newTest(b)
	for i, p := range []*publisher{old, next} {
		if _, err := p.Deliver(t.Context(), batch(2*i, 2*i+2)); err != nil {
			t.Fatal(err)
		}
	}
	s := old.session
	if s == nil {
		t.Fatal("no session")
	}
	if n, err := old.publish(t.Context(), []*message{{position: 99}}); err == nil || n != 0 {
		t.Error(n, err)
	}
	if got := b.positions(); !slices.Equal(got, []int64{1, 2, 3, 4}) {
		t.Error(got)
	}
}

// A broker that deduplicates may know messages that it has removed from the topic since.
func TestRemovedSince(t *testing.T) {
	b := steady()
	b.dedup, b.highest = true, 7
	if to, err := newTest(b).Deliver(t.Context(), batch(4, 12)); err != nil || to != 12 || !slices.Equal(b.positions(), []int64{8, 9, 10, 11, 12}) {
		t.Error(to, err, b.positions())
	}
	if to, err := newTest(b).Deliver(t.Context(), batch(4, 12)); err != nil || to != 12 || len(b.log) != 5 {
		t.Error(to, err, b.positions())
	}
}

func TestBoundedAndSlow(t *testing.T) {
	b := steady()
	b.fault = func() fault { return none }
	p := newTest(b)
	p.wait = 20 * time.Millisecond
	silent := &fakeSession{topic: &topic{owner: nil}, gone: make(chan struct{})} // answers nothing
	p.session = silent
	if _, err := p.Deliver(t.Context(), batch(0, 3)); err == nil || !strings.Contains(err.Error(), "acknowledged nothing") || p.session != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.session = &fakeSession{topic: &topic{}, gone: make(chan struct{})}
	if _, err := p.Deliver(ctx, batch(0, 3)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	k := New(Config{Topic: "proxima-west"})
	for _, test := range []struct{ url, want, problem string }{
		{"pulsar://h:6650/t/n", "pulsar://h:6650/t/n/proxima-west", ""},
		{"pulsar+ssl://h:6651/t/n/x", "pulsar+ssl://h:6651/t/n/x", ""},
		{"pulsar://h:6650/t", "", "want pulsar://"},
		{"http://h:6650/t/n", "", "want pulsar://"},
		{"pulsar://u:p@h:6650/t/n", "", "credentials"},
		{"pulsar://h:6650/t/n/x-partition-0", "", "partition"},
	} {
		s := &sink.Spec{URL: test.url}
		err := k.Check(s)
		if test.problem == "" && (err != nil || s.URL != test.want || s.Name != "h") || test.problem != "" && (err == nil || !strings.Contains(err.Error(), test.problem)) {
			t.Errorf("%s: %v, %+v", test.url, err, s)
		}
	}
}
