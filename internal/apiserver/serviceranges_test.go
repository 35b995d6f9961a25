package apiserver_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// An address in a service range is a Service's: no workload may have it, slices
// that people write are answered with a warning, and a new range names what it
// covers.
func TestAddressesInServiceRanges(t *testing.T) {
	kept := memory.New(memory.Options{})
	defer kept.Close()
	s, err := start(kept)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	header := http.Header{"Content-Type": {"application/json"}}
	dataplanes := "/apis/mesh.proxima.dev/v1alpha1/namespaces/default/dataplanes"
	dataplane := func(name, address string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"addresses":[%q]}}`, name, address)
	}
	refused := func(method, path, body string) {
		t.Helper()
		if code, answer := s.do(t, method, path, "admin", header, body); code != http.StatusUnprocessableEntity ||
			!strings.Contains(answer, "service range") {
			t.Errorf("%s %s: %d %s", method, path, code, answer)
		}
	}
	accepted := func(method, path, body string) {
		t.Helper()
		if code, answer := s.do(t, method, path, "admin", header, body); code > 299 {
			t.Errorf("%s %s: %d %s", method, path, code, answer)
		}
	}
	refused("POST", dataplanes, dataplane("vip", "10.96.0.9"))
	accepted("POST", dataplanes, dataplane("early", "10.97.0.9"))
	refused("PUT", dataplanes+"/early", dataplane("early", "10.96.0.9"))

	slices := "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
	slice := `{"metadata":{"name":"manual","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4","endpoints":[{"addresses":["10.96.0.9"]},{"addresses":["10.0.0.9"]}]}`
	if w := s.warnings(t, "POST", slices, slice); !strings.Contains(w, "endpoints in a service range: 10.96.0.9;") {
		t.Errorf("slice: warnings %q", w)
	}

	cidrs := "/apis/networking.k8s.io/v1/servicecidrs"
	if w := s.warnings(t, "POST", cidrs, `{"metadata":{"name":"more"},"spec":{"cidrs":["10.97.0.0/24"]}}`); !strings.Contains(w,
		"dataplane default/early") {
		t.Errorf("range: warnings %q", w)
	}
	// The range takes effect in a moment; what it covers may stay, nothing comes in.
	awaitRefusal(t, s, dataplanes, dataplane("late", "10.97.0.10"))
	accepted("PUT", dataplanes+"/early", `{"metadata":{"name":"early","labels":{"a":"b"}},"spec":{"addresses":["10.97.0.9"]}}`)
	refused("PUT", dataplanes+"/early", dataplane("early", "10.97.0.11"))
}

// awaitRefusal creates an object, dry, until that is refused.
func awaitRefusal(t *testing.T, s *server, path, body string) {
	t.Helper()
	for t.Context().Err() == nil {
		code, answer := s.do(t, "POST", path+"?dryRun=All", "admin", http.Header{"Content-Type": {"application/json"}}, body)
		if code == http.StatusUnprocessableEntity {
			return
		}
		if code != http.StatusCreated {
			t.Fatalf("%d %s", code, answer)
		}
	}
}

// warnings of a write that must succeed.
func (s *server) warnings(t *testing.T, method, path, body string) string {
	t.Helper()
	client, err := rest.HTTPClientFor(s.config("admin"))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var status any
	_ = json.NewDecoder(resp.Body).Decode(&status)
	if resp.StatusCode > 299 {
		t.Fatalf("%s %s: %d %v", method, path, resp.StatusCode, status)
	}
	return strings.Join(resp.Header.Values("Warning"), " ")
}

// TestRangeUsage: how much of each range is taken; without a static band, addresses and ports of
// the whole range are handed out.
func TestRangeUsage(t *testing.T) {
	for _, onePool := range []bool{false, true} {
		st := memory.New(memory.Options{})
		t.Cleanup(func() { st.Close() })
		s, err := start(st, func(c *apiserver.Config) {
			c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/26")}
			c.OneAddressPool, c.OneNodePortPool = onePool, onePool
		})
		if err != nil {
			t.Fatal(err)
		}
		want := []ipam.Usage{
			{Range: "10.96.0.0/26", Size: 62, Taken: 1, StaticBand: 16}, // of the Service "kubernetes"
			{Range: "30000-32767", Size: 2768, StaticBand: 86},
		}
		if onePool {
			want[0].StaticBand, want[1].StaticBand = 0, 0
		}
		testkit.Eventually(t, "the first Service is counted", func() bool { return slices.Equal(s.RangeUsage(), want) })
		code, answer := s.do(t, "POST", "/api/v1/namespaces/default/services", "admin", http.Header{"Content-Type": {"application/json"}},
			`{"metadata":{"name":"web"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`)
		if code > 299 {
			t.Fatal(code, answer)
		}
		want[0].Taken++
		want[1].Taken++
		testkit.Eventually(t, "the Service's address and port are counted", func() bool { return slices.Equal(s.RangeUsage(), want) })
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestExternalIPRanges: who may write a Service takes traffic of the ranges for that alone. What
// is there stays.
func TestExternalIPRanges(t *testing.T) {
	const services = "/api/v1/namespaces/default/services"
	header := http.Header{"Content-Type": {"application/json"}}
	service := func(name, ips string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"ports":[{"port":80}],"externalIPs":[%s]}}`, name, ips)
	}
	st := memory.New(memory.Options{})
	defer st.Close()
	for n, c := range []struct {
		ranges            []netip.Prefix
		accepted, refused []string
		message           string
	}{
		{nil, []string{`"203.0.113.7","8.8.8.8"`, `"2001:db8::7"`}, nil, ""},
		{
			[]netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:1::/48")},
			[]string{`"198.51.100.7","2001:db8:1::7"`, ""}, []string{`"198.51.100.8","203.0.113.8"`, `"2001:db8::8"`},
			"must be in one of the ranges that are allowed here: [198.51.100.0/24 2001:db8:1::/48]",
		},
		{[]netip.Prefix{}, []string{""}, []string{`"198.51.100.9"`}, "no external address is allowed here"},
	} {
		s, err := start(st, func(a *apiserver.Config) { a.ExternalIPRanges = c.ranges })
		if err != nil {
			t.Fatal(err)
		}
		for i, ips := range c.accepted {
			if code, answer := s.do(t, "POST", services, "admin", header, service(fmt.Sprintf("s%d-%d", n, i), ips)); code > 299 {
				t.Errorf("%v: %s: %d %s", c.ranges, ips, code, answer)
			}
		}
		for _, ips := range c.refused {
			code, answer := s.do(t, "POST", services, "admin", header, service("refused", ips))
			if code != http.StatusUnprocessableEntity || !strings.Contains(answer, c.message) || !strings.Contains(answer, "spec.externalIPs[") {
				t.Errorf("%v: %s: %d %s", c.ranges, ips, code, answer)
			}
			merge := http.Header{"Content-Type": {"application/merge-patch+json"}}
			if code, answer := s.do(t, "PATCH", services+"/s0-0", "admin", merge, `{"spec":{"externalIPs":["203.0.113.7",`+ips+`]}}`); code != http.StatusUnprocessableEntity {
				t.Errorf("%v: added %s: %d %s", c.ranges, ips, code, answer)
			}
			if code, answer := s.do(t, "PATCH", services+"/s0-0", "admin", merge, `{"metadata":{"labels":{"a":"b"}}}`); code > 299 {
				t.Errorf("%v: another change of a Service from before: %d %s", c.ranges, code, answer)
			}
		}
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}
}
