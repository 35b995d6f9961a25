package pulsarsink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/feed/sink"
)

// Timeouts of the client library. The connection to a broker that stands still is lost after two to three keepAlive.
const (
	dialTimeout      = 5 * time.Second
	operationTimeout = 10 * time.Second
	keepAlive        = 10 * time.Second
	// readTimeout is how long the last message of the topic may take to come.
	readTimeout = 10 * time.Second
	// settle is how long the end of the topic must stay as it is after a connection: what a lost connection has handed to the bookies comes then. A
	// broker that deduplicates needs no such time.
	settle = 500 * time.Millisecond
)

// client is the broker by pulsar-client-go. Each session has a client of its own, which has one connection.
type client struct {
	options  pulsar.ClientOptions
	topic    string
	producer string
	log      *slog.Logger

	// ending are sessions that close, or that were given up before they were there.
	ending sync.WaitGroup
}

func newBroker(s *sink.Spec, log *slog.Logger) (*client, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, err
	}
	c := &client{
		topic: topicOf(u), producer: producerOf(s), log: log,
		options: pulsar.ClientOptions{
			URL: u.Scheme + "://" + u.Host, ConnectionTimeout: dialTimeout, OperationTimeout: operationTimeout, KeepAliveInterval: keepAlive,
			ConnectionMaxIdleTime: -1, MetricsCardinality: pulsar.MetricsCardinalityNone, Description: "proxima",
		},
	}
	if u.Scheme == "pulsar+ssl" {
		cfg := &tls.Config{MinVersion: tls.VersionTLS12}
		if s.Authorities != "" {
			if cfg.RootCAs, err = sink.Roots(s.Authorities); err != nil {
				return nil, err
			}
		}
		c.options.TLSConfig = cfg
	}
	if s.Token != "" {
		c.options.Authentication = pulsar.NewAuthenticationToken(s.Token)
	}
	return c, nil
}

// close implements broker.
func (c *client) close() {
	done := make(chan struct{})
	go func() { c.ending.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(closeTimeout):
		c.log.Warn("the broker does not answer while the sink ends")
	}
}

// connect implements broker.
func (c *client) connect(ctx context.Context) (session, error) {
	type result struct {
		s   *connection
		err error
	}
	done := make(chan result, 1)
	c.ending.Go(func() {
		s, err := c.open()
		done <- result{s, err}
	})
	select {
	case r := <-done:
		if r.err != nil {
			return nil, explain(r.err)
		}
		return r.s, nil
	case <-ctx.Done(): // the library has no context
		c.ending.Go(func() {
			if r := <-done; r.s != nil {
				r.s.shut()
			}
		})
		return nil, context.Cause(ctx)
	}
}

// connection is the session.
type connection struct {
	c        *client
	client   pulsar.Client
	producer pulsar.Producer
	notes    *notes
	gone     chan struct{}
	once     sync.Once
}

func (c *client) open() (*connection, error) {
	s := &connection{c: c, notes: newNotes(c.log), gone: make(chan struct{})}
	options := c.options
	options.Logger = s.notes
	options.MetricsRegisterer = prometheus.NewRegistry() // its metrics are per client, of which there are many
	var err error
	if s.client, err = pulsar.NewClient(options); err != nil {
		return nil, err
	}
	if err = s.produce(); err != nil {
		if why := s.why(); why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
		s.client.Close()
		return nil, err
	}
	return s, nil
}

func (s *connection) produce() error {
	partitions, err := s.client.TopicPartitions(s.c.topic)
	if err != nil {
		return err
	}
	if len(partitions) != 1 || partitions[0] != s.c.topic {
		return fmt.Errorf("topic %s has %d partitions, among which there is no order; use one without: pulsar-admin topics create %[1]s-changes", s.c.topic, len(partitions))
	}
	never := uint(0)
	s.producer, err = s.client.CreateProducer(pulsar.ProducerOptions{
		Topic: s.c.topic, Name: s.c.producer, ProducerAccessMode: pulsar.ProducerAccessModeExclusive, CompressionType: pulsar.LZ4,
		// A batch is sent by flush.
		BatchingMaxPublishDelay: time.Hour, BatchingMaxMessages: maxEntries, BatchingMaxSize: 512 << 10,
		MaxPendingMessages: 2 * maxEntries, SendTimeout: -1, PartitionsAutoDiscoveryInterval: 1000 * time.Hour,
		// The library would send again what was not acknowledged, after a connection of its own. It asks for a policy once the connection is lost.
		MaxReconnectToBroker: &never,
		BackOffPolicyFunc: func() backoff.Policy {
			s.once.Do(func() { close(s.gone) })
			return backoff.NewDefaultBackoff()
		},
	})
	return err
}

// lost implements session.
func (s *connection) lost() <-chan struct{} { return s.gone }

// why implements session.
func (s *connection) why() error { return s.notes.last() }

// close implements session.
func (s *connection) close() { s.c.ending.Go(s.shut) }

func (s *connection) shut() { s.client.Close() }

// send implements session.
func (s *connection) send(ctx context.Context, m *message, done func(bool, error)) {
	s.producer.SendAsync(ctx, &pulsar.ProducerMessage{
		Payload: m.payload, Key: m.key, Properties: m.properties, EventTime: m.time, SequenceID: &m.position,
	}, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		// A broker that deduplicates answers so.
		done(err == nil && id.LedgerID() == -1 && id.EntryID() == -1, err)
	})
}

// flush implements session.
func (s *connection) flush(ctx context.Context) {
	_ = s.producer.FlushWithCtx(ctx) // each message has an answer of its own
}

// end implements session.
func (s *connection) end(ctx context.Context) (end, error) {
	type result struct {
		e   end
		err error
	}
	done := make(chan result, 1)
	s.c.ending.Go(func() {
		e, err := s.settled(ctx)
		done <- result{e, err}
	})
	select {
	case r := <-done:
		if r.err != nil {
			return end{}, explain(fmt.Errorf("where the topic ends: %w", r.err))
		}
		return r.e, nil
	case <-s.gone:
		return end{}, errLost
	case <-ctx.Done():
		return end{}, context.Cause(ctx)
	}
}

// settled is the end of the topic when it does not change any more.
func (s *connection) settled(ctx context.Context) (end, error) {
	var last end
	for first := true; ; first = false {
		e, err := s.read(ctx, false)
		if errors.Is(err, errNotRead) { // the message is in the compacted topic alone
			e, err = s.read(ctx, true)
		}
		if err != nil {
			return end{}, err
		}
		if !first && e == last {
			return e, nil
		}
		last = e
		select {
		case <-time.After(settle):
		case <-s.gone:
			return end{}, errLost
		case <-ctx.Done():
			return end{}, ctx.Err()
		}
	}
}

var errNotRead = errors.New("the last message does not come")

// last is the ID of the last message; its entry is below 0 if there is none. The library can read the last message by itself, but blocks for ever if the
// connection is lost meanwhile (StartMessageIDInclusive with LatestMessageID, v0.19.0).
func (s *connection) last() (pulsar.MessageID, error) {
	r, err := s.reader(pulsar.LatestMessageID(), false)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.GetLastMessageID() // HasNext has no error
}

func (s *connection) reader(after pulsar.MessageID, compacted bool) (pulsar.Reader, error) {
	return s.client.CreateReader(pulsar.ReaderOptions{
		Topic: s.c.topic, Name: s.c.producer, StartMessageID: after, ReceiverQueueSize: 2 * maxEntries, ReadCompacted: compacted,
	})
}

// read the last message.
func (s *connection) read(ctx context.Context, compacted bool) (end, error) {
	last, err := s.last()
	if err != nil || last.EntryID() < 0 {
		return end{}, err
	}
	// From the entry before it on, of which there may be none.
	r, err := s.reader(pulsar.NewMessageID(last.LedgerID(), last.EntryID()-1, -1, 0), compacted)
	if err != nil {
		return end{}, err
	}
	defer r.Close()
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, readTimeout, errNotRead)
	defer cancel()
	go func() {
		select {
		case <-s.gone:
			lost(errLost)
		case <-ctx.Done():
		}
	}()
	for {
		m, err := r.Next(ctx)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return end{}, err
		}
		if id := m.ID(); id.LedgerID() < last.LedgerID() || id.LedgerID() == last.LedgerID() &&
			(id.EntryID() < last.EntryID() || id.EntryID() == last.EntryID() && id.BatchIdx() < last.BatchIdx()) {
			continue
		}
		text := m.Properties()["position"]
		position, err := strconv.ParseInt(text, 10, 64)
		if err != nil || position <= 0 {
			return end{}, fmt.Errorf("the last message of %s is not of a sink, as it has no position; use a topic that nothing else publishes to", s.c.topic)
		}
		return end{position, m.Properties()["epoch"]}, nil
	}
}

// hints for what brokers and the library say, in lower case.
var hints = []struct{ text, hint string }{
	{"first record does not look like a tls handshake", "there is no TLS at this port: want pulsar://, or the port of TLS"},
	{"x509", "name the authority of the broker's certificate with --ca-file, and the broker as in its certificate"},
	{"tls:", "the broker refuses TLS as it is: see --ca-file, and whether it wants a client certificate"},
	{"authenticat", "the broker wants a token that it accepts: --token-file"},
	{"authorization", "the role of the token needs produce and consume: pulsar-admin namespaces grant-permission TENANT/NAMESPACE --role ROLE --actions produce,consume"},
	{"not authorized", "the role of the token needs produce and consume: pulsar-admin namespaces grant-permission TENANT/NAMESPACE --role ROLE --actions produce,consume"},
	{"policies not found", "there is no such tenant or namespace: pulsar-admin namespaces create TENANT/NAMESPACE"},
	{"namespace not found", "there is no such tenant or namespace: pulsar-admin namespaces create TENANT/NAMESPACE"},
	{"tenant does not exist", "there is no such tenant: pulsar-admin tenants create TENANT"},
	{"topicnotfound", "there is no such tenant, namespace or topic: pulsar-admin topics create persistent://TENANT/NAMESPACE/TOPIC"},
	{"topic not found", "there is no such tenant, namespace or topic: pulsar-admin topics create persistent://TENANT/NAMESPACE/TOPIC"},
	{"topicterminated", "the topic was terminated: use another one"},
	{"producerfenced", "another producer has the topic: another sink, or an instance that ended and whose connection the broker still has for a minute"},
	{"producerbusy", "another producer has the topic: another sink, or an instance that ended and whose connection the broker still has for a minute"},
	{"existing producer", "another producer has the topic: another sink, or an instance that ended and whose connection the broker still has for a minute"},
	{"quota", "the backlog quota of the namespace is full: a subscription does not read, or the quota is too small"},
	{"message size exceeds", "the object is larger than the broker's maxMessageSize: raise that"},
	{"initial handshake: eof", "the broker closes the connection at once: does it want pulsar+ssl://?"},
	{"i/o timeout", "the broker does not answer: is it overloaded, or does a firewall drop packets?"},
	{"acknowledged nothing", "is the broker overloaded, or are too few bookies there?"},
	{"connection refused", "nothing listens there: is the broker running?"},
	{"no such host", "the name of the broker has no address"},
}

// explain adds what to do.
func explain(err error) error {
	text := strings.ToLower(err.Error())
	for _, h := range hints {
		if strings.Contains(text, h.text) {
			return fmt.Errorf("%w (%s)", err, h.hint)
		}
	}
	return err
}
