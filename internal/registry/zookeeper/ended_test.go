package zookeeper

import (
	"testing"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	"github.com/proxima-mesh/proxima/internal/registry/znode"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

func (s *Server) sessionOf(id int64) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

// A session that has expired at one instance of the control plane has at the other. One that has gone on there has not, whatever the one that
// it left believes.
func TestExpiryElsewhere(t *testing.T) {
	st := memory.New(memory.Options{})
	t.Cleanup(func() { _ = st.Close() })
	here := registrytest.NewNamed(t, "cp-1")
	there := registrytest.NewBeside(t, here, "cp-2")
	a, b := New(here.Core).WithStore(st), New(there.Core).WithStore(st)
	addressA, addressB := here.Serve(a.Serve), there.Serve(b.Serve)
	const path = "/services/a/10.0.0.1:1"

	// It moves, and its old instance gives it up.
	moved := dial(t, addressA, nil)
	if got := moved.create(path, "", modeEphemeral); got != codeOK {
		t.Fatalf("create: %d", got)
	}
	left := a.sessionOf(moved.id)
	_ = moved.conn.Close()
	there.Eventually("the other instance has seen it", func() bool {
		return len(there.Index.Registered(registry.Service{Namespace: "default", Name: "a"})) == 1
	})
	again := dial(t, addressB, moved)
	if again.id != moved.id {
		t.Fatalf("session %d is %d at the other instance", moved.id, again.id)
	}
	left.expire() // as its timer does
	p := here.Dataplanes()
	if got := again.children("/services/a", false); got != "10.0.0.1:1" || len(p) != 1 {
		t.Fatalf("a session that has moved: %s, %d instances", got, len(p))
	}
	if over, err := znode.HasEnded(t.Context(), st, moved.id); over || err != nil {
		t.Fatalf("a session that has moved is marked: %v", err)
	}

	// One expires at an instance, and its client comes to the other one.
	late := dial(t, addressA, nil)
	if got := late.create("/services/b/10.0.0.2:1", "", modeEphemeral); got != codeOK {
		t.Fatalf("create: %d", got)
	}
	_ = late.conn.Close()
	a.sessionOf(late.id).expire()
	there.Eventually("the instance is gone", func() bool { return len(here.Dataplanes()) == 1 })
	if got := dial(t, addressB, late); got.id != 0 || got.timeout != 0 {
		t.Errorf("a session that has expired goes on as %d", got.id)
	}
	if got := again.children("/services/a", false); got != "10.0.0.1:1" {
		t.Errorf("the session that has moved has %s", got)
	}
	if got := again.delete(path); got != codeOK {
		t.Errorf("delete: %d", got)
	}

	// One that its client closes is not remembered in the store.
	closed := dial(t, addressA, nil)
	if got := closed.create(path, "", modeEphemeral); got != codeOK {
		t.Fatalf("create: %d", got)
	}
	closed.ask(opClose, nil)
	here.Eventually("the instance is gone", func() bool { return len(here.Dataplanes()) == 0 })
	if over, err := znode.HasEnded(t.Context(), st, closed.id); over || err != nil {
		t.Errorf("a session that was closed is marked: %v", err)
	}
}
