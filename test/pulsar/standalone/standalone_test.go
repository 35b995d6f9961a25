//go:build interop

package standalone

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
)

// What the broker has acknowledged is there after kill -9, and a producer that was cut off while the process stood still goes on.
func TestServer(t *testing.T) {
	s := Start(t, Config{Deduplication: true})
	c, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: s.URL, OperationTimeout: time.Minute, Logger: plog.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil))),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p, err := c.CreateProducer(pulsar.ProducerOptions{Topic: "persistent://public/default/t", Name: "one", DisableBatching: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	send := func(text string, sequence int64) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if _, err := p.Send(ctx, &pulsar.ProducerMessage{Payload: []byte(text), SequenceID: &sequence}); err != nil {
			t.Fatal(err)
		}
	}
	send("a", 1)
	send("a again", 1)
	s.Stop()
	time.AfterFunc(time.Second, s.Cont)
	send("b", 2)
	s.Restart()
	send("b again", 2)
	send("c", 3)
	r, err := c.CreateReader(pulsar.ReaderOptions{Topic: "persistent://public/default/t", StartMessageID: pulsar.EarliestMessageID()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, want := range []string{"a", "b", "c"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		m, err := r.Next(ctx)
		cancel()
		if err != nil || string(m.Payload()) != want {
			t.Fatalf("got %v, %v; want %q", m, err, want)
		}
	}
}
