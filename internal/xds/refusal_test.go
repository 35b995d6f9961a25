package xds_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/proxima-mesh/proxima/internal/diag/refusal"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// TestRefusals: what a real Envoy refuses by permission and in mode Strict is found in its statistics, as its
// supervisor passes them on; what shadows would refuse is not.
func TestRefusals(t *testing.T) {
	s := newStage(t, envoytest.BinaryOf(t, envoytest.Newest))
	read := func() []refusal.Count {
		_, text, err := s.proxy.Admin(http.MethodGet, "/stats/prometheus?usedonly")
		if err != nil {
			t.Fatal(err)
		}
		return refusal.Read([]byte(text), nil)
	}
	for _, test := range []struct {
		name, objects string
		traffic       func(*stage) string
		want          refusal.Cause // empty: nothing is refused
	}{
		{"denied requests", tp("deny: [{}]"), entering("http", "/", 403), refusal.Permission},
		{"denied connections", tp("deny: [{}]"), entering("tcp", "/", 0), refusal.Permission},
		{"not allowed", tp("allow: [{from: [{namespaces: [other]}]}]"), entering("tcp", "/", 0), refusal.Permission},
		{"shadow", tp("shadow: true\ndeny: [{}]"), entering("http", "/", 200), ""},
		{"plaintext", wp("tls: {mode: Strict}"), entering("http", "/", 0), refusal.Plain},
	} {
		undo := s.apply(t, test.objects)
		before := read()
		s.holds(t, test.name, test.traffic)
		found := func(*stage) string {
			since := refusal.Since(before, read())
			for _, c := range since {
				if c.Cause == test.want && (c.Cause != refusal.Plain || c.Port != 0) {
					return ""
				}
			}
			if len(since) == 0 && test.want == "" {
				return ""
			}
			_, rbac, _ := s.proxy.Admin(http.MethodGet, "/stats/prometheus?usedonly&filter=rbac")
			return fmt.Sprintf("refusals %+v, want %q in\n%s", since, test.want, rbac)
		}
		s.holds(t, test.name+": counted", found)
		undo()
		s.holds(t, test.name+": and not any more", entering("http", "/", 200))
	}
}
