// Package pulsarsink publishes the change feed to a topic of Apache Pulsar, so that the topic has exactly what was committed: in order, and once.
//
// It owns the connection to the broker, where a topic ends, and how producers exclude each other. Enter at New; package sink does the
// rest. It never retries on its own, and never lets the client library send something again: who does so without reading where the topic
// ends publishes twice.
//
// With a broker that deduplicates it is exact. Without, what a lost connection has handed to the bookies may be there twice if they write it more than
// settle after the next connection; positions tell. What makes it exact:
//   - One producer at a time: it has exclusive access to the topic, by which the broker also refuses one that lost its connection meanwhile.
//   - After each connection the last message of the topic is read, and its position tells where to go on. After any failure there is a new connection.
//   - Sequence IDs are positions, so a broker that deduplicates leaves out what a lost connection has delivered late. The first message of a connection
//     is sent alone, as the client library gives a batch the sequence ID of its first message.
//   - Messages name the epoch of the store: what another control plane has published is not taken for one's own.
package pulsarsink

import (
	"cmp"
	"context"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar"
	"github.com/proxima-mesh/proxima/internal/feed/sink"
)

// Name of the kind of sink.
const Name = "pulsar"

// Bounds.
const (
	// maxEntries of a batch, and maxInFlight bytes of payloads that the broker has not acknowledged; one message may be larger.
	maxEntries  = 1000
	maxInFlight = 4 << 20
	// ackTimeout is how long the broker may be without acknowledging anything, before there is a new connection.
	ackTimeout = 30 * time.Second
	// closeTimeout is how long Close waits for the broker. What is left ends with the timeouts of the client.
	closeTimeout = 3 * time.Second
)

// Config of the kind. All fields are required.
type Config struct {
	// Objects reads keys and values of the store.
	Objects pulsar.Objects
	// Epoch of the store.
	Epoch string
	// Topic of a sink whose URL names none.
	Topic string
}

// New makes the kind of sink that publishes to Pulsar.
func New(c Config) sink.Kind { return &pulsarKind{c} }

type pulsarKind struct{ Config }

var (
	names     = regexp.MustCompile(`^[-=:.\w]+$`) // NamedEntity of Pulsar
	topics    = regexp.MustCompile(`^[^\s/?#]+$`)
	partition = regexp.MustCompile(`-partition-\d+$`)
)

// Check implements sink.Kind.
func (k *pulsarKind) Check(s *sink.Spec) error {
	const want = "want pulsar://HOST:PORT/TENANT/NAMESPACE or …/TOPIC; pulsar+ssl:// with TLS"
	u, err := url.Parse(s.URL)
	if err != nil {
		return sink.Invalid("url: %w; %s", err, want)
	}
	part := strings.Split(strings.Trim(u.Path, "/"), "/")
	switch {
	case u.Scheme != "pulsar" && u.Scheme != "pulsar+ssl" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "":
		return sink.Invalid("url %q: %s", u.Redacted(), want)
	case u.User != nil:
		return sink.Invalid("url %q: credentials are given as a token, in a file", u.Redacted())
	case len(part) < 2 || len(part) > 3 || !names.MatchString(part[0]) || !names.MatchString(part[1]):
		return sink.Invalid("url %q: %s", u.Redacted(), want)
	case len(part) == 3 && !topics.MatchString(part[2]):
		return sink.Invalid("url %q: the topic is no name of a topic", u.Redacted())
	case len(part) == 3 && partition.MatchString(part[2]):
		return sink.Invalid("url %q: the topic is a partition; order is kept in topics without partitions alone", u.Redacted())
	case s.Secret != "":
		return sink.Invalid("secret: messages of Pulsar are not signed")
	case s.Authorities != "" && u.Scheme == "pulsar":
		return sink.Invalid("authorities: there is no TLS with pulsar://; want pulsar+ssl://")
	case strings.ContainsAny(s.Token, " \n"):
		return sink.Invalid("token: want one line without spaces")
	}
	if len(part) == 2 {
		part = append(part, k.Topic)
	}
	if s.Authorities != "" {
		if _, err := sink.Roots(s.Authorities); err != nil {
			return err
		}
	}
	u.Path = "/" + strings.Join(part, "/")
	s.URL = u.String()
	if s.Name == "" {
		host, _, _ := strings.Cut(u.Host, ",")
		s.Name = strings.ToLower((&url.URL{Host: host}).Hostname())
	}
	return nil
}

// Pace implements sink.Kind.
func (*pulsarKind) Pace() sink.Pace {
	return sink.Pace{Entries: maxEntries, Retry: backoff.Policy{First: 500 * time.Millisecond, Last: 15 * time.Second, Jitter: 0.2}}
}

// Open implements sink.Kind.
func (k *pulsarKind) Open(s *sink.Spec, log *slog.Logger) (sink.Target, error) {
	b, err := newBroker(s, log)
	if err != nil {
		return nil, err
	}
	return newPublisher(k.Config, b, log), nil
}

// topicOf a URL that Check has completed.
func topicOf(u *url.URL) string { return "persistent:/" + u.Path }

// producerOf a sink: no other has had the name, so that sequence IDs are those of this sink alone.
func producerOf(s *sink.Spec) string { return "proxima-" + s.Name + "-" + cmp.Or(s.ID, "0") }

// broker connects to Pulsar; *client is one.
type broker interface {
	// connect waits until it has the topic for itself, or fails.
	connect(ctx context.Context) (session, error)
	// close waits a moment for what sessions have left.
	close()
}

// session is exclusive access to a topic, over one connection.
type session interface {
	// end is where the topic ends.
	end(ctx context.Context) (end, error)
	// send a message. It may block until there is room, or ctx ends. done is called once, in the order of sends, from any goroutine: twice says that
	// the broker had the message already.
	send(ctx context.Context, m *message, done func(twice bool, err error))
	// flush has the broker get what was sent. It may block as send does.
	flush(ctx context.Context)
	// lost is closed when the connection or the access to the topic is lost.
	lost() <-chan struct{}
	// close ends it, and does not wait.
	close()
	// why the connection was lost, as far as it is known.
	why() error
}

// end of a topic.
type end struct {
	// position and epoch of the last message; 0: there is none.
	position int64
	epoch    string
}

// message as it is published.
type message struct {
	position   int64
	key        string
	payload    []byte
	properties map[string]string
	time       time.Time
}
