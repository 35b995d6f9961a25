package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	core "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// meshNet is a node, which is this process's namespace, with a workload of the default mesh
// and one of mesh blue, and a machine outside. All serve at backendPort.
type meshNet struct{ plain, blue, outside *netns.NS }

// Addresses of meshNet: of the workloads, of the machine outside, and of the node towards them.
const (
	plainIP, blueIP, outsideIP = "192.0.2.2", "192.0.2.6", "198.51.100.2"
	nodeForPods                = "192.0.2.1"
)

func layMeshNet(t *testing.T) *meshNet {
	t.Helper()
	here, err := core.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = here.Close() })
	if err := here.SetSysctl("net.ipv4.ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	n := &meshNet{plain: netns.New(t, "pmsh-plain"), blue: netns.New(t, "pmsh-blue"), outside: netns.New(t, "pmsh-outside")}
	for _, peer := range []struct {
		ns          *netns.NS
		link        string
		ours, their string
	}{
		{n.plain, "pmsh-plain", nodeForPods + "/30", plainIP + "/30"}, {n.blue, "pmsh-blue", "192.0.2.5/30", blueIP + "/30"},
		{n.outside, "pmsh-outside", "198.51.100.1/30", outsideIP + "/30"},
	} {
		if err := core.Connect(
			core.End{NS: here, Link: peer.link, Addrs: []netip.Prefix{netip.MustParsePrefix(peer.ours)}},
			core.End{NS: peer.ns.NS, Link: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix(peer.their)}},
		); err != nil {
			t.Fatal(err)
		}
		peer.ns.Route("0.0.0.0/0", netip.MustParsePrefix(peer.ours).Addr().String())
		ln, err := peer.ns.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", backendPort))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		go serveBackends(ln)
	}
	if err := here.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr(outsideIP)); err != nil {
		t.Fatal(err)
	}
	n.outside.Run("ip", "route", "add", "unreachable", kernelServices)
	return n
}

const meshObjects = `
apiVersion: mesh.proxima.dev/v1alpha1
kind: Mesh
metadata: {name: blue}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {kuma.io/mesh: blue}}
---
apiVersion: mesh.proxima.dev/v1alpha1
kind: Dataplane
metadata: {name: plain, namespace: default}
spec: {nodeName: edge-1, addresses: [192.0.2.2], ports: [{port: 8080}]}
---
apiVersion: mesh.proxima.dev/v1alpha1
kind: Dataplane
metadata: {name: cart, namespace: shop}
spec: {nodeName: edge-1, addresses: [192.0.2.6], ports: [{port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.7.1, ports: [{port: 80, targetPort: BACKEND}]}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.96.7.2, ports: [{port: 80, targetPort: BACKEND}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: BACKEND}]
endpoints: [{addresses: [192.0.2.2], nodeName: edge-1}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{port: BACKEND}]
endpoints: [{addresses: [192.0.2.6], nodeName: edge-1}]
`

const plainVIP, blueVIP = "10.96.7.1:80", "10.96.7.2:80"

// TestMeshesOfANode: on a node with workloads of two meshes each reaches the Services of its
// own, by name and address, and is refused at those of the other; without passthrough, also
// outside. It stays so without an agent, and the status, trace and explain say so.
func TestMeshesOfANode(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	network := layMeshNet(t)
	p := startPlaneWith(t, kernelServices)
	p.apply(strings.ReplaceAll(meshObjects, "BACKEND", strconv.Itoa(backendPort)))
	n := &node{plane: p, name: "edge-1", zone: "zone-a", dir: t.TempDir(), health: testkit.FreePort(t), metrics: testkit.FreePort(t), dns: testkit.FreePort(t)}
	n.token = filepath.Join(n.dir, "token")
	if err := os.WriteFile(n.token, []byte(p.proxima("token", "create", "--kind", "node", "--name", n.name)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, mode := range kernelModes {
		t.Run(mode, func(t *testing.T) { meshesOfANode(t, network, p, n, mode) })
	}
}

func meshesOfANode(t *testing.T, network *meshNet, p *plane, n *node, mode string) {
	passthrough := func(on bool) {
		p.kubectl("patch", "mesh", "blue", "--type", "merge", "-p", fmt.Sprintf(`{"spec":{"networking":{"outbound":{"passthrough":%v}}}}`, on))
	}
	start := func() {
		n.process = testkit.Start(t, nil, testkit.Binary(t), "node", "--server", p.apiAddress(), "--host", nodeForPods,
			"--token-file", n.token, "--node-name", n.name, "--zone", n.zone, "--mode", mode, "--data-dir", n.dir,
			"--health-port", strconv.Itoa(n.health), "--metrics-port", strconv.Itoa(n.metrics), "--dns-port", strconv.Itoa(n.dns))
		n.process.FirstLine()
	}
	passthrough(true)
	start()
	apart := func(when string) {
		t.Helper()
		for _, c := range []struct {
			from    *netns.NS
			to      string
			refused bool
		}{
			{network.plain, plainVIP, false}, {network.plain, blueVIP, true}, {network.blue, blueVIP, false}, {network.blue, plainVIP, true},
		} {
			testkit.Eventually(t, fmt.Sprintf("%s: %s to %s, refused: %v", when, c.from, c.to, c.refused), func() bool {
				err := reach(c.from, c.to)
				return c.refused == errors.Is(err, syscall.ECONNREFUSED) && (err == nil) != c.refused
			})
		}
	}
	apart("at first")
	for _, c := range []struct {
		from   *netns.NS
		name   string
		exists bool
	}{
		{network.plain, "web.default.svc.cluster.local.", true}, {network.plain, "cart.shop.svc.cluster.local.", false},
		{network.blue, "cart.shop.svc.cluster.local.", true}, {network.blue, "web.default.svc.cluster.local.", false},
		{network.blue, "kubernetes.default.svc.cluster.local.", true},
	} {
		_, err := lookupFrom(c.from, n.dns, c.name)
		var failure *net.DNSError
		if c.exists && err != nil || !c.exists && (!errors.As(err, &failure) || !failure.IsNotFound) {
			t.Errorf("%s asks for %s: %v, want it to exist: %v", c.from, c.name, err, c.exists)
		}
	}
	testkit.Eventually(t, "outside, with passthrough", func() bool { // the agent may begin with what it had on disk
		return reach(network.blue, net.JoinHostPort(outsideIP, strconv.Itoa(backendPort))) == nil
	})

	passthrough(false)
	beyond := func(when string) {
		t.Helper()
		testkit.Eventually(t, when+": a workload of the closed mesh is refused outside", func() bool {
			return errors.Is(reach(network.blue, net.JoinHostPort(outsideIP, strconv.Itoa(backendPort))), syscall.ECONNREFUSED)
		})
		if err := reach(network.plain, net.JoinHostPort(outsideIP, strconv.Itoa(backendPort))); err != nil {
			t.Errorf("%s: a workload of the other mesh: %v", when, err)
		}
		if _, err := lookupFrom(network.blue, n.dns, "cart.shop.svc.cluster.local."); when == "closed" && err != nil {
			t.Errorf("%s: names: %v", when, err)
		}
	}
	beyond("closed")
	apart("closed")
	said(t, p, n, mode)

	n.process.Kill()
	apart("without an agent")
	beyond("without an agent")
	p.process.Kill()
	start()
	apart("an agent without a control plane")
	beyond("an agent without a control plane")
	p.start()
	n.process.Kill()
	p.proxima("node", "--cleanup")
}

// said checks what users are told.
func said(t *testing.T, p *plane, n *node, mode string) {
	t.Helper()
	for _, condition := range []string{"IsolationEnforced", "PassthroughEnforced"} {
		testkit.Eventually(t, "condition "+condition, func() bool {
			return p.kubectl("get", "mesh", "blue", "-o", "jsonpath={.status.conditions[?(@.type==\""+condition+"\")].status}") == "True"
		})
	}
	n.prints(mode, []string{"refused at once", "is of mesh default, the Service is of mesh blue"}, "trace", blueVIP, "--from", plainIP)
	n.prints(mode, []string{"refused at once", "has no passthrough and does not know"}, "trace", net.JoinHostPort(outsideIP, "80"), "--from", blueIP)
	n.prints(mode, []string{"isolation of meshes: 2 addresses of workloads"}, "doctor")
	out := p.proxima("explain", "service", "shop/cart", "--from-node", n.name)
	for _, want := range []string{"for workloads of mesh blue", "refused to default/plain (mesh default)"} {
		if !strings.Contains(out, want) {
			t.Errorf("explain lacks %q:\n%s", want, out)
		}
	}
}

// reach makes a connection and hears the backend.
func reach(from *netns.NS, to string) error {
	var c net.Conn
	err := from.Do(func() (err error) {
		c, err = (&net.Dialer{Timeout: 2 * time.Second}).Dial("tcp", to)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	_, err = c.Read(make([]byte, 1))
	return err
}

// lookupFrom asks the agent's DNS as a workload does.
func lookupFrom(from *netns.NS, port int, name string) ([]string, error) {
	resolver := &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, network, _ string) (c net.Conn, err error) {
		err = from.Do(func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(nodeForPods, strconv.Itoa(port)))
			return err
		})
		return c, err
	}}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Timeout)
	defer cancel()
	return resolver.LookupHost(ctx, name)
}
