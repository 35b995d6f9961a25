package kuma

import (
	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// addPermission makes one of a target.
func (o *object) addPermission(t target) *mesh.TrafficPermissionSpec {
	p := &mesh.TrafficPermission{TypeMeta: typeMeta("TrafficPermission"), ObjectMeta: o.meta(t.namespace)}
	p.Spec.PolicyTarget, p.Spec.Ports = t.PolicyTarget, t.ports
	o.out = append(o.out, p)
	return &p.Spec
}

func (o *object) meshTrafficPermission() {
	t := o.workloads(o.spec.child("targetRef"))
	var enforced, shadow *mesh.TrafficPermissionSpec
	of := func(p **mesh.TrafficPermissionSpec) *mesh.TrafficPermissionSpec {
		if *p == nil {
			*p = o.addPermission(t)
			(*p).Shadow = p == &shadow
		}
		return *p
	}
	denied := o.spec.list("from")
	for i, item := range o.spec.list("from") {
		rule := mesh.PermissionRule{From: o.source(item.child("targetRef"))}
		conf := item.child("default")
		switch action := conf.text("action"); action {
		case "Allow":
			of(&enforced).Allow = append(of(&enforced).Allow, rule)
		case "Deny":
			if later := allowedBy(denied[i+1:]); later && len(rule.From) == 0 {
				continue // what is allowed is said below; the rest is refused by that alone
			} else if later {
				o.fail(item.path, "is denied here, and partly allowed below: a denial of Proxima is stronger than what is allowed")
			}
			of(&enforced).Deny = append(of(&enforced).Deny, rule)
		case "AllowWithShadowDeny":
			of(&enforced).Allow = append(of(&enforced).Allow, rule)
			of(&shadow).Deny = append(of(&shadow).Deny, rule)
		default:
			o.fail(item.at("default.action"), "is neither Allow, Deny nor AllowWithShadowDeny")
		}
	}
	for _, item := range o.spec.list("rules") {
		conf := item.child("default")
		for _, m := range conf.list("allow") {
			of(&enforced).Allow = append(of(&enforced).Allow, spiffeRule(m))
		}
		for _, m := range conf.list("deny") {
			of(&enforced).Deny = append(of(&enforced).Deny, spiffeRule(m))
		}
		for _, m := range conf.list("allowWithShadowDeny") {
			of(&enforced).Allow = append(of(&enforced).Allow, spiffeRule(m))
			of(&shadow).Deny = append(of(&shadow).Deny, spiffeRule(m))
		}
	}
}

// allowedBy some items: others are refused then.
func allowedBy(items []*node) bool {
	for _, item := range items {
		if action, _ := item.child("default").raw("action").(string); action == "Allow" || action == "AllowWithShadowDeny" {
			return true
		}
	}
	return false
}

// spiffeRule of a match. Without an ID it would be one of everybody.
func spiffeRule(m *node) mesh.PermissionRule {
	id := m.child("spiffeID")
	if id == nil {
		m.o.fail(m.path, "describes callers by something else than spiffeID")
		return mesh.PermissionRule{}
	}
	return mesh.PermissionRule{From: []mesh.PolicySource{{SPIFFE: []mesh.ValueMatch{{Type: id.text("type"), Value: id.text("value")}}}}}
}
