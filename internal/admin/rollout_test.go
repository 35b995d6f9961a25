package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/store"
)

// viewsAt has had the revision from a sequence on; 0: it does not have it.
type viewsAt uint64

func (v viewsAt) Since(uint64) (uint64, bool) { return uint64(v), v > 0 }

type streamsOf []stream.StreamStatus

func (s streamsOf) Status() []stream.StreamStatus { return s }

type storeAt struct {
	store.Store
	revision store.Revision
}

func (s storeAt) Revision(context.Context) (store.Revision, error) { return s.revision, nil }

// otherInstances answer by their handlers; nil: not at all.
type otherInstances map[string]http.Handler

func (o otherInstances) Others() []string {
	var out []string
	for name := range o {
		out = append(out, name)
	}
	return out
}

func (o otherInstances) Send(_ context.Context, name string, r *http.Request) (*http.Response, error) {
	if o[name] == nil {
		return nil, io.ErrUnexpectedEOF
	}
	w := httptest.NewRecorder()
	o[name].ServeHTTP(w, r)
	return w.Result(), nil
}

func agentAt(node string, sent, confirmed, unsent, unacked uint64, rejected string) stream.StreamStatus {
	return stream.StreamStatus{Node: node, Types: []delta.SubscriptionStatus{
		{Type: "service", Sent: delta.Position{Sequence: 90}, Confirmed: delta.Position{Sequence: 90}}, // nothing of it has changed since
		{
			Type: "slice", Sent: delta.Position{Sequence: sent}, Confirmed: delta.Position{Sequence: confirmed}, Unsent: unsent, Unacked: unacked,
			Rejected: delta.Rejection{Reason: rejected},
		},
	}}
}

// TestRollout: agents have confirmed a revision if they have confirmed what views had from it on, or all there is; those of other
// instances count.
func TestRollout(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	other := Config{Views: viewsAt(100), Store: storeAt{revision: 120}, Streams: streamsOf{
		agentAt("b-1", 110, 100, 3, 5, ""), agentAt("b-2", 90, 90, 9, 9, ""),
	}, Logger: quiet}
	here := Config{Views: viewsAt(100), Store: storeAt{revision: 120}, Streams: streamsOf{
		agentAt("a-1", 95, 95, 0, 0, ""), agentAt("a-2", 100, 99, 0, 4, "no address"), {Node: "a-3"},
	}, Logger: quiet, Instances: otherInstances{"cp-2": rolloutHandler{other}, "cp-3": nil}}
	ask := func(c Config, path string) (int, Rollout) {
		t.Helper()
		w := httptest.NewRecorder()
		rolloutHandler{c}.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		var out Rollout
		_ = json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(&out) // a refusal has other fields
		return w.Code, out
	}
	code, got := ask(here, ChangesPath+"117")
	want := Rollout{
		Revision: 117, Newest: 120, Committed: true, Viewed: true, Agents: 5, Sent: 3, Confirmed: 2,
		Slowest: []AgentRollout{
			{Node: "b-2", Instance: "cp-2", Behind: 18},
			{Node: "a-2", Sent: true, Behind: 4, Rejected: "no address"},
			{Node: "a-3"},
		},
		Rejecting:       []AgentRollout{{Node: "a-2", Sent: true, Behind: 4, Rejected: "no address"}},
		SilentInstances: []string{"cp-3"},
	}
	if diff := cmp.Diff(want, got); code != http.StatusOK || diff != "" || got.Done() {
		t.Errorf("%d, done %v\n%s", code, got.Done(), diff)
	}

	done := Config{Views: viewsAt(100), Store: storeAt{revision: 120}, Streams: streamsOf{agentAt("a-1", 95, 95, 0, 0, "")}, Logger: quiet}
	if _, got := ask(done, ChangesPath+"117"); !got.Done() {
		t.Errorf("%+v is not done", got)
	}
	if _, got := ask(done, ChangesPath+"121"); got.Committed || got.Done() {
		t.Errorf("revision 121: %+v", got)
	}
	done.Views = viewsAt(0)
	if _, got := ask(done, ChangesPath+"120"); got.Viewed || got.Confirmed > 0 || got.Sent > 0 || got.Done() {
		t.Errorf("views do not have it: %+v", got)
	}
	if code, _ := ask(Config{Logger: quiet}, ChangesPath+"1"); code != http.StatusNotFound {
		t.Errorf("without views: %d", code)
	}
	for _, path := range []string{"", "0", "-1", "x", "1/2"} {
		if code, _ := ask(done, ChangesPath+path); code != http.StatusBadRequest {
			t.Errorf("%q: %d", path, code)
		}
	}
}
