package stream

import (
	"context"
	"io"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// scripted is a stream from which given messages are read.
type scripted struct {
	messages []proto.Message
	sent     func() // after a message was sent; nil: nothing
}

func (s *scripted) Context() context.Context { return context.Background() }

func (s *scripted) SendMsg(any) error {
	if s.sent != nil {
		s.sent()
	}
	return nil
}

func (s *scripted) RecvMsg(m any) error {
	if len(s.messages) == 0 {
		return io.EOF
	}
	proto.Merge(m.(proto.Message), s.messages[0])
	s.messages = s.messages[1:]
	return nil
}

type noFlow struct{}

func (noFlow) Receive(context.Context, proto.Message) error { return nil }
func (noFlow) Close()                                       {}

// FuzzDemultiplex: any message of protocol version 1 is taken or ends the stream.
func FuzzDemultiplex(f *testing.F) {
	request, _ := proto.Marshal(&discovery.DiscoveryRequest{TypeUrl: "a", ResponseNonce: "1"})
	good, _ := proto.Marshal(&federationv1.Multiplexed{Message: &federationv1.Multiplexed_Request{Request: request}})
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m federationv1.Multiplexed
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		e := &projectedEngine{meter: new(link).newMeter(), sender: federation.NewProjectedSender(federation.SenderConfig{
			Types: []federation.Type{{Name: "a", Direction: federation.GlobalToZone}},
			Scope: func(string) *delta.Scope { return delta.NewScope(delta.Options{}) },
		})}
		err := demultiplex(context.Background(), &scripted{messages: []proto.Message{&m}}, e, noFlow{}, make(chan struct{}, 1))
		if m.GetMessage() == nil && err == nil {
			t.Error("an empty message was taken")
		}
		if _, err := e.next(); err != nil {
			t.Error(err)
		}
	})
}

// FuzzAnswers: whatever a zone answers, a call ends once, within its limit.
func FuzzAnswers(f *testing.F) {
	part, _ := proto.Marshal(&federationv1.CallAnswer{Id: 1, Part: []byte("x")})
	last, _ := proto.Marshal(&federationv1.CallAnswer{Id: 1, Part: []byte("y"), Last: true})
	f.Add(part, last)
	f.Fuzz(func(t *testing.T, a, b []byte) {
		s := &scripted{}
		for _, b := range [][]byte{a, b} {
			var m federationv1.CallAnswer
			if proto.Unmarshal(b, &m) == nil {
				s.messages = append(s.messages, &m)
			}
		}
		c := newCaller(s)
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
		defer cancel()
		s.sent = func() { _ = c.read("east") } // the stream ends behind the answers
		if _, err := c.call(ctx, "east", &federationv1.Call{}); ctx.Err() != nil {
			t.Error(err)
		}
	})
}
