package kuma

import (
	"sigs.k8s.io/yaml"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// patchOps are Kuma's operations.
var patchOps = map[string]string{
	"Add": mesh.PatchAdd, "Remove": mesh.PatchRemove, "Patch": mesh.PatchMerge,
	"AddFirst": mesh.PatchFirst, "AddLast": mesh.PatchLast, "AddBefore": mesh.PatchBefore, "AddAfter": mesh.PatchAfter,
}

// patchOrigins are Kuma's names of where a resource comes from.
var patchOrigins = map[string]string{"inbound": mesh.OriginInbound, "outbound": mesh.OriginOutbound, "passthrough": mesh.OriginPassthrough}

func (o *object) meshProxyPatch() {
	t := o.workloads(o.spec.child("targetRef"))
	p := &mesh.ProxyPatch{TypeMeta: typeMeta("ProxyPatch"), ObjectMeta: o.meta(t.namespace)}
	p.Spec.PolicyTarget = t.PolicyTarget
	o.out = append(o.out, p)
	if t.ports != nil {
		o.refuse("spec.targetRef.sectionName", "a ProxyPatch is for a whole proxy: match the port in each patch")
	}
	for _, m := range o.spec.child("default").list("appendModifications") {
		for _, of := range []struct{ key, typ string }{
			{"cluster", mesh.PatchCluster}, {"listener", mesh.PatchListener}, {"networkFilter", mesh.PatchNetworkFilter},
			{"httpFilter", mesh.PatchHTTPFilter}, {"virtualHost", mesh.PatchVirtualHost},
		} {
			if n := m.child(of.key); n != nil {
				o.patch(&p.Spec, n, of.typ)
			}
		}
	}
}

func (o *object) patch(spec *mesh.ProxyPatchSpec, n *node, typ string) {
	item := mesh.ProxyPatchItem{Type: typ, Op: patchOps[n.text("operation")], Value: n.text("value")}
	if item.Op == "" {
		o.refuse(n.at("operation"), "is none of a ProxyPatch")
		return
	}
	if patches := n.raw("jsonPatches"); patches != nil {
		text, err := yaml.Marshal(patches)
		if err != nil {
			o.refuse(n.at("jsonPatches"), err.Error())
		}
		item.Op, item.Value = mesh.PatchJSON, string(text)
	}
	if m := n.child("match"); m != nil {
		item.Match = &mesh.ProxyPatchMatch{Name: m.text("name"), Listener: m.text("listenerName")}
		if name := m.text("routeConfigurationName"); name != "" {
			item.Match.Listener = name
		}
		if origin := m.text("origin"); origin != "" {
			if item.Match.Origin = patchOrigins[origin]; item.Match.Origin == "" {
				o.refuse(m.at("origin"), origin+" is no origin of a ProxyPatch")
			}
		}
		if item.Match.Name+item.Match.Listener != "" {
			o.refuse(m.path, "resources of Proxima have other names: compare them with those of the proxy")
		}
	}
	spec.Patches = append(spec.Patches, item)
}
