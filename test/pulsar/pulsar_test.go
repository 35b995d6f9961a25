package pulsar

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/feed/pulsar/pulsartest"
)

const services = "persistent://blue/shop/services"

func connect(t *testing.T, p *pulsartest.Plane, token string) pulsar.Client {
	t.Helper()
	c, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: "pulsar://" + p.Address, Authentication: pulsar.NewAuthenticationToken(token), OperationTimeout: 5 * time.Second,
		Logger: plog.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil))),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

type receiver interface {
	Receive(context.Context) (pulsar.Message, error)
}

// next message of a consumer within 10 s.
func next(t *testing.T, c receiver) pulsar.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	m, err := c.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func expect(t *testing.T, m pulsar.Message, name string, position int64) {
	t.Helper()
	if m.Key() != name || m.Properties()["position"] != strconv.FormatInt(position, 10) || m.ID().EntryID() != position {
		t.Fatalf("got %s at %s (%v), want %s at %d", m.Key(), m.Properties()["position"], m.ID(), name, position)
	}
}

// nothing comes for a moment.
func nothing(t *testing.T, c receiver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if m, err := c.Receive(ctx); err == nil {
		t.Fatalf("got %s at %s, want nothing", m.Key(), m.Properties()["position"])
	}
}

func TestReader(t *testing.T) {
	p := pulsartest.New(t)
	a, b := p.Put("a", "1"), p.Put("b", "2")
	p.PutObject("/registry/services/default/elsewhere", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "elsewhere"}})
	c := connect(t, p, pulsartest.Reader)
	r := must(c.CreateReader(pulsar.ReaderOptions{Topic: services, StartMessageID: pulsar.EarliestMessageID()}))(t)
	defer r.Close()
	var ids []pulsar.MessageID
	for _, want := range []struct {
		name string
		at   int64
	}{{"a", a}, {"b", b}} {
		if !r.HasNext() {
			t.Fatal("there is no next message")
		}
		m := must(r.Next(t.Context()))(t)
		expect(t, m, want.name, want.at)
		ids = append(ids, m.ID())
		var o corev1.Service
		if err := json.Unmarshal(m.Payload(), &o); err != nil || o.Name != want.name || o.Spec.ClusterIP == "" || o.ResourceVersion != m.Properties()["position"] {
			t.Errorf("payload %s: %v", m.Payload(), err)
		}
		got := m.Properties()
		if got["kind"] != "Service" || got["namespace"] != "shop" || got["name"] != want.name || got["operation"] != "put" || got["uid"] != "1-2-3" || got["resourceVersion"] != got["position"] {
			t.Errorf("properties %v", got)
		}
	}
	if r.HasNext() {
		t.Error("there is a message after the last one")
	}
	gone := p.Delete("a")
	m := must(r.Next(t.Context()))(t)
	expect(t, m, "a", gone)
	if len(m.Payload()) != 0 || m.Properties()["operation"] != "delete" || m.Properties()["uid"] != "1-2-3" {
		t.Errorf("a deletion: %q, %v", m.Payload(), m.Properties())
	}

	// After a restart message IDs are the same.
	p.Restart()
	after := must(c.CreateReader(pulsar.ReaderOptions{Topic: services, StartMessageID: ids[0]}))(t)
	expect(t, must(after.Next(t.Context()))(t), "b", b)
	after.Close()
	including := must(c.CreateReader(pulsar.ReaderOptions{Topic: services, StartMessageID: ids[0], StartMessageIDInclusive: true}))(t)
	expect(t, must(including.Next(t.Context()))(t), "a", a)
	if err := including.Seek(ids[1]); err != nil {
		t.Fatal(err)
	}
	expect(t, must(including.Next(t.Context()))(t), "b", b)
	including.Close()
	// A reader of its own, as this client leaves out what is before an earlier seek by ID.
	byTime := must(c.CreateReader(pulsar.ReaderOptions{Topic: services, StartMessageID: pulsar.EarliestMessageID()}))(t)
	defer byTime.Close()
	for range 3 {
		must(byTime.Next(t.Context()))(t)
	}
	if err := byTime.SeekByTime(time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	expect(t, must(byTime.Next(t.Context()))(t), "a", a)

	newest := must(c.CreateReader(pulsar.ReaderOptions{Topic: services, StartMessageID: pulsar.LatestMessageID()}))(t)
	defer newest.Close()
	if newest.HasNext() {
		t.Error("there is a message after the latest")
	}
	again := p.Put("c", "3")
	expect(t, must(newest.Next(t.Context()))(t), "c", again)
}

func TestDurableCursor(t *testing.T) {
	p := pulsartest.New(t)
	at := []int64{p.Put("a", "1"), p.Put("b", "2"), p.Put("c", "3"), p.Put("d", "4")}
	subscribe := func(c pulsar.Client) pulsar.Consumer {
		return must(c.Subscribe(pulsar.ConsumerOptions{
			Topic: services, SubscriptionName: "inventory", Type: pulsar.Exclusive, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest, AckWithResponse: true,
			StartMessageIDInclusive: true,
		}))(t)
	}
	c := connect(t, p, pulsartest.Reader)
	in := subscribe(c)
	first, second, third := next(t, in), next(t, in), next(t, in)
	expect(t, third, "c", at[2])
	for _, m := range []pulsar.Message{first, third} { // not the second
		if err := in.Ack(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Subscribe(pulsar.ConsumerOptions{Topic: services, SubscriptionName: "inventory", Type: pulsar.Exclusive}); err == nil || !strings.Contains(err.Error(), "exclusive") {
		t.Errorf("a second consumer: %v", err)
	}
	in.Close()
	c.Close()
	p.Restart()
	c = connect(t, p, pulsartest.Reader)
	in = subscribe(c)
	expect(t, next(t, in), "b", at[1])
	expect(t, next(t, in), "d", at[3])

	if err := in.Seek(second.ID()); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"b", "c", "d"} {
		m := next(t, in)
		expect(t, m, name, at[i+1])
		if err := in.AckCumulative(m); err != nil {
			t.Fatal(err)
		}
	}
	in.Close()
	in = subscribe(c) // this client leaves out what is before an earlier seek by ID
	if err := in.SeekByTime(time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	expect(t, next(t, in), "a", at[0])
	if err := in.SeekByTime(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	last := p.Put("e", "5")
	expect(t, next(t, in), "e", last)

	if err := in.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if list := must(p.Cursors.List(t.Context()))(t); len(list) != 0 {
		t.Errorf("after unsubscribing there are cursors: %+v", list)
	}
}

// The cursor of a subscription survives, and so do those who are connected when the server restarts.
func TestReconnect(t *testing.T) {
	p := pulsartest.New(t)
	c := connect(t, p, pulsartest.Reader)
	in := must(c.Subscribe(pulsar.ConsumerOptions{Topic: services, SubscriptionName: "s", AckWithResponse: true}))(t)
	m := p.Put("a", "1")
	got := next(t, in)
	expect(t, got, "a", m)
	if err := in.Ack(got); err != nil {
		t.Fatal(err)
	}
	p.Restart()
	m = p.Put("b", "2")
	expect(t, next(t, in), "b", m)
}

func TestShared(t *testing.T) {
	p := pulsartest.New(t)
	c := connect(t, p, pulsartest.Reader)
	options := pulsar.ConsumerOptions{
		Topic: services, SubscriptionName: "s", Type: pulsar.Shared, NackRedeliveryDelay: 10 * time.Millisecond, ReceiverQueueSize: 1, AckWithResponse: true,
	}
	x, y := must(c.Subscribe(options))(t), must(c.Subscribe(options))(t)
	one, two := p.Put("a", "1"), p.Put("b", "2")
	mx, my := next(t, x), next(t, y)
	if positions := mx.ID().EntryID() + my.ID().EntryID(); positions != one+two {
		t.Fatalf("the consumers got %v and %v", mx.ID(), my.ID())
	}
	if err := y.Ack(my); err != nil {
		t.Fatal(err)
	}
	x.Nack(mx)
	got := make(chan pulsar.Message, 2)
	for _, in := range []pulsar.Consumer{x, y} {
		go func() {
			if m, err := in.Receive(t.Context()); err == nil {
				got <- m
			}
		}()
	}
	select {
	case m := <-got:
		if m.ID().EntryID() != mx.ID().EntryID() || m.RedeliveryCount() != 1 {
			t.Errorf("redelivered: %v, %d times, want %v, once", m.ID(), m.RedeliveryCount(), mx.ID())
		}
	case <-time.After(10 * time.Second):
		t.Fatal("a message with a negative acknowledgement did not come again")
	}
}

func TestFailover(t *testing.T) {
	p := pulsartest.New(t)
	options := pulsar.ConsumerOptions{Topic: services, SubscriptionName: "s", Type: pulsar.Failover, AckWithResponse: true}
	x := must(connect(t, p, pulsartest.Reader).Subscribe(options))(t)
	y := must(connect(t, p, pulsartest.Reader).Subscribe(options))(t)
	one, two := p.Put("a", "1"), p.Put("b", "2")
	m := next(t, x)
	expect(t, m, "a", one)
	if err := x.Ack(m); err != nil {
		t.Fatal(err)
	}
	nothing(t, y)
	x.Close()
	expect(t, next(t, y), "b", two)
}

func TestKeyShared(t *testing.T) {
	p := pulsartest.New(t)
	options := pulsar.ConsumerOptions{Topic: services, SubscriptionName: "s", Type: pulsar.KeyShared, AckWithResponse: true}
	var consumers []pulsar.Consumer
	for i := range 2 {
		options.Name = "consumer-" + strconv.Itoa(i)
		consumers = append(consumers, must(connect(t, p, pulsartest.Reader).Subscribe(options))(t))
	}
	const keys, rounds = 16, 4
	for round := range rounds {
		for k := range keys {
			p.Put("k"+strconv.Itoa(k), strconv.Itoa(round))
		}
	}
	type received struct {
		consumer int
		m        pulsar.Message
	}
	got := make(chan received, keys*rounds)
	for i, in := range consumers {
		go func() {
			for {
				m, err := in.Receive(t.Context())
				if err != nil {
					return
				}
				_ = in.Ack(m)
				got <- received{i, m}
			}
		}()
	}
	owner, last, busy := map[string]int{}, map[string]int64{}, map[int]bool{}
	for range keys * rounds {
		select {
		case r := <-got:
			key := r.m.Key()
			if who, ok := owner[key]; ok && who != r.consumer {
				t.Errorf("key %s went to both consumers", key)
			}
			if r.m.ID().EntryID() <= last[key] {
				t.Errorf("key %s: %d after %d", key, r.m.ID().EntryID(), last[key])
			}
			owner[key], last[key], busy[r.consumer] = r.consumer, r.m.ID().EntryID(), true
		case <-time.After(10 * time.Second):
			t.Fatal("messages are missing")
		}
	}
	if len(busy) != 2 {
		t.Error("one consumer has all keys")
	}
}

func TestTableView(t *testing.T) {
	p := pulsartest.New(t)
	p.Put("a", "1")
	p.Put("b", "2")
	p.Put("a", "3")
	p.Delete("b")
	c := connect(t, p, pulsartest.Reader)
	view := must(c.CreateTableView(pulsar.TableViewOptions{
		Topic: services, Schema: pulsar.NewJSONSchema(`{"type":"record","name":"Service","fields":[]}`, nil), SchemaValueType: typeOfService,
	}))(t)
	defer view.Close()
	ip := func(name string) string {
		o, ok := view.Get(name).(corev1.Service)
		if !ok {
			return ""
		}
		return o.Spec.ClusterIP
	}
	if ip("a") != "3" || ip("b") != "" || len(view.Keys()) != 1 {
		t.Errorf("the view is %v", view.Keys())
	}
	p.Put("c", "4")
	p.Delete("a")
	for deadline := time.Now().Add(10 * time.Second); ip("c") != "4" || ip("a") != ""; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the view stays at %v", view.Keys())
		}
	}
}

func TestAccess(t *testing.T) {
	p := pulsartest.New(t)
	p.PutObject("/registry/secrets/shop/password", &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "password", Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "hunter2"}},
		Data:       map[string][]byte{"key": []byte("hunter2")},
	})
	reader, admin := connect(t, p, pulsartest.Reader), connect(t, p, pulsartest.Admin)
	read := func(c pulsar.Client, topic string) error {
		r, err := c.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
		if err == nil {
			r.Close()
		}
		return err
	}
	for _, c := range []struct {
		client pulsar.Client
		topic  string
		want   string // part of the error; empty: none
	}{
		{reader, services, ""},
		{reader, "persistent://blue/shop/secrets", "AuthorizationError"},
		{reader, "persistent://default/default/services", "AuthorizationError"},
		{reader, "persistent://default/_cluster/nodes", "AuthorizationError"},
		{admin, "persistent://default/_cluster/nodes", ""},
		{admin, "persistent://blue/shop/dataplanes.mesh.proxima.dev", ""},
		{admin, "persistent://default/shop/services", "TopicNotFound"},
		{admin, "persistent://default/none/services", "TopicNotFound"},
		{admin, "persistent://blue/shop/things", "TopicNotFound"},
		{admin, "persistent://blue/shop/nodes", "TopicNotFound"},
		{connect(t, p, "wrong"), services, "connection error"},
	} {
		err := read(c.client, c.topic)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.topic, err, c.want)
		}
	}
	r := must(admin.CreateReader(pulsar.ReaderOptions{Topic: "persistent://blue/shop/secrets", StartMessageID: pulsar.EarliestMessageID()}))(t)
	m := must(r.Next(t.Context()))(t)
	if text := string(m.Payload()); !strings.Contains(text, `"name":"password"`) || strings.Contains(text, "hunter2") || strings.Contains(text, "aHVudGVyMg") {
		t.Errorf("a Secret is %s", text)
	}
	if _, err := admin.CreateProducer(pulsar.ProducerOptions{Topic: services}); err == nil || !strings.Contains(err.Error(), "change objects by the API") {
		t.Errorf("a producer: %v", err)
	}
	topics := must(reader.Subscribe(pulsar.ConsumerOptions{TopicsPattern: "persistent://blue/shop/.*", SubscriptionName: "all"}))(t)
	topics.Close()
}

var typeOfService = reflect.TypeFor[corev1.Service]()
