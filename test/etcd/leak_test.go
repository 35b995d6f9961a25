package etcd_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/etcd"
	"github.com/proxima-mesh/proxima/internal/store/watch"
)

// TestCloseLeavesNothing: a store that was used in every way leaves no goroutine.
func TestCloseLeavesNothing(t *testing.T) {
	url := stateURL(shareMember(t))
	before := goleak.IgnoreCurrent()
	s, err := etcd.Open(context.Background(), url, etcd.Options{Exclusive: true, Recent: watch.Limits{Events: 1, Bytes: 1}})
	if err != nil {
		t.Fatal(err)
	}
	start := newest(t, s)
	commit(t, s, store.Op{Kind: store.Put, Key: "a", Value: []byte("v"), TTL: time.Second})
	commit(t, s, put("b", "v"))
	if got := events(t, s, "", start, newest(t, s)); len(got) < 2 {
		t.Errorf("%d events", len(got))
	}
	w, err := s.Watch(context.Background(), "", start)
	if err != nil {
		t.Fatal(err)
	}
	for ctx := background(t); len(records(t, s, store.ListOptions{Prefix: "a"})) > 0 && ctx.Err() == nil; {
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range w.Batches() { //nolint:revive // until it has ended with the store
	}
	// The server's goroutines for the connection end a moment later.
	goleak.VerifyNone(t, before)
}
