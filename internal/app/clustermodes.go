package app

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// modeRetry is the pause after a label could not be written.
const modeRetry = 5 * time.Second

// modeLabels writes mesh.proxima.dev/proxy-mode of the Nodes of a cluster, where the Node is the kubelet's and
// its agent may change nothing: an agent says its mode when it follows its view, and the replica that
// serves it writes the label. A label is written once for each stream, and again when the Node has lost
// it, so that two replicas never disagree for longer than a stream of a former agent lasts.
type modeLabels struct {
	tables *catalog.Catalog
	// write the label of a Node. It blocks for a request.
	write func(ctx context.Context, node, mode string) error
	log   *slog.Logger

	mu sync.Mutex
	// agents that are connected, by node, and nodes whose label is to be compared.
	agents map[string]*modeStream
	due    map[string]struct{}
	wake   chan struct{}
}

func newModeLabels(tables *catalog.Catalog, write func(context.Context, string, string) error, log *slog.Logger) *modeLabels {
	return &modeLabels{
		tables: tables, write: write, log: log,
		agents: map[string]*modeStream{}, due: map[string]struct{}{}, wake: make(chan struct{}, 1),
	}
}

// patchMode writes the label by a patch of nodes/status, which can change labels and nothing of the spec: a
// permission for nodes would be one for taints and cordons, too.
func patchMode(cluster *kubeclient.Client) func(context.Context, string, string) error {
	return func(ctx context.Context, node, mode string) error {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{meshv1alpha1.LabelProxyMode: mode}}})
		if err != nil {
			return err
		}
		err = cluster.REST(kind.Node).Patch(types.MergePatchType).Resource(kind.Node.Resource).Name(node).SubResource("status").
			Body(patch).Do(ctx).Error()
		if err != nil {
			return fmt.Errorf("patch status of node %s: %w", node, err)
		}
		return nil
	}
}

// modeStream implements stream.Observer for the view of an agent that has a mode.
type modeStream struct {
	labels     *modeLabels
	node, mode string
}

// agent that follows its view; nil: it carries no traffic of its node, or says no mode.
func (m *modeLabels) agent(n *core.Node) stream.Observer {
	if m == nil {
		return nil
	}
	mode := wire.ModeOf(n)
	if mode == "" || len(validation.IsValidLabelValue(mode)) > 0 {
		return nil
	}
	s := &modeStream{m, n.GetId(), mode}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.agents[s.node] = s
	m.isDue(s.node)
	return s
}

// Sent implements stream.Observer.
func (*modeStream) Sent(string) {}

// Answered implements stream.Observer.
func (*modeStream) Answered(string, string) {}

// Ended implements stream.Observer. The label stays: the rules of an agent that is away do, too.
func (s *modeStream) Ended() {
	s.labels.mu.Lock()
	defer s.labels.mu.Unlock()
	if s.labels.agents[s.node] == s {
		delete(s.labels.agents, s.node)
	}
}

// isDue is called with mu held.
func (m *modeLabels) isDue(node string) {
	m.due[node] = struct{}{}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *modeLabels) components() []component {
	if m == nil {
		return nil
	}
	return []component{{Name: "modes of nodes", Run: m.Run}}
}

// Run until ctx ends, and return nil then.
func (m *modeLabels) Run(ctx context.Context) error {
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { m.follow(ctx) })
	for {
		var again <-chan time.Time
		if m.compare(ctx) {
			again = time.After(modeRetry)
		}
		select {
		case <-m.wake:
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}

// follow Nodes: one may have come after its agent, or be another one of the same name.
func (m *modeLabels) follow(ctx context.Context) {
	sub := m.tables.Subscribe(catalog.Nodes)
	defer sub.Close()
	for {
		d, err := sub.Next(ctx)
		if err != nil {
			return
		}
		m.mu.Lock()
		for _, c := range d.Nodes {
			if c.New == nil || m.agents[c.New.Name] == nil {
				continue
			}
			if _, due := m.due[c.New.Name]; due || c.New.Labels[meshv1alpha1.LabelProxyMode] == "" {
				m.isDue(c.New.Name)
			}
		}
		m.mu.Unlock()
	}
}

// compare what is due, and write what differs. It reports whether a write failed.
func (m *modeLabels) compare(ctx context.Context) bool {
	nodes := m.tables.Snapshot().Nodes
	m.mu.Lock()
	want := map[string]string{}
	for name := range m.due {
		node, known := nodes.Get(resource.Key{Name: name})
		agent := m.agents[name]
		switch {
		case agent == nil, known && modeOf(node) == agent.mode:
			delete(m.due, name)
		case known:
			want[name] = agent.mode
			delete(m.due, name)
		}
	}
	m.mu.Unlock()
	for name, mode := range want {
		err := m.write(ctx, name, mode)
		if err == nil {
			delete(want, name)
			continue
		}
		if ctx.Err() == nil {
			m.log.Warn("the mode of an agent is not on its Node, and what its node enforces is not known; it is tried again", "error", err)
		}
		break // the others would fail alike
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range want {
		m.due[name] = struct{}{}
	}
	return len(want) > 0
}
