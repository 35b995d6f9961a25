package identity

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

func followed(t *testing.T, s store.Store) *Revocations {
	t.Helper()
	r, err := NewRevocations(t.Context(), s, DefaultRenewExpired, slog.New(slog.DiscardHandler))
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func deleteNode(t *testing.T, s store.Store, name string) {
	t.Helper()
	key, value, err := DeletedNodeRecord(name, DeletedNode{Deleted: time.Now().UTC()})
	must(t, err)
	_, err = s.Commit(t.Context(), store.Txn{Ops: []store.Op{{Kind: store.Put, Key: key, Value: value}}})
	must(t, err)
}

func TestRevocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		defer st.Close()
		ts := NewTokens(st, Pin{})
		subject := func(kind Kind, name string) Subject {
			_, info, err := ts.Create(t.Context(), kind, name, time.Hour, "")
			must(t, err)
			s, err := info.Subject()
			must(t, err)
			return s
		}
		before := subject(Zone, "east")
		_, err := ts.Revoke(t.Context(), before.TokenID)
		must(t, err)
		deleteNode(t, st, "gone")
		r := followed(t, st) // finds what was there
		old, other, zone := subject(Node, "n1"), subject(Node, "n2"), subject(Zone, "west")
		check := func(what string, s Subject, want error) {
			t.Helper()
			if err := r.Check(t.Context(), s); !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		check("revoked before", before, ErrRevoked)
		check("deleted before", Subject{User: "system:node:gone", Groups: []string{GroupNodes}}, ErrNodeDeleted)
		check("good", old, nil)
		check("without a token", Subject{User: "proxima:admin:admin", Groups: []string{GroupAdmins}}, nil)

		changed := r.Changed()
		time.Sleep(time.Second)
		deleteNode(t, st, "n1")
		<-changed
		check("made before the deletion", old, ErrNodeDeleted)
		check("of another node", other, nil)
		check("a zone", zone, nil)
		time.Sleep(time.Nanosecond)
		check("made after the deletion, unknown to the watch or not", subject(Node, "n1"), nil)
		check("a certificate without a token", Subject{User: "system:node:n1", Groups: []string{GroupNodes}}, ErrNodeDeleted)
	})
}

// The record of a deletion stays while it refuses anything, and not for ever.
func TestDeletedNodesArePruned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		defer st.Close()
		ts := NewTokens(st, Pin{})
		_, _, err := ts.Create(t.Context(), Node, "kept", 0, "") // never expires
		must(t, err)
		_, _, err = ts.Create(t.Context(), Node, "pruned", time.Hour, "")
		must(t, err)
		time.Sleep(time.Second)
		deleteNode(t, st, "kept")
		deleteNode(t, st, "pruned")
		followed(t, st)
		count := func() int64 {
			t.Helper()
			synctest.Wait()
			n, err := st.Count(t.Context(), DeletedNodePrefix)
			must(t, err)
			return n
		}
		time.Sleep(DefaultRenewExpired)
		if n := count(); n != 2 {
			t.Errorf("a month later: %d records", n)
		}
		time.Sleep(2 * DefaultRenewExpired)
		if n := count(); n != 1 {
			t.Errorf("three months later: %d records, want that of the token that never expires", n)
		}
	})
}

// A store whose history is gone, or that was away, is read again.
func TestRevocationsAfterCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		defer st.Close()
		ts := NewTokens(st, Pin{})
		_, info, err := ts.Create(t.Context(), Node, "n1", 0, "")
		must(t, err)
		r, err := NewRevocations(t.Context(), st, 0, slog.New(slog.DiscardHandler))
		must(t, err)
		_, err = ts.Revoke(t.Context(), info.ID)
		must(t, err)
		_, _, err = ts.Create(t.Context(), Node, "n2", 0, "")
		must(t, err)
		at, err := st.Revision(t.Context())
		must(t, err)
		must(t, st.Compact(t.Context(), at))
		ctx, cancel := context.WithTimeout(t.Context(), 5*retryWatch)
		defer cancel()
		must(t, r.Run(ctx))
		s, err := info.Subject()
		must(t, err)
		if err := r.Check(t.Context(), s); !errors.Is(err, ErrRevoked) {
			t.Errorf("%v", err)
		}
	})
}
