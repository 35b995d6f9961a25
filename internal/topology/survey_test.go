package topology

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/hint"
	"github.com/proxima-mesh/proxima/internal/topology/traffic"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

// survey asks, and returns the one line of the answer.
func (r *rig) survey(q SurveyQuestion) (*Survey, Surveyed) {
	r.t.Helper()
	s, err := r.c.Survey(q)
	if err != nil || len(s.Services) != 1 {
		r.t.Fatalf("%+v, %v", s, err)
	}
	return s, s.Services[0]
}

var twoCents = &meshv1alpha1.ZonePrice{Currency: "USD", Region: 0.02, World: 0.04}

// TestSurvey: numbers that a reader can check. Demand is alike in three zones, and so are
// endpoints: kube-proxy keeps a third at home, a plan everything.
func TestSurvey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaabbbccc"), one(web()))...)
		s, l := r.survey(SurveyQuestion{Price: twoCents})
		if !near(l.KubeProxy.InZone, 1./3) || !near(l.Plan.InZone, 1) || !near(l.Gain, 2./3) || !near(l.KubeProxy.Worst, 1) ||
			l.Endpoints != 9 || l.Zones != 3 || l.Measured || l.Hints || l.Planned || l.Volume != "" || l.Money != nil {
			t.Errorf("%+v", l)
		}
		text := s.Text()
		for _, want := range []string{"shop/web", "33.3 % → 100.0 %", "+66.7", "volumes are unknown", "allocatable CPU", "nothing was applied"} {
			if !strings.Contains(text, want) {
				t.Errorf("the answer does not say %q:\n%s", want, text)
			}
		}
		entry := traffic.Entry{Namespace: "shop", Service: "web", GB: ptr.To(300.)}
		s, l = r.survey(SurveyQuestion{Price: twoCents, Traffic: []traffic.Entry{entry}})
		if l.GB == nil || !near(l.GB.Now, 200) || !near(l.GB.Planned, 0) || l.Money == nil || !near(l.Money.Now, 4) || !near(l.Money.Planned, 0) ||
			!near(*l.Saving, 4) || !near(s.Total.Saving, 4) || s.Total.Currency != "USD" || l.Volume != "Entered" {
			t.Errorf("300 GB: %+v, money %+v, total %+v", l.GB, l.Money, s.Total)
		}
		if text := s.Text(); !strings.Contains(text, "4.00 USD now, 0.00 USD by the plan, 4.00 USD saved") || !strings.Contains(text, "300 GB") {
			t.Error(text)
		}
		// Without a price the volume orders, and nothing is said of money.
		s, l = r.survey(SurveyQuestion{Traffic: []traffic.Entry{entry}})
		if l.GB == nil || l.Money != nil || !strings.Contains(s.Text(), "no price of traffic is known") {
			t.Errorf("%+v\n%s", l, s.Text())
		}
		// Connections become bytes only if it is known how many each carries.
		entry = traffic.Entry{Namespace: "shop", Service: "web", Connections: ptr.To(3e6)}
		_, l = r.survey(SurveyQuestion{Price: twoCents, Traffic: []traffic.Entry{entry}})
		if l.Connections == nil || !near(l.Connections.Now, 2e6) || l.GB != nil || l.Money != nil {
			t.Errorf("3e6 connections: %+v", l)
		}
		_, l = r.survey(SurveyQuestion{Price: twoCents, Traffic: []traffic.Entry{entry}, Bytes: []BytesEntered{{webKey, 1e5}}})
		if l.GB == nil || !near(l.GB.Amount, 300) || !near(*l.Saving, 4) {
			t.Errorf("3e6 connections of 100 kB: %+v", l)
		}
		// What agents measure counts where nothing is entered: 3 MB/s, two thirds of which cross.
		r.carry(evenly("abc", 1e6, 4, 10))
		_, l = r.survey(SurveyQuestion{Price: twoCents})
		if l.Volume != "Measured" || !near(l.GB.Amount, 3e6*2.63e6/1e9) || !near(l.GB.Now, 2e6*2.63e6/1e9) || math.Abs(*l.Saving-105.2) > 0.01 || !l.Measured {
			t.Errorf("measured: %+v, %+v", l, l.GB)
		}
	})
}

// TestSurveyByZones: where traffic starts and ends is taken as it is entered, and the plan is
// made for it.
func TestSurveyByZones(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("ab"), workloads("ab"), one(web()))...)
		way := func(from, to locality.Zone, gb float64) traffic.Entry {
			return traffic.Entry{Namespace: "shop", Service: "web", From: from, To: to, GB: &gb}
		}
		_, l := r.survey(SurveyQuestion{Price: twoCents, Traffic: []traffic.Entry{way("a", "a", 30), way("a", "b", 90), way("b", "a", 60), way("b", "b", 120)}})
		// 120 GB start in a, 180 in b: 0.6 of all is more than the limit lets b's endpoint take.
		if !near(l.KubeProxy.InZone, 0.5) || !near(l.GB.Now, 150) || !near(l.Money.Now, 3) || !l.Measured {
			t.Errorf("%+v, %+v, %+v", l, l.GB, l.Money)
		}
		want, err := r.c.Simulate(Change{Demand: []DemandChange{{webKey, "b", 1.5}}})
		if err != nil || !near(l.Plan.InZone, want.Services[0].After.InZone) || l.Plan.InZone > 0.999 {
			t.Errorf("in zone %.4f by the plan, want %.4f, %v", l.Plan.InZone, want.Services[0].After.InZone, err)
		}
		if !near(l.GB.Planned, 300*(1-l.Plan.InZone)) || !near(l.Money.Planned, 0.02*l.GB.Planned) {
			t.Errorf("%+v, %+v", l.GB, l.Money)
		}
		s, l := r.survey(SurveyQuestion{Traffic: []traffic.Entry{way("a", "a", 75), way("x", "a", 25)}})
		if !near(l.GB.Amount, 75) || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "25 % of the traffic of shop/web is from or to zones that no node is in") {
			t.Errorf("%+v, %q", l.GB, s.Warnings)
		}
	})
}

// TestSurveyFollowsHints: a Service that asks Kubernetes for hints is compared with what
// kube-proxy makes of them.
func TestSurveyFollowsHints(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := web()
		s.Spec.TrafficDistribution = ptr.To(corev1.ServiceTrafficDistributionPreferSameZone)
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaaaaaaaab"), one(s))...)
		answer, l := r.survey(SurveyQuestion{})
		// Two of three zones keep all; c has no endpoint, and spreads over ten.
		if !l.Hints || !near(l.KubeProxy.InZone, 2./3) || !near(l.KubeProxy.Worst, 10*(1./3+1./30)) {
			t.Errorf("%+v", l)
		}
		if l.Plan.Worst > 1.2+1e-6 || l.Gain >= 0 {
			t.Errorf("a plan does not overload b: %+v", l)
		}
		if text := answer.Text(); !strings.Contains(text, "66.7 %* → ") || !strings.Contains(text, "* by the hints of Kubernetes' own controller") {
			t.Error(text)
		}
	})
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("abc"), one(adaptive()))...)
		if _, l := r.survey(SurveyQuestion{}); l.Hints || !near(l.KubeProxy.InZone, 1./3) || !l.Planned {
			t.Errorf("hints that a plan gives are ours: %+v", l)
		}
	})
}

// TestSurveyOrder: by money, then by what is known, and what cannot be compared is counted.
func TestSurveyOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		named := func(name string, edit func(*corev1.Service)) *corev1.Service {
			s := web()
			s.Name, s.UID, s.Spec.Selector = name, "", nil
			if edit != nil {
				edit(s)
			}
			return s
		}
		objects := equalNodes("abc")
		for _, name := range []string{"rich", "poor", "talkative", "silent", "lone", "local", "other"} {
			zones := "abc"
			if name == "lone" { // nothing can be saved
				zones = "a"
			}
			edit := func(*corev1.Service) {}
			switch name {
			case "local":
				edit = func(s *corev1.Service) {
					s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
				}
			case "other":
				edit = func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }
			}
			objects = append(objects, named(name, edit), sliceOf(name, zones))
		}
		objects = append(objects, named("empty", nil))
		r := newRig(t, nil, objects...)
		entries := []traffic.Entry{
			{Namespace: "shop", Service: "poor", GB: ptr.To(10.)}, {Namespace: "shop", Service: "rich", GB: ptr.To(100.)},
			{Namespace: "shop", Service: "talkative", Connections: ptr.To(100.)}, {Namespace: "shop", Service: "gone", GB: ptr.To(100.)},
			{Namespace: "shop", Service: "local", GB: ptr.To(100.)},
		}
		s, err := r.c.Survey(SurveyQuestion{Price: twoCents, Traffic: entries})
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		for _, l := range s.Services {
			order = append(order, strings.TrimPrefix(l.Service, "shop/"))
		}
		if want := []string{"rich", "poor", "talkative", "silent", "lone"}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
		if s.Total.Services != 5 || s.Total.WithVolume != 3 || s.Total.WithMoney != 2 || len(s.NotCompared) != 3 {
			t.Errorf("%+v, %+v", s.Total, s.NotCompared)
		}
		text := s.Text()
		for _, want := range []string{
			"not compared: 1 service headless", "not compared: 1 service without a ready endpoint", "internalTrafficPolicy Local",
			"warning: the traffic names Services that do not exist: shop/gone", "warning: traffic of shop/local is not counted", "unknown",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("the answer does not say %q:\n%s", want, text)
			}
		}
		top, err := r.c.Survey(SurveyQuestion{Top: 2, Price: twoCents, Traffic: entries})
		if err != nil || len(top.Services) != 2 || top.Total != s.Total || !strings.Contains(top.Text(), "5 services compared, 2 shown") {
			t.Errorf("%+v, %v", top, err)
		}
	})
}

// TestKubeProxyShares: shares and metrics of kube-proxy are of one mind, with hints and without.
func TestKubeProxyShares(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		n := 1 + random.IntN(4)
		var zones []planner.Zone
		for z := range n {
			zones = append(zones, planner.Zone{Name: locality.Zone('a' + rune(z)), Region: "eu"})
		}
		topology, err := planner.NewTopology(zones, planner.Costs{})
		if err != nil {
			t.Fatal(err)
		}
		k := &kubeProxy{topology: topology}
		for range 1 + random.IntN(6) {
			k.endpoints = append(k.endpoints, random.IntN(n))
			k.masks = append(k.masks, hint.Mask(1+random.IntN(1<<n-1)))
		}
		if random.IntN(2) == 0 {
			k.masks = nil
		}
		s := &solution{}
		for range n {
			s.problem.Demand = append(s.problem.Demand, 1/float64(n))
		}
		home := 0.0
		for from := range n {
			sum := 0.0
			for to := range n {
				sum += k.share(from, to)
			}
			if !near(sum, 1) {
				t.Fatalf("%+v: shares from %d are %g together", k, from, sum)
			}
			home += s.problem.Demand[from] * k.share(from, from)
		}
		if m := k.metrics(s); !near(m.InZone, home) {
			t.Fatalf("%+v: %g in zone, by shares %g", k, m.InZone, home)
		}
	}
}

// TestPlansAlone: plans are made, and nothing else is written.
func TestPlansAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.PlansAlone, c.DefaultMode = true, Adaptive }, all(equalNodes("abc"), workloads("abc"), one(web()))...)
		r.carry(demand.Volume{})
		if got := len(r.service().Status.Conditions); got != 0 {
			t.Errorf("%d conditions", got)
		}
		r.wantEvents("plans alone")
		report, ok := r.c.Explain(webKey)
		if !ok || !report.Planned || !strings.Contains(report.Decision, "100.0 % stays in its zone") {
			t.Errorf("%+v", report)
		}
	})
}

// TestSurveyWithoutEndpoints: there is nothing to compare where no endpoint is ready.
func TestSurveyWithoutEndpoints(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("ABC"), one(web()))...) // none is ready
		s, err := r.c.Survey(SurveyQuestion{})
		if err != nil || len(s.Services) != 0 || len(s.NotCompared) != 1 || s.NotCompared[0].Reason != reasonNoEndpoints {
			t.Errorf("%+v, %v", s, err)
		}
	})
}
