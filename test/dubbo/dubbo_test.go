package dubbo

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	zkclient "github.com/dubbogo/go-zookeeper/zk"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	core "github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/nacos"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	zk "github.com/proxima-mesh/proxima/internal/registry/zookeeper"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// control is a control plane with the ports of Nacos: gRPC 1000 above HTTP, as clients expect.
type control struct {
	*registrytest.Plane
	t    *testing.T
	port int
	// zookeeper is the address of ZooKeeper's port, as applications name it.
	zookeeper string
	// sent is how many bytes the ports of Nacos have sent.
	sent atomic.Int64
	stop func()
}

// counted is a listener whose connections count what they send.
type counted struct {
	net.Listener
	sent *atomic.Int64
}

func (l counted) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return countedConn{conn, l.sent}, err
}

type countedConn struct {
	net.Conn
	sent *atomic.Int64
}

func (c countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.sent.Add(int64(n))
	return n, err
}

func newControl(t *testing.T) *control {
	t.Helper()
	c := &control{Plane: registrytest.New(t), t: t}
	for range 100 {
		c.port = freePort(t)
		if c.serve() == nil {
			t.Cleanup(func() { c.stop() })
			return c
		}
	}
	t.Fatal("no two free ports")
	return nil
}

// serveZooKeeper, too.
func (c *control) serveZooKeeper() *control {
	c.zookeeper = zookeeper + c.Serve(zk.New(c.Core).Serve)
	return c
}

// address of Nacos.
func (c *control) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)) }

func (c *control) serve() error {
	var listeners []net.Listener
	for _, port := range []int{c.port, c.port + 1000} {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
			return err
		}
		listeners = append(listeners, counted{l, &c.sent})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	s := nacos.New(c.Core)
	for i, serve := range []func(context.Context, net.Listener) error{s.ServeHTTPOn, s.Serve} {
		running.Go(func() {
			if err := serve(ctx, listeners[i]); err != nil {
				c.t.Errorf("serve: %v", err)
			}
		})
	}
	c.stop = func() { cancel(); running.Wait() }
	return nil
}

// providers is how many instances of providers there are whose clients are connected. Consumers that use
// interfaces register themselves, too.
func (c *control) providers() (n int) {
	for _, d := range c.Dataplanes() {
		if c.Registrar.Claimed(resource.KeyOf(d)) && !strings.Contains(d.Annotations[core.AnnotationInstance], `"service":"consumers:`) {
			n++
		}
	}
	return n
}

// restart the control plane, on what is stored; meanwhile is called while there is none.
func (c *control) restart(meanwhile func()) {
	c.t.Helper()
	c.stop()
	meanwhile()
	c.Restart()
	if err := c.serve(); err != nil {
		c.t.Fatal(err)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	port := l.Addr().(*net.TCPAddr).Port
	if slices.Contains(given, port) {
		return freePort(t)
	}
	given = append(given, port)
	return port
}

// given are the ports that were free.
var given []int

// A consumer finds the providers of its interface, in each way in which they can be registered.
func TestModes(t *testing.T) {
	for _, mode := range []string{"service", "interface", "all"} {
		t.Run(mode, func(t *testing.T) {
			at := newControl(t).address()
			first := start(t, application{Role: "provider", Name: "orders", Registry: at, Mode: mode, Port: freePort(t), Reply: "first"})
			consumer := start(t, application{Role: "consumer", Name: "shop", Registry: at, Mode: mode})
			consumer.until(0, "first greets")
			from := consumer.position()
			start(t, application{Role: "provider", Name: "orders", Registry: at, Mode: mode, Port: freePort(t), Reply: "second"})
			consumer.until(from, "second greets")
			first.stop()
			from = consumer.position()
			consumer.after(20)
			if failed := consumer.failures(from); len(failed) > 0 {
				t.Errorf("%d calls failed after a provider has ended: %s", len(failed), failed[0])
			}
			for _, call := range consumer.calls[from:] {
				if strings.HasPrefix(call, "first") {
					t.Error("a call reached the provider that has ended")
				}
			}
		})
	}
}

// Applications that use the protocol of Dubbo 2, with Hessian, are found in the same way.
func TestDubboProtocol(t *testing.T) {
	at := newControl(t).address()
	start(t, application{
		Role: "provider", Name: "orders", Registry: at, Mode: "service", Protocol: "dubbo",
		Port: freePort(t), MetadataPort: freePort(t), Reply: "first",
	})
	start(t, application{Role: "consumer", Name: "shop", Registry: at, Mode: "service", Protocol: "dubbo"}).until(0, "first greets")
}

// A consumer goes on calling while the control plane restarts, and learns of changes after it.
func TestRestart(t *testing.T) {
	for _, mode := range []string{"service", "interface"} {
		t.Run(mode, func(t *testing.T) {
			c := newControl(t)
			start(t, application{Role: "provider", Name: "orders", Registry: c.address(), Mode: mode, Port: freePort(t), Reply: "first"})
			second := start(t, application{Role: "provider", Name: "orders", Registry: c.address(), Mode: mode, Port: freePort(t), Reply: "second"})
			consumer := start(t, application{Role: "consumer", Name: "shop", Registry: c.address(), Mode: mode})
			consumer.until(0, "first greets")
			consumer.until(0, "second greets")
			from := consumer.position()
			c.restart(func() { consumer.after(50) })
			c.Eventually("the providers are connected to what runs now", func() bool { return c.providers() == 2 })
			consumer.after(100)
			if failed := consumer.failures(from); len(failed) > 0 {
				t.Errorf("%d calls failed around the restart: %s", len(failed), failed[0])
			}
			if n := consumer.count("size=0"); n > 0 {
				t.Errorf("the consumer was told %d times that there are no instances", n)
			}
			from = consumer.position()
			start(t, application{Role: "provider", Name: "orders", Registry: c.address(), Mode: mode, Port: freePort(t), Reply: "third"})
			consumer.until(from, "third greets")
			second.kill()
			c.Eventually("the provider that was killed is gone", func() bool { return c.providers() == 2 })
		})
	}
}

// A provider alone is replaced by a new version of it, of another revision.
func TestProviderRestarts(t *testing.T) {
	c := newControl(t)
	consumer := start(t, application{Role: "consumer", Name: "shop", Registry: c.address(), Mode: "service"})
	from := 0
	for _, reply := range []string{"first", "second", "third"} {
		p := start(t, application{Role: "provider", Name: "orders", Registry: c.address(), Mode: "service", Port: freePort(t), Reply: reply})
		consumer.until(from, reply+" greets")
		from = consumer.position()
		p.stop()
	}
}

// rule steers consumers to one of two providers.
type rule struct {
	what, dataID string
	// content by which calls reach the provider at a port alone, and not the other one.
	content func(only, other int) string
}

var rules = []rule{
	{"conditions of a service", greeter + "::.condition-router", func(only, _ int) string {
		return fmt.Sprintf("configVersion: v3.0\nscope: service\nforce: true\nenabled: true\nruntime: true\nkey: %s\nconditions:\n  - '=> port=%d'\n", greeter, only)
	}},
	{"conditions of an application", "orders.condition-router", func(only, _ int) string {
		return fmt.Sprintf("configVersion: v3.0\nscope: application\nforce: true\nenabled: true\nruntime: true\nkey: orders\nconditions:\n  - '=> port=%d'\n", only)
	}},
	{"tags of an application", "orders.tag-router", func(_, other int) string {
		return fmt.Sprintf("configVersion: v3.0\nforce: true\nenabled: true\nruntime: true\nkey: orders\ntags:\n  - name: gray\n    addresses: ['127.0.0.1:%d']\n", other)
	}},
}

// Rules steer consumers, which discover by application: kubectl writes the object, and a client of the registry
// publishes another rule instead.
func TestRules(t *testing.T) {
	for _, registry := range []string{"nacos", "zookeeper"} {
		t.Run(registry, func(t *testing.T) {
			c := newControl(t).serveZooKeeper()
			at := c.address()
			if registry == "zookeeper" {
				at = c.zookeeper
			}
			ports := []int{freePort(t), freePort(t)}
			for i, reply := range []string{"first", "second"} {
				start(t, application{Role: "provider", Name: "orders", Registry: at, Mode: "service", Port: ports[i], Reply: reply})
			}
			c.Eventually("the providers are there", func() bool { return c.providers() == 2 })
			consumer := start(t, application{Role: "consumer", Name: "shop", Registry: at, Mode: "service", Rules: true})
			consumer.until(0, "first greets")
			consumer.until(0, "second greets")
			for _, r := range rules {
				t.Run(r.what, func(t *testing.T) { c.follows(t, consumer, &r, ports, registry) })
			}
		})
	}
}

// follows checks that a consumer follows a rule, another one, and none.
func (c *control) follows(t *testing.T, consumer *process, r *rule, ports []int, registry string) {
	entry := &meshv1alpha1.RegistryConfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "rule"},
		Spec:       meshv1alpha1.RegistryConfigSpec{Group: "dubbo", DataID: r.dataID, Content: r.content(ports[0], ports[1])},
	}
	if _, err := c.Client.Create(t.Context(), kind.RegistryConfig, entry); err != nil {
		t.Fatal(err)
	}
	only(t, consumer, "first")
	c.publish(t, registry, r.dataID, r.content(ports[1], ports[0]))
	only(t, consumer, "second")
	if registry == "nacos" && strings.HasSuffix(r.dataID, ".tag-router") { // dubbo-go keeps a rule of tags whose entry is gone
		c.publish(t, registry, r.dataID, strings.Replace(entry.Spec.Content, "enabled: true", "enabled: false", 1))
		only(t, consumer, "first second")
	}
	if err := c.Client.Delete(t.Context(), kind.RegistryConfig, resource.KeyOf(entry), resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	only(t, consumer, "first second")
}

// only waits until the calls of a consumer reach some providers alone.
func only(t *testing.T, consumer *process, want string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		from := consumer.position()
		consumer.after(30)
		got := consumer.replies(from)
		if slices.Equal(got, strings.Fields(want)) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("calls reach %s, want %s alone", got, want)
		}
	}
}

// publish a rule as a client of a registry does.
func (c *control) publish(t *testing.T, registry, dataID, content string) {
	t.Helper()
	if registry == "nacos" {
		r, err := http.PostForm("http://"+c.address()+"/nacos/v1/cs/configs", url.Values{"dataId": {dataID}, "group": {"dubbo"}, "content": {content}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Body.Close() }()
		if r.StatusCode != http.StatusOK {
			t.Fatalf("publish %s: %s", dataID, r.Status)
		}
		return
	}
	session, _, err := zkclient.Connect([]string{strings.TrimPrefix(c.zookeeper, zookeeper)}, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if _, err := session.Set("/dubbo/config/dubbo/"+dataID, []byte(content), -1); err != nil {
		t.Fatal(err)
	}
}

// A Service of Kubernetes is an application of Dubbo by its annotations: a consumer finds its endpoints by
// the interface, and asks them for nothing. The provider is registered nowhere.
func TestService(t *testing.T) {
	c := newControl(t)
	port := freePort(t)
	other := newControl(t) // the provider's own registry, which the consumer does not know
	address := ownAddress(t)
	start(t, application{
		Role: "provider", Name: "orders", Registry: other.address(), Mode: "service", Address: address, Port: port, Reply: "first",
	})
	other.Eventually("the provider serves", func() bool { return other.providers() == 1 })
	consumer := start(t, application{Role: "consumer", Name: "shop", Registry: c.address(), Mode: "service"})
	c.service("orders-v1", address, port, map[string]string{
		core.AnnotationApplication: "orders", core.AnnotationInterface: greeter, core.AnnotationRPCProtocol: "tri",
	})
	consumer.until(0, "first greets")
}

// The control plane asks a provider for its metadata; a consumer that comes later reads them there, and does
// not ask the provider, whose answers a failure would lose.
func TestMetadata(t *testing.T) {
	for _, test := range []struct {
		name string
		application
		version string // of the MetadataService; empty: as the provider registers it
	}{
		{"by default", application{}, "1.0.0"},
		{"protocol dubbo", application{Protocol: "dubbo", MetadataProtocol: "dubbo"}, "1.0.0"},
		{"Triple", application{MetadataProtocol: "tri"}, "2.0.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newControl(t)
			p := test.application
			p.Role, p.Name, p.Registry, p.Mode, p.Port, p.Reply = "provider", "orders", c.address(), "service", freePort(t), "first"
			if p.MetadataProtocol != "" {
				p.MetadataPort = freePort(t)
			}
			start(t, p)
			c.metadataStored(test.version)
			consumer := start(t, application{Role: "consumer", Name: "shop", Registry: c.address(), Mode: "service", Protocol: p.Protocol})
			consumer.until(0, "first greets")
			if n := consumer.count("metadata.MetadataService"); n > 0 {
				t.Errorf("the consumer asked the provider for its metadata: %d lines of its log are of it", n)
			}
		})
	}
}

// metadataStored waits until the metadata of the provider are stored, which has a MetadataService of a version;
// empty: of any.
func (c *control) metadataStored(version string) {
	c.t.Helper()
	c.Eventually("its metadata are stored", func() bool {
		l := c.Index.Listing(core.Service{Namespace: "default", Name: "orders"}, "")
		return len(l.Instances) > 0 && (version == "" || l.Instances[0].Metadata["meta-v"] == version) && l.Instances[0].Metadata[core.KeyStorage] == core.StorageRemote
	})
}

// Providers that have both MetadataServices by Triple are asked by the older one, too, where they name that.
func TestMetadataOlderTriple(t *testing.T) {
	from, c := newControl(t), newControl(t)
	start(t, application{
		Role: "provider", Name: "orders", Registry: from.address(), Mode: "service", Port: freePort(t), Reply: "first",
		MetadataProtocol: "tri", MetadataPort: freePort(t),
	})
	from.metadataStored("2.0.0")
	in := *from.Index.Registered(core.Service{Namespace: "default", Name: "orders"})[0]
	in.Metadata, in.Ephemeral = maps.Clone(in.Metadata), false
	in.Metadata["meta-v"] = "1.0.0"
	if err := c.Registrar.Put(t.Context(), &in, core.User{Admin: true, Local: true}); err != nil {
		t.Fatal(err)
	}
	c.metadataStored("1.0.0")
	entry := core.ConfigKey{Namespace: "default", Group: in.Metadata[core.KeyRevision], DataID: "orders"}
	if older, newer := c.Configs.Get(entry).Spec.Content, from.Configs.Get(entry).Spec.Content; older != newer {
		t.Errorf("the metadata are\n%s\nby version 1 and\n%s\nby version 2", older, newer)
	}
}

// service makes a Service with an endpoint on this machine.
func (c *control) service(name, address string, port int, annotations map[string]string) {
	c.t.Helper()
	meta := metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "rpc", Port: 80}}}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("rpc"), Port: new(int32(port))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
	}
	if _, err := c.Client.Create(c.t.Context(), kind.Service, service); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.Client.Create(c.t.Context(), kind.EndpointSlice, slice); err != nil {
		c.t.Fatal(err)
	}
}

// ownAddress is one of this machine that other machines could use: endpoints are on no loopback address.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	t.Skip("this machine has no address but those of the loopback interface")
	return ""
}
