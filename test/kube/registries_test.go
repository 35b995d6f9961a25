package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// registryPlane is a replica of the control plane that serves registries.
type registryPlane struct {
	*testkit.Process
	t             *testing.T
	token         string
	nacos, eureka int
}

// ask a registry, and return the status and the body of the answer.
func (p *registryPlane) ask(method string, port int, path, body string) (int, string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s:%d%s", address, port, path), strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if p.token != "" {
		req.SetBasicAuth("client", p.token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(text)
}

// orders are the addresses that a client of Nacos has of the service.
func (p *registryPlane) orders() (hosts []string) {
	p.t.Helper()
	_, text := p.ask(http.MethodGet, p.nacos, "/nacos/v1/ns/instance/list?serviceName=orders&namespaceId=shop", "")
	var list struct {
		Hosts []struct {
			IP   string `json:"ip"`
			Port int    `json:"port"`
		} `json:"hosts"`
	}
	if json.Unmarshal([]byte(text), &list) != nil {
		return nil
	}
	for _, h := range list.Hosts {
		hosts = append(hosts, fmt.Sprintf("%s:%d", h.IP, h.Port))
	}
	return hosts
}

// config is an entry, as a client of Nacos reads it.
func (p *registryPlane) config() string {
	p.t.Helper()
	_, text := p.ask(http.MethodGet, p.nacos, "/nacos/v1/cs/configs?dataId=orders.yaml&group=DEFAULT_GROUP&tenant=shop", "")
	return text
}

// TestRegistries: with the chart's service account and arguments, what a client of Eureka registers at one replica by the
// token of its service account is found by a client of Nacos at another, and has a Service with a virtual IP whose
// EndpointSlices the cluster's own controller leaves alone. It stays when the leader is killed, and ends at the
// other replica. Configuration comes by kubectl.
func TestRegistries(t *testing.T) {
	b := newBench(t)
	const preset = "kube-proxy-replacement"
	b.kubectl("", "create", "namespace", "shop")
	b.kubectl("", "--namespace", "shop", "create", "serviceaccount", "orders")
	b.kubectl(b.manifests(preset, "--set", "registries.enabled=true"), "apply", "--server-side", "-f", "-")
	token := strings.TrimSpace(b.kubectl("", "--namespace", "shop", "create", "token", "orders", "--audience=proxima-registry"))
	start := func(port int) *registryPlane {
		p := &registryPlane{t: t, token: token, nacos: port + 10, eureka: port + 11}
		p.Process = testkit.Start(t, []string{"PROXIMA_KUBECONFIG=" + b.kubeconfigOf("proxima")}, testkit.Binary(t),
			append(replaced(b.podArgs(t.TempDir(), fmt.Sprintf("%s:%d", address, port)), map[string]string{
				"--nacos-port": fmt.Sprint(p.nacos), "--eureka-port": fmt.Sprint(p.eureka),
			}), fmt.Sprintf("--grpc-port=%d", port+1))...)
		if line := p.FirstLine(); !strings.HasPrefix(line, "ready api=https://") {
			t.Fatalf("the control plane says %q: %s", line, p.Stderr)
		}
		return p
	}
	first, second := start(planePort), start(planePort+100)

	// Who shows nothing is refused, and who shows a token writes in its own namespace alone.
	stranger := *first
	stranger.token = ""
	if code, text := stranger.ask(http.MethodGet, first.eureka, "/eureka/apps", ""); code != http.StatusUnauthorized {
		t.Errorf("without credentials: %d %s", code, text)
	}
	instance := `{"instance": {"instanceId": "orders-1", "hostName": "10.9.0.7", "app": "ORDERS", "ipAddr": "10.9.0.7", "vipAddress": "orders", "status": "UP",
		"port": {"$": 8080, "@enabled": "true"}, "dataCenterInfo": {"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"}}}`
	if code, text := first.ask(http.MethodPost, first.eureka, "/namespaces/default/eureka/apps/ORDERS", instance); code != http.StatusForbidden {
		t.Errorf("in another namespace: %d %s", code, text)
	}
	if code, text := first.ask(http.MethodPost, first.eureka, "/eureka/apps/ORDERS", instance); code != http.StatusNoContent {
		t.Fatalf("register: %d %s", code, text)
	}
	here := func(p *registryPlane) bool {
		hosts := p.orders()
		return len(hosts) == 1 && hosts[0] == "10.9.0.7:8080"
	}
	b.until("the other replica lists it", func() bool { return here(second) })

	get := func(args ...string) string {
		t.Helper()
		out, err := b.run("", testkit.Kubectl(t), append([]string{"--namespace", "shop", "get", "--ignore-not-found"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	slices := func() string {
		return get("endpointslices", "-l", "kubernetes.io/service-name=orders", "-o",
			`jsonpath={range .items[*]}{.metadata.labels.endpointslice\.kubernetes\.io/managed-by} {.endpoints[*].addresses[*]} {.ports[*].port};{end}`)
	}
	const want = "registered-services.registry.proxima.dev 10.9.0.7 8080;"
	b.until("the Service has the endpoint", func() bool { return slices() == want })
	if ip := get("service", "orders", "-o", "jsonpath={.spec.clusterIP}"); ip == "" || ip == "None" {
		t.Errorf("virtual IP %q", ip)
	}
	if got := get("dataplanes", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`); got != "True" {
		t.Errorf("ready: %q", got)
	}

	config := func(content string) string {
		return fmt.Sprintf(`{"apiVersion": "mesh.proxima.dev/v1alpha1", "kind": "RegistryConfig", "metadata": {"namespace": "shop", "name": "orders"},
			"spec": {"dataId": "orders.yaml", "content": %q}}`, content)
	}
	for _, content := range []string{"a: 1", "a: 2"} {
		b.kubectl(config(content), "apply", "-f", "-")
		for _, p := range []*registryPlane{first, second} {
			b.until("a client has the entry", func() bool { return p.config() == content })
		}
	}
	form := url.Values{"dataId": {"cipher-orders"}, "group": {"DEFAULT_GROUP"}, "tenant": {"shop"}, "content": {"x"}}
	if code, text := first.ask(http.MethodPost, first.nacos, "/nacos/v1/cs/configs?"+form.Encode(), ""); code != http.StatusForbidden {
		t.Errorf("an encrypted entry: %d %s", code, text)
	}

	// The replica with the session is killed. The client renews at the other one, which leads then.
	first.Kill()
	if code, text := second.ask(http.MethodPut, second.eureka, "/eureka/apps/ORDERS/orders-1", ""); code != http.StatusOK {
		t.Errorf("renew at the other replica: %d %s", code, text)
	}
	b.until("the other replica leads", func() bool {
		return strings.Contains(b.kubectl("", "--namespace", manifests.Namespace, "get", "lease", "proxima-control-plane", "-o", "jsonpath={.spec.holderIdentity}"), fmt.Sprint(planePort+101))
	})
	if !here(second) || slices() != want {
		t.Errorf("after the leader was killed: %v, %q", second.orders(), slices())
	}
	if code, text := second.ask(http.MethodDelete, second.eureka, "/eureka/apps/ORDERS/orders-1", ""); code != http.StatusOK {
		t.Errorf("cancel: %d %s", code, text)
	}
	b.until("the endpoint is gone", func() bool { return !strings.Contains(slices(), "10.9.0.7") })
	// Entries are not written by clients here; a Dataplane is read again after a conflict; a Service is deleted after an hour.
	b.wantPartUsed(preset, "proxima", "registries", append(lists("dataplanes.mesh.proxima.dev", "registryconfigs.mesh.proxima.dev"),
		permission{"mesh.proxima.dev", "dataplanes", "get"}, permission{"", "services", "delete"}, permission{"discovery.k8s.io", "endpointslices", "delete"},
		permission{"mesh.proxima.dev", "registryconfigs", "get"}, permission{"mesh.proxima.dev", "registryconfigs", "create"},
		permission{"mesh.proxima.dev", "registryconfigs", "update"}, permission{"mesh.proxima.dev", "registryconfigs", "delete"}))
}
