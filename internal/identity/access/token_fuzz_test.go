package access

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// FuzzTokenRequest: a body makes a token or is refused; none is a failure of the server's.
func FuzzTokenRequest(f *testing.F) {
	authority, err := identity.Open(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	s := memory.New(memory.Options{})
	f.Cleanup(func() { _ = s.Close() })
	h := TokenHandler(identity.NewTokens(s, authority.Pin()), nil, slog.New(slog.DiscardHandler))
	for _, seed := range []string{
		`{"kind":"node","name":"n1","ttlSeconds":60}`,
		`{"kind":"node","name":"n1","bounds":{"namespaces":["a","b"]}}`,
		`{"kind":"read-only","name":""}`,
		`{"kind":"workload","name":"../x","ttlSeconds":-1}`,
		`{"kind":"node","name":"n1","ttlSeconds":9223372036854775807}`,
		`{"kind":1}`, `[]`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, TokensPath, bytes.NewReader(body)))
		if w.Code >= http.StatusInternalServerError {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
