package app

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/kubernetes/inject"
	"github.com/proxima-mesh/proxima/internal/node/podproxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/sidecar/bootstrap"
	"github.com/proxima-mesh/proxima/internal/sidecar/redirect"
)

// memberSidecar is whose connections of a Pod are led to its sidecar; nil: it has none.
func memberSidecar(tables *catalog.Snapshot, key resource.Key) *identityv1.Sidecar {
	pod, ok := tables.Pods.Get(key)
	if !ok {
		return nil
	}
	s, err := inject.SidecarOf(pod)
	if s == nil || err != nil {
		return nil
	}
	out := &identityv1.Sidecar{
		NodeId: bootstrap.NodeID(s.Mesh, key.Namespace, key.Name), ExcludeInbound: s.ExcludeInbound, ExcludeOutbound: s.ExcludeOutbound,
	}
	for _, p := range s.Ports {
		out.InboundPorts = append(out.InboundPorts, uint32(p.Port))
	}
	return out
}

// redirectPods leads the connections of the Pods of this node to their sidecars.
func (n *nodeIdentity) redirectPods(members []*identityv1.Member) {
	if n.redirection == nil {
		return
	}
	var all []podproxy.Pod
	for _, m := range members {
		if m.GetSidecar() == nil {
			continue
		}
		p, err := podOfMember(m)
		if err != nil {
			n.log.Error("connections of a pod are not led to its sidecar", "pod", m.GetNamespace()+"/"+m.GetName(), "error", err)
			continue
		}
		all = append(all, p)
	}
	n.redirection.Set(all)
}

func podOfMember(m *identityv1.Member) (podproxy.Pod, error) {
	s := m.GetSidecar()
	p := podproxy.Pod{Key: resource.Key{Namespace: m.GetNamespace(), Name: m.GetName()}, Rules: redirect.Rules{Owner: s.GetNodeId()}}
	for _, text := range m.GetAddresses() {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return p, err
		}
		p.Addresses = append(p.Addresses, a.Unmap())
	}
	for _, port := range s.GetInboundPorts() {
		p.Rules.Inbound = append(p.Rules.Inbound, uint16(port))
	}
	var err error
	if p.Rules.ExcludeInbound, err = redirect.ParseExclusion(s.GetExcludeInbound()); err != nil {
		return p, err
	}
	p.Rules.ExcludeOutbound, err = redirect.ParseExclusion(s.GetExcludeOutbound())
	return p, err
}

// maxWaiting and maxWaitingReason bound what an agent says of the Pods of its node: a node has some
// hundreds (https://kubernetes.io/docs/setup/best-practices/cluster-large/), and an Event's message at
// most 1024 bytes (k8s.io/api/core/v1).
const (
	maxWaiting       = 1000
	maxWaitingReason = 512
)

// reportWaiting tells the control plane which Pods wait for their connections to be led to their
// sidecars, until ctx ends. One that does not ask for it is an earlier version.
func (n *nodeIdentity) reportWaiting(ctx context.Context, client identityv1.IdentityClient) {
	if n.redirection == nil {
		return
	}
	pause := backoff.Backoff{Policy: backoff.Policy{First: time.Second, Last: 30 * time.Second, Jitter: 0.5}}
	var told map[resource.Key]string
	for ctx.Err() == nil {
		why, changed := n.redirection.Waiting()
		if !maps.Equal(told, why) {
			_, err := client.Redirection(ctx, waitingRequest(why))
			switch {
			case status.Code(err) == codes.Unimplemented:
				return
			case err != nil:
				n.log.Log(ctx, slog.LevelDebug, "the control plane is not told which pods wait; it is tried again", "error", err)
				backoff.Sleep(ctx, pause.Next())
				continue
			}
			told = why
			pause.Reset()
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

func waitingRequest(why map[resource.Key]string) *identityv1.RedirectionRequest {
	r := &identityv1.RedirectionRequest{}
	for _, key := range slices.SortedFunc(maps.Keys(why), func(a, b resource.Key) int { return strings.Compare(a.String(), b.String()) }) {
		if len(r.Waiting) < maxWaiting {
			r.Waiting = append(r.Waiting, &identityv1.WaitingMember{Namespace: key.Namespace, Name: key.Name, Reason: bounded(why[key])})
		}
	}
	return r
}

// bounded text, of valid UTF-8.
func bounded(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxWaitingReason)], "")
}

// opened counts a stream of a node, until the function is called: what is known of its Pods goes with the
// last stream.
func (m *podMembers) opened(node string) (closed func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.streams[node]++
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.streams[node]--; m.streams[node] == 0 {
			delete(m.streams, node)
			delete(m.unled, node)
		}
	}
}

// redirection implements issue.Config.Redirection. Of Pods that are not on the caller's node nothing is
// taken. What is new is an Event of the Pod.
func (m *podMembers) redirection(ctx context.Context, r *identityv1.RedirectionRequest) (*identityv1.RedirectionResponse, error) {
	node, err := access.CallerNode(ctx)
	if err != nil {
		return nil, err
	}
	if !m.tables.Listed() {
		return nil, status.Error(codes.Unavailable, errNotSynced.Error())
	}
	if len(r.GetWaiting()) > maxWaiting {
		return nil, status.Errorf(codes.InvalidArgument, "waiting: %d Pods, at most %d are taken", len(r.GetWaiting()), maxWaiting)
	}
	m.setUnled(ctx, node, r.GetWaiting())
	return &identityv1.RedirectionResponse{}, nil
}

// setUnled takes what the agent of a node says.
func (m *podMembers) setUnled(ctx context.Context, node string, waiting []*identityv1.WaitingMember) {
	tables, next := m.tables.Snapshot(), map[resource.Key]string{}
	for _, w := range waiting {
		key := resource.Key{Namespace: w.GetNamespace(), Name: w.GetName()}
		if pod, ok := tables.Pods.Get(key); ok && pod.Spec.NodeName == node {
			next[key] = bounded(w.GetReason())
		}
	}
	m.mu.Lock()
	before := m.unled[node]
	if m.streams[node] > 0 {
		m.unled[node] = next
	}
	m.mu.Unlock()
	for key, why := range next {
		if before[key] == why {
			continue
		}
		pod, _ := tables.Pods.Get(key)
		_ = m.events.warn(ctx, pod, reasonNotRedirected, "its connections are not led to its sidecar, without which it does not start: "+why)
	}
}

// addUnled adds the Pods whose connections are not led to their sidecars, as the agents say that follow
// here.
func (m *podMembers) addUnled(to *admin.ProxiesStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for node, pods := range m.unled {
		to.Unredirected += len(pods)
		for key, why := range pods {
			to.Waiting = append(to.Waiting, admin.WaitingPod{Pod: key.String(), Node: node, Reason: why})
		}
	}
	slices.SortFunc(to.Waiting, func(a, b admin.WaitingPod) int { return strings.Compare(a.Pod, b.Pod) })
	to.Trim()
}
