package app

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/version"
)

// TestAgentVersions: an agent announces its version. One that is too new is refused, with the
// order of upgrades, and comes back by itself once it has the right version.
func TestAgentVersions(t *testing.T) {
	p := startPlane(t, planeConfig(t, RoleStandalone), memory.New(memory.Options{}))
	i := p.cp.instance
	token, _, err := p.cp.storage.tokens.Create(t.Context(), identity.Node, "n1", time.Hour, "test")
	if err != nil {
		t.Fatal(err)
	}
	cfg := NodeConfig{
		Server: reachable(p.cp.api.address), Token: token.Reveal(), Name: "n1", Mode: "userspace", DataDir: t.TempDir(), MachineID: t.Name(),
	}
	run := func(announced string) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		cfg.version = announced
		go func() { done <- RunNode(ctx, cfg, func(Serving) {}) }()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	stop := run("v0.9.0")
	until(t, "the agent is refused", func() bool { return len(i.refused.List(time.Now())) == 1 })
	refused := i.refused.List(time.Now())[0]
	if refused.Name != "n1" || refused.Version != "v0.9.0" || !strings.Contains(refused.Reason, "upgrade that control plane first, then the agent of node n1") {
		t.Errorf("%+v", refused)
	}
	if following := i.views.Status(); len(following) > 0 {
		t.Errorf("it follows its view: %+v", following)
	}
	stop()
	stop = run("")
	defer stop()
	until(t, "the agent follows its view", func() bool { return len(i.views.Status()) == 1 })
	if got := i.views.Status()[0].Version; got != version.Get().Version {
		t.Errorf("it announced %q", got)
	}
	if still := i.refused.List(time.Now()); len(still) > 0 {
		t.Errorf("still refused: %+v", still)
	}
}
