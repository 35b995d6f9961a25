package doctor

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag/refusal"
	"github.com/proxima-mesh/proxima/internal/problem"
)

func TestProxies(t *testing.T) {
	now := time.Now()
	proxy := func(name string, edit func(*meshv1alpha1.DataplaneInsight)) *meshv1alpha1.DataplaneInsight {
		i := &meshv1alpha1.DataplaneInsight{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		i.Status.Online = true
		i.Status.Versions = &meshv1alpha1.ProxyVersions{Supervisor: "v1.2.0"}
		i.Status.Certificate = &meshv1alpha1.CertificateInsight{LastIssue: metav1.NewTime(now), Expiry: metav1.NewTime(now.Add(24 * time.Hour))}
		edit(i)
		return i
	}
	issued := func(ago time.Duration) func(*meshv1alpha1.DataplaneInsight) {
		return func(i *meshv1alpha1.DataplaneInsight) {
			i.Status.Certificate.LastIssue = metav1.NewTime(now.Add(-ago))
			i.Status.Certificate.Expiry = metav1.NewTime(now.Add(24*time.Hour - ago))
		}
	}
	version := func(v string) func(*meshv1alpha1.DataplaneInsight) {
		return func(i *meshv1alpha1.DataplaneInsight) { i.Status.Versions.Supervisor = v }
	}
	rejects := func(i *meshv1alpha1.DataplaneInsight) {
		i.Status.Rejected = []meshv1alpha1.RejectedResource{{Type: "Cluster", Name: "shop/api:80", Policy: "ProxyPatch shop/p", Error: "no"}}
	}
	foreign := func(i *meshv1alpha1.DataplaneInsight) {
		version("v1.1.0")(i)
		i.Labels = map[string]string{meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone}
	}
	of := func(what any) Proxy {
		if i, ok := what.(*meshv1alpha1.DataplaneInsight); ok {
			return Proxy{i.Namespace + "/" + i.Name, i.Labels[meshv1alpha1.LabelOrigin] != "", &i.Status}
		}
		return what.(Proxy)
	}
	for name, test := range map[string]struct {
		of   any
		code problem.Code // "": all is well
		want string
	}{
		"new":          {proxy("web", issued(0)), "", ""},
		"in time":      {proxy("web", issued(17*time.Hour)), "", ""},
		"near its end": {proxy("web", issued(19*time.Hour)), problem.ProxyCertificateEnds, "shop/web (5h left)"},
		"expired":      {proxy("web", issued(25*time.Hour)), problem.ProxyCertificateEnds, "shop/web (expired)"},
		"rejects":      {proxy("web", rejects), problem.ProxyRejects, "shop/web: Cluster shop/api:80 of ProxyPatch shop/p"},
		"a gRPC program rejects": {proxy("web", func(i *meshv1alpha1.DataplaneInsight) {
			rejects(i)
			i.Status.Versions = &meshv1alpha1.ProxyVersions{Proxy: "gRPC Go", Version: "1.85.0"}
		}), problem.ProxyRejects, "shop/web: Cluster shop/api:80"},
		"an Envoy without a supervisor rejects": {proxy("web", func(i *meshv1alpha1.DataplaneInsight) {
			rejects(i)
			i.Status.Versions, i.Status.Certificate = &meshv1alpha1.ProxyVersions{Proxy: "envoy"}, nil
		}), problem.ProxyRejects, "shop/web: Cluster shop/api:80"},
		"a gateway rejects": {Proxy{Name: "*/in-1", Status: &meshv1alpha1.ClientInsightStatus{Online: true,
			Versions: &meshv1alpha1.ProxyVersions{Proxy: "envoy", Supervisor: "v1.2.0"}, Rejected: []meshv1alpha1.RejectedResource{{Type: "Cluster", Name: "sni|x"}}}},
			problem.ProxyRejects, "*/in-1: Cluster sni|x"},
		"older":            {proxy("web", version("v1.1.9")), problem.ProxyOutdated, "shop/web (v1.1.9)"},
		"newer":            {proxy("web", version("v1.3.0")), "", ""},
		"no supervisor":    {proxy("web", version("")), "", ""},
		"of another plane": {proxy("web", foreign), "", ""},
		"an old gateway": {
			Proxy{Name: "*/in-1", Status: &meshv1alpha1.ClientInsightStatus{Online: true, Versions: &meshv1alpha1.ProxyVersions{Proxy: "proxima", Version: "v1.1.0"}}},
			problem.ProxyOutdated, "*/in-1 (v1.1.0)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			found := problem.Code("")
			for _, f := range proxyFindings([]Proxy{of(test.of)}, "v1.2.0", now) {
				if f.Problem == "" {
					continue
				}
				if found = f.Code; !strings.Contains(f.Problem, test.want) || f.Fix == "" {
					t.Errorf("%+v, want %q", f, test.want)
				}
			}
			if found != test.code {
				t.Errorf("code %q, want %q", found, test.code)
			}
		})
	}
	if got := someOf([]string{"f", "e", "d", "c", "b", "a"}); got != "a; b; c; d; e and 1 more" {
		t.Error(got)
	}
}

// TestSidecars: Pods without the sidecar that they should have, and those that cannot use it, are findings
// of their own.
func TestSidecars(t *testing.T) {
	if got := sidecars(nil); got != nil {
		t.Errorf("without sidecars: %+v", got)
	}
	if got := sidecars(&admin.ProxiesStatus{}); len(got) != 1 || got[0].Problem != "" {
		t.Errorf("all is well: %+v", got)
	}
	got := sidecars(&admin.ProxiesStatus{
		Missing: 7, Without: []string{"shop/a", "shop/b"},
		Unredirected: 1, Waiting: []admin.WaitingPod{{Pod: "shop/c", Node: "n1", Reason: "no nf_tables"}},
	})
	if len(got) != 2 || got[0].Code != problem.SidecarMissing || !strings.HasSuffix(got[0].Problem, "none: shop/a; shop/b and 5 more") || got[0].Fix == "" {
		t.Errorf("%+v", got)
	}
	if len(got) != 2 || got[1].Code != problem.SidecarNotRedirected || !strings.HasSuffix(got[1].Problem, "shop/c on node n1 (no nf_tables)") || got[1].Fix == "" {
		t.Errorf("%+v", got)
	}
}

// TestRefusals: who refuses is named, with the cause, the policies, and the count.
func TestRefusals(t *testing.T) {
	if f := refusalFinding(nil, 0); f.Problem != "" || f.Note != "none is refused now" {
		t.Errorf("%+v", f)
	}
	status := func(online bool, supervisor string) *meshv1alpha1.ClientInsightStatus {
		return &meshv1alpha1.ClientInsightStatus{Online: online, Versions: &meshv1alpha1.ProxyVersions{Supervisor: supervisor}}
	}
	n := unsupervised([]Proxy{
		{Name: "shop/a", Status: status(true, "")}, {Name: "shop/b", Status: status(true, "v1")}, {Name: "shop/c", Status: status(false, "")},
		{Name: "shop/d", Status: status(true, ""), Copied: true}, {Name: "*/in-1", Status: status(true, "")}, {Name: "shop/e", Status: &meshv1alpha1.ClientInsightStatus{Online: true}},
	})
	if f := refusalFinding(nil, n); f.Problem != "" || !strings.Contains(f.Note, "2 have none") {
		t.Errorf("%d without a supervisor: %+v", n, f)
	}
	f := refusalFinding([]Refusal{{
		Workload: "shop/api-1", Policies: []string{"TrafficPermission shop/no"},
		Counts: []refusal.Count{{Cause: refusal.Permission, Count: 3}, {Cause: refusal.Plain, Port: 8080, Count: 2}},
	}, {Workload: "shop/web-1", Counts: []refusal.Count{{Cause: refusal.Outside, Count: 1}}}}, 1)
	for _, want := range []string{
		"shop/api-1 refuses by TrafficPermission shop/no (3)", "shop/api-1 refuses at port 8080 in mode Strict", "shop/web-1 calls addresses outside the mesh",
	} {
		if !strings.Contains(f.Problem, want) {
			t.Errorf("no %q in %q", want, f.Problem)
		}
	}
	if f.Code != problem.ProxyRefuses || !strings.Contains(f.Fix, "proxima explain connection") {
		t.Errorf("%+v", f)
	}
}
