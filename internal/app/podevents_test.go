package app

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestPodEvents: a Pod that should have a sidecar and has none is told once, also by another leader; when
// its namespace gets the label, too. A Pod that cannot use its sidecar is told what its agent says, for as
// long as that has a stream.
func TestPodEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		client, tables := podTables(t, ctx, &running)
		events := func() (out []string) {
			t.Helper()
			all, _, err := client.List(ctx, kind.Event, resource.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, obj := range all {
				e := obj.(*corev1.Event)
				out = append(out, e.InvolvedObject.Kind+" "+e.InvolvedObject.Name+" "+e.Reason+": "+e.Message)
			}
			return out
		}
		var certified atomic.Bool
		certified.Store(true)
		e := &podEvents{client: client, tables: tables, certified: func(string) bool { return certified.Load() }, log: slog.New(slog.DiscardHandler)}
		term := func(of time.Duration) {
			term, end := context.WithTimeout(ctx, of)
			defer end()
			_ = e.follow(term)
		}
		createPod(t, client, clusterPod(nil))
		createPod(t, client, clusterPod(func(p *corev1.Pod) {
			p.Name, p.Labels = "own-84f-x1", map[string]string{"pod-template-hash": "84f", meshv1alpha1.LabelSidecarInjection: "enabled"}
		}))
		createPod(t, client, clusterPod(func(p *corev1.Pod) {
			p.Name, p.Annotations = "has", map[string]string{meshv1alpha1.AnnotationSidecar: `{"mesh":"default"}`}
		}))
		term(time.Minute)
		term(time.Minute)
		got := events()
		if len(got) != 1 || !strings.HasPrefix(got[0], "Pod own-84f-x1 SidecarMissing: ") || !strings.HasSuffix(got[0], "kubectl --namespace shop rollout restart deployment/own") {
			t.Errorf("%q", got)
		}

		running.Go(func() { _ = e.follow(ctx) })
		certified.Store(false)
		obj, err := client.Get(ctx, kind.Namespace, resource.Key{Name: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		obj.SetLabels(map[string]string{meshv1alpha1.LabelSidecarInjection: "enabled"})
		if _, err := client.Update(ctx, kind.Namespace, obj); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := strings.Join(events(), "\n"); !strings.Contains(got, "Pod web SidecarMissing: ") || !strings.Contains(got, "set spec.mtls of the Mesh") || strings.Contains(got, "Pod has ") {
			t.Errorf("%s", got)
		}

		m := newPodMembers(tables, e)
		closed := m.opened("n1")
		say := func(node, reason string) admin.ProxiesStatus {
			m.setUnled(ctx, node, []*identityv1.WaitingMember{
				{Namespace: "shop", Name: "has", Reason: reason}, {Namespace: "shop", Name: "none", Reason: reason},
			})
			var status admin.ProxiesStatus
			m.addUnled(&status)
			return status
		}
		before := len(events())
		if s := say("n2", "no"); s.Unredirected != 0 || len(events()) != before {
			t.Errorf("a Pod of another node: %+v", s)
		}
		say("n1", "no nf_tables")
		if s := say("n1", "no nf_tables"); s.Unredirected != 1 || s.Waiting[0] != (admin.WaitingPod{Pod: "shop/has", Node: "n1", Reason: "no nf_tables"}) {
			t.Errorf("%+v", s)
		}
		if got := events(); len(got) != before+1 || !strings.Contains(strings.Join(got, "\n"), "Pod has SidecarNotRedirected: its connections are not led to its sidecar, without which it does not start: no nf_tables") {
			t.Errorf("%q", got)
		}
		closed()
		if len(m.unled) > 0 {
			t.Error("what the agent said stays after its stream")
		}
	})
}

func TestCreateAgain(t *testing.T) {
	for _, tt := range []struct {
		name   string
		labels map[string]string
		want   string
	}{
		{"web-6c5-abcde", map[string]string{"pod-template-hash": "6c5"}, "deployment/web"},
		{"web-6c5-6c5-abcde", map[string]string{"pod-template-hash": "6c5"}, "deployment/web-6c5"},
		{"db-0", map[string]string{"statefulset.kubernetes.io/pod-name": "db-0", "controller-revision-hash": "db-5"}, "statefulset/db"},
		{"log-x7k2p", map[string]string{"controller-revision-hash": "5"}, "daemonset/log"},
		{"bare", nil, "delete pod bare"},
		{"bare-pod", map[string]string{"pod-template-hash": "other"}, "delete pod bare-pod"},
	} {
		if got := again(clusterPod(func(p *corev1.Pod) { p.Name, p.Labels = tt.name, tt.labels })); !strings.HasSuffix(got, tt.want) {
			t.Errorf("%s: %s", tt.name, got)
		}
	}
}
