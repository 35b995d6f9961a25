package fake

import (
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/registry"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// Status of a control plane that has a source for each page.
func Status(w *World, s admin.Status) map[string]any {
	k := 0
	for _, z := range w.Zones.Zones {
		for i := range min(z.Nodes, 4) {
			a := admin.AgentStatus{Node: fmt.Sprintf("%s-%d", z.Name, i), Version: "v0.1.0", Peer: fmt.Sprintf("192.0.2.%d:40000", k%250), Since: w.Now.Add(-time.Duration(k+1) * time.Minute), BytesSent: uint64(k) * 51200}
			if k == 3 {
				a.Behind, a.Rejected = 12, "services: unknown field"
			}
			s.Agents = append(s.Agents, a)
			k++
		}
	}
	s.Registries = []registry.Status{{Protocol: "nacos", Address: "127.0.0.1:8848", Clients: 12, Limit: 1000, Sessions: 12, Instances: 40, Requests: 120394, Pushes: 4031, LastLagSeconds: 0.012}}
	s.Federation = &admin.FederationStatus{Zone: "east", Global: "192.0.2.1:6445", Connected: true, LastCheck: w.Now.Add(-3 * time.Second), Types: []mesh.TypeSync{
		{Type: "Mesh", Direction: mesh.SyncToZone, Objects: 1},
		{Type: "ServiceExport", Direction: mesh.SyncToGlobal, Objects: 40, Held: 25, HeldNames: []string{"shop/web", "shop/cart"}, HeldToken: "7f3a"},
		{Type: "mesh.proxima.dev/BackendPolicy", Direction: mesh.SyncToZone, Objects: 7, Refused: []mesh.SyncRefusal{{Name: "shop/limits", Reason: "spec.limits.connections: must be 1 or more"}}},
	}, Link: &admin.SyncLink{
		Epoch: "global-7c31", Sent: &admin.SyncLag{Samples: 412, P50Seconds: 0.0061, P99Seconds: 0.084},
		LastRefused: []admin.LastRefused{{Type: "mesh.proxima.dev/BackendPolicy", Direction: mesh.SyncToZone, Resource: "shop/limits", Reason: "spec.limits.connections: must be 1 or more", At: w.Now.Add(-7 * time.Minute)}},
	}, Gateways: []admin.GatewayState{{Kind: "ingress", Zone: "east", Name: "zone-a-0", Connected: true}, {Kind: "ingress", Zone: "east", Name: "zone-b-0"}}}
	s.Federation.Failures = admin.Board(s.Federation)
	s.Store.Name, s.Store.Revision, s.Store.Epoch = "sqlite", 4120, "east-51d0"
	s.Federation.CertificateNotAfter = w.Now.Add(17 * time.Hour)
	out := map[string]any{}
	reencode(s, &out)
	out["feed"] = map[string]any{"begins": w.Now.Add(-48 * time.Hour)}
	return out
}

// Global is the status of a global control plane with so many sites, two of which have trouble.
func Global(sites int, now time.Time) map[string]any {
	s := admin.Status{Role: "global", Agents: []admin.AgentStatus{}, Federation: &admin.FederationStatus{}}
	s.Store.Name, s.Store.Epoch = "postgres", "global-7c31"
	for i := range sites {
		z := admin.ZoneState{Name: fmt.Sprintf("site-%03d", i), Enabled: true, Insight: &mesh.ZoneInsightStatus{
			Online: true, Subscriptions: []mesh.Subscription{{ID: "1", Version: "v0.1.0", ConnectTime: metav1.NewMicroTime(now.Add(-time.Duration(i+1) * time.Hour))}},
		}, Link: &admin.SyncLink{
			Epoch: fmt.Sprintf("site-%04x", 40961+i), Sent: &admin.SyncLag{Samples: 300, P50Seconds: 0.004 + 0.0001*float64(i), P99Seconds: 0.05 + 0.001*float64(i)},
			Received: &admin.SyncLag{Samples: 90, P50Seconds: 0.006, P99Seconds: 0.07},
		}}
		switch i {
		case 1:
			z.Insight.Types = []mesh.TypeSync{{Type: "mesh.proxima.dev/BackendPolicy", Direction: mesh.SyncToZone, Objects: 7, Refused: []mesh.SyncRefusal{{Name: "shop/limits", Reason: "spec.limits.connections: must be 1 or more"}}}}
			z.Link.LastRefused = []admin.LastRefused{{Type: "mesh.proxima.dev/BackendPolicy", Direction: mesh.SyncToZone, Resource: "shop/limits", Reason: "spec.limits.connections: must be 1 or more", At: now.Add(-7 * time.Minute)}}
		case 2:
			z.Insight.Online, z.Link = false, nil
		}
		s.Federation.Zones = append(s.Federation.Zones, z)
	}
	s.Federation.Failures = admin.Board(s.Federation)
	out := map[string]any{}
	reencode(s, &out)
	return out
}

// rollout of a change that two agents have not confirmed.
func rollout(w *World) admin.Rollout {
	r := admin.Rollout{Revision: 4100, Newest: 4120, Committed: true, Viewed: true}
	for _, z := range w.Zones.Zones {
		r.Agents += min(z.Nodes, 4)
	}
	r.Sent, r.Confirmed = r.Agents-1, r.Agents-2
	r.Slowest = []admin.AgentRollout{
		{Node: "zone-a-3", Since: w.Now.Add(-4 * time.Minute), Sent: true, Behind: 12, Rejected: "services: unknown field"},
		{Node: "zone-b-1", Since: w.Now.Add(-6 * time.Minute), Behind: 3},
	}
	r.Rejecting = r.Slowest[:1]
	return r
}

// insights of proxies, one of which refuses a resource.
func insights(w *World) object {
	var items []object
	for i := range 5 {
		status := object{"online": i != 3, "versions": object{"proxy": "envoy", "version": "1.40.0"}, "subscriptions": []object{{
			"id": "1", "connectTime": w.Now.Add(-time.Duration(i+1) * time.Hour), "resources": []object{{"type": "Cluster", "sent": 41, "acknowledged": 41 - i%2, "rejected": i % 2}, {"type": "Listener", "sent": 9, "acknowledged": 9}},
		}}}
		if i == 3 {
			status["subscriptions"].([]object)[0]["disconnectTime"] = w.Now.Add(-9 * time.Minute)
		}
		if i == 1 {
			status["rejected"] = []object{{"type": "Cluster", "name": "shop/api:80", "policy": "WorkloadPolicy shop/limits", "error": "unknown field"}}
		}
		items = append(items, object{"metadata": object{"name": fmt.Sprintf("web-%d", i), "namespace": "shop"}, "status": status})
	}
	return object{"items": items}
}

// registered are instances of clients of Nacos.
func registered(w *World) object {
	var items []object
	for i, name := range []string{"billing", "legacy-mail", "stock"} {
		items = append(items, object{
			"metadata": object{"name": fmt.Sprintf("%s-%d", name, i), "namespace": "shop", "creationTimestamp": w.Now.Add(-time.Duration(i+2) * time.Hour), "labels": object{registry.LabelProtocol: "nacos", registry.LabelService: name}, "annotations": object{registry.AnnotationRegisteredBy: "nacos-" + name}},
			"spec":     object{"addresses": []string{fmt.Sprintf("10.1.0.%d", i+4)}, "ports": []object{{"port": 8080}}},
		})
	}
	return object{"items": items}
}

// difference between what a proxy was sent and what it holds.
func difference() admin.ProxyDifference {
	d := admin.ProxyDifference{Dataplane: "shop/web-1", Resources: []admin.ProxyComparison{
		{Type: "Cluster", Name: "shop/api:80", Sent: "9f31aa02c4d18e7b", Held: "17c0de5512ab9f04", State: admin.ProxyRejected, Reason: "unknown field"},
		{Type: "ClusterLoadAssignment", Name: "shop/cart:80", Sent: "5b1e77d2", Held: "03aa9d1c", State: admin.ProxyPending},
	}}
	for i := range 12 {
		v := fmt.Sprintf("%08x", 2654435761*uint32(i+1))
		d.Resources = append(d.Resources, admin.ProxyComparison{Type: "Cluster", Name: fmt.Sprintf("shop/other-%d:80", i), Sent: v, Held: v, State: admin.ProxySame})
	}
	return d
}

// Problems of several kinds.
func Problems(now time.Time) []admin.Problem {
	return []admin.Problem{
		{Code: "NodeNotReady", Severity: admin.SeverityError, Kind: "Node", Name: "zone-b-1", Problem: "its lease was not renewed for 2 minutes", Fix: "is the agent running there? journalctl -u proxima-node", Since: now.Add(-2 * time.Minute)},
		{Code: "FewEndpoints", Severity: admin.SeverityWarning, Kind: "Service", Namespace: "shop", Name: "order", Problem: "2 endpoints in 2 zones are too few to divide", Fix: "proxima explain service shop/order", Since: now.Add(-26 * time.Hour)},
	}
}

type object = map[string]any

// Objects of the Kubernetes API, by path.
func Objects(w *World) map[string]any {
	var nodes []object
	for _, z := range w.Zones.Zones {
		for i := range min(z.Nodes, 4) {
			status := "True"
			if i >= z.Ready {
				status = "False"
			}
			nodes = append(nodes, object{
				"metadata": object{"name": fmt.Sprintf("%s-%d", z.Name, i), "labels": object{"topology.kubernetes.io/zone": string(z.Name), "mesh.proxima.dev/proxy-mode": "nftables"}},
				"status":   object{"conditions": []object{{"type": "Ready", "status": status, "message": "agent is ready"}}},
			})
		}
	}
	out := map[string]any{
		"/api/v1/nodes": object{"items": nodes},
		"/apis/mesh.proxima.dev/v1alpha1/backendpolicies":    object{"items": []object{}},
		"/apis/mesh.proxima.dev/v1alpha1/proxypatches":       object{"items": []object{}},
		"/apis/mesh.proxima.dev/v1alpha1/trafficpermissions": object{"items": []object{policy(w, "allow-web", "True", "acknowledged by 14 of 14 workloads")}},
		"/apis/mesh.proxima.dev/v1alpha1/workloadpolicies":   object{"items": []object{overridden(policy(w, "timeouts", "True", "acknowledged by 14 of 14 workloads")), policy(w, "limits", "False", "acknowledged by 12 of 14 workloads; behind: shop/web-1: it refuses Cluster shop/api:80: unknown field")}},
		admin.FeedHistoryPath: object{"begins": w.Now.Add(-48 * time.Hour), "changes": []object{
			change(w, 4100, "shop", "web", "alice", object{"path": "spec.ports[0].port", "from": 80, "to": 8080}),
			change(w, 4090, "shop", "cart", "system:controller", object{"path": "status.conditions[Plan].reason", "from": "Pending", "to": "Planned"}),
			at(change(w, 4080, "shop", "order", "bob", object{"path": "spec.selector.app", "from": "order", "to": "orders"}), time.Date(w.Now.Year(), w.Now.Month(), w.Now.Day(), 3, 12, 9, 0, time.UTC)),
		}},
		admin.ChangesPath + "4100": rollout(w), admin.ChangesPath + "4120": rollout(w), admin.ChangesPath + "4000": rollout(w), admin.ProxyDiffPath: difference(),
		"/apis/mesh.proxima.dev/v1alpha1/dataplaneinsights": insights(w),
		"/apis/mesh.proxima.dev/v1alpha1/dataplanes":        registered(w),
		admin.ShiftPath: object{"zone": "zone-a", "endpoints": 12, "services": []object{{"name": "shop/web", "out": 3, "left": 7}}, "plans": object{"services": []object{}}},
	}
	for _, l := range w.Services[:min(40, len(w.Services))] {
		out[fmt.Sprintf("/api/v1/namespaces/%s/services/%s", l.Namespace, l.Name)] = object{
			"apiVersion": "v1", "kind": "Service", "metadata": object{"name": l.Name, "namespace": l.Namespace, "resourceVersion": "4000", "creationTimestamp": w.Now.Add(-72 * time.Hour)},
			"spec": object{"clusterIP": "10.96.0.10", "ports": []object{{"name": "http", "port": 80, "protocol": "TCP"}}, "selector": object{"app": l.Name}},
		}
		out[fmt.Sprintf("/apis/planner.mesh.proxima.dev/v1alpha1/namespaces/%s/trafficplans", l.Namespace)] = object{"items": []object{{"metadata": object{"name": l.Name + "-x"}, "spec": object{"service": l.Name}}}}
	}
	if len(w.Services) > 0 {
		out[admin.ExplainServicePath] = explained(w)
		out[admin.SimulatePath] = simulated(w)
		out[admin.FeedStatePath] = out[fmt.Sprintf("/api/v1/namespaces/%s/services/%s", w.Services[0].Namespace, w.Services[0].Name)]
	}
	return out
}

func policy(w *World, name, programmed, why string) object {
	return object{
		"metadata": object{"name": name, "namespace": "shop", "creationTimestamp": w.Now.Add(-10 * time.Hour)},
		"spec":     object{"selector": object{"matchLabels": object{"app": "web"}}},
		"status":   object{"targets": 14, "conditions": []object{{"type": "Accepted", "status": "True"}, {"type": "Programmed", "status": programmed, "message": why}}},
	}
}

func at(o object, when time.Time) object {
	o["time"] = when
	return o
}

func overridden(o object) object {
	status := o["status"].(object)
	status["conditions"] = append(status["conditions"].([]object), object{"type": "Overridden", "status": "True", "message": "spec.timeout.request by WorkloadPolicy shop/limits"})
	return o
}

func change(w *World, position int, namespace, name, user string, field object) object {
	return object{"position": position, "time": w.Now.Add(-time.Duration(5000-position) * time.Second), "operation": "update", "resource": "services", "kind": "Service", "namespace": namespace, "name": name, "user": user, "fields": []object{field}}
}

func zonesOf(w *World) []string {
	var out []string
	for _, z := range w.Services[0].ByZone {
		out = append(out, string(z.Zone))
	}
	return out
}

func explanation(w *World) object {
	var zones []object
	all := zonesOf(w)
	for i, z := range all {
		zones = append(zones, object{"name": z, "demand": 1 / float64(len(all)), "weight": 3, "rule": "Own", "overload": 0.05 * float64(i), "to": []object{{"zone": z, "share": 0.9}, {"zone": all[(i+1)%len(all)], "share": 0.1}}})
	}
	return object{"limit": 1.2, "zones": zones, "metrics": object{"inZone": 0.9, "cost": 0.1, "worst": 1.1}}
}

func explained(w *World) object {
	var endpoints []object
	for i, z := range zonesOf(w) {
		endpoints = append(endpoints, object{"address": fmt.Sprintf("10.0.%d.7:8080", i), "node": z + "-0", "zone": z, "share": 1 / float64(len(zonesOf(w))), "reason": "Planned", "why": "its zone gets this share of the plan"})
	}
	return object{
		"service": w.Services[0].Namespace + "/" + w.Services[0].Name, "addresses": []string{"10.96.0.10"},
		"ports":    []object{{"name": "http", "port": 80, "protocol": "TCP", "families": []object{{"family": "IPv4", "rule": "Plan", "outcome": "connections are divided by the plan", "endpoints": endpoints}}}},
		"topology": object{"mode": "proxima.dev/Adaptive", "planned": true, "decision": "a plan is in effect", "plans": []object{{"ports": []string{"http"}, "family": "IPv4", "ageSeconds": 93, "reason": "EndpointsChanged", "measured": true, "connectionsPerSecond": 120, "plan": explanation(w), "now": object{"inZone": 0.9, "cost": 0.1, "worst": 1.1}, "gapPoints": 0.4}}},
	}
}

func simulated(w *World) object {
	return object{"unaffected": 3, "summary": object{"affected": 21, "services": 40, "before": object{"inZone": 0.9, "worst": 1.1}, "after": object{"inZone": 0.7, "worst": 1.19}, "busiest": "shop/web", "unserved": []string{"data/alone"}, "unservedCount": 1}, "services": []object{{
		"service": w.Services[0].Namespace + "/" + w.Services[0].Name, "ports": []string{"http"}, "family": "IPv4", "planned": true,
		"before": object{"inZone": 0.9, "cost": 0.1, "worst": 1.1}, "after": object{"inZone": 0.7, "cost": 0.3, "worst": 1.19}, "unplanned": object{"inZone": 0.6, "cost": 0.4, "worst": 1.9}, "plan": explanation(w),
	}}}
}
