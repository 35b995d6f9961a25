package finding

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/audit"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/controller/loadbalancer"
	"github.com/proxima-mesh/proxima/internal/controller/nodename"
	"github.com/proxima-mesh/proxima/internal/controller/policystatus"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/version"
)

var now = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

var finder = Finder{ProbePort: 10256, Now: func() time.Time { return now }}

// healthy is a status without a problem, changed.
func healthy(change func(*admin.Status)) *admin.Status {
	s := &admin.Status{Role: "standalone"}
	s.Catalog.Synced = true
	if change != nil {
		change(s)
	}
	return s
}

func subscribed(connected bool) []meshv1alpha1.Subscription {
	ended := metav1.NewMicroTime(now.Add(-time.Hour))
	if connected {
		return []meshv1alpha1.Subscription{{ID: "x"}}
	}
	return []meshv1alpha1.Subscription{{ID: "x", DisconnectTime: &ended}}
}

// statuses has one for each code that a status can have.
var statuses = map[problem.Code]struct {
	status *admin.Status
	// object, severity and a part of the text of the first problem.
	object   string
	severity admin.Severity
	text     string
}{
	problem.StoreUnwritable: {healthy(func(s *admin.Status) { s.Store.Problem = "disk full" }), "", "error", "writes are refused"},
	problem.StoreUnreachable: {healthy(func(s *admin.Status) { s.Preset, s.Store.Problem = "zone", "forbidden" }), "", "error",
		"answers are from what was read before"},
	problem.StoreDamaged: {healthy(func(s *admin.Status) { s.Store.Unreadable = map[string]string{"services": "bad row"} }), "services", "error", "services cannot be read"},
	problem.AuditUnwritable: {healthy(func(s *admin.Status) {
		s.Audit = audit.States{"audit": {Problem: "disk full", Since: new(now.Add(-time.Minute)), Lost: 3}}
	}), "audit.log", "error", "3 records are lost"},
	problem.FeedUnwritable: {healthy(func(s *admin.Status) { s.Feed = &admin.FeedStatus{SinkProblems: map[string]string{"cmdb": "503"}} }), "cmdb", "error",
		"sink cmdb of the change feed does not deliver"},
	problem.NodeSuspect: {healthy(func(s *admin.Status) {
		s.Suspects = []admin.SuspectNode{{Node: "b-1", Since: now.Add(-7 * time.Second), Witnesses: []string{"b-2", "a-1"}}}
	}), "Node b-1", "error", "node b-1 has been suspect for 7s: its stream stalled and it does not answer b-2, a-1"},
	problem.AgentRefused: {healthy(func(s *admin.Status) { s.Refused = []version.Refusal{{Name: "c", Reason: "too new"}} }), "Node c", "error", "too new"},
	problem.LeasesHeld: {healthy(func(s *admin.Status) {
		s.Leases.Expiries = []admin.HeldExpiry{{Object: "dataplane shop/web", Reason: "service shop/web has no other endpoint"}}
	}), "Dataplane shop/web", "warning", "until it renews its lease: service shop/web has no other endpoint"},
	problem.ProbesBlocked:         {healthy(func(s *admin.Status) { s.Unreachable = []string{"a-1", "c-1"} }), "Node a-1", "warning", "do not reach node a-1, c-1"},
	problem.AddressInServiceRange: {healthy(func(s *admin.Status) { s.InServiceRanges = []string{"shop/web"} }), "Dataplane shop/web", "error", "in a service range"},
	problem.CatalogPending:        {healthy(func(s *admin.Status) { s.Catalog.Synced = false }), "", "warning", "still reading"},
	problem.RangeNearlyFull: {healthy(func(s *admin.Status) { s.Ranges = []ipam.Usage{{Range: "10.96.0.0/24", Size: 100, Taken: 90}} }), "10.96.0.0/24", "warning",
		"90 of 100"},
	problem.InstanceSilent: {healthy(func(s *admin.Status) { s.SilentInstances = []string{"cp-2"} }), "cp-2", "error", "instance cp-2"},
	problem.AgentRejects:   {healthy(func(s *admin.Status) { s.Agents = []admin.AgentStatus{{Node: "b", Rejected: "no address"}} }), "Node b", "error", "no address"},
	problem.ProxyRejects: {healthy(func(s *admin.Status) {
		s.Proxies = &admin.ProxiesStatus{Rejected: []admin.ProxyRejection{{Dataplane: "shop/web", Type: "Cluster", Name: "x", Reason: "bad"}}}
	}), "Dataplane shop/web", "error", "Cluster x, which was rejected: bad"},
	problem.SidecarMissing: {healthy(func(s *admin.Status) { s.Proxies = &admin.ProxiesStatus{Missing: 2, Without: []string{"shop/a"}} }), "Pod shop/a", "error",
		"2 Pods should have a sidecar"},
	problem.SidecarNotRedirected: {healthy(func(s *admin.Status) {
		s.Proxies = &admin.ProxiesStatus{Unredirected: 1, Waiting: []admin.WaitingPod{{Pod: "shop/a", Node: "n", Reason: "no netns"}}}
	}), "Pod shop/a", "error", "no netns"},
	problem.DemandSilent: {healthy(func(s *admin.Status) {
		s.Demand = demand.Coverage{Silent: 2, SilentNodes: []demand.AgentDemand{{Node: "b", Age: 2 * time.Minute}}}
	}), "Node b", "warning", "2 agents have stopped reporting, node b first, 2m ago"},
	problem.RegistryTrouble: {healthy(func(s *admin.Status) {
		s.RegistryTroubles = []registry.Trouble{{Reason: registry.Loopback, Protocol: registry.Nacos, Count: 2}}
	}), "nacos", "warning", "2 instances of nacos have loopback addresses"},
	problem.ZonesApart: {healthy(func(s *admin.Status) {
		s.Federation = zoneIs(true, &meshv1alpha1.ZoneInsightStatus{Subscriptions: subscribed(false)})
	}), "Zone b", "error", "zone b is offline since 60m"},
	problem.ZoneRefused: {healthy(func(s *admin.Status) { s.Federation = refusedZone }), "Zone b", "error", "too old"},
	problem.DeletionsHeld: {healthy(func(s *admin.Status) {
		s.Federation = zoneIs(true, &meshv1alpha1.ZoneInsightStatus{Online: true, Subscriptions: subscribed(true), Types: []meshv1alpha1.TypeSync{{Type: "/Service", Held: 9}}})
	}), "Zone b", "error", "9 deletions of Service are held"},
	problem.ObjectRefused: {healthy(func(s *admin.Status) {
		s.Federation = zoneIs(true, &meshv1alpha1.ZoneInsightStatus{Online: true, Types: []meshv1alpha1.TypeSync{{
			Type: "/Service", Direction: meshv1alpha1.SyncToZone, Refused: []meshv1alpha1.SyncRefusal{{Name: "shop/web", Reason: "too long"}},
		}}})
	}), "Service shop/web", "error", "zone b refuses Service shop/web: too long"},
}

func TestOfStatus(t *testing.T) {
	if got := finder.OfStatus(healthy(nil)); len(got) > 0 {
		t.Errorf("problems where there are none: %+v", got)
	}
	for code, want := range statuses {
		got := finder.OfStatus(want.status)
		if len(got) != 1 || got[0].Code != string(code) || got[0].Object() != want.object || got[0].Severity != want.severity || !strings.Contains(got[0].Problem, want.text) {
			t.Errorf("%s: %+v, want %+v", code, got, want)
			continue
		}
		if got[0].Fix == "" && code != problem.CatalogPending {
			t.Errorf("%s has no fix", code)
		}
	}
}

func condition(typ, status, reason string, age time.Duration) metav1.Condition {
	return metav1.Condition{
		Type: typ, Status: metav1.ConditionStatus(status), Reason: reason, Message: "because " + reason, LastTransitionTime: metav1.NewTime(now.Add(-age)),
	}
}

func serviceWith(c metav1.Condition) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Status: corev1.ServiceStatus{Conditions: []metav1.Condition{c}}}
}

func nodeWith(c corev1.NodeCondition) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, c,
	}}}
}

func permissionWith(c metav1.Condition) *meshv1alpha1.TrafficPermission {
	return &meshv1alpha1.TrafficPermission{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"}, Status: meshv1alpha1.TrafficPolicyStatus{Conditions: []metav1.Condition{c}},
	}
}

// objects has cases for each code that conditions can have.
var objects = []struct {
	code     problem.Code // empty: it is no problem
	obj      resource.Object
	object   string
	severity admin.Severity
}{
	{problem.NodeNotReady, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, "Node b", "error"},
	{problem.NodeNameTaken, nodeWith(corev1.NodeCondition{Type: nodename.Conflict, Status: corev1.ConditionTrue, Message: "10.0.0.9", LastHeartbeatTime: metav1.Now()}), "Node b", "error"},
	{problem.TopologyModeRefused, serviceWith(condition(topology.ConditionPlan, "False", topology.ReasonHintsDisabled, time.Hour)), "Service shop/web", "warning"},
	{"", serviceWith(condition(topology.ConditionPlan, "True", topology.ReasonPlanned, time.Hour)), "", ""},
	{"", serviceWith(condition(topology.ConditionPlan, "False", topology.ReasonNoEndpoints, time.Hour)), "", ""},
	{problem.TopologyParametersInvalid, serviceWith(condition(topology.ConditionParameters, "False", topology.ReasonInvalid, time.Hour)), "Service shop/web", "error"},
	{problem.ConnectionsLong, serviceWith(condition(topology.ConditionLong, "True", topology.ReasonLongConnections, time.Hour)), "Service shop/web", "warning"},
	{problem.DemandUnitsMixed, serviceWith(condition(topology.ConditionUnits, "True", topology.ReasonUnitsMixed, time.Hour)), "Service shop/web", "warning"},
	{problem.LoadBalancerPending, serviceWith(condition(loadbalancer.ConditionAddresses, "False", "NoPool", time.Hour)), "Service shop/web", "error"},
	{problem.PolicyNotAccepted, permissionWith(condition(meshv1alpha1.PolicyAccepted, "False", policystatus.ReasonInvalid, time.Hour)), "TrafficPermission shop/p", "error"},
	{problem.PolicyUnresolved, permissionWith(condition(meshv1alpha1.PolicyResolvedRefs, "False", policystatus.ReasonTargetNotFound, time.Hour)), "TrafficPermission shop/p", "error"},
	{problem.PolicyNotProgrammed, permissionWith(condition(meshv1alpha1.PolicyProgrammed, "False", policystatus.ReasonPending, time.Minute)), "TrafficPermission shop/p", "error"},
	{"", permissionWith(condition(meshv1alpha1.PolicyProgrammed, "False", policystatus.ReasonPending, time.Second)), "", ""},
	{problem.PolicyPartlyEnforced, permissionWith(condition(meshv1alpha1.PolicyPartiallyEnforced, "True", policystatus.ReasonNotEnforced, time.Hour)), "TrafficPermission shop/p", "warning"},
	{problem.PolicyNotAccepted, &meshv1alpha1.ZoneCosts{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Status: meshv1alpha1.PolicyStatus{
		Zones: []meshv1alpha1.PolicyZoneStatus{{Zone: "z", Conditions: []metav1.Condition{condition(meshv1alpha1.PolicyAccepted, "False", "Invalid", time.Hour)}}},
	}}, "ZoneCosts c", "error"},
	{problem.PolicyUnresolved, &meshv1alpha1.TopologyHeuristic{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Status: meshv1alpha1.PolicyStatus{
		Conditions: []metav1.Condition{condition(meshv1alpha1.PolicyResolved, "False", topology.ReasonRuleFailed, time.Hour)},
	}}, "TopologyHeuristic h", "error"},
	{problem.PolicyNotAccepted, &gateway.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "r"}, Status: gateway.HTTPRouteStatus{
		RouteStatus: gateway.RouteStatus{Parents: []gateway.RouteParentStatus{{
			ControllerName: policystatus.ControllerName, ParentRef: gateway.ParentReference{Name: "web"},
			Conditions: []metav1.Condition{condition("Accepted", "False", "NoMatchingParent", time.Hour)},
		}}},
	}}, "HTTPRoute shop/r", "error"},
}

// TestOfTables: each condition is found under its code, from the tables as a control plane has them.
func TestOfTables(t *testing.T) {
	for _, c := range objects {
		client := resourcetest.New(kind.All()...)
		client.Seed(c.obj)
		world := catalog.New(catalog.Config{Client: client, Descriptors: kind.All()})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- world.Run(ctx) }()
		if err := world.WaitSynced(ctx); err != nil {
			t.Fatal(err)
		}
		got := finder.Find(healthy(nil), world.Snapshot())
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if c.code == "" {
			if len(got) > 0 {
				t.Errorf("%T: %+v, which is no problem", c.obj, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Code != string(c.code) || got[0].Object() != c.object || got[0].Severity != c.severity || got[0].Fix == "" {
			t.Errorf("%s: %+v, want %s, %s", c.code, got, c.object, c.severity)
			continue
		}
		if got[0].Kind != "Node" && got[0].Since.IsZero() {
			t.Errorf("%s does not say since when", c.code)
		}
	}
}

// TestCodesAreDocumented: what is found has a row in the reference of problems.
func TestCodesAreDocumented(t *testing.T) {
	known := map[problem.Code]bool{}
	for _, d := range problem.Definitions() {
		known[d.Code] = true
	}
	codes := slices.Collect(maps.Keys(statuses))
	for _, c := range objects {
		codes = append(codes, c.code)
	}
	for _, code := range codes {
		if code != "" && !known[code] {
			t.Errorf("%s is not documented", code)
		}
	}
}

// TestMerged: a code and an object are there once, as streams name problems by them.
func TestMerged(t *testing.T) {
	s := healthy(func(s *admin.Status) {
		s.Proxies = &admin.ProxiesStatus{Rejected: []admin.ProxyRejection{
			{Dataplane: "shop/web", Type: "Cluster", Name: "x", Reason: "bad"}, {Dataplane: "shop/web", Type: "Listener", Name: "y", Reason: "worse"},
		}}
		s.Leases.Held, s.Leases.Reason = true, "4 of 12 leases ran out together"
		s.Leases.Expiries = make([]admin.HeldExpiry, maxExpiries+3)
	})
	got := finder.Find(s, catalog.New(catalog.Config{Client: resourcetest.New(kind.All()...), Descriptors: kind.All()}).Snapshot())
	slices.SortFunc(got, func(a, b admin.Problem) int { return cmp.Compare(a.Code+a.Object(), b.Code+b.Object()) })
	if len(got) != 3 || !strings.Contains(got[2].Problem, "bad; ") || !strings.HasSuffix(got[2].Problem, "worse") || strings.Contains(got[2].Fix, ";") ||
		!strings.Contains(got[0].Problem, "3 more expiries") {
		t.Errorf("%+v", got)
	}
}
