package keyring

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// FuzzDiscardRequest: a body deletes at most what is below a prefix of what is encrypted.
func FuzzDiscardRequest(f *testing.F) {
	ring, err := Open(filepath.Join(f.TempDir(), FileName), false)
	if err != nil {
		f.Fatal(err)
	}
	s := memory.New(memory.Options{})
	f.Cleanup(func() { _ = s.Close() })
	h := (&Rotation{Ring: ring, Store: s, Prefixes: []string{"/registry/secrets/", "/registry/mesh.proxima.dev/globalsecrets/"}}).
		Handler(slog.New(slog.DiscardHandler))
	for _, seed := range []string{
		`{"resource":"secrets","object":"default/x"}`,
		`{"resource":"globalsecrets","object":"x"}`,
		`{"resource":"secrets","object":"../services/default/x"}`,
		`{"resource":"secrets","object":"a/../../services/x"}`,
		`{"resource":"services","object":"default/x"}`,
		`{"object":1}`, `null`, ``,
	} {
		f.Add([]byte(seed))
	}
	const other, lost = "/registry/services/default/x", "/registry/secrets/default/x"
	f.Fuzz(func(t *testing.T, body []byte) {
		ops := []store.Op{{Kind: store.Put, Key: other, Value: []byte("-")}, {Kind: store.Put, Key: lost, Value: []byte("-")}}
		if _, err := s.Commit(t.Context(), store.Txn{Ops: ops}); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, DiscardPath, bytes.NewReader(body)))
		if w.Code >= http.StatusInternalServerError {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if _, ok, _, err := s.Get(t.Context(), other, 0); !ok || err != nil {
			t.Errorf("%s is gone: %v", other, err)
		}
	})
}
