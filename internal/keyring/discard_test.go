package keyring

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

func TestDiscard(t *testing.T) {
	s := memory.New(memory.Options{})
	defer s.Close()
	ring, lost := openRing(t, keyFile(t)), openRing(t, keyFile(t))
	rotation := &Rotation{Ring: ring, Store: s, Prefixes: []string{"/registry/secrets/", "/registry/mesh.proxima.dev/globalsecrets/"}}
	put := func(r *Ring, key string) {
		t.Helper()
		txn := store.Txn{Ops: []store.Op{{Kind: store.Put, Key: key, Value: sealIn(t, r, key, "x")}}}
		if _, err := s.Commit(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
	}
	put(ring, "/registry/secrets/shop/good")
	put(lost, "/registry/secrets/shop/bad")
	put(lost, "/registry/mesh.proxima.dev/globalsecrets/ca")
	status, err := rotation.Status(t.Context())
	if err != nil || !slices.Equal(status.Lost, []string{"secrets/shop/bad", "globalsecrets/ca"}) {
		t.Errorf("lost: %v %v", err, status.Lost)
	}
	server := httptest.NewServer(rotation.Handler(slog.New(slog.DiscardHandler)))
	defer server.Close()
	for _, tc := range []struct {
		resource, object string
		want             error
		code             int
	}{
		{"secrets", "shop/good", ErrReadable, 409},
		{"secrets", "shop/none", ErrAbsent, 404},
		{"secrets", "shop/../shop/bad", ErrAbsent, 404},
		{"secrets", "../secrets/shop/bad", ErrAbsent, 404},
		{"secrets", "", ErrAbsent, 404},
		{"services", "shop/bad", &UnknownResourceError{}, 404},
	} {
		err := rotation.Discard(t.Context(), tc.resource, tc.object)
		var unknown *UnknownResourceError
		if !errors.Is(err, tc.want) && !(errors.As(err, &unknown) && errors.As(tc.want, &unknown)) {
			t.Errorf("%s %s: %v", tc.resource, tc.object, err)
		}
		body := strings.NewReader(`{"resource":"` + tc.resource + `","object":"` + tc.object + `"}`)
		resp, err := http.Post(server.URL+DiscardPath, "application/json", body)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tc.code {
			t.Errorf("%s %s: %s, want %d", tc.resource, tc.object, resp.Status, tc.code)
		}
	}
	if err := rotation.Discard(t.Context(), "secrets", "shop/bad"); err != nil {
		t.Error(err)
	}
	resp, err := http.Post(server.URL+DiscardPath, "application/json", strings.NewReader(`{"resource":"globalsecrets","object":"ca"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("over HTTP: %s", resp.Status)
	}
	page, err := s.List(t.Context(), store.ListOptions{Prefix: "/registry/"})
	if err != nil || len(page.Records) != 1 || page.Records[0].Key != "/registry/secrets/shop/good" {
		t.Errorf("left: %v %+v", err, page.Records)
	}
}
