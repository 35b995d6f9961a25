package registries

import (
	"context"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nacos-group/nacos-sdk-go/v2/clients"
	"github.com/nacos-group/nacos-sdk-go/v2/clients/config_client"
	"github.com/nacos-group/nacos-sdk-go/v2/clients/naming_client"
	"github.com/nacos-group/nacos-sdk-go/v2/common/constant"
	"github.com/nacos-group/nacos-sdk-go/v2/model"
	"github.com/nacos-group/nacos-sdk-go/v2/vo"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/nacos"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
)

// serveNacos on two ports, gRPC 1000 above HTTP, as clients expect; the result is that of HTTP.
func serveNacos(t *testing.T, p *registrytest.Plane) uint64 {
	t.Helper()
	return serveNacosAt(t, p, nacos.New(p.Core), "127.0.0.1")
}

func serveNacosAt(t *testing.T, p *registrytest.Plane, s *nacos.Server, host string) uint64 {
	t.Helper()
	h, g := listenNacos(t, host)
	p.ServeOn(h, s.ServeHTTPOn)
	p.ServeOn(g, s.Serve)
	return portOf(h)
}

func portOf(l net.Listener) uint64 { return uint64(l.Addr().(*net.TCPAddr).Port) }

// listenNacos takes a port for HTTP, and the one that belongs to it for gRPC.
func listenNacos(t *testing.T, host string) (http, grpc net.Listener) {
	t.Helper()
	for range 100 {
		h, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		port := h.Addr().(*net.TCPAddr).Port
		g, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port+1000)))
		if err != nil {
			_ = h.Close()
			continue
		}
		return h, g
	}
	t.Fatal("no two free ports")
	return nil, nil
}

// param of a client whose files are in a folder of its own: the SDK reads them again when it starts.
func param(t *testing.T, port uint64, user, password string) vo.NacosClientParam {
	t.Helper()
	// The SDK writes there after it was closed, which t.TempDir would not forgive.
	dir, err := os.MkdirTemp("", "nacos")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return vo.NacosClientParam{
		ClientConfig: constant.NewClientConfig(constant.WithTimeoutMs(5000), constant.WithNotLoadCacheAtStart(true), constant.WithLogDir(dir),
			constant.WithCacheDir(dir), constant.WithLogLevel("error"), constant.WithUsername(user), constant.WithPassword(password)),
		ServerConfigs: []constant.ServerConfig{*constant.NewServerConfig("127.0.0.1", port)},
	}
}

func naming(t *testing.T, port uint64) naming_client.INamingClient {
	t.Helper()
	c, err := clients.NewNamingClient(param(t, port, "", ""))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func ports(list []model.Instance) string {
	var out []string
	for _, in := range list {
		out = append(out, strconv.FormatUint(in.Port, 10))
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

// The SDK of Go, as it is: providers and a subscriber, a restart of the control plane between them.
func TestNacosNaming(t *testing.T) {
	p := registrytest.New(t)
	port := serveNacos(t, p)
	provider, consumer := naming(t, port), naming(t, port)
	seen := make(chan string, 100)
	if err := consumer.Subscribe(&vo.SubscribeParam{ServiceName: "orders", SubscribeCallback: func(list []model.Instance, err error) {
		if err == nil {
			seen <- ports(list)
		}
	}}); err != nil {
		t.Fatal(err)
	}
	until := func(want string) {
		t.Helper()
		for end := time.After(20 * time.Second); ; {
			select {
			case got := <-seen:
				if got == want {
					return
				}
			case <-end:
				t.Fatalf("the subscriber did not see %q", want)
			}
		}
	}
	if ok, err := provider.BatchRegisterInstance(vo.BatchRegisterInstanceParam{ServiceName: "orders", Instances: []vo.RegisterInstanceParam{
		{Ip: "10.1.0.7", Port: 20001, Weight: 1, Enable: true, Healthy: true, Ephemeral: true, Metadata: map[string]string{"dubbo.metadata.revision": "1"}},
		{Ip: "10.1.0.7", Port: 20002, Weight: 2, Enable: true, Healthy: true, Ephemeral: true},
	}}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	until("20001,20002")
	list, err := consumer.SelectInstances(vo.SelectInstancesParam{ServiceName: "orders", HealthyOnly: true})
	if err != nil || len(list) != 2 {
		t.Fatalf("select: %v, %v", list, err)
	}
	for _, in := range list {
		if in.Port == 20001 && in.Metadata["dubbo.metadata.revision"] != "1" || in.Port == 20002 && in.Weight != 2 {
			t.Errorf("instance %+v", in)
		}
	}
	if all, err := consumer.GetAllServicesInfo(vo.GetAllServiceInfoParam{PageNo: 1, PageSize: 10}); err != nil || all.Count != 1 || all.Doms[0] != "orders" {
		t.Errorf("services %+v, %v", all, err)
	}
	if ok, err := provider.DeregisterInstance(vo.DeregisterInstanceParam{Ip: "10.1.0.7", Port: 20001, ServiceName: "orders", Ephemeral: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	until("20002")
	provider.CloseClient()
	p.Eventually("the provider is gone", func() bool { return len(p.Dataplanes()) == 0 })
	consumer.CloseClient()
}

// TestNacosBalance: clients that are all connected to one of two instances of a control plane are asked to move to the
// other one, which the SDK does; what they registered stays.
func TestNacosBalance(t *testing.T) {
	t.Parallel() // it waits for 15 s
	p := registrytest.New(t)
	hosts := []string{"127.0.0.1", "127.0.0.2"}
	var servers []*nacos.Server
	var list []constant.ServerConfig
	for i, host := range hosts {
		core := *p.Core
		core.Others = func(registry.Protocol) []registry.Server {
			other := 1 - i
			return []registry.Server{{Host: hosts[other], Port: strconv.FormatUint(list[other].Port, 10), Clients: servers[other].Connections()}}
		}
		servers = append(servers, nacos.New(&core))
		list = append(list, *constant.NewServerConfig(host, 0))
	}
	list[0].Port = serveNacosAt(t, p, servers[0], hosts[0])
	// The second one is away at first, so all clients come to the first.
	away := []net.Listener{nil, nil}
	away[0], away[1] = listenNacos(t, hosts[1])
	list[1].Port = portOf(away[0])
	for _, l := range away {
		_ = l.Close()
	}
	for n := range 16 {
		params := param(t, 0, "", "")
		params.ServerConfigs = list
		c, err := clients.NewNamingClient(params)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.CloseClient)
		if ok, err := c.RegisterInstance(vo.RegisterInstanceParam{
			Ip: "10.1.0.7", Port: uint64(8000 + n), Weight: 1, Enable: true, Healthy: true, Ephemeral: true, ServiceName: "orders",
		}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	before := map[string]bool{}
	for _, d := range p.Dataplanes() {
		before[string(d.UID)] = true
	}
	for i, serve := range []func(context.Context, net.Listener) error{servers[1].ServeHTTPOn, servers[1].Serve} {
		l, err := net.Listen("tcp", away[i].Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		p.ServeOn(l, serve)
	}
	// Half of the surplus moves each time.
	for end := time.Now().Add(time.Minute); servers[1].Connections() < 7; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d and %d clients", servers[0].Connections(), servers[1].Connections())
		}
		if n := len(p.Dataplanes()); n != 16 {
			t.Fatalf("%d instances are registered", n)
		}
	}
	for _, d := range p.Dataplanes() {
		if !before[string(d.UID)] {
			t.Errorf("%s was registered anew", d.Name)
		}
	}
}

// Its persistent instances are registered by HTTP.
func TestNacosPersistent(t *testing.T) {
	p := registrytest.New(t)
	c := naming(t, serveNacos(t, p))
	defer c.CloseClient()
	if ok, err := c.RegisterInstance(vo.RegisterInstanceParam{Ip: "10.1.0.8", Port: 9000, Weight: 1, Enable: true, Healthy: true, ServiceName: "db"}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	p.Eventually("it is listed", func() bool {
		list, err := c.SelectAllInstances(vo.SelectAllInstancesParam{ServiceName: "db"})
		return err == nil && ports(list) == "9000" && !list[0].Ephemeral
	})
}

func TestNacosConfig(t *testing.T) {
	p := registrytest.New(t)
	port := serveNacos(t, p)
	client := func() config_client.IConfigClient {
		c, err := clients.NewConfigClient(param(t, port, "", ""))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.CloseClient)
		return c
	}
	writer, reader := client(), client()
	seen := make(chan string, 100)
	if err := reader.ListenConfig(vo.ConfigParam{DataId: "orders.yaml", Group: "DEFAULT_GROUP", OnChange: func(_, _, _, data string) { seen <- data }}); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"a: 1", "a: 2"} {
		if ok, err := writer.PublishConfig(vo.ConfigParam{DataId: "orders.yaml", Group: "DEFAULT_GROUP", Content: content}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if got, err := writer.GetConfig(vo.ConfigParam{DataId: "orders.yaml", Group: "DEFAULT_GROUP"}); got != content || err != nil {
			t.Errorf("read %q, %v after %q was written", got, err, content)
		}
		for end := time.After(20 * time.Second); ; {
			select {
			case got := <-seen:
				if got != content {
					continue
				}
			case <-end:
				t.Fatalf("the listener did not see %q", content)
			}
			break
		}
	}
	if ok, err := writer.PublishConfig(vo.ConfigParam{DataId: "orders.yaml", Group: "DEFAULT_GROUP", Content: "a: 3", CasMd5: "0"}); ok && err == nil {
		t.Error("a write that compares with nothing replaced what is there")
	}
	page, err := reader.SearchConfig(vo.SearchConfigParam{Search: "accurate", DataId: "orders.yaml", Group: "DEFAULT_GROUP", PageNo: 1, PageSize: 10})
	if err != nil || page.TotalCount != 1 || page.PageItems[0].Content != "a: 2" {
		t.Errorf("search %+v, %v", page, err)
	}
	if ok, err := writer.DeleteConfig(vo.ConfigParam{DataId: "orders.yaml", Group: "DEFAULT_GROUP"}); !ok || err != nil {
		t.Error(ok, err)
	}
	if got, err := writer.GetConfig(vo.ConfigParam{DataId: "orders.yaml", Group: "DEFAULT_GROUP"}); got != "" {
		t.Errorf("read %q, %v after it was deleted", got, err)
	}
}

// The SDK logs in with a token of the control plane as its password.
func TestNacosLogin(t *testing.T) {
	p := registrytest.New(t)
	port := serveNacos(t, p)
	p.Gate.Anonymous = nil
	in := vo.RegisterInstanceParam{Ip: "10.1.0.8", Port: 9000, Weight: 1, Enable: true, Healthy: true, ServiceName: "db", Ephemeral: true}
	refused := naming(t, port)
	defer refused.CloseClient()
	if ok, err := refused.RegisterInstance(in); ok && err == nil {
		t.Error("registered without credentials")
	}
	c, err := clients.NewNamingClient(param(t, port, "nacos", registrytest.Token))
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseClient()
	if ok, err := c.RegisterInstance(in); !ok || err != nil {
		t.Error(ok, err)
	}
}
