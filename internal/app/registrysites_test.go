package app

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/rawgrpc"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// nacosInstance is an instance, as a client of Nacos is told.
type nacosInstance struct {
	IP       string            `json:"ip"`
	Port     int               `json:"port"`
	Weight   float64           `json:"weight"`
	Metadata map[string]string `json:"metadata"`
}

func (i nacosInstance) address() string { return net.JoinHostPort(i.IP, strconv.Itoa(i.Port)) }

// nacos asks the HTTP API of a control plane, which is to answer with 200.
func (p *plane) nacos(method, path string, query url.Values) string {
	p.t.Helper()
	code, body := p.ask(method, fmt.Sprintf("http://127.0.0.1:%d/nacos%s?%s", p.cfg.Registries.NacosPort, path, query.Encode()))
	if code != http.StatusOK {
		p.t.Fatalf("%s %s: %d %s", method, path, code, body)
	}
	return body
}

func (p *plane) ask(method, to string) (code int, body string) {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, to, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}

// register an instance that stays until it is deregistered.
func (p *plane) register(service, at string, metadata map[string]string) (deregister func()) {
	p.t.Helper()
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		p.t.Fatal(err)
	}
	text, err := json.Marshal(metadata)
	if err != nil {
		p.t.Fatal(err)
	}
	query := url.Values{"serviceName": {service}, "ip": {host}, "port": {port}, "ephemeral": {"false"}, "metadata": {string(text)}}
	p.nacos(http.MethodPost, "/v1/ns/instance", query)
	return func() { p.nacos(http.MethodDelete, "/v1/ns/instance", query) }
}

// listed are the instances of a service, as a client of Nacos in the zone of a control plane is told.
func (p *plane) listed(service string) []nacosInstance {
	p.t.Helper()
	var out struct {
		Hosts []nacosInstance `json:"hosts"`
	}
	body := p.nacos(http.MethodGet, "/v1/ns/instance/list", url.Values{"serviceName": {service}})
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		p.t.Fatalf("%v: %s", err, body)
	}
	return out.Hosts
}

// eurekaInstance is what a client of Eureka is told of the only instance of an application; ok is false if
// there is none.
func (p *plane) eurekaInstance(application string) (at, zone string, ok bool) {
	p.t.Helper()
	code, body := p.ask(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/eureka/apps/%s", p.cfg.Registries.EurekaPort, application))
	if code == http.StatusNotFound {
		return "", "", false
	}
	var out struct {
		Application struct {
			Instance []struct {
				IPAddr string `json:"ipAddr"`
				Port   struct {
					Number int `json:"$"`
				} `json:"port"`
				Metadata map[string]string `json:"metadata"`
			} `json:"instance"`
		} `json:"application"`
	}
	if err := json.Unmarshal([]byte(body), &out); err != nil || len(out.Application.Instance) != 1 {
		p.t.Fatalf("application %s: %v %s", application, err, body)
	}
	i := out.Application.Instance[0]
	return net.JoinHostPort(i.IPAddr, strconv.Itoa(i.Port.Number)), i.Metadata["zone"], true
}

// echoServer on an address, until the test ends.
func echoServer(t *testing.T, host string) (at string) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	return l.Addr().String()
}

// metadataProvider answers MetadataServiceV2 for application "orders", which serves example.Orders, until stop
// is called.
func metadataProvider(t *testing.T, host string) (port string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(rawgrpc.Codec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		var in []byte
		if err := stream.RecvMsg(&in); err != nil {
			return err
		}
		// app, and a service by its key: interface, protocol and path.
		out := []byte("\x0a\x06orders\x1a\x3b\x0a\x12example.Orders:tri\x12\x25" +
			"\x0a\x0eexample.Orders\x22\x03tri\x32\x0eexample.Orders")
		return stream.SendMsg(&out)
	}))
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, s.Stop
}

// startRegistrySite is startZone, with registries and addresses that this machine can connect to.
func (s *sites) startRegistrySite(name, cidr string) *plane {
	s.t.Helper()
	s.global.create(kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: name}})
	cfg := s.zoneConfig(name, name)
	cfg.FederationProtocol = 0
	cfg.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix(cidr)}
	cfg.Registries = RegistriesConfig{
		NacosPort: nacosPort(s.t), EurekaPort: testkit.FreePort(s.t), TLS: registry.TLSOff,
		Anonymous: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}
	p := startPlane(s.t, cfg, memory.New(memory.Options{}))
	until(s.t, "zone "+name+" is online", func() bool { return s.online(name) })
	return p
}

// nacosPort is a free port, whose port for gRPC is free, too.
func nacosPort(t *testing.T) int {
	t.Helper()
	for {
		port := testkit.FreePort(t)
		if port+nacosGRPCOffset > 65535 {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+nacosGRPCOffset)))
		if err != nil {
			continue
		}
		l.Close()
		return port
	}
}

// exportAll has the default mesh export all Services, with certificates.
func exportAll(s *sites) {
	s.t.Helper()
	until(s.t, "the mesh exports all, with certificates", func() bool {
		obj, err := s.global.client.Get(s.t.Context(), kind.Mesh, resource.Key{Name: meshv1alpha1.DefaultMesh})
		if err != nil {
			return false
		}
		spec := &obj.(*meshv1alpha1.Mesh).Spec
		spec.MTLS, spec.Routing = builtin("own", "own"), &meshv1alpha1.MeshRouting{Export: meshv1alpha1.ExportAll}
		_, err = s.global.client.Update(s.t.Context(), kind.Mesh, obj)
		return err == nil
	})
}

// TestRegistriesOfTwoSites: an instance that is registered in site a is found by clients of registries in site
// b, at an address that leads there through the tunnel; clients of b are told of their own site's first, of
// Dubbo's metadata without a connection to the provider, and of a as long as it may be used.
func TestRegistriesOfTwoSites(t *testing.T) {
	if os.Getenv("PROXIMA_TEST_SITES") == "" { // instances at loopback addresses are not for other sites
		if why := netns.Available(); why != "" {
			t.Skip(why)
		}
		t.Setenv("PROXIMA_TEST_SITES", "1")
		n, outside := netns.New(t, "site"), netns.New(t, "outside")
		netns.Connect(n, outside, [2]string{kernelAddress + "/24", "10.99.0.2/24"})
		n.Run(os.Args[0], "-test.run", "^TestRegistriesOfTwoSites$")
		return
	}
	s := &sites{t: t, globalStore: memory.New(memory.Options{})}
	s.global = startPlane(t, planeConfig(t, RoleGlobal), s.globalStore)
	s.global.cfg.APIAddress = s.global.global.api.address.String()
	s.a, s.b = s.startRegistrySite("a", "127.96.77.0/24"), s.startRegistrySite("b", "127.96.78.0/24")
	exportAll(s)
	a, b := testSite{&meshPlane{t: t, cp: s.a.cp}}, testSite{&meshPlane{t: t, cp: s.b.cp}}
	a.startIngress("ingress-a")
	b.start("n1", func(*NodeConfig) {})
	client := workloadAt("client", "127.0.0.1")
	client.Annotations, client.Spec.NodeName = map[string]string{meshv1alpha1.AnnotationMachineID: t.Name()}, "n1"
	b.create(kind.Dataplane, client)

	at := echoServer(t, kernelAddress)
	port, closeMetadata := metadataProvider(t, kernelAddress)
	_, served, _ := net.SplitHostPort(at)
	deregister := s.a.register("orders", at, map[string]string{
		"version": "2", "zone": "a-1", registry.KeyRevision: "r1", registry.KeyStorage: registry.StorageLocal,
		"dubbo.endpoints":                   `[{"port":` + served + `,"protocol":"tri"}]`,
		"dubbo.metadata-service.url-params": `{"port":"` + port + `","protocol":"tri"}`,
		"meta-v":                            "2.0.0",
	})
	found := func() (nacosInstance, bool) {
		all := s.b.listed("orders")
		return append(all, nacosInstance{})[0], len(all) == 1 && all[0].IP != kernelAddress
	}
	var in nacosInstance
	until(t, "a client of Nacos in site b is told", func() (ok bool) { in, ok = found(); return ok })
	if in.Weight != 1 || in.Metadata["zone"] != "a" || in.Metadata["version"] != "2" {
		t.Errorf("instance %+v, want weight 1 in zone a with the metadata of its client", in)
	}
	var last error
	until(t, "the instance is reached", func() bool { last = echoed(in.address()); return last == nil })
	if at, zone, ok := s.b.eurekaInstance("ORDERS"); !ok || at != in.address() || zone != "a" {
		t.Errorf("a client of Eureka is told of %s in zone %q", at, zone)
	}

	// Metadata of Dubbo are asked for in a, once.
	until(t, "metadata are offered", func() bool { in, _ = found(); return in.Metadata[registry.KeyRevision] == "r1" })
	closeMetadata()
	if want := `[{"port":` + strconv.Itoa(in.Port) + `,"protocol":"tri"}]`; in.Metadata[registry.KeyStorage] != registry.StorageRemote || in.Metadata["dubbo.endpoints"] != want {
		t.Errorf("metadata of the instance: %v", in.Metadata)
	}
	content := s.b.nacos(http.MethodGet, "/v1/cs/configs", url.Values{"dataId": {"orders"}, "group": {"r1"}})
	mapping := s.b.nacos(http.MethodGet, "/v1/cs/configs", url.Values{"dataId": {"example.Orders"}, "group": {"mapping"}})
	if !strings.Contains(content, `"example.Orders:tri"`) || mapping != "orders" {
		t.Errorf("metadata in site b: %s, mapping %q", content, mapping)
	}

	// The own site goes first.
	own := s.b.register("orders", net.JoinHostPort(kernelAddress, "9"), nil)
	until(t, "the own instance is told alone", func() bool {
		all := s.b.listed("orders")
		return len(all) == 1 && all[0].IP == kernelAddress
	})
	own()
	until(t, "the other site's is back", func() bool { _, ok := found(); return ok })

	// Two instances weigh more, and the list follows what is there.
	s.a.register("orders", echoServer(t, kernelAddress), map[string]string{"version": "3"})
	until(t, "metadata that differ are left out", func() bool { in, _ = found(); return in.IP != "" && in.Metadata["version"] == "" })
	if in.Metadata[registry.KeyRevision] != "r1" {
		t.Errorf("metadata of two instances: %v", in.Metadata)
	}

	// A zone that may not be used is not told of; one whose link is cut is, and is reached.
	s.enable("a", false)
	until(t, "a disabled zone is told of no more", func() bool { return len(s.b.listed("orders")) == 0 })
	s.enable("a", true)
	until(t, "it is back", func() bool { _, ok := found(); return ok })
	s.global.stop()
	until(t, "it is reached without global", func() bool { in, _ = found(); last = echoed(in.address()); return last == nil })
	deregister()
	if _, ok := found(); !ok {
		t.Error("without global an instance of another site is gone from the list")
	}
}
