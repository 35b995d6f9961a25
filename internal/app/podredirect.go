package app

import (
	"net/netip"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	"github.com/proxima-mesh/proxima/internal/catalog"
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
