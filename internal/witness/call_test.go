package witness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	witnessv1 "github.com/proxima-mesh/proxima/api/witness/v1"
)

const nodeKey = "test-node"

// callRig is a control plane and the agents that it asks. A call shows by metadata whose
// credentials it has.
type callRig struct {
	t      *testing.T
	server *Server
	conn   *grpc.ClientConn
}

func newCallRig(t *testing.T) *callRig {
	server := NewServer(ServerConfig{Admit: func(ctx context.Context, node string) error {
		if from := metadata.ValueFromIncomingContext(ctx, nodeKey); len(from) != 1 || from[0] != node {
			return status.Errorf(codes.PermissionDenied, "not node %s", node)
		}
		return nil
	}}, &events{addrs: map[string]netip.AddrPort{}, heard: map[string]int{}})
	listener := bufconn.Listen(1 << 20)
	s := grpc.NewServer()
	server.Register(s)
	go func() { _ = s.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///plane", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		s.Stop()
	})
	return &callRig{t, server, conn}
}

// as shows the credentials of a node.
type as struct {
	*grpc.ClientConn
	node string
}

func (a as) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return a.ClientConn.NewStream(metadata.AppendToOutgoingContext(ctx, nodeKey, a.node), d, method, opts...)
}

func (r *callRig) start(node string, answer func(context.Context, *witnessv1.Call) ([]byte, error)) (c *Client, stop func()) {
	c = NewClient(ClientConfig{Conn: as{r.conn, node}, Node: node, Answer: answer})
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	synctest.Wait()
	return c, func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
}

func (r *callRig) call(node string) (string, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
	defer cancel()
	body, err := r.server.Call(ctx, node, witnessv1.CallKind_CALL_KIND_STATS, []byte("asked"))
	return string(body), err
}

func (r *callRig) refused(what, node string, code codes.Code, text string) {
	r.t.Helper()
	if _, err := r.call(node); status.Code(err) != code || !strings.Contains(err.Error(), text) {
		r.t.Errorf("%s: %v, want %s with %q", what, err, code, text)
	}
}

func TestCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newCallRig(t)
		r.refused("no stream", "n1", codes.Unavailable, "the agent of node n1 has no stream to this instance")
		large := strings.Repeat("0123456789abcdef", answerPart/4) // four parts
		var answer func(context.Context, *witnessv1.Call) ([]byte, error)
		c, stop := r.start("n1", func(ctx context.Context, call *witnessv1.Call) ([]byte, error) {
			if call.GetKind() != witnessv1.CallKind_CALL_KIND_STATS || string(call.GetBody()) != "asked" {
				t.Errorf("asked for %v", call)
			}
			return answer(ctx, call)
		})
		for _, body := range []string{"", "metrics", large} {
			answer = func(context.Context, *witnessv1.Call) ([]byte, error) { return []byte(body), nil }
			if got, err := r.call("n1"); err != nil || got != body {
				t.Errorf("%d bytes, %v; want %d", len(got), err, len(body))
			}
		}
		answer = func(context.Context, *witnessv1.Call) ([]byte, error) {
			return nil, status.Error(codes.NotFound, "nothing there")
		}
		r.refused("a failure", "n1", codes.NotFound, "the agent of node n1: nothing there")
		answer = func(context.Context, *witnessv1.Call) ([]byte, error) {
			return nil, fmt.Errorf("read the sockets: %w", context.DeadlineExceeded)
		}
		r.refused("too late", "n1", codes.DeadlineExceeded, "read the sockets")
		answer = func(context.Context, *witnessv1.Call) ([]byte, error) { return make([]byte, maxAnswer+1), nil }
		r.refused("too large", "n1", codes.ResourceExhausted, "the limit is")
		answer = func(ctx context.Context, _ *witnessv1.Call) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() }
		begin := time.Now()
		r.refused("no answer", "n1", codes.DeadlineExceeded, "did not answer in time")
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("waited for %s", took)
		}
		synctest.Wait()
		if n := len(r.server.calls); n > 0 {
			t.Errorf("%d calls are kept", n)
		}
		if c.answered[callAnswered].Load() != 3 || c.answered[callFailed].Load() != 4 {
			t.Errorf("answered %d, failed %d", c.answered[callAnswered].Load(), c.answered[callFailed].Load())
		}
		go func() {
			time.Sleep(time.Second)
			stop()
		}()
		r.refused("the agent ends", "n1", codes.Unavailable, "ended before the answer")
		_, stopOld := r.start("n2", nil)
		r.refused("an older agent", "n2", codes.Unavailable, "older version, which answers no calls")
		stopOld()
		time.Sleep(time.Minute) // the rest ends
	})
}

// TestCallLimits: an agent works on few calls at a time.
func TestCallLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newCallRig(t)
		_, stop := r.start("n1", func(ctx context.Context, _ *witnessv1.Call) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() })
		for range maxCalls {
			go func() { _, _ = r.call("n1") }()
		}
		synctest.Wait()
		r.refused("one more", "n1", codes.ResourceExhausted, "works on 4 calls already")
		for range maxWaiting - maxCalls {
			r.server.mu.Lock()
			r.server.calls[uint64(len(r.server.calls))] = &call{}
			r.server.mu.Unlock()
		}
		r.refused("one more of the instance", "n1", codes.ResourceExhausted, "are asked already")
		stop()
		time.Sleep(time.Minute)
	})
}

// TestForgedAnswers: only the agent that was asked answers, and only what was asked.
func TestForgedAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newCallRig(t)
		_, stop := r.start("n1", func(ctx context.Context, _ *witnessv1.Call) ([]byte, error) {
			time.Sleep(time.Second)
			return []byte("true"), nil
		})
		got := make(chan string, 1)
		go func() {
			body, err := r.call("n1")
			if err != nil {
				t.Error(err)
			}
			got <- body
		}()
		synctest.Wait()
		var id uint64
		r.server.mu.Lock()
		for id = range r.server.calls {
		}
		r.server.mu.Unlock()
		for _, test := range []struct {
			name, node string
			id         uint64
			want       codes.Code
		}{
			{"another node", "n2", id, codes.PermissionDenied},
			{"another call", "n1", id + 1, codes.NotFound},
		} {
			stream, err := witnessv1.NewWitnessClient(as{r.conn, test.node}).Answer(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&witnessv1.AnswerPart{Id: test.id, Part: []byte("forged")}); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			if _, err := stream.CloseAndRecv(); status.Code(err) != test.want {
				t.Errorf("%s: %v, want %s", test.name, err, test.want)
			}
		}
		if body := <-got; body != "true" {
			t.Errorf("answered %q", body)
		}
		stop()
	})
}

// FuzzCollect: whatever parts come, what is taken is their concatenation, or an error.
func FuzzCollect(f *testing.F) {
	f.Add([]byte("abc"), uint64(1), uint32(0), true)
	f.Add([]byte("abc"), uint64(2), uint32(5), false)
	f.Fuzz(func(t *testing.T, part []byte, id uint64, code uint32, whole bool) {
		parts := []*witnessv1.AnswerPart{{Id: 1, Part: part}, {Id: id, Part: part, Code: code}}
		next := func() (*witnessv1.AnswerPart, error) {
			if len(parts) == 0 {
				if whole {
					return nil, io.EOF
				}
				return nil, errors.New("cut")
			}
			p := parts[0]
			parts = parts[1:]
			return p, nil
		}
		first, _ := next()
		body, err := collect("n1", first, next)
		if good := id == 1 && code == 0 && whole; good != (err == nil) {
			t.Fatalf("%v", err)
		}
		if err == nil && !bytes.Equal(body, append(bytes.Clone(part), part...)) {
			t.Fatalf("%x", body)
		}
	})
}
