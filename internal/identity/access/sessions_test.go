package access

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// TestAnsweredEarly: a server may answer before the handler has recognised the request.
// What is recognised afterwards stays open nowhere.
func TestAnsweredEarly(t *testing.T) {
	st := memory.New(memory.Options{})
	t.Cleanup(func() { _ = st.Close() })
	log := slog.New(slog.DiscardHandler)
	revocations, err := identity.NewRevocations(t.Context(), st, 0, log)
	if err != nil {
		t.Fatal(err)
	}
	sessions := NewSessions(revocations, log)
	var late sync.WaitGroup
	answered := make(chan struct{})
	recognise := func(ctx context.Context) {
		if err := bind(ctx, identity.Subject{User: "someone"}, time.Time{}); err != nil {
			t.Error(err)
		}
	}
	handler := sessions.Guard(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		late.Go(func() { recognise(r.Context()) }) // perhaps before the answer
		late.Go(func() {
			<-answered
			recognise(r.Context())
		})
	}))
	for range 100 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}
	close(answered)
	late.Wait()
	if n := len(sessions.open); n > 0 {
		t.Errorf("%d sessions are open, and no request is", n)
	}
}
