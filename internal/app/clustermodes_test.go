package app

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kubernetes/inject"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/fromview"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// labelWrites of Nodes, whose first ones may fail.
type labelWrites struct {
	client resource.Client
	fail   int
	all    []string
}

func (l *labelWrites) write(ctx context.Context, name, mode string) error {
	if l.fail > 0 {
		l.fail--
		return errors.New("forbidden")
	}
	l.all = append(l.all, name+" "+mode)
	obj, err := l.client.Get(ctx, kind.Node, resource.Key{Name: name})
	if err != nil {
		return err
	}
	labels := maps.Clone(obj.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	labels[meshv1alpha1.LabelProxyMode] = mode
	obj.SetLabels(labels)
	_, err = l.client.Update(ctx, kind.Node, obj)
	return err
}

// TestModeLabels: the label of a Node follows its agent, once for each stream: also where the Node comes
// later, has lost its label, or could not be written. What another replica has written stays.
func TestModeLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		client, tables := podTables(t, ctx, &running)
		writes := &labelWrites{client: client}
		labels := newModeLabels(tables, writes.write, slog.New(slog.DiscardHandler))
		running.Go(func() { _ = labels.Run(ctx) })

		create := func(name string, set map[string]string) {
			t.Helper()
			if _, err := client.Create(t.Context(), kind.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: set}}); err != nil {
				t.Fatal(err)
			}
		}
		want := func(when, name, mode string) {
			t.Helper()
			synctest.Wait()
			n, _ := tables.Snapshot().Nodes.Get(resource.Key{Name: name})
			if got := modeOf(n); got != mode {
				t.Errorf("%s: mode %q of %s, want %q", when, got, name, mode)
			}
		}
		agent := func(name, mode string) *modeStream {
			s, _ := labels.agent(&core.Node{Id: name, Metadata: wire.Metadata(mode)}).(*modeStream)
			return s
		}
		if agent("n1", "") != nil || agent("n1", "no value/of a label") != nil {
			t.Error("a gateway, or a mode that is no value of a label, is taken")
		}
		var none *modeLabels
		if none.agent(&core.Node{Id: "n1", Metadata: wire.Metadata("ipvs")}) != nil {
			t.Error("outside of clusters agents write their labels themselves")
		}

		create("n1", nil)
		former := agent("n1", "iptables")
		want("an agent", "n1", "iptables")
		agent("n2", "nftables")
		synctest.Wait()
		create("n2", map[string]string{meshv1alpha1.LabelProxyMode: "ipvs"})
		want("a Node that came after its agent", "n2", "nftables")
		agent("n1", "nftables")
		former.Ended()
		want("the next agent", "n1", "nftables")
		if err := client.Delete(t.Context(), kind.Node, resource.Key{Name: "n1"}, resource.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		create("n1", nil)
		want("another Node of the name", "n1", "nftables")

		node, err := client.Get(t.Context(), kind.Node, resource.Key{Name: "n2"})
		if err != nil {
			t.Fatal(err)
		}
		node.SetLabels(map[string]string{meshv1alpha1.LabelProxyMode: "userspace"})
		if _, err := client.Update(t.Context(), kind.Node, node); err != nil {
			t.Fatal(err)
		}
		want("another replica's", "n2", "userspace")
		create("n3", nil)
		synctest.Wait() // its event would be a reason to try again at once
		writes.fail = 1
		agent("n3", "iptables")
		want("a failed write", "n3", "")
		time.Sleep(modeRetry)
		want("after a failed write", "n3", "iptables")
		if got := []string{"n1 iptables", "n2 nftables", "n1 nftables", "n1 nftables", "n3 iptables"}; !slices.Equal(writes.all, got) {
			t.Errorf("writes %q, want %q", writes.all, got)
		}
	})
}

// namedMode is a mode that has nothing but its name.
type namedMode struct {
	modes.Mode
	name string
}

func (n namedMode) Name() string { return n.name }

// TestModesInACluster: the replica that serves an agent writes the label of its Node, where meshes have
// policies that nodes enforce.
func TestModesInACluster(t *testing.T) {
	c := startCluster(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"kept": "yes"}}})
	r := c.startReplicaOf("a", ControlPlaneConfig{
		Preset: PresetKubeProxyReplacement, XDSPort: testkit.FreePort(t), XDSPortChosen: true,
		Injection: &inject.Config{Image: "proxima-sidecar", Envoy: "envoy"},
	})
	conn := r.dial("n1")
	defer conn.Close()
	a := &agent{conn: conn, log: slog.New(slog.DiscardHandler), registry: prometheus.NewRegistry()}
	a.cfg.Name, a.cfg.DataDir, a.mode = "n1", t.TempDir(), namedMode{name: "userspace"}
	feed := fromview.NewFeed(a.feedConfig(func(node.Update) {}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- feed.Run(ctx) }()
	defer func() { cancel(); <-done }()
	eventually(t, "the label", func() bool {
		labels := c.getIn(kind.Node, "", "n1").GetLabels()
		return labels[meshv1alpha1.LabelProxyMode] == "userspace" && labels["kept"] == "yes"
	})
	eventually(t, "the control plane knows it", func() bool {
		n, _ := r.p.instance.catalog.Snapshot().Nodes.Get(resource.Key{Name: "n1"})
		return modeOf(n) == "userspace"
	})
}
