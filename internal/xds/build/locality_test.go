package build

import (
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// TestPreferences: who is used first, and who next, by what a policy says.
func TestPreferences(t *testing.T) {
	at := func(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }
	a, b, c := proxy.Target{Addr: at("10.0.0.1:80"), Zone: "a"}, proxy.Target{Addr: at("10.0.0.2:80"), Zone: "b"}, proxy.Target{Addr: at("10.0.0.3:80"), Zone: "c"}
	to := &beyond{remote: &sites.Remote{}, ways: []way{
		{site: "s2", instances: 1, weight: 1, gateways: []netip.AddrPort{at("10.1.0.1:1")}, proxied: true},
		{site: "s3", instances: 1, weight: 1, gateways: []netip.AddrPort{at("10.2.0.1:1")}, proxied: true},
	}}
	rule := func(to proxy.FailoverTo, zones ...locality.Zone) *proxy.Failover {
		return &proxy.Failover{To: to, Zones: zones}
	}
	const (
		own  = "0 a/s=10000(10.0.0.1*1)"
		away = " 2 site:*/s2=5000(10.1.0.1*1:mtls) 2 site:*/s3=5000(10.2.0.1*1:mtls)"
	)
	all := proxy.Choice{Cluster: []proxy.Target{a, b, c}, Why: proxy.AllReady}
	planned := proxy.Choice{Cluster: []proxy.Target{a, b}, Fallback: []proxy.Target{c}, Why: proxy.ZoneHints}
	for name, tc := range map[string]struct {
		choice proxy.Choice
		prefer preferences
		want   string
	}{
		"strict":                  {all, preferences{Preference: choose.Preference{Strict: true, Zone: "a"}}, own},
		"strict, planned away":    {proxy.Choice{Cluster: []proxy.Target{b}, Fallback: []proxy.Target{a, c}, Why: proxy.ZoneHints}, preferences{Preference: choose.Preference{Strict: true, Zone: "a"}}, own},
		"strict, nothing there":   {all, preferences{Preference: choose.Preference{Strict: true, Zone: "d"}}, ""},
		"none":                    {all, preferences{Preference: choose.Preference{Zone: "a", Failover: rule(proxy.FailoverNone)}}, own},
		"a zone":                  {all, preferences{Preference: choose.Preference{Zone: "a", Failover: rule(proxy.FailoverOnly, "c")}}, own + " 1 c/s=10000(10.0.0.3*1)"},
		"a site":                  {all, preferences{Preference: choose.Preference{Zone: "a", Failover: rule(proxy.FailoverOnly, "s3")}}, own + " 1 site:*/s3=10000(10.2.0.1*1:mtls)"},
		"this site":               {all, preferences{Preference: choose.Preference{Zone: "a", Failover: rule(proxy.FailoverOnly, "s")}}, own + " 1 b/s=5000(10.0.0.2*1) 1 c/s=5000(10.0.0.3*1)"},
		"all but a zone":          {all, preferences{Preference: choose.Preference{Zone: "a", Failover: rule(proxy.FailoverAnyExcept, "b", "s2")}}, own + " 1 c/s=10000(10.0.0.3*1) 2 site:*/s3=10000(10.2.0.1*1:mtls)"},
		"any":                     {all, preferences{Preference: choose.Preference{Zone: "a", Failover: rule(proxy.FailoverAny)}}, own + " 1 b/s=5000(10.0.0.2*1) 1 c/s=5000(10.0.0.3*1)" + away},
		"a plan goes before":      {planned, preferences{Preference: choose.Preference{Zone: "a", Failover: rule(proxy.FailoverNone)}}, "0 a/s=5000(10.0.0.1*1) 0 b/s=5000(10.0.0.2*1)"},
		"no zone of its own used": {all, preferences{Preference: choose.Preference{Zone: "d", Failover: rule(proxy.FailoverOnly, "b")}}, "0 b/s=10000(10.0.0.2*1)"},
		"labels": {proxy.Choice{Cluster: []proxy.Target{a, {Addr: at("10.0.0.4:80"), Zone: "a", Weight: 2}}}, preferences{Preference: choose.Preference{Strict: true, Zone: "a"}, weight: func(t proxy.Target) uint32 {
			if t.Addr == a.Addr {
				return 9
			}
			return 1
		}}, "0 a/s=10000(10.0.0.1*9 10.0.0.4*2)"},
	} {
		got := shown(loadAssignment(&assignment{
			name: "x", site: "s", choice: &tc.choice, beyond: to, prefer: tc.prefer, live: func(netip.AddrPort) bool { return false },
		}))
		if got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, tc.want)
		}
	}
}

// TestWeigh: the sum of weights is one that Envoy takes.
func TestWeigh(t *testing.T) {
	got := weigh([]uint64{1 << 40, 1 << 39, 1})
	if sum := uint64(got[0]) + uint64(got[1]) + uint64(got[2]); sum > 1<<32-1 || got[2] != 1 || got[0] < got[1]*2-2 {
		t.Errorf("%d", got)
	}
}

// TestConsumerLocality: clients of a namespace have endpoints of their own by its policies, and only
// as long as those say something else than the producer's.
func TestConsumerLocality(t *testing.T) {
	w := newWorld(t, testService("web", "10.96.0.1"), testDataplane("c", "10.0.0.9", map[string]string{AnnotationBackends: "web"}))
	foreign := testDataplane("d", "10.0.0.8", map[string]string{AnnotationBackends: "shop/web"})
	foreign.Namespace = "other"
	w.seed(foreign)
	c := w.connect("c", Sidecar)
	d, err := w.builder.Connect(catalog.Key{Namespace: "other", Name: "d"}, Sidecar)
	if err != nil {
		t.Fatal(err)
	}
	name := w.builder.portsOf(catalog.Key{Namespace: "shop", Name: "web"})[0].String()
	endpoints := func(c *Connection) string {
		return w.builder.classCluster(c, name).GetEdsClusterConfig().GetServiceName()
	}
	check := func(when, own, others string) {
		t.Helper()
		if x, y := endpoints(c), endpoints(d); x != own || y != others {
			t.Errorf("%s: endpoints %s and %s, want %s and %s", when, x, y, own, others)
		}
	}
	check("without policies", name, name)
	policy := func(namespace, mode string) *meshv1alpha1.BackendPolicy {
		return &meshv1alpha1.BackendPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p", Generation: 1},
			Spec: meshv1alpha1.BackendPolicySpec{
				PolicyTarget: meshv1alpha1.PolicyTarget{TargetRefs: []meshv1alpha1.PolicyTargetReference{{Kind: "Service", Namespace: "shop", Name: "web"}}},
				Locality:     &meshv1alpha1.BackendLocality{Mode: mode},
			},
		}
	}
	w.seed(policy("other", meshv1alpha1.LocalityOff))
	check("a consumer's policy", name, name+"@other")
	d.Config.Source.Want(delta.Ref{Type: EndpointType, Name: name + "@other"})
	units := w.builder.zones[zoneKey{}].units
	uses := units[delta.Ref{Type: EndpointType, Name: name + "@other"}].uses
	c.Config.Source.Want(delta.Ref{Type: EndpointType, Name: name + "@other"}) // which is not its own
	if is := units[delta.Ref{Type: EndpointType, Name: name + "@other"}].uses; is != uses || is == 0 {
		t.Errorf("a proxy of another namespace uses them: %d uses, before %d", is, uses)
	}
	w.seed(policy("shop", meshv1alpha1.LocalityOff))
	check("the producer says the same", name, name)
}
