package pulsarsink

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/proxima-mesh/proxima/internal/feed/sink"
)

// Commands of Pulsar's binary protocol, by their numbers.
const (
	cmdConnect, cmdConnected                                   = 2, 3
	cmdSubscribe, cmdProducer, cmdSend, cmdReceipt, cmdSuccess = 4, 5, 6, 7, 13
	cmdCloseProducer, cmdCloseConsumer                         = 15, 16
	cmdProducerSuccess, cmdPing, cmdPong                       = 17, 18, 19
	cmdPartitions, cmdLookup, cmdLastMessage                   = 21, 23, 29
)

// requestField is the field of a command that has the ID of the request.
var requestField = map[protowire.Number]protowire.Number{
	cmdSubscribe: 5, cmdProducer: 3, cmdCloseProducer: 2, cmdCloseConsumer: 2, cmdPartitions: 2, cmdLookup: 2, cmdLastMessage: 2, cmdSend: 2,
}

// fakeBroker is a broker with an empty topic. After the command hangAt it says nothing any more, on any connection, and does not close it.
type fakeBroker struct {
	listener net.Listener
	hangAt   protowire.Number
	hanging  chan struct{}
	once     sync.Once
	all      sync.WaitGroup
}

func startFake(t *testing.T, hangAt protowire.Number) *fakeBroker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &fakeBroker{listener: l, hangAt: hangAt, hanging: make(chan struct{})}
	b.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.all.Go(func() { defer c.Close(); b.serve(c) })
		}
	})
	return b
}

func (b *fakeBroker) url() string { return "pulsar://" + b.listener.Addr().String() }

func (b *fakeBroker) serve(c net.Conn) {
	in := bufio.NewReader(c)
	for {
		var size uint32
		if binary.Read(in, binary.BigEndian, &size) != nil {
			return
		}
		frame := make([]byte, size)
		if _, err := io.ReadFull(in, frame); err != nil || size < 4 {
			return
		}
		fields := parse(frame[4 : 4+binary.BigEndian.Uint32(frame)])
		kind := protowire.Number(fields[1].number)
		if kind == b.hangAt {
			b.once.Do(func() { close(b.hanging) })
		}
		select {
		case <-b.hanging:
			continue
		default:
		}
		body := parse(fields[kind].bytes)
		request := body[requestField[kind]].number
		none := join(number(1, ^uint64(0)), number(2, ^uint64(0))) // (-1,-1)
		switch kind {
		case cmdConnect:
			tell(c, cmdConnected, join(text(1, "fake"), number(2, 20)))
		case cmdPartitions:
			tell(c, cmdPartitions+1, join(number(1, 0), number(2, request), number(3, 0)))
		case cmdLookup:
			tell(c, cmdLookup+1, join(text(1, b.url()), number(3, 1), number(4, request), number(5, 1)))
		case cmdProducer:
			tell(c, cmdProducerSuccess, join(number(1, request), text(2, "fake")))
		case cmdSubscribe, cmdCloseProducer, cmdCloseConsumer:
			tell(c, cmdSuccess, number(1, request))
		case cmdLastMessage:
			tell(c, cmdLastMessage+1, join(text(1, string(none)), number(2, request)))
		case cmdPing:
			tell(c, cmdPong, nil)
		}
	}
}

type field struct {
	number uint64
	bytes  []byte
}

func parse(b []byte) map[protowire.Number]field {
	out := map[protowire.Number]field{}
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeField(b)
		if size < 0 {
			return out
		}
		_, _, tag := protowire.ConsumeTag(b)
		var f field
		switch kind {
		case protowire.VarintType:
			f.number, _ = protowire.ConsumeVarint(b[tag:])
		case protowire.BytesType:
			f.bytes, _ = protowire.ConsumeBytes(b[tag:])
		}
		out[n], b = f, b[size:]
	}
	return out
}

func number(n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
}

func text(n protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), v)
}

func join(parts ...[]byte) (out []byte) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func tell(c net.Conn, kind protowire.Number, body []byte) {
	command := join(number(1, uint64(kind)), text(kind, string(body)))
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(command)+4))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(command)))
	_, _ = c.Write(append(frame, command...))
}

// A broker that says nothing any more, at any step, holds up neither a delivery whose context ends nor Close, and nothing stays behind.
func TestHangingBroker(t *testing.T) {
	for name, hangAt := range map[string]protowire.Number{
		"connect": cmdConnect, "partitions": cmdPartitions, "lookup": cmdLookup, "producer": cmdProducer, "subscribe": cmdSubscribe, "last": cmdLastMessage, "send": cmdSend,
	} {
		t.Run(name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			b := startFake(t, hangAt)
			s := &sink.Spec{Name: "x", URL: b.url() + "/t/n/x"}
			c, err := newBroker(s, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			c.options.OperationTimeout, c.options.KeepAliveInterval = 300*time.Millisecond, time.Second
			p := newTest(c)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-b.hanging; cancel() }()
			began := time.Now()
			_, err = p.Deliver(ctx, batch(0, 3))
			took := time.Since(began)
			if !errors.Is(err, context.Canceled) || took > 2*time.Second {
				t.Errorf("Deliver: %v after %s", err, took)
			}
			began = time.Now()
			p.Close()
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("Close took %s", took)
			}
			b.listener.Close()
			for range 5 { // each of which waits a second or two
				if err = goleak.Find(before); err == nil {
					break
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// Without an answer the delivery fails, and says so.
func TestSilentBroker(t *testing.T) {
	b := startFake(t, cmdSend)
	defer b.listener.Close()
	c, err := newBroker(&sink.Spec{Name: "x", URL: b.url() + "/t/n/x"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c.options.OperationTimeout = 300 * time.Millisecond
	p := newTest(c)
	p.wait = 100 * time.Millisecond
	if _, err := p.Deliver(t.Context(), batch(0, 3)); err == nil || !strings.Contains(err.Error(), "acknowledged nothing") {
		t.Error(err)
	}
	p.Close()
}
