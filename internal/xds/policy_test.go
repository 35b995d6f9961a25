package xds_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// policyRig is a real Envoy that is the client of "web" and "canary", and the proxy of "secured".
type policyRig struct {
	*plane
	proxy              *envoytest.Proxy
	web, tcp, mtls, in int32
}

// unsteady answers "NAME" to /, after a second to /slow, and fails every other request for /flaky.
func unsteady(t testing.TB, name string) int32 {
	t.Helper()
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			select {
			case <-r.Context().Done():
			case <-time.After(time.Second):
			}
		case "/flaky":
			if n.Add(1)%2 == 1 {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
		}
		fmt.Fprint(w, name)
	}))
	t.Cleanup(s.Close)
	return int32(s.Listener.Addr().(*net.TCPAddr).Port)
}

func newPolicyRig(t *testing.T) *policyRig {
	t.Helper()
	first, second, secured := unsteady(t, "web"), unsteady(t, "canary"), application(t, "secured")
	r := &policyRig{web: freePort(t), tcp: freePort(t), mtls: freePort(t), in: freePort(t)}
	d := dataplane("client-1", "127.0.0.1", meshv1alpha1.DataplanePort{Port: r.in, AppProtocol: new("http"), TargetPort: new(secured)})
	d.Labels = map[string]string{"app": "client"}
	d.Spec.Proxy.Outbound = []meshv1alpha1.DataplaneOutbound{
		{Port: r.web, Service: "web", ServicePort: 80}, {Port: r.mtls, Service: "secured", ServicePort: 80},
		{Port: r.tcp, Service: "bytes", ServicePort: 80},
	}
	r.plane = newPlane(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "a"}}},
		strict("Permissive"), d,
		service("web", "10.96.0.10", port("web", 80, "http")), slice("web", "web", first, "a", "p1=127.0.0.1"),
		service("canary", "10.96.0.11", port("web", 80, "http")), slice("canary", "web", second, "a", "p1=127.0.0.1"),
		service("secured", "10.96.0.12", port("web", 80, "http")), slice("secured", "web", r.in, "a", "client-1=127.0.0.1"),
		service("bytes", "10.96.0.13", port("web", 80, "")), slice("bytes", "web", first, "a", "p1=127.0.0.1"),
	)
	dir := envoytest.Dir(t)
	cert, key := r.identity(dir, "shop", "default")
	r.proxy = envoytest.Start(t, dir, bootstrap(r.plane, dir, "default/shop/client-1", cert, key, nil))
	r.proxy.WaitReady()
	return r
}

// ask once: the status, the body and the headers of the answer.
func (r *policyRig) ask(port int32, path string, headers ...string) (status int, body string, header http.Header) {
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	response, err := c.Do(request)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return response.StatusCode, string(text), response.Header
}

// spelled is the status of a request for a path, which is sent as it is.
func (r *policyRig) spelled(path string) int {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", r.in))
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: secured\r\nConnection: close\r\n\r\n", path)
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	response.Body.Close()
	return response.StatusCode
}

// becomes waits until an object has its effect; then it deletes the object and waits until there is
// what was before.
func (r *policyRig) becomes(t *testing.T, d *resource.Descriptor, obj resource.Object, effect, before func() bool) {
	t.Helper()
	r.await(t, "before", before)
	r.seed(obj)
	r.await(t, "with the object", effect)
	if err := r.client.Delete(t.Context(), d, resource.KeyOf(obj), resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	r.await(t, "after it was deleted", before)
}

func (r *policyRig) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			_, dump, _ := r.proxy.Admin(http.MethodGet, "/config_dump")
			t.Fatalf("%s: it does not hold\n%s", what, dump[:min(len(dump), 20000)])
		}
	}
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "shop", Name: name, Generation: 1}
}

func onService(name string) meshv1alpha1.PolicyTarget {
	return meshv1alpha1.PolicyTarget{TargetRefs: []meshv1alpha1.PolicyTargetReference{{Kind: "Service", Name: name}}}
}

func backendPolicy(spec meshv1alpha1.BackendPolicySpec) *meshv1alpha1.BackendPolicy {
	spec.PolicyTarget = onService("web")
	return &meshv1alpha1.BackendPolicy{ObjectMeta: meta("p"), Spec: spec}
}

// webRoute sends requests with a header to canary, and divides the others.
func webRoute() *gateway.HTTPRoute {
	parent := gateway.ParentReference{Group: new(gateway.Group("")), Kind: new(gateway.Kind("Service")), Name: "web"}
	to := func(name string, weight int32) gateway.HTTPBackendRef {
		return gateway.HTTPBackendRef{BackendRef: gateway.BackendRef{Weight: &weight, BackendObjectReference: gateway.BackendObjectReference{
			Name: gateway.ObjectName(name), Port: new(int32(80)),
		}}}
	}
	return &gateway.HTTPRoute{ObjectMeta: meta("r"), Spec: gateway.HTTPRouteSpec{
		CommonRouteSpec: gateway.CommonRouteSpec{ParentRefs: []gateway.ParentReference{parent}},
		Rules: []gateway.HTTPRouteRule{
			{
				Matches:     []gateway.HTTPRouteMatch{{Headers: []gateway.HTTPHeaderMatch{{Name: "x-canary", Value: "yes"}}}},
				BackendRefs: []gateway.HTTPBackendRef{to("canary", 1)},
			},
			{BackendRefs: []gateway.HTTPBackendRef{to("web", 1), to("canary", 1)}},
		},
	}}
}

// TestPolicies: policies and routes have their effect on the traffic of a real Envoy, and it goes
// with them.
func TestPolicies(t *testing.T) {
	r := newPolicyRig(t)
	status := func(port int32, path string, want int) func() bool {
		return func() bool {
			got, _, _ := r.ask(port, path)
			return got == want
		}
	}
	shares := func(headers ...string) map[string]int {
		out := map[string]int{}
		for range 40 {
			_, body, _ := r.ask(r.web, "/", headers...)
			out[body]++
		}
		return out
	}
	t.Run("HTTPRoute", func(t *testing.T) {
		r.becomes(t, kind.HTTPRoute, webRoute(), func() bool {
			n, canary := shares(), shares("x-canary", "yes")
			return n["web"] >= 8 && n["canary"] >= 8 && n["web"]+n["canary"] == 40 && canary["canary"] == 40
		}, func() bool { return shares()["web"] == 40 && shares("x-canary", "yes")["web"] == 40 })
	})
	t.Run("TCPRoute", func(t *testing.T) {
		route := &gateway.TCPRoute{ObjectMeta: meta("t"), Spec: gateway.TCPRouteSpec{
			CommonRouteSpec: webRoute().Spec.CommonRouteSpec,
			Rules: []gateway.TCPRouteRule{{BackendRefs: []gateway.BackendRef{{BackendObjectReference: gateway.BackendObjectReference{
				Name: "canary", Port: new(int32(80)),
			}}}}},
		}}
		route.Spec.ParentRefs[0].Name = "bytes"
		answer := func(want string) func() bool {
			return func() bool {
				_, body, _ := r.ask(r.tcp, "/")
				return body == want
			}
		}
		r.becomes(t, kind.TCPRoute, route, answer("canary"), answer("web"))
	})
	t.Run("request timeout", func(t *testing.T) {
		r.becomes(t, kind.BackendPolicy, backendPolicy(meshv1alpha1.BackendPolicySpec{
			Timeout: &meshv1alpha1.PolicyTimeout{Request: new(meshv1alpha1.Duration("100ms"))},
		}), status(r.web, "/slow", http.StatusGatewayTimeout), status(r.web, "/slow", http.StatusOK))
	})
	t.Run("retry", func(t *testing.T) {
		all := func(path string, want int) func() bool {
			return func() bool {
				n := 0
				for range 10 {
					if got, _, _ := r.ask(r.web, path); got == http.StatusOK {
						n++
					}
				}
				return n == want
			}
		}
		r.becomes(t, kind.BackendPolicy, backendPolicy(meshv1alpha1.BackendPolicySpec{
			Retry: &meshv1alpha1.BackendRetry{Attempts: new(int32(2)), Codes: []int32{http.StatusBadGateway}},
		}), all("/flaky", 10), all("/flaky", 5))
	})
	t.Run("fault", func(t *testing.T) {
		r.becomes(t, kind.BackendPolicy, backendPolicy(meshv1alpha1.BackendPolicySpec{
			Faults: []meshv1alpha1.Fault{{Abort: &meshv1alpha1.FaultAbort{HTTPStatus: new(int32(http.StatusTeapot))}}},
		}), status(r.web, "/", http.StatusTeapot), status(r.web, "/", http.StatusOK))
	})
	for name, from := range map[string]meshv1alpha1.PolicySource{
		"permission by namespace": {Namespaces: []string{"shop"}},
		"permission by name":      {SPIFFE: []meshv1alpha1.ValueMatch{{Type: "Exact", Value: "spiffe://default.mesh/ns/shop/sa/default"}}},
	} {
		t.Run(name, func(t *testing.T) {
			r.becomes(t, kind.TrafficPermission, &meshv1alpha1.TrafficPermission{
				ObjectMeta: meta("deny"),
				Spec:       meshv1alpha1.TrafficPermissionSpec{Deny: []meshv1alpha1.PermissionRule{{From: []meshv1alpha1.PolicySource{from}}}},
			}, func() bool { // a client without a certificate is nobody of that namespace
				return status(r.mtls, "/", http.StatusForbidden)() && status(r.in, "/", http.StatusOK)()
			}, status(r.mtls, "/", http.StatusOK))
		})
	}
	t.Run("permission of others", func(t *testing.T) {
		r.becomes(t, kind.TrafficPermission, &meshv1alpha1.TrafficPermission{ObjectMeta: meta("allow"), Spec: meshv1alpha1.TrafficPermissionSpec{
			Allow: []meshv1alpha1.PermissionRule{{From: []meshv1alpha1.PolicySource{{Namespaces: []string{"shop"}}}}},
		}}, func() bool { return status(r.mtls, "/", http.StatusOK)() && status(r.in, "/", http.StatusForbidden)() }, status(r.in, "/", http.StatusOK))
	})
	t.Run("permission of paths", func(t *testing.T) {
		of := func(paths []string, want ...int) func() bool {
			return func() bool {
				return !slices.ContainsFunc(paths, func(path string) bool { return !slices.Contains(want, r.spelled(path)) })
			}
		}
		denied := []string{
			"/admin/x", "//admin/x", "/./admin/x", "/open/../admin/x", "/open/%2e%2e/admin/x", "/%61dmin/x", "/open%2f..%2fadmin/x", "/open/..%5cadmin/x",
			"\\admin/x", "/open/..;/../../admin/x", "/admin/x?y", "/admin/../admin/x",
		}
		open := []string{"/open", "/open/admin/x", "/x?/admin/x"}
		permission := &meshv1alpha1.TrafficPermission{ObjectMeta: meta("paths"), Spec: meshv1alpha1.TrafficPermissionSpec{
			Deny: []meshv1alpha1.PermissionRule{{To: []meshv1alpha1.PermissionRequest{{Paths: []meshv1alpha1.ValueMatch{{Type: "Prefix", Value: "/admin"}}}}}},
		}}
		r.becomes(t, kind.TrafficPermission, permission, func() bool {
			return of(denied, http.StatusForbidden, http.StatusBadRequest)() && of(open, http.StatusOK)()
		}, of(denied[:7], http.StatusOK))
	})
	t.Run("WorkloadPolicy", func(t *testing.T) {
		r.becomes(t, kind.WorkloadPolicy, &meshv1alpha1.WorkloadPolicy{ObjectMeta: meta("w"), Spec: meshv1alpha1.WorkloadPolicySpec{
			RateLimit: []meshv1alpha1.RateLimit{{HTTP: &meshv1alpha1.HTTPRateLimit{Requests: 1, Per: "1h"}}},
		}}, status(r.in, "/", http.StatusTooManyRequests), status(r.in, "/", http.StatusOK))
	})
	t.Run("WorkloadPolicy, mode of TLS", func(t *testing.T) {
		plain := func(admitted bool) func() bool {
			return func() bool {
				got, _, _ := r.ask(r.in, "/")
				return (got == http.StatusOK) == admitted && status(r.mtls, "/", http.StatusOK)()
			}
		}
		mode := func(name string) *meshv1alpha1.WorkloadPolicy {
			return &meshv1alpha1.WorkloadPolicy{ObjectMeta: meta("mode"), Spec: meshv1alpha1.WorkloadPolicySpec{TLS: &meshv1alpha1.WorkloadTLS{Mode: name}}}
		}
		r.becomes(t, kind.WorkloadPolicy, mode(meshv1alpha1.MTLSStrict), plain(false), plain(true))
		r.seed(strict(meshv1alpha1.MTLSStrict))
		r.becomes(t, kind.WorkloadPolicy, mode(meshv1alpha1.MTLSPermissive), plain(true), plain(false))
		r.seed(strict(meshv1alpha1.MTLSPermissive))
		r.await(t, "the mesh is permissive again", plain(true))
	})
	t.Run("ProxyPatch", func(t *testing.T) {
		const value = `{response_headers_to_add: [{header: {key: x-patched, value: "yes"}}]}`
		patch := func(want string) func() bool {
			return func() bool {
				got, _, header := r.ask(r.web, "/")
				return got == http.StatusOK && header.Get("x-patched") == want
			}
		}
		selected := meshv1alpha1.PolicyTarget{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}
		good := meshv1alpha1.ProxyPatchItem{Type: meshv1alpha1.PatchVirtualHost, Op: meshv1alpha1.PatchMerge, Value: value,
			Match: &meshv1alpha1.ProxyPatchMatch{Origin: meshv1alpha1.OriginOutbound}}
		bad := meshv1alpha1.ProxyPatchItem{Type: meshv1alpha1.PatchCluster, Op: meshv1alpha1.PatchMerge, Value: `{connect_timeout: -1s}`}
		r.becomes(t, kind.ProxyPatch, &meshv1alpha1.ProxyPatch{ObjectMeta: meta("x"), Spec: meshv1alpha1.ProxyPatchSpec{
			PolicyTarget: selected, Patches: []meshv1alpha1.ProxyPatchItem{good, bad},
		}}, patch("yes"), patch(""))
	})
	r.seen.none(t)
}
