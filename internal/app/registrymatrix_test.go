package app

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/clientcmd"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/rawgrpc"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// seen is an instance as one interface shows it. Fields that it does not convey are zero.
type seen struct {
	port    int
	weight  float64 // 1 is ordinary
	zone    string
	healthy bool
}

// matrix is a control plane with all its interfaces, and a client of each.
type matrix struct {
	t      *testing.T
	client resource.Client
	dns    *net.Resolver
	http   *http.Client
	nacos  string // base of URLs
	eureka string
	stream *grpc.ClientConn // of Nacos
	tree   *treeClient
	xds    discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	// loaded has what was received by xDS.
	loaded map[string]map[string]seen
}

func newMatrix(t *testing.T, backends ...string) *matrix {
	t.Helper()
	dir := t.TempDir()
	nacosPort, eurekaPort, treePort, xdsPort := nacosPorts(t), testkit.FreePort(t), testkit.FreePort(t), testkit.FreePort(t)
	ctx, cancel := context.WithCancel(context.Background())
	cp, err := newStandalone(ctx, ControlPlaneConfig{
		Store: "memory", DataDir: dir, APIAddress: "127.0.0.1:0", DNSAddress: "127.0.0.1:0", MachineID: t.Name(), GRPCPort: testkit.FreePort(t),
		XDSPort: xdsPort, XDSPortChosen: true, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")},
		Registries: RegistriesConfig{
			NacosPort: nacosPort, EurekaPort: eurekaPort, ZooKeeperPort: treePort, TLS: registry.TLSOptional,
			Anonymous: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Namespaces: registry.Namespaces{},
		},
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ready, done := make(chan Serving, 1), make(chan error, 1)
	go func() {
		done <- run(ctx, cp.election, append(cp.components(), announce(func(s Serving) { ready <- s }, cp.serving())))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		cp.close()
	})
	serving := <-ready
	m := &matrix{
		t: t, client: cp.api.client, http: &http.Client{Timeout: testkit.Timeout}, loaded: map[string]map[string]seen{},
		nacos: fmt.Sprintf("http://127.0.0.1:%d/nacos", nacosPort), eureka: fmt.Sprintf("http://127.0.0.1:%d/eureka", eurekaPort),
		dns: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, serving.DNS)
		}},
	}
	t.Cleanup(m.http.CloseIdleConnections)
	m.stream = m.connectNacos(nacosPort + nacosGRPCOffset)
	m.tree = dialTree(t, treePort)
	m.connectProxy(dir, xdsPort, backends...)
	return m
}

// nacosPorts are two that are free, one 1000 above the other.
func nacosPorts(t *testing.T) int {
	t.Helper()
	for {
		port := testkit.FreePort(t)
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port+nacosGRPCOffset))
		if err == nil {
			_ = l.Close()
			return port
		}
	}
}

func (m *matrix) create(k *resource.Descriptor, o resource.Object) {
	m.t.Helper()
	if _, err := m.client.Create(m.t.Context(), k, o); err != nil {
		m.t.Fatal(err)
	}
}

// call by HTTP, and return the answer.
func (m *matrix) call(method, address, body string, headers ...string) string {
	m.t.Helper()
	req, err := http.NewRequestWithContext(m.t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := m.http.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	if resp.StatusCode >= 300 && resp.StatusCode != http.StatusNotFound {
		m.t.Errorf("%s %s: %s: %s", method, address, resp.Status, b)
	}
	return string(b)
}

// connectNacos begins a connection of the protocol of Nacos 2.
func (m *matrix) connectNacos(port int) *grpc.ClientConn {
	m.t.Helper()
	conn, err := grpc.NewClient("127.0.0.1:"+strconv.Itoa(port), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawgrpc.Codec{})))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	m.stream = conn
	s, err := conn.NewStream(m.t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/BiRequestStream/requestBiStream")
	if err != nil {
		m.t.Fatal(err)
	}
	setup := nacosPayload("ConnectionSetupRequest", map[string]any{"clientVersion": "test"})
	if err := s.SendMsg(&setup); err != nil {
		m.t.Fatal(err)
	}
	eventually(m.t, "the connection", func() bool { return strings.Contains(m.ask("HealthCheckRequest", map[string]any{}), `"errorCode":0`) })
	return conn
}

// ask a request of Nacos; the answer is JSON.
func (m *matrix) ask(kind string, message map[string]any) string {
	m.t.Helper()
	in := nacosPayload(kind, message)
	var out, body []byte
	if err := m.stream.Invoke(m.t.Context(), "/Request/request", &in, &out); err != nil {
		m.t.Fatal(err)
	}
	_ = rawgrpc.Fields(out, func(number protowire.Number, value []byte) error {
		if number != 3 {
			return nil
		}
		return rawgrpc.Fields(value, func(_ protowire.Number, value []byte) error { body = value; return nil })
	})
	return string(body)
}

// treeClient is one of ZooKeeper, as far as is needed.
type treeClient struct {
	t    *testing.T
	conn net.Conn
	xid  uint32
}

func treeString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

func dialTree(t *testing.T, port int) *treeClient {
	t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := &treeClient{t: t, conn: conn}
	// protocol, zxid, timeout in ms, session, password, whether it only reads
	c.exchange(append(append(make([]byte, 12), 0, 0, 0x75, 0x30), make([]byte, 13)...))
	return c
}

// exchange a frame for the next one.
func (c *treeClient) exchange(b []byte) []byte {
	c.t.Helper()
	_ = c.conn.SetDeadline(time.Now().Add(testkit.Timeout))
	if _, err := c.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)); err != nil {
		c.t.Fatal(err)
	}
	var head [4]byte
	if _, err := io.ReadFull(c.conn, head[:]); err != nil {
		c.t.Fatal(err)
	}
	out := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(c.conn, out); err != nil {
		c.t.Fatal(err)
	}
	return out
}

// Requests of the tree (org.apache.zookeeper.ZooDefs.OpCode).
const (
	treeCreate      = 1
	treeGetData     = 4
	treeGetChildren = 8
)

// ask a request of the tree; ok is false if the answer is an error.
func (c *treeClient) ask(op uint32, path string, more []byte) (answer []byte, ok bool) {
	c.t.Helper()
	c.xid++
	b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, c.xid), op)
	out := c.exchange(append(treeString(b, path), more...))
	return out[16:], binary.BigEndian.Uint32(out[12:]) == 0
}

// create an ephemeral node, below persistent parents.
func (c *treeClient) create(path, data string) {
	c.t.Helper()
	for i, r := range path[1:] + "/" {
		if r != '/' {
			continue
		}
		node, value, flags := path[:i+1], "", uint32(0)
		if node == path {
			value, flags = data, 1
		}
		b := binary.BigEndian.AppendUint32(treeString(nil, value), 1)
		b = binary.BigEndian.AppendUint32(treeString(treeString(binary.BigEndian.AppendUint32(b, 31), "world"), "anyone"), flags)
		if _, ok := c.ask(treeCreate, node, b); !ok && node == path {
			c.t.Fatalf("create %s is refused", path)
		}
	}
}

func (c *treeClient) children(path string) []string {
	c.t.Helper()
	b, ok := c.ask(treeGetChildren, path, []byte{0})
	if !ok {
		return nil
	}
	n := binary.BigEndian.Uint32(b)
	var out []string
	for b = b[4:]; n > 0; n-- {
		length := binary.BigEndian.Uint32(b)
		out, b = append(out, string(b[4:4+length])), b[4+length:]
	}
	return out
}

func (c *treeClient) get(path string) []byte {
	c.t.Helper()
	b, ok := c.ask(treeGetData, path, []byte{0})
	if !ok {
		return nil
	}
	return b[4 : 4+binary.BigEndian.Uint32(b)]
}

// connectProxy begins a stream of xDS, as the proxy of a workload that calls backends.
func (m *matrix) connectProxy(dir string, port int, backends ...string) {
	m.t.Helper()
	m.create(kind.Dataplane, &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "caller", Annotations: map[string]string{build.AnnotationBackends: strings.Join(backends, ", ")}},
		Spec:       meshv1alpha1.DataplaneSpec{Addresses: []string{"10.0.0.1"}},
	})
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		m.t.Fatal(err)
	}
	admin, err := tls.X509KeyPair(cfg.CertData, cfg.KeyData)
	if err != nil {
		m.t.Fatal(err)
	}
	tlsConfig := (&proxyPlane{rest: cfg}).tls(admin)
	conn, err := grpc.NewClient("passthrough:///127.0.0.1:"+strconv.Itoa(port), grpc.WithTransportCredentials(credentials.NewTLS(tlsConfig)))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	if m.xds, err = discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

// receive what the proxy is told of endpoints, until the test ends.
func (m *matrix) receive() <-chan *endpoint.ClusterLoadAssignment {
	out := make(chan *endpoint.ClusterLoadAssignment, 1000)
	if err := m.xds.Send(&discovery.DeltaDiscoveryRequest{
		Node:    &core.Node{Id: "default/default/caller", Extensions: []*core.Extension{{Name: "x"}}},
		TypeUrl: build.ClusterType, ResourceNamesSubscribe: []string{"*"},
	}); err != nil {
		m.t.Fatal(err)
	}
	go func() {
		defer close(out)
		for {
			r, err := m.xds.Recv()
			if err != nil {
				return
			}
			_ = m.xds.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
			var names []string
			for _, one := range r.GetResources() {
				names = append(names, one.GetName())
				a := &endpoint.ClusterLoadAssignment{}
				if r.GetTypeUrl() == build.EndpointType && one.GetResource().UnmarshalTo(a) == nil {
					out <- a
				}
			}
			if r.GetTypeUrl() == build.ClusterType && len(names) > 0 {
				_ = m.xds.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: build.EndpointType, ResourceNamesSubscribe: names})
			}
		}
	}()
	return out
}

// keep what a proxy was told of a service.
func (m *matrix) keep(a *endpoint.ClusterLoadAssignment) {
	found := map[string]seen{}
	for _, group := range a.GetEndpoints() {
		for _, e := range group.GetLbEndpoints() {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			health := e.GetHealthStatus()
			found[at.GetAddress()] = seen{
				port: int(at.GetPortValue()), weight: float64(e.GetLoadBalancingWeight().GetValue()), zone: group.GetLocality().GetZone(),
				healthy: health == core.HealthStatus_HEALTHY || health == core.HealthStatus_UNKNOWN,
			}
		}
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(a.GetClusterName(), "default/"), ":")
	m.loaded[name] = found
}

// byNacos is an instance in a list of Nacos.
type byNacos struct {
	IP       string            `json:"ip"`
	Port     int               `json:"port"`
	Weight   float64           `json:"weight"`
	Healthy  bool              `json:"healthy"`
	Metadata map[string]string `json:"metadata"`
}

func ofNacos(list []byNacos) map[string]seen {
	out := map[string]seen{}
	for _, h := range list {
		out[h.IP] = seen{port: h.Port, weight: h.Weight, zone: h.Metadata["zone"], healthy: h.Healthy}
	}
	return out
}

// readers are the interfaces, and what each shows of a service of namespace "default", by address.
func (m *matrix) readers() map[string]func(name string) map[string]seen {
	t := m.t
	return map[string]func(string) map[string]seen{
		"Nacos by gRPC": func(name string) map[string]seen {
			var answer struct {
				Info struct {
					Hosts []byNacos `json:"hosts"`
				} `json:"serviceInfo"`
			}
			if err := json.Unmarshal([]byte(m.ask("ServiceQueryRequest", map[string]any{"serviceName": name})), &answer); err != nil {
				t.Fatal(err)
			}
			return ofNacos(answer.Info.Hosts)
		},
		"Nacos by HTTP": func(name string) map[string]seen {
			var answer struct {
				Hosts []byNacos `json:"hosts"`
			}
			if err := json.Unmarshal([]byte(m.call("GET", m.nacos+"/v1/ns/instance/list?serviceName="+url.QueryEscape(name), "")), &answer); err != nil {
				t.Fatal(err)
			}
			return ofNacos(answer.Hosts)
		},
		"Eureka": func(name string) map[string]seen {
			out := map[string]seen{}
			body := m.call("GET", m.eureka+"/apps/"+strings.ToUpper(name), "", "Accept", "application/json")
			var answer struct {
				App struct {
					Instance []struct {
						Address string `json:"ipAddr"`
						Status  string `json:"status"`
						Port    struct {
							Number int `json:"$"`
						} `json:"port"`
						Metadata map[string]any `json:"metadata"`
					} `json:"instance"`
				} `json:"application"`
			}
			if json.Unmarshal([]byte(body), &answer) != nil {
				return nil // 404: there is none
			}
			for _, i := range answer.App.Instance {
				zone, _ := i.Metadata["zone"].(string)
				out[i.Address] = seen{port: i.Port.Number, zone: zone, healthy: i.Status == "UP"}
			}
			return out
		},
		"ZooKeeper": func(name string) map[string]seen {
			out := map[string]seen{}
			for _, child := range m.tree.children("/services/" + name) {
				var node struct {
					Address string `json:"address"`
					Port    int    `json:"port"`
				}
				if err := json.Unmarshal(m.tree.get("/services/"+name+"/"+child), &node); err != nil {
					t.Errorf("data of %s: %v", child, err)
				}
				out[node.Address] = seen{port: node.Port, healthy: true}
			}
			return out
		},
		"EndpointSlices": func(name string) map[string]seen {
			out := map[string]seen{}
			list, _, err := m.client.List(t.Context(), kind.EndpointSlice, resource.ListOptions{
				Namespace: "default", Labels: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: name}),
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range list {
				slice := o.(*discoveryv1.EndpointSlice)
				for _, e := range slice.Endpoints {
					s := seen{healthy: e.Conditions.Ready == nil || *e.Conditions.Ready}
					if e.Zone != nil {
						s.zone = *e.Zone
					}
					if len(slice.Ports) > 0 {
						s.port = int(*slice.Ports[0].Port)
					}
					out[e.Addresses[0]] = s
				}
			}
			return out
		},
		"DNS": func(name string) map[string]seen {
			out := map[string]seen{}
			found, err := m.dns.LookupHost(t.Context(), name+".default.svc.cluster.local.")
			var missing *net.DNSError
			if err != nil && !errors.As(err, &missing) {
				t.Fatal(err)
			}
			for _, a := range found {
				out[a] = seen{healthy: true}
			}
			return out
		},
		"xDS": func(name string) map[string]seen { return m.loaded[name] },
	}
}

// An instance by each way to register is seen in each way to discover.
func TestRegistryMatrix(t *testing.T) {
	m := newMatrix(t, "nacos-grpc", "nacos-http", "eureka-json", "eureka-xml", "curator", "dubbo-zookeeper", "dataplane", "endpoints")
	assignments := m.receive()
	instance := func(ip string, healthy bool) map[string]any {
		return map[string]any{
			"ip": ip, "port": 8080, "weight": 2.0, "healthy": healthy, "enabled": true, "ephemeral": true, "metadata": map[string]string{"zone": "za"},
		}
	}
	curator := func(name, ip, payload string) string {
		return fmt.Sprintf(`{"name":%q,"id":"%s:8080","address":%q,"port":8080,"payload":%s}`, name, ip, ip, payload)
	}
	eureka := func(name, ip, status string) string {
		return fmt.Sprintf(`{"instance":{"instanceId":"%s:8080","app":%q,"ipAddr":%q,"hostName":"h","status":%q,"vipAddress":%q,"dataCenterInfo":`+
			`{"@class":"com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo","name":"MyOwn"},"port":{"$":8080,"@enabled":"true"},"metadata":{"zone":"za"}}}`,
			ip, strings.ToUpper(name), ip, status, name)
	}
	// Each registers one instance that takes connections, and one that does not where it can say so (sick).
	// weight is what it says.
	writers := []struct {
		name     string
		weight   float64
		sick     bool
		native   bool // it is no registry's
		register func(name, ip, sick string)
	}{
		{"nacos-grpc", 2, true, false, func(name, ip, sick string) {
			m.ask("BatchInstanceRequest", map[string]any{"serviceName": name, "type": "batchRegisterInstance", "instances": []any{instance(ip, true), instance(sick, false)}})
		}},
		{"nacos-http", 2, true, false, func(name, ip, sick string) {
			for at, healthy := range map[string]string{ip: "true", sick: "false"} {
				m.call("POST", m.nacos+"/v1/ns/instance?"+url.Values{
					"serviceName": {name}, "ip": {at}, "port": {"8080"}, "weight": {"2"}, "healthy": {healthy}, "metadata": {`{"zone":"za"}`},
				}.Encode(), "")
			}
		}},
		{"eureka-json", 1, true, false, func(name, ip, sick string) {
			for at, status := range map[string]string{ip: "UP", sick: "DOWN"} {
				m.call("POST", m.eureka+"/apps/"+strings.ToUpper(name), eureka(name, at, status), "Content-Type", "application/json")
			}
		}},
		{"eureka-xml", 1, true, false, func(name, ip, sick string) {
			for at, status := range map[string]string{ip: "UP", sick: "DOWN"} {
				m.call("POST", m.eureka+"/apps/"+strings.ToUpper(name), fmt.Sprintf(`<instance><instanceId>%s:8080</instanceId><hostName>h</hostName><app>%s</app>
<ipAddr>%s</ipAddr><status>%s</status><port enabled="true">8080</port><dataCenterInfo class="c"><name>MyOwn</name></dataCenterInfo>
<metadata><zone>za</zone></metadata><vipAddress>%s</vipAddress></instance>`, at, strings.ToUpper(name), at, status, name), "Content-Type", "application/xml")
			}
		}},
		{"curator", 1, false, false, func(name, ip, _ string) {
			m.tree.create("/services/"+name+"/"+ip+":8080", curator(name, ip, `{"@class":"org.example.Payload","metadata":{"zone":"za"}}`))
		}},
		{"dubbo-zookeeper", 1, false, false, func(name, ip, _ string) {
			m.tree.create("/services/"+name+"/"+ip+":8080", curator(name, ip, `{"@class":"org.apache.dubbo.registry.zookeeper.ZookeeperInstance","id":"i","name":"n",`+
				`"metadata":{"dubbo.metadata.revision":"1","dubbo.metadata.storage-type":"remote","zone":"za"}}`))
		}},
		{"dataplane", 2, false, true, func(name, ip, _ string) {
			d := &meshv1alpha1.Dataplane{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": name, corev1.LabelTopologyZone: "za"}},
				Spec: meshv1alpha1.DataplaneSpec{
					Addresses: []string{ip}, Weight: new(int32(200)), Ports: []meshv1alpha1.DataplanePort{{Name: "http", Port: 8080}},
				},
			}
			m.create(kind.Dataplane, d)
			made, err := m.client.Get(m.t.Context(), kind.Dataplane, resource.KeyOf(d))
			if err != nil {
				t.Fatal(err)
			}
			d = made.(*meshv1alpha1.Dataplane)
			d.Status.Conditions = []metav1.Condition{{
				Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now(),
			}}
			if _, err := m.client.UpdateStatus(m.t.Context(), kind.Dataplane, d); err != nil {
				t.Fatal(err)
			}
			m.create(kind.Service, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
			})
		}},
		{"endpoints", 1, true, true, func(name, ip, sick string) {
			m.create(kind.Service, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
			})
			m.create(kind.EndpointSlice, &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
				AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
				Endpoints: []discoveryv1.Endpoint{
					{Addresses: []string{ip}, Zone: new("za")},
					{Addresses: []string{sick}, Zone: new("za"), Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
				},
			})
		}},
	}
	for i, w := range writers {
		w.register(w.name, fmt.Sprintf("10.1.0.%d", i+1), fmt.Sprintf("10.1.1.%d", i+1))
	}
	for i, w := range writers {
		ip, sick := fmt.Sprintf("10.1.0.%d", i+1), fmt.Sprintf("10.1.1.%d", i+1)
		for reader, read := range m.readers() {
			want := shown(reader, w.weight, w.native)
			expected := map[string]seen{ip: want}
			if w.sick && reader != "ZooKeeper" && reader != "DNS" && reader != "xDS" { // they leave it out
				want.healthy = false
				expected[sick] = want
			}
			var got map[string]seen
			for end := time.Now().Add(testkit.Timeout); time.Now().Before(end) && !maps.Equal(got, expected); time.Sleep(5 * time.Millisecond) {
				for len(assignments) > 0 {
					m.keep(<-assignments)
				}
				got = read(w.name)
			}
			if !maps.Equal(got, expected) {
				t.Errorf("%s in %s: %+v, want %+v", w.name, reader, got, expected)
			}
		}
	}
	// A single RPC service of Dubbo is an instance of both protocols that have such names, and of no Service.
	provider := url.QueryEscape("tri://10.1.0.99:8080/org.example.Pay?version=1.0.0&weight=200")
	m.tree.create("/dubbo/org.example.Pay/providers/"+provider, "")
	m.ask("InstanceRequest", map[string]any{
		"serviceName": "providers:org.example.Stock:1.0.0:", "type": "registerInstance", "instance": instance("10.1.0.98", true),
	})
	readers := m.readers()
	eventually(t, "the provider of ZooKeeper in Nacos", func() bool {
		got := readers["Nacos by gRPC"]("providers:org.example.Pay:1.0.0:")["10.1.0.99"]
		return got.port == 8080 && got.weight == 2 && got.healthy
	})
	eventually(t, "the provider of Nacos in ZooKeeper", func() bool {
		list := m.tree.children("/dubbo/org.example.Stock/providers")
		return len(list) == 1 && strings.Contains(list[0], url.QueryEscape("10.1.0.98:8080"))
	})
	services, _, err := m.client.List(t.Context(), kind.Service, resource.ListOptions{Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	if len(services) != len(writers)+1 { // and that of the API
		t.Errorf("%d Services for %d applications", len(services), len(writers))
	}
}

// shown is what an interface shows of an instance at port 8080 in zone za that takes connections. native
// reports whether its zone is in no metadata.
func shown(reader string, weight float64, native bool) seen {
	out := seen{port: 8080, zone: "za", healthy: true}
	switch reader {
	case "Nacos by gRPC", "Nacos by HTTP":
		if out.weight = weight; native {
			out.zone = ""
		}
	case "ZooKeeper":
		out.zone = ""
	case "DNS":
		out.port, out.zone = 0, ""
	case "xDS":
		if out.weight = 1; weight != 1 { // else all are alike, in any unit
			out.weight = weight * 100
		}
	}
	return out
}
