//go:build interop

package pulsar

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/cursor"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	feedpulsar "github.com/proxima-mesh/proxima/internal/feed/pulsar"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar/pulsartest"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/feed/sink"
	"github.com/proxima-mesh/proxima/internal/feed/sink/pulsarsink"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/sqlite"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/test/pulsar/standalone"
)

// The namespaces of the broker: one deduplicates. Each test publishes to a topic in both.
const (
	exact = "public/exact"
	plain = "public/plain"
)

// engine is a store whose changes are published.
type engine struct {
	t      *testing.T
	broker *standalone.Server
	topic  string
	store  store.Store

	records records

	mu sync.Mutex
	// changes that the store has acknowledged, by their revisions.
	changes map[int64]change
	slowest time.Duration // commit
}

type change struct{ key, operation, ip string }

// records of sinks, in memory. They are those of all instances, and do not change after the beginning.
type records struct {
	mu  sync.Mutex
	all map[string][]byte
}

func (r *records) Names(context.Context, string) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.all)), nil
}

func (r *records) Load(_ context.Context, name string) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[name], nil
}

func (r *records) Create(_ context.Context, name string, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[name] = data
	return nil
}

func (r *records) Delete(context.Context, string) error { return errors.New("not in this test") }

func (r *records) Watch(ctx context.Context, changed func()) error {
	changed()
	<-ctx.Done()
	return nil
}

// instance of a control plane, as far as it publishes.
type instance struct {
	feed  *feed.Feed
	sinks *sink.Sinks
	stop  func()
}

var topicNumber int

func newEngine(t *testing.T, broker *standalone.Server) *engine {
	return newEngineVia(t, broker, broker.URL)
}

// newEngineVia has the sinks connect to a URL.
func newEngineVia(t *testing.T, broker *standalone.Server, at string) *engine {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	topicNumber++
	e := &engine{t: t, broker: broker, topic: fmt.Sprint("engine-", topicNumber), store: s, records: records{all: map[string][]byte{}}, changes: map[int64]change{}}
	i := e.start(t.TempDir())
	defer i.stop()
	for _, namespace := range []string{exact, plain} {
		spec := sink.Spec{Kind: pulsarsink.Name, URL: at + "/" + namespace + "/" + e.topic, Name: filepath.Base(namespace)}
		if _, err := i.sinks.Add(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// tables has a method that nobody calls here.
type tables struct{ feedpulsar.Objects }

func (tables) Table(context.Context, *resource.Descriptor, []resource.Object) (*metav1.Table, error) {
	return nil, errors.New("there are no tables")
}

// start an instance whose feed is in a folder.
func (e *engine) start(dir string) *instance {
	e.t.Helper()
	f, err := feed.Open(e.t.Context(), feed.Config{Store: e.store, Prefix: "/registry/", Roots: []string{dir}})
	if err != nil {
		e.t.Fatal(err)
	}
	cursors, err := cursor.New(e.t.Context(), cursor.Config{Store: e.store, Feed: f})
	if err != nil {
		e.t.Fatal(err)
	}
	sinks, err := sink.New(sink.Config{
		History: history.New(history.Config{
			Feed: f, Objects: tables{pulsartest.Objects()}, Sealed: func(*resource.Descriptor) bool { return false }, Kept: func(*resource.Descriptor) bool { return true },
		}),
		Cursors: cursors, Records: &e.records, Source: "//proxima/test", Known: func(string) bool { return true },
		Kinds:  map[string]sink.Kind{pulsarsink.Name: pulsarsink.New(pulsarsink.Config{Objects: pulsartest.Objects(), Epoch: e.store.Epoch(), Topic: "proxima"})},
		Logger: slog.New(slog.NewTextHandler(logTo{e.t}, &slog.HandlerOptions{Level: slog.LevelInfo})),
	})
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	sinking, endSinks := context.WithCancel(context.Background())
	var running, delivering sync.WaitGroup
	running.Go(func() { _ = f.Run(ctx) })
	running.Go(func() { _ = cursors.Run(ctx) })
	delivering.Go(func() { _ = sinks.Run(sinking) })
	i := &instance{feed: f, sinks: sinks, stop: sync.OnceFunc(func() {
		endSinks()
		delivering.Wait()
		cancel()
		running.Wait()
	})}
	e.t.Cleanup(i.stop)
	return i
}

// logTo the log of the test.
type logTo struct{ t *testing.T }

func (l logTo) Write(text []byte) (int, error) {
	l.t.Logf("%s", bytes.TrimSpace(text))
	return len(text), nil
}

// cutter is a network before the broker: connections through it end again and again, some of them a while after their answers are lost.
type cutter struct {
	url, broker, here string
	mu                sync.Mutex
	open              map[net.Conn]bool
	mute              atomic.Bool // answers of the broker are lost
	stalled           atomic.Bool // the broker gets nothing more either
}

func newCutter(t *testing.T, broker *standalone.Server) *cutter {
	l := must(net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(testkit.FreePort(t))))(t)
	t.Cleanup(func() { l.Close() })
	c := &cutter{url: "pulsar://" + l.Addr().String(), broker: strings.TrimPrefix(broker.URL, "pulsar://"), here: l.Addr().String(), open: map[net.Conn]bool{}}
	if len(c.broker) != len(c.here) {
		t.Fatalf("%s cannot be replaced by %s", c.broker, c.here)
	}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", c.broker)
			if err != nil {
				in.Close()
				continue
			}
			c.mu.Lock()
			c.open[in], c.open[out] = true, true
			c.mu.Unlock()
			go c.copy(out, in, &c.stalled, func(b []byte) []byte { return b })
			// Clients connect to what lookups answer, which is here.
			go c.copy(in, out, &c.mute, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(c.broker), []byte(c.here)) })
		}
	}()
	return c
}

func (c *cutter) copy(to, from net.Conn, lost *atomic.Bool, change func([]byte) []byte) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if lost.Load() {
			continue
		}
		if _, err := to.Write(change(buffer[:n])); err != nil {
			return
		}
	}
}

// cut all connections.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		conn.Close()
	}
	clear(c.open)
	c.mute.Store(false)
	c.stalled.Store(false)
}

const writers = 4

// write changes until the function that it returns is called, by several writers.
func (e *engine) write() (stop func()) {
	ctx, cancel := context.WithCancel(e.t.Context())
	var all sync.WaitGroup
	for writer := range writers {
		all.Go(func() {
			there := map[string]bool{}
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				name := fmt.Sprintf("w%d-%d", writer, rand.IntN(10))
				c := change{key: "services/shop/" + name, operation: "put", ip: strconv.Itoa(n)}
				if there[name] && rand.IntN(4) == 0 {
					c.operation, c.ip = "delete", ""
				}
				there[name] = c.operation == "put"
				e.commit(name, c)
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}

func op(name string, c change) store.Op {
	key := "/registry/services/shop/" + name
	if c.operation == "delete" {
		return store.Op{Kind: store.Delete, Key: key}
	}
	value, _ := json.Marshal(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "1-2-3"}, Spec: corev1.ServiceSpec{ClusterIP: c.ip}})
	return store.Op{Kind: store.Put, Key: key, Value: value}
}

func (e *engine) commit(name string, c change) {
	began := time.Now()
	at, err := e.store.Commit(context.Background(), store.Txn{Ops: []store.Op{op(name, c)}})
	took := time.Since(began)
	if err != nil {
		e.t.Error(err)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changes[int64(at)] = c
	e.slowest = max(e.slowest, took)
}

// last revision that was acknowledged.
func (e *engine) last() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	var last int64
	for at := range e.changes {
		last = max(last, at)
	}
	return last
}

// reach waits until all sinks have published up to a position.
func (e *engine) reach(i *instance, at int64) {
	e.t.Helper()
	e.until(3*time.Minute, i, func(list []sink.Status) bool {
		return !slices.ContainsFunc(list, func(s sink.Status) bool { return s.Position < at })
	})
}

func (e *engine) until(within time.Duration, i *instance, what func([]sink.Status) bool) {
	e.t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		list, err := i.sinks.List(e.t.Context())
		if err != nil {
			e.t.Fatal(err)
		}
		if what(list) {
			return
		}
		if time.Now().After(end) {
			e.t.Fatalf("after %s: %+v", within, list)
		}
	}
}

func newClient(t *testing.T, o pulsar.ClientOptions) pulsar.Client {
	t.Helper()
	o.OperationTimeout, o.Logger = time.Minute, plog.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil)))
	c, err := pulsar.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// read a topic from the earliest message on until a position has come and nothing follows.
func read(t *testing.T, broker *standalone.Server, topic string, last int64) (out []pulsar.Message) {
	t.Helper()
	c := newClient(t, pulsar.ClientOptions{URL: broker.URL})
	defer c.Close()
	in := must(c.Subscribe(pulsar.ConsumerOptions{
		Topic: "persistent://" + topic, SubscriptionName: "judge", Type: pulsar.Exclusive, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}))(t)
	defer in.Close()
	var highest int64
	for {
		within := time.Minute
		if highest >= last {
			within = time.Second
		}
		ctx, cancel := context.WithTimeout(t.Context(), within)
		m, err := in.Receive(ctx)
		cancel()
		if err != nil {
			if highest < last {
				t.Errorf("%s: position %d of %d, then nothing", topic, highest, last)
			}
			return out
		}
		_ = in.Ack(m)
		out = append(out, m)
		highest = max(highest, positionOf(m))
	}
}

func positionOf(m pulsar.Message) int64 {
	at, _ := strconv.ParseInt(m.Properties()["position"], 10, 64)
	return at
}

// once leaves out messages at positions that are not above all earlier ones, and returns how many they are.
func once(messages []pulsar.Message) (out []pulsar.Message, twice int) {
	var highest int64
	for _, m := range messages {
		if at := positionOf(m); at > highest {
			highest, out = at, append(out, m)
		} else {
			twice++
		}
	}
	return out, twice
}

// judge the topics: in the one that deduplicates is what was committed, once and in order; in the other at most so many messages more, which
// a consumer can tell by their positions. It returns the number of these.
func (e *engine) judge(mayTwice int) int {
	e.t.Helper()
	last := e.last()
	want := slices.Sorted(maps.Keys(e.changes))
	found := 0
	for _, namespace := range []string{exact, plain} {
		got, twice := once(read(e.t, e.broker, namespace+"/"+e.topic, last))
		if twice > 0 && (namespace == exact || twice > mayTwice) {
			e.t.Errorf("%s: %d messages are there twice", namespace, twice)
		}
		found += twice
		if len(got) != len(want) {
			e.t.Errorf("%s: %d changes, want %d", namespace, len(got), len(want))
		}
		for i := range min(len(got), len(want)) {
			m, c := got[i], e.changes[want[i]]
			var o corev1.Service
			if c.operation == "put" {
				if err := json.Unmarshal(m.Payload(), &o); err != nil {
					e.t.Fatalf("%s: %s: %v", namespace, m.Payload(), err)
				}
			}
			p := m.Properties()
			if positionOf(m) != want[i] || m.Key() != c.key || p["operation"] != c.operation || o.Spec.ClusterIP != c.ip || (len(m.Payload()) == 0) != (c.operation == "delete") ||
				p["epoch"] != e.store.Epoch() || p["kind"] != "Service" || p["namespace"] != "shop" || "services/shop/"+p["name"] != c.key || p["uid"] != "1-2-3" && c.operation == "put" {
				e.t.Fatalf("%s: message %d is %s %v %s, want %+v at %d", namespace, i, m.Key(), p, m.Payload(), c, want[i])
			}
		}
	}
	e.t.Logf("%d changes published; %d messages twice without deduplication; slowest commit %s", len(want), found, e.slowest.Round(time.Millisecond))
	return found
}

// TestEngine publishes changes that are committed all the time to a real broker, and has it, us and the network fail.
func TestEngine(t *testing.T) {
	broker := standalone.Start(t, standalone.Config{Settings: map[string]string{
		"brokerDeleteInactiveTopicsEnabled": "false", "defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1",
	}})
	for _, namespace := range []string{exact, plain} {
		request(t, broker, http.MethodPut, "namespaces/"+namespace, "{}")
	}
	request(t, broker, http.MethodPost, "namespaces/"+exact+"/deduplication", "true")

	t.Run("plain", func(t *testing.T) {
		e := newEngine(t, broker)
		i := e.start(t.TempDir())
		stop := e.write()
		time.Sleep(5 * time.Second) // of load
		stop()
		e.reach(i, e.last())
		e.judge(0)
	})
	t.Run("speed", func(t *testing.T) {
		e := newEngine(t, broker)
		const n, each = 50_000, 100
		for range n / each {
			var txn store.Txn
			for k := range each {
				txn.Ops = append(txn.Ops, op(fmt.Sprint("s", k), change{operation: "put", ip: strconv.Itoa(rand.Int())}))
			}
			at := must(e.store.Commit(t.Context(), txn))(t)
			e.changes[int64(at)] = change{}
		}
		dir := t.TempDir()
		all := e.records.all
		e.records.all = nil
		i := e.start(dir)
		if err := i.feed.Reach(t.Context(), seglog.Position(e.last())); err != nil {
			t.Fatal(err)
		}
		i.stop()
		for _, name := range []string{"exact", "plain"} {
			record := "feed/sinks/" + name
			e.records.all = map[string][]byte{record: all[record]}
			i := e.start(dir)
			began := time.Now()
			e.reach(i, e.last())
			took := time.Since(began)
			i.stop()
			t.Logf("%s: %d changes published in %s: %.0f changes/s", name, n, took.Round(time.Millisecond), n/took.Seconds())
		}
	})
	t.Run("broker killed", func(t *testing.T) {
		e := newEngine(t, broker)
		i := e.start(t.TempDir())
		stop := e.write()
		rounds := 3
		if os.Getenv("PROXIMA_SOAK") == "1" {
			rounds = 20
		}
		for range rounds {
			at := e.last()
			e.reach(i, at)
			time.Sleep(time.Duration(500+rand.IntN(1000)) * time.Millisecond) // a moment in the midst of the load
			broker.Restart()
		}
		e.reach(i, e.last())
		stop()
		e.reach(i, e.last())
		e.judge(20)
		if e.slowest > 5*time.Second {
			t.Errorf("a commit took %s", e.slowest)
		}
	})
	t.Run("network cut", func(t *testing.T) {
		network := newCutter(t, broker)
		e := newEngineVia(t, broker, network.url)
		i := e.start(t.TempDir())
		stop := e.write()
		const cuts = 12
		for n := range cuts {
			e.reach(i, e.last())
			time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond) // a moment in the midst of the load
			if n%3 > 0 {
				network.mute.Store(true)
				time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
				network.stalled.Store(n%3 == 2)
				time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
			}
			network.cut()
		}
		e.reach(i, e.last())
		stop()
		e.reach(i, e.last())
		t.Logf("cut %d times", cuts)
		e.judge(50)
	})
	t.Run("broker stands still", func(t *testing.T) {
		e := newEngine(t, broker)
		i := e.start(t.TempDir())
		stop := e.write()
		e.reach(i, e.last()+100)
		broker.Stop()
		before := len(e.committed())
		time.Sleep(40 * time.Second) // of standing still
		during := len(e.committed()) - before
		var problems []string
		for _, text := range i.sinks.Problems() {
			problems = append(problems, text)
		}
		broker.Cont()
		if during < 2000 {
			t.Errorf("%d commits while the broker stood still", during)
		}
		if len(problems) != 2 {
			t.Errorf("the problems are %q", problems)
		}
		began := time.Now()
		e.reach(i, e.last())
		t.Logf("%d commits meanwhile, the problem was %q; the backlog was published %s after", during, problems[:min(1, len(problems))], time.Since(began).Round(100*time.Millisecond))
		stop()
		e.reach(i, e.last())
		e.judge(2000)
		if e.slowest > 5*time.Second {
			t.Errorf("a commit took %s", e.slowest)
		}
	})
	t.Run("two instances", func(t *testing.T) {
		e := newEngine(t, broker)
		dirs := []string{t.TempDir(), t.TempDir()}
		instances := []*instance{e.start(dirs[0]), nil}
		stop := e.write()
		e.reach(instances[0], e.last()+1)
		instances[1] = e.start(dirs[1])
		for round := range 4 {
			owner, other := round%2, 1-round%2
			e.until(time.Minute, instances[other], func(list []sink.Status) bool {
				return !slices.ContainsFunc(list, func(s sink.Status) bool { return !strings.Contains(s.Problem, "another producer has the topic") })
			})
			instances[owner].stop()
			began := time.Now()
			e.reach(instances[other], e.last())
			t.Logf("taken over after %s", time.Since(began).Round(100*time.Millisecond))
			instances[owner] = e.start(dirs[owner])
		}
		stop()
		e.reach(instances[0], e.last()) // which has the topic again
		e.judge(0)
	})
	t.Run("connection lingers", func(t *testing.T) {
		e := newEngine(t, broker)
		child := exec.Command(os.Args[0], "-test.run=^TestHolder$")
		child.Env = append(os.Environ(), holds+"="+broker.URL+" persistent://"+exact+"/"+e.topic+" persistent://"+plain+"/"+e.topic)
		child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out := must(child.StdoutPipe())(t)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
		if _, err := io.ReadFull(out, make([]byte, len("holds"))); err != nil {
			t.Fatal(err)
		}
		_ = child.Process.Signal(syscall.SIGSTOP) // as a machine that lost its power
		i := e.start(t.TempDir())
		stop := e.write()
		began := time.Now()
		e.until(time.Minute, i, func(list []sink.Status) bool {
			return !slices.ContainsFunc(list, func(s sink.Status) bool { return !strings.Contains(s.Problem, "another producer has the topic") })
		})
		e.reach(i, e.last())
		t.Logf("the topic was free after %s", time.Since(began).Round(time.Second))
		stop()
		e.reach(i, e.last())
		e.judge(0)
	})
	t.Run("we are killed", func(t *testing.T) { engineProcess(t, broker) })
}

// committed are the revisions that were acknowledged so far.
func (e *engine) committed() []int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.changes))
}

// holds is set in the environment of a test binary that is to have topics for itself: the broker and the topics.
const holds = "PROXIMA_TEST_HOLDS"

// TestHolder is not a test but the body of a child.
func TestHolder(t *testing.T) {
	arguments := strings.Fields(os.Getenv(holds))
	if len(arguments) == 0 {
		return
	}
	c := newClient(t, pulsar.ClientOptions{URL: arguments[0]})
	for _, topic := range arguments[1:] {
		must(c.CreateProducer(pulsar.ProducerOptions{Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive}))(t)
	}
	fmt.Print("holds")
	<-t.Context().Done()
}

// engineProcess kills a process of bin/proxima again and again, with changes all the time: the topics have what its own feed has.
func engineProcess(t *testing.T, broker *standalone.Server) {
	p := newControlPlane(t, nil)
	token := strings.TrimSpace(p.proxima("token", "create", "--kind", "read-only", "--name", "inventory"))
	c := newClient(t, pulsar.ClientOptions{URL: "pulsar://127.0.0.1:" + strconv.Itoa(p.port), Authentication: pulsar.NewAuthenticationToken(token)})
	namespace := must(p.namespace(t.Context(), c))(t)
	for _, where := range []string{exact, plain} {
		p.proxima("feed", "sink", "add", "pulsar", broker.URL+"/"+where+"/process", "--name", filepath.Base(where), "--resource", "services", "--in-namespace", namespace)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for writer := range writers {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_ = p.put(ctx, namespace, fmt.Sprintf("w%d-%d", writer, n%5)) // while it is killed it fails
				if n%7 == 0 {
					_ = p.objects.CoreV1().Services(namespace).Delete(ctx, fmt.Sprintf("w%d-%d", writer, n%5), metav1.DeleteOptions{})
				}
			}
		})
	}
	sinks := func() (list []sink.Status) {
		if err := json.Unmarshal([]byte(p.proxima("feed", "sink", "list", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		return list
	}
	caughtUp := func(at int64) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
			list := sinks()
			if len(list) == 2 && list[0].Position >= at && list[1].Position >= at && at > 0 {
				return
			}
			if at == 0 && list[0].Delivered > 50 && list[1].Delivered > 50 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%+v", list)
			}
		}
	}
	for range 6 {
		caughtUp(0) // since its start
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond)
		p.process.Kill()
		p.start()
	}
	caughtUp(0)
	cancel()
	all.Wait()
	// One more change, whose position is known.
	if err := p.put(t.Context(), namespace, "end"); err != nil {
		t.Fatal(err)
	}
	r := must(c.CreateReader(pulsar.ReaderOptions{Topic: "persistent://default/" + namespace + "/services", StartMessageID: pulsar.EarliestMessageID()}))(t)
	defer r.Close()
	var want []pulsar.Message
	for len(want) == 0 || !strings.HasSuffix(want[len(want)-1].Key(), "end") {
		want = append(want, next10(t, r))
	}
	last := positionOf(want[len(want)-1])
	caughtUp(last)
	for _, where := range []string{exact, plain} {
		got, twice := once(read(t, broker, where+"/process", last))
		if twice > 0 && where == exact {
			t.Errorf("%s: %d messages are there twice", where, twice)
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d changes, want %d", where, len(got), len(want))
		}
		for i := range min(len(got), len(want)) {
			if g, w := got[i], want[i]; positionOf(g) != positionOf(w) || g.Key() != "services/"+namespace+"/"+w.Key() || !bytes.Equal(g.Payload(), w.Payload()) {
				t.Fatalf("%s: message %d is %s at %d, want %s at %d", where, i, g.Key(), positionOf(g), w.Key(), positionOf(w))
			}
		}
		t.Logf("%s: %d changes, killed 6 times; %d messages twice", where, len(want), twice)
	}
}

// TestEngineErrors has a broker refuse. What is wrong, and what to do, is in "proxima feed sink list", "status" and "doctor".
func TestEngineErrors(t *testing.T) {
	key := []byte("a key of 32 bytes for the tests!")
	token := func(subject string) string {
		encode := base64.RawURLEncoding.EncodeToString
		text := encode([]byte(`{"alg":"HS256"}`)) + "." + encode([]byte(`{"sub":"`+subject+`"}`))
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(text))
		return text + "." + encode(mac.Sum(nil))
	}
	broker := standalone.Start(t, standalone.Config{Token: token("admin"), Settings: map[string]string{
		"brokerDeleteInactiveTopicsEnabled": "false",
		"authenticationEnabled":             "true", "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
		"tokenSecretKey": "data:;base64," + base64.StdEncoding.EncodeToString(key), "authorizationEnabled": "true", "superUserRoles": "admin",
		"brokerClientAuthenticationPlugin":     "org.apache.pulsar.client.impl.auth.AuthenticationToken",
		"brokerClientAuthenticationParameters": "token:" + token("admin"),
	}})
	request(t, broker, http.MethodPut, "persistent/public/default/parts/partitions", "3")
	request(t, broker, http.MethodPut, "persistent/public/default/ended", "")
	request(t, broker, http.MethodPost, "persistent/public/default/ended/terminate", "")
	p := newControlPlane(t, nil)
	for _, c := range []struct{ name, path, token, want string }{
		{"no-token", "/public/default/a", "", "--token-file"},
		{"wrong-token", "/public/default/b", "x.y.z", "--token-file"},
		{"no-right", "/public/default/c", token("guest"), "grant-permission"},
		{"no-tenant", "/nobody/default/d", token("admin"), "there is no such tenant"},
		{"no-namespace", "/public/nothing/e", token("admin"), "there is no such tenant"},
		{"parts", "/public/default/parts", token("admin"), "has 3 partitions"},
		{"ended", "/public/default/ended", token("admin"), "use another one"},
		{"right", "/public/default/right", token("admin"), ""},
	} {
		args := []string{"feed", "sink", "add", "pulsar", broker.URL + c.path, "--name", c.name}
		if c.token != "" {
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte(c.token+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--token-file", file)
		}
		p.proxima(args...)
		t.Run(c.name, func(t *testing.T) {
			for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
				var list []sink.Status
				if err := json.Unmarshal([]byte(p.proxima("feed", "sink", "list", "-o", "json")), &list); err != nil {
					t.Fatal(err)
				}
				i := slices.IndexFunc(list, func(s sink.Status) bool { return s.Name == c.name })
				if c.want == "" && list[i].Delivered > 0 && list[i].Problem == "" || c.want != "" && strings.Contains(list[i].Problem, c.want) {
					t.Log(cmp.Or(list[i].Problem, "delivers"))
					break
				}
				if time.Now().After(end) {
					t.Fatalf("%+v", list[i])
				}
				// A change, for the sink that delivers.
				_ = p.put(t.Context(), "default", "a")
			}
			for _, command := range []string{"status", "doctor"} {
				out, _ := p.try(command)
				if has := strings.Contains(out, "sink "+c.name+" of the change feed does not deliver"); has != (c.want != "") {
					t.Errorf("proxima %s: %s", command, out)
				}
			}
		})
	}
}
