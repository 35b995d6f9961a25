package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

// stream of JetStream, with a file store that syncs before it acknowledges, in this process.
type stream struct {
	server *server.Server
	conn   *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
}

func openStream(dir string) (s *stream, err error) {
	s = &stream{}
	s.server, err = server.NewServer(&server.Options{
		DontListen: true, JetStream: true, StoreDir: filepath.Join(dir, "nats"), SyncAlways: true, NoSigs: true, NoLog: true, JetStreamMaxStore: 1 << 40,
	})
	if err != nil {
		return nil, err
	}
	s.server.Start()
	if !s.server.ReadyForConnections(10 * time.Second) {
		return nil, fmt.Errorf("the NATS server does not start")
	}
	if s.conn, err = nats.Connect("", nats.InProcessServer(s.server)); err != nil {
		return nil, err
	}
	if s.js, err = jetstream.New(s.conn, jetstream.WithPublishAsyncMaxPending(group)); err != nil {
		return nil, err
	}
	s.stream, err = s.js.CreateStream(context.Background(), jetstream.StreamConfig{
		Name: "feed", Subjects: []string{"feed.>"}, Storage: jetstream.FileStorage,
	})
	return s, err
}

func (s *stream) close() {
	s.conn.Close()
	s.server.Shutdown()
	s.server.WaitForShutdown()
}

// fill publishes, with as many on their way as the feed syncs together, and returns how long it took.
func (s *stream) fill(all []*seglog.Entry) (time.Duration, error) {
	began := time.Now()
	for i, e := range all {
		for {
			_, err := s.js.PublishAsync(fmt.Sprintf("feed.s%d", i%1000), e.Value)
			if err == nil {
				break
			}
			if err != jetstream.ErrTooManyStalledMsgs {
				return 0, err
			}
		}
	}
	select {
	case <-s.js.PublishAsyncComplete():
	case <-time.After(10 * time.Minute):
		return 0, fmt.Errorf("%d messages are not acknowledged", s.js.PublishAsyncPending())
	}
	took := time.Since(began)
	info, err := s.stream.Info(context.Background())
	if err == nil && info.State.Msgs != uint64(len(all)) {
		err = fmt.Errorf("the stream has %d messages of %d", info.State.Msgs, len(all))
	}
	return took, err
}

// read all messages.
func (s *stream) read(n int) (time.Duration, error) {
	began := time.Now()
	c, err := s.stream.OrderedConsumer(context.Background(), jetstream.OrderedConsumerConfig{})
	if err != nil {
		return 0, err
	}
	done := make(chan struct{})
	read := 0
	use, err := c.Consume(func(jetstream.Msg) {
		if read++; read == n {
			close(done)
		}
	}, jetstream.PullMaxMessages(10_000))
	if err != nil {
		return 0, err
	}
	defer use.Stop()
	select {
	case <-done:
	case <-time.After(10 * time.Minute):
		return 0, fmt.Errorf("%d messages of %d arrived", read, n)
	}
	return time.Since(began), nil
}

// tail publishes one message after the other, and returns when each arrives.
func (s *stream) tail(n int) (after, all []time.Duration, err error) {
	c, err := s.stream.OrderedConsumer(context.Background(), jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, nil, err
	}
	arrived := make(chan time.Time, n)
	use, err := c.Consume(func(jetstream.Msg) { arrived <- time.Now() })
	if err != nil {
		return nil, nil, err
	}
	defer use.Stop()
	for i := range n {
		began := time.Now()
		if _, err := s.js.Publish(context.Background(), "feed.s1", value(i)); err != nil {
			return nil, nil, err
		}
		acked := time.Now()
		at := <-arrived
		after, all = append(after, max(at.Sub(acked), 0)), append(all, at.Sub(began))
		time.Sleep(time.Millisecond)
	}
	return after, all, nil
}
