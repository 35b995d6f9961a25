package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/etcd"
)

// wire interferes with commits between store and server.
type wire struct {
	// next is what happens to a transaction; nil: nothing.
	next atomic.Pointer[func(call) error]
}

// call is a request of the store.
type call struct {
	ctx    context.Context
	req    any
	reply  any
	conn   *grpc.ClientConn
	invoke grpc.UnaryInvoker
}

func (c call) do() error { return c.invoke(c.ctx, txnMethod, c.req, c.reply, c.conn) }

const txnMethod = "/etcdserverpb.KV/Txn"

var errLost = status.Error(codes.Unavailable, "the connection was cut by the test")

func (w *wire) option() etcd.Options {
	return etcd.Options{DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if method == txnMethod {
				if f := w.next.Swap(nil); f != nil {
					return (*f)(call{ctx, req, reply, conn, invoke})
				}
			}
			return invoke(ctx, method, req, reply, conn, opts...)
		})}}
}

func (w *wire) once(f func(call) error) { w.next.Store(&f) }

// answerLost applies the transaction and loses the answer.
func answerLost(c call) error {
	if err := c.do(); err != nil {
		return err
	}
	return errLost
}

// requestLost is cut off before the request is sent.
func requestLost(call) error { return errLost }

// TestAnswerLost: a commit whose answer is lost is found, not repeated, and has
// its revision.
func TestAnswerLost(t *testing.T) {
	var w wire
	url := stateURL(shareMember(t))
	s := open(t, url, w.option())
	first := commit(t, s, put("a", "1"))
	w.once(answerLost)
	revision, err := s.Commit(background(t), store.Txn{
		Conditions: []store.Condition{{Key: "a", Modified: first}, {Key: "b"}}, Ops: []store.Op{put("b", "1"), put("a", "2")},
	})
	if err != nil {
		t.Fatal(err)
	}
	rec, _, _, err := s.Get(background(t), "a", 0)
	if err != nil || string(rec.Value) != "2" || rec.Modified != revision {
		t.Errorf("%+v, %v; the commit said %d", rec, err, revision)
	}
	if got := events(t, s, "", first, newest(t, s)); len(got) != 2 {
		t.Errorf("%d changes, want 2: %+v", len(got), got)
	}
	// The same where others have changed the keys since.
	other := open(t, url, etcd.Options{})
	w.once(func(c call) error {
		err := answerLost(c)
		commit(t, other, put("a", "theirs"), del("b"))
		return err
	})
	revision, err = s.Commit(background(t), store.Txn{Ops: []store.Op{put("a", "3"), put("b", "3")}})
	if err != nil {
		t.Fatal(err)
	}
	got := events(t, s, "", revision-2, newest(t, s))
	if len(got) != 4 || got[1].Record.Modified != revision || string(got[1].Record.Value) != "3" {
		t.Errorf("after an answer that was lost under writes of others: %+v, the commit said %d", got, revision)
	}
}

// TestRequestLost: a commit that never arrived is made once.
func TestRequestLost(t *testing.T) {
	var w wire
	s := open(t, stateURL(shareMember(t)), w.option())
	first := commit(t, s, put("a", "1"))
	w.once(requestLost)
	commit(t, s, put("a", "2"))
	if got := events(t, s, "", first, newest(t, s)); len(got) != 1 {
		t.Errorf("%d changes, want 1", len(got))
	}
}

// TestCommitOnItsWay: a commit that was given up does not happen later, when the
// network delivers it at last.
func TestCommitOnItsWay(t *testing.T) {
	var w wire
	s := open(t, stateURL(shareMember(t)), w.option())
	var late func() (*pb.TxnResponse, error)
	w.once(func(c call) error {
		// Something is sent on the connection, so the request may have been.
		if err := c.invoke(c.ctx, "/etcdserverpb.KV/Range", &pb.RangeRequest{Key: []byte("x")}, &pb.RangeResponse{}, c.conn); err != nil {
			return err
		}
		req := proto.Clone(c.req.(*pb.TxnRequest))
		late = func() (*pb.TxnResponse, error) {
			resp := &pb.TxnResponse{}
			return resp, c.invoke(background(t), txnMethod, req, resp, c.conn)
		}
		return errLost
	})
	if _, err := s.Commit(background(t), store.Txn{Ops: []store.Op{put("new", "1")}}); err != nil {
		t.Fatal(err)
	}
	commit(t, s, del("new")) // so that nothing but the fence is in the way of the late request
	if resp, err := late(); err != nil || resp.Succeeded {
		t.Errorf("the late request: %+v, %v", resp, err)
	}
	if got := records(t, s, store.ListOptions{Prefix: "new"}); len(got) != 0 {
		t.Errorf("the late request made %+v", got)
	}
}

// TestDeletionLost: without a put there is nothing to recognise a commit by. It
// is reported as unknown if the keys are gone, and made again if they are not.
func TestDeletionLost(t *testing.T) {
	var w wire
	s := open(t, stateURL(shareMember(t)), w.option())
	commit(t, s, put("a", "1"), put("b", "1"))
	w.once(answerLost)
	_, err := s.Commit(background(t), store.Txn{Ops: []store.Op{del("a")}})
	var unknown *etcd.UnknownError
	if !errors.As(err, &unknown) {
		t.Errorf("a deletion whose answer was lost: %v", err)
	}
	w.once(requestLost)
	commit(t, s, del("b"))
	if got := records(t, s, store.ListOptions{}); len(got) != 0 {
		t.Errorf("left: %+v", got)
	}
}

// TestManyAnswersLost loses a tenth of all answers and requests under load:
// counters that are raised on condition lose and double nothing.
func TestManyAnswersLost(t *testing.T) {
	var w wire
	var calls atomic.Int64
	s := open(t, stateURL(shareMember(t)), w.option())
	var faulty func(c call) error
	faulty = func(c call) error {
		defer w.once(faulty)
		switch calls.Add(1) % 10 {
		case 3:
			return answerLost(c)
		case 7:
			return requestLost(c)
		}
		return c.do()
	}
	w.once(faulty)
	const clients, rounds = 6, 40
	var done sync.WaitGroup
	for c := range clients {
		done.Go(func() {
			key := fmt.Sprintf("n/%d", c)
			var at store.Revision
			for i := range rounds {
				revision, err := s.Commit(context.Background(), store.Txn{
					Conditions: []store.Condition{{Key: key, Modified: at}}, Ops: []store.Op{put(key, fmt.Sprint(i+1))},
				})
				if err != nil {
					t.Errorf("%s at %d: %v", key, i, err)
					return
				}
				at = revision
			}
		})
	}
	done.Wait()
	w.next.Store(nil)
	if got := len(events(t, s, "n/", 0, newest(t, s))); got != clients*rounds {
		t.Errorf("%d changes, want %d", got, clients*rounds)
	}
	if err := s.Ready(background(t)); err != nil {
		t.Errorf("ready: %v", err)
	}
}

// TestOutage: while etcd is away calls wait for a moment and then fail, the store
// is not ready, and everything resumes by itself.
func TestOutage(t *testing.T) {
	m := startMember(t)
	s := open(t, stateURL(m), etcd.Options{Timeout: 500 * time.Millisecond})
	last := commit(t, s, put("a", "1"))
	ctx := background(t)
	w, err := s.Watch(ctx, "", last)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	m.stop()
	if _, err := s.Commit(ctx, store.Txn{Ops: []store.Op{put("a", "2")}}); err == nil {
		t.Error("a commit without a server went through")
	}
	if err := s.Ready(ctx); err == nil {
		t.Error("ready without a server")
	}
	m.start(t)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for s.Ready(ctx) != nil && ctx.Err() == nil {
		<-tick.C
	}
	commit(t, s, put("b", "1"))
	got, err := drain(ctx, w, newest(t, s))
	if err != nil || len(got) == 0 || got[len(got)-1].Record.Key != "b" {
		t.Errorf("the watch after the outage: %+v, %v", got, err)
	}
}
