package app

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/identity/issue"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// A Pod is a workload without an object of ours: its Dataplane is derived wherever one is needed.
// Agents learn those of their node by a stream of the control plane, as they ask nothing of the
// cluster's API:
//
//	Pods ──► catalog ──► podMembers ──► agent (nodeIdentity)
//	            └──► podWorkloads (whom certificates are for)

// podDataplane is the Dataplane of a Pod; nil: it has no node, has ended, or is in the network of
// its node, where it is as much of the node as any process.
func podDataplane(p *corev1.Pod, namespace *corev1.Namespace) *meshv1alpha1.Dataplane {
	if p.Spec.NodeName == "" || p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	d := &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels, CreationTimestamp: p.CreationTimestamp},
		Spec: meshv1alpha1.DataplaneSpec{
			Mesh: kind.PodMesh(p, namespace), NodeName: p.Spec.NodeName,
			ServiceAccount: cmp.Or(p.Spec.ServiceAccountName, meshv1alpha1.DefaultServiceAccount),
		},
	}
	for _, text := range append([]corev1.PodIP{{IP: p.Status.PodIP}}, p.Status.PodIPs...) {
		addr, err := netip.ParseAddr(text.IP)
		if err == nil && !slices.Contains(d.Spec.Addresses, addr.String()) {
			d.Spec.Addresses = append(d.Spec.Addresses, addr.String())
		}
	}
	if len(d.Spec.Addresses) == 0 {
		return nil
	}
	return d
}

// podDataplanes are those of a node, in the order of their names.
func podDataplanes(tables *catalog.Snapshot, node string) []*meshv1alpha1.Dataplane {
	var out []*meshv1alpha1.Dataplane
	for key, pod := range tables.PodsOn(node) {
		namespace, _ := tables.Namespaces.Get(resource.Key{Name: key.Namespace})
		if d := podDataplane(pod, namespace); d != nil {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b *meshv1alpha1.Dataplane) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// podWorkloads is the Pods, and the gateways of the cluster, as issue.Workloads.
type podWorkloads struct{ workloadTable }

var _ issue.Workloads = podWorkloads{}

// Workload implements issue.Workloads.
func (t podWorkloads) Workload(_ context.Context, namespace, name string) (w issue.Workload, ok bool, err error) {
	if !t.catalog.Listed() {
		return issue.Workload{}, false, errNotSynced
	}
	tables := t.catalog.Snapshot()
	pod, ok := tables.Pods.Get(resource.Key{Namespace: namespace, Name: name})
	if !ok {
		return issue.Workload{}, false, nil
	}
	of, _ := tables.Namespaces.Get(resource.Key{Name: namespace})
	d := podDataplane(pod, of)
	if d == nil {
		return issue.Workload{}, false, nil
	}
	return issue.Workload{Mesh: d.Spec.Mesh, Namespace: namespace, ServiceAccount: d.Spec.ServiceAccount, Node: d.Spec.NodeName}, true, nil
}

// NodeInMesh implements issue.Workloads.
func (t podWorkloads) NodeInMesh(_ context.Context, node, name string) (bool, error) {
	if !t.catalog.Listed() {
		return false, errNotSynced
	}
	own := podDataplanes(t.catalog.Snapshot(), node)
	return slices.ContainsFunc(own, func(d *meshv1alpha1.Dataplane) bool { return d.Spec.Mesh == name }), nil
}

// podMembers sends agents the workloads of their nodes. A change wakes the streams of the nodes
// that it concerns, and no others.
type podMembers struct {
	tables *catalog.Catalog
	// events of Pods whose connections are not led to their sidecars.
	events *podEvents

	mu      sync.Mutex
	waiting map[string]chan struct{} // by node: the next change of its workloads closes it
	// streams of nodes, and what their agents say of Pods whose connections are not led to their sidecars.
	streams map[string]int
	unled   map[string]map[resource.Key]string
}

func newPodMembers(tables *catalog.Catalog, events *podEvents) *podMembers {
	return &podMembers{
		tables: tables, events: events, waiting: map[string]chan struct{}{}, streams: map[string]int{}, unled: map[string]map[resource.Key]string{},
	}
}

// wait returns the channel of the next change on a node.
func (m *podMembers) wait(node string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting[node] == nil {
		m.waiting[node] = make(chan struct{})
	}
	return m.waiting[node]
}

// note what changed; all: every node is to look, also one without a workload.
func (m *podMembers) note(d catalog.Delta, all bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wake := func(node string) {
		if changed := m.waiting[node]; changed != nil {
			close(changed)
			delete(m.waiting, node)
		}
	}
	for _, change := range d.Namespaces { // rare: whose pods are of the namespace is not looked up
		all = all || namespaceMesh(change.Old) != namespaceMesh(change.New)
	}
	if all {
		for node := range m.waiting {
			wake(node)
		}
		return
	}
	for _, change := range d.Pods {
		for _, p := range []*corev1.Pod{change.Old, change.New} {
			if p != nil {
				wake(p.Spec.NodeName)
			}
		}
	}
}

// namespaceMesh is the mesh of pods that name none.
func namespaceMesh(n *corev1.Namespace) string {
	if n == nil {
		return meshv1alpha1.DefaultMesh
	}
	return kind.MeshOf(n)
}

// memberWindow is how long changes of pods are collected: a Pod that starts has several.
const memberWindow = 100 * time.Millisecond

// follow notes changes until ctx ends.
func (m *podMembers) follow(ctx context.Context) error {
	sub := m.tables.Subscribe(catalog.Pods, catalog.Namespaces)
	defer sub.Close()
	for first := true; ; first = false {
		delta, err := sub.Next(ctx)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		m.note(delta, first)
		if !backoff.Sleep(ctx, memberWindow) {
			return nil
		}
	}
}

// serve implements issue.Config.Members.
func (m *podMembers) serve(_ *identityv1.MembersRequest, stream grpc.ServerStreamingServer[identityv1.MembersResponse]) error {
	ctx := stream.Context()
	node, err := access.CallerNode(ctx)
	if err != nil {
		return err
	}
	defer m.opened(node)()
	var sent *identityv1.MembersResponse
	for {
		changed := m.wait(node)
		if m.tables.Listed() {
			next := &identityv1.MembersResponse{}
			tables := m.tables.Snapshot()
			for _, d := range podDataplanes(tables, node) {
				next.Members = append(next.Members, &identityv1.Member{
					Namespace: d.Namespace, Name: d.Name, ServiceAccount: d.Spec.ServiceAccount, Mesh: d.Spec.Mesh, Addresses: d.Spec.Addresses,
					Sidecar: memberSidecar(tables, resource.KeyOf(d)),
				})
			}
			if sent == nil || !proto.Equal(sent, next) {
				if err := stream.Send(next); err != nil {
					return err
				}
				sent = next
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// followPods keeps the workloads of a node in a cluster, as the control plane tells them.
func (n *nodeIdentity) followPods(ctx context.Context, client identityv1.IdentityClient) error {
	pause := backoff.Backoff{Policy: backoff.Policy{First: 200 * time.Millisecond, Last: 10 * time.Second, Jitter: 0.5}}
	for ctx.Err() == nil {
		got, err := n.followPodsOnce(ctx, client)
		if got {
			pause.Reset()
		}
		if ctx.Err() == nil {
			n.log.Log(ctx, slog.LevelDebug, "the workloads of this node are not followed; it is tried again", "error", err)
		}
		backoff.Sleep(ctx, pause.Next())
	}
	return nil
}

// followPodsOnce follows until the stream ends; got: there was an answer.
func (n *nodeIdentity) followPodsOnce(ctx context.Context, client identityv1.IdentityClient) (got bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Members(ctx, &identityv1.MembersRequest{})
	if err != nil {
		return false, err
	}
	var reporting sync.WaitGroup
	defer reporting.Wait()
	defer cancel()
	reporting.Go(func() { n.reportWaiting(ctx, client) })
	for {
		answer, err := stream.Recv()
		if err != nil {
			return got, err
		}
		got = true
		n.redirectPods(answer.GetMembers())
		all := make([]resource.Object, 0, len(answer.GetMembers()))
		for _, m := range answer.GetMembers() {
			all = append(all, &meshv1alpha1.Dataplane{
				ObjectMeta: metav1.ObjectMeta{Namespace: m.GetNamespace(), Name: m.GetName()},
				Spec:       meshv1alpha1.DataplaneSpec{Mesh: m.GetMesh(), ServiceAccount: m.GetServiceAccount(), Addresses: m.GetAddresses()},
			})
		}
		// Each has its mesh: no namespace is asked for it.
		n.apply(kind.Namespace, reflector.Event{Type: reflector.Replace, Kind: kind.Namespace})
		n.apply(kind.Dataplane, reflector.Event{Type: reflector.Replace, Kind: kind.Dataplane, Objects: all})
	}
}
