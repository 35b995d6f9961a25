package sealed_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
	"github.com/proxima-mesh/proxima/internal/identity/sealed"
	"github.com/proxima-mesh/proxima/internal/keyring"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

var (
	_ sealed.Sealer    = (*keyring.Ring)(nil)
	_ rotation.Keeper  = (*sealed.Record)(nil)
	_ authority.Keeper = sealed.Simple{}
)

func TestRecord(t *testing.T) {
	s := memory.New(memory.Options{})
	defer s.Close()
	ring, err := keyring.Open(filepath.Join(t.TempDir(), keyring.FileName), false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, r := t.Context(), sealed.New(s, ring, "rotation/shop")
	if data, version, err := r.Load(ctx); data != nil || version != 0 || err != nil {
		t.Errorf("%q %d %v", data, version, err)
	}
	v1, err := r.Save(ctx, []byte("one"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Save(ctx, []byte("other"), 0); !errors.Is(err, rotation.ErrConflict) {
		t.Errorf("made twice: %v", err)
	}
	v2, err := r.Save(ctx, []byte("two"), v1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Save(ctx, []byte("other"), v1); !errors.Is(err, rotation.ErrConflict) {
		t.Errorf("an old version: %v", err)
	}
	data, version, err := r.Load(ctx)
	if err != nil || string(data) != "two" || version != v2 {
		t.Errorf("%q %d, want version %d: %v", data, version, v2, err)
	}
	stored, ok, _, err := s.Get(ctx, sealed.Prefix+"rotation/shop", 0)
	if err != nil || !ok || bytes.Contains(stored.Value, []byte("two")) {
		t.Errorf("stored as %q %v", stored.Value, err)
	}
	// A record does not pass for another one.
	if _, err := s.Commit(ctx,
		store.Txn{Ops: []store.Op{{Kind: store.Put, Key: sealed.Prefix + "rotation/other", Value: stored.Value}}}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := sealed.New(s, ring, "rotation/other").Load(ctx); !errors.Is(err, keyring.ErrTampered) {
		t.Errorf("a record under another name: %v", err)
	}
	simple := r.Simple()
	if err := simple.Save(ctx, []byte("three")); err != nil {
		t.Fatal(err)
	}
	if data, err := simple.Load(ctx); err != nil || string(data) != "three" {
		t.Errorf("%q %v", data, err)
	}
	for range 2 {
		if err := r.Delete(ctx); err != nil {
			t.Error(err)
		}
	}
	if data, err := simple.Load(ctx); err != nil || data != nil {
		t.Errorf("%q %v", data, err)
	}
}
