package nacos

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/registry/rawgrpc"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client is one of version 2, as far as its messages go.
type client struct {
	t      *testing.T
	conn   *grpc.ClientConn
	stream grpc.ClientStream
	pushes chan *payload
	token  string
}

func connect(t *testing.T, address string) *client {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawgrpc.Codec{})))
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, conn: conn, pushes: make(chan *payload, 100)}
	t.Cleanup(func() { _ = conn.Close() })
	return c
}

// setUp begins the stream, and waits until the server knows of it.
func (c *client) setUp() {
	c.t.Helper()
	check := c.ask("ServerCheckRequest", map[string]any{})
	if check["connectionId"] == "" || check["errorCode"] != 0.0 {
		c.t.Fatalf("server check: %v", check)
	}
	var err error
	c.stream, err = c.conn.NewStream(c.t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/BiRequestStream/requestBiStream")
	if err != nil {
		c.t.Fatal(err)
	}
	b, err := encode("ConnectionSetupRequest", map[string]any{"clientVersion": "test", "tenant": "", "labels": map[string]string{}})
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.stream.SendMsg(&b); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		for {
			var in []byte
			if c.stream.RecvMsg(&in) != nil {
				return
			}
			if p, err := decode(in); err == nil {
				c.pushes <- p
			}
		}
	}()
	for {
		if health := c.ask("HealthCheckRequest", map[string]any{}); health["errorCode"] == 0.0 {
			return
		}
		time.Sleep(time.Millisecond) // as the clients do
	}
}

// ask a request, and return the answer.
func (c *client) ask(kind string, message any) map[string]any {
	c.t.Helper()
	body, err := json.Marshal(message)
	if err != nil {
		c.t.Fatal(err)
	}
	in := appendPayload(nil, kind, nil, body)
	if c.token != "" {
		in = withHeader(kind, body, "accessToken", c.token)
	}
	var out []byte
	if err := c.conn.Invoke(c.t.Context(), "/Request/request", &in, &out); err != nil {
		c.t.Fatal(err)
	}
	p, err := decode(out)
	if err != nil {
		c.t.Fatal(err)
	}
	answer := map[string]any{}
	if err := json.Unmarshal(p.body, &answer); err != nil {
		c.t.Fatal(err)
	}
	answer["type"] = p.kind
	return answer
}

// withHeader is appendPayload with a header.
func withHeader(kind string, body []byte, key, value string) []byte {
	var entry, metadata, anyOf, out []byte
	entry = protowire.AppendString(protowire.AppendTag(entry, fieldMapKey, protowire.BytesType), key)
	entry = protowire.AppendString(protowire.AppendTag(entry, fieldMapValue, protowire.BytesType), value)
	metadata = protowire.AppendString(protowire.AppendTag(metadata, fieldType, protowire.BytesType), kind)
	metadata = protowire.AppendBytes(protowire.AppendTag(metadata, fieldHeaders, protowire.BytesType), entry)
	anyOf = protowire.AppendBytes(protowire.AppendTag(anyOf, fieldValue, protowire.BytesType), body)
	out = protowire.AppendBytes(protowire.AppendTag(out, fieldMetadata, protowire.BytesType), metadata)
	return protowire.AppendBytes(protowire.AppendTag(out, fieldBody, protowire.BytesType), anyOf)
}

// pushed is the next push of a type.
func (c *client) pushed(kind string) map[string]any {
	c.t.Helper()
	for {
		select {
		case p := <-c.pushes:
			if p.kind != kind {
				c.t.Fatalf("pushed %s, want %s", p.kind, kind)
			}
			out := map[string]any{}
			if err := json.Unmarshal(p.body, &out); err != nil {
				c.t.Fatal(err)
			}
			return out
		case <-time.After(10 * time.Second):
			c.t.Fatalf("no %s within 10 s", kind)
		}
	}
}

func register(service string, ports ...int) map[string]any {
	var list []map[string]any
	for _, port := range ports {
		list = append(list, map[string]any{
			"ip": "10.1.0.7", "port": port, "weight": 1.0, "healthy": true, "enabled": true, "ephemeral": true, "clusterName": "DEFAULT",
			"metadata": map[string]string{"dubbo.endpoints": fmt.Sprintf(`[{"port":%d,"protocol":"tri"}]`, port)},
		})
	}
	return map[string]any{"namespace": "public", "serviceName": service, "groupName": "DEFAULT_GROUP", "type": "batchRegisterInstance", "instances": list}
}

func subscribe(service string) map[string]any {
	return map[string]any{"namespace": "public", "serviceName": service, "groupName": "DEFAULT_GROUP", "subscribe": true, "clusters": ""}
}

// hosts of an answer or a push, and their position.
func hosts(message map[string]any) (ports string, position float64) {
	info, _ := message["serviceInfo"].(map[string]any)
	list, _ := info["hosts"].([]any)
	var out []string
	for _, h := range list {
		host := h.(map[string]any)
		out = append(out, fmt.Sprint(host["port"]))
	}
	position, _ = info["lastRefTime"].(float64)
	return strings.Join(out, ","), position
}

func TestNaming(t *testing.T) {
	p := registrytest.New(t)
	address := p.Serve(New(p.Core).Serve)
	c := connect(t, address)
	if answer := c.ask("SubscribeServiceRequest", subscribe("orders")); answer["errorCode"] != 301.0 || answer["type"] != "ErrorResponse" {
		t.Errorf("before it is set up: %v", answer)
	}
	c.setUp()
	if answer := c.ask("PersistentInstanceRequest", map[string]any{}); answer["errorCode"] != 302.0 {
		t.Errorf("a request of an ability that is not here: %v", answer)
	}
	subscribed := time.Now()
	if got, _ := hosts(c.ask("SubscribeServiceRequest", subscribe("orders"))); got != "" {
		t.Errorf("hosts %s", got)
	}

	provider := connect(t, address)
	provider.setUp()
	// Clients of Dubbo register an instance for each URL.
	if answer := provider.ask("BatchInstanceRequest", register("orders", 20001, 20001, 20002)); answer["type"] != "BatchInstanceResponse" || answer["success"] != true {
		t.Fatal(answer)
	}
	ports, last := "", 0.0
	for ports != "20001,20002" {
		next := 0.0
		ports, next = hosts(c.pushed("NotifySubscriberRequest"))
		if next <= last {
			t.Errorf("position %g after %g", next, last)
		}
		last = next
	}
	if after := time.Since(subscribed); after < settle {
		t.Errorf("a change was pushed %s after the subscription, before the client has its callback", after)
	}
	if answer := provider.ask("BatchInstanceRequest", register("orders", 20002)); answer["success"] != true {
		t.Fatal(answer)
	}
	for ports != "20002" {
		ports, last = hosts(c.pushed("NotifySubscriberRequest"))
	}
	answer := c.ask("ServiceQueryRequest", map[string]any{"namespace": "", "serviceName": "DEFAULT_GROUP@@orders", "groupName": ""})
	if got, at := hosts(answer); got != "20002" || at != last || answer["type"] != "QueryServiceResponse" {
		t.Errorf("query: %v", answer)
	}
	if answer := c.ask("ServiceListRequest", map[string]any{"namespace": "public", "groupName": "DEFAULT_GROUP", "pageNo": 1, "pageSize": 10}); answer["count"] != 1.0 {
		t.Errorf("list: %v", answer)
	}
	// Another client cannot withdraw it by a request of its own user; both are anonymous here, so it can.
	if answer := c.ask("SubscribeServiceRequest", map[string]any{"serviceName": "orders", "groupName": "DEFAULT_GROUP", "subscribe": false}); answer["success"] != true {
		t.Errorf("unsubscribe: %v", answer)
	}
	_ = provider.conn.Close()
	p.Eventually("the instance of a client that is gone is removed", func() bool { return len(p.Dataplanes()) == 0 })
}

// TestNoNews: a change of a service that makes no difference to its list, as metadata of Dubbo do that its instances name
// already, is not told.
func TestNoNews(t *testing.T) {
	p := registrytest.New(t)
	c := connect(t, p.Serve(New(p.Core).Serve))
	c.setUp()
	c.ask("BatchInstanceRequest", register("orders", 20001))
	p.Eventually("it is listed", func() bool {
		ports, _ := hosts(c.ask("ServiceQueryRequest", map[string]any{"serviceName": "orders"}))
		return ports == "20001"
	})
	_, before := hosts(c.ask("SubscribeServiceRequest", subscribe("orders")))
	named := map[string]any{"dataId": "orders", "group": "1", "tenant": "", "content": "{}"}
	if answer := c.ask("ConfigPublishRequest", named); answer["errorCode"] != 0.0 {
		t.Fatalf("publish: %v", answer)
	}
	p.Eventually("the position has moved", func() bool {
		_, at := hosts(c.ask("ServiceQueryRequest", map[string]any{"serviceName": "orders"}))
		return at > before
	})
	time.Sleep(settle) // what is pushed is held back for so long
	c.ask("BatchInstanceRequest", register("orders", 20001, 20002))
	if ports, _ := hosts(c.pushed("NotifySubscriberRequest")); ports != "20001,20002" {
		t.Errorf("pushed %q, want the change of instances alone", ports)
	}
}

// A client that comes back after a restart of the control plane finds what was there, at a position that
// is not older; nothing is pushed empty.
func TestRestart(t *testing.T) {
	p := registrytest.New(t)
	c := connect(t, p.Serve(New(p.Core).Serve))
	c.setUp()
	c.ask("BatchInstanceRequest", register("orders", 20001))
	var before float64
	p.Eventually("it is listed", func() bool {
		ports, at := hosts(c.ask("ServiceQueryRequest", map[string]any{"serviceName": "orders"}))
		before = at
		return ports == "20001"
	})
	p.Restart()
	c = connect(t, p.Serve(New(p.Core).Serve))
	c.setUp()
	if ports, at := hosts(c.ask("SubscribeServiceRequest", subscribe("orders"))); ports != "20001" || at < before {
		t.Errorf("hosts %q at %g, before the restart 20001 at %g", ports, at, before)
	}
}

func TestConfig(t *testing.T) {
	p := registrytest.New(t)
	s := New(p.Core)
	c := connect(t, p.Serve(s.Serve))
	c.setUp()
	entry := func(more map[string]any) map[string]any {
		out := map[string]any{"dataId": "orders.yaml", "group": "DEFAULT_GROUP", "tenant": ""}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	if answer := c.ask("ConfigQueryRequest", entry(nil)); answer["errorCode"] != 300.0 || answer["type"] != "ConfigQueryResponse" {
		t.Errorf("query of what is not there: %v", answer)
	}
	listen := map[string]any{"listen": true, "configListenContexts": []any{entry(map[string]any{"md5": ""})}}
	if answer := c.ask("ConfigBatchListenRequest", listen); answer["type"] != "ConfigChangeBatchListenResponse" || len(answer["changedConfigs"].([]any)) != 0 {
		t.Errorf("listen: %v", answer)
	}
	if answer := c.ask("ConfigPublishRequest", entry(map[string]any{"content": "a: 1", "additionMap": map[string]string{"type": "yaml"}})); answer["success"] != true {
		t.Fatal(answer)
	}
	answer := c.ask("ConfigQueryRequest", entry(nil)) // what was written is read
	if answer["content"] != "a: 1" || answer["contentType"] != "yaml" || answer["md5"] == "" {
		t.Errorf("query: %v", answer)
	}
	if push := c.pushed("ConfigChangeNotifyRequest"); push["dataId"] != "orders.yaml" || push["tenant"] != "" {
		t.Errorf("push: %v", push)
	}
	if answer := c.ask("ConfigBatchListenRequest", listen); len(answer["changedConfigs"].([]any)) != 1 {
		t.Errorf("listen with an old md5: %v", answer)
	}
	if answer := c.ask("ConfigPublishRequest", entry(map[string]any{"content": "a: 2", "casMd5": "0"})); answer["errorCode"] != 409.0 {
		t.Errorf("compare and swap of what is there: %v", answer)
	}
	if answer := c.ask("ConfigPublishRequest", entry(map[string]any{"content": "a: 2", "casMd5": answer["md5"]})); answer["success"] != true {
		t.Errorf("compare and swap: %v", answer)
	}
	if answer := c.ask("ConfigRemoveRequest", entry(nil)); answer["success"] != true {
		t.Errorf("remove: %v", answer)
	}
	if answer := c.ask("ConfigQueryRequest", entry(nil)); answer["errorCode"] != 300.0 {
		t.Errorf("query of what was removed: %v", answer)
	}
	// Names of applications are added to a mapping, whoever writes it last.
	for _, app := range []string{"orders", "pay", "orders"} {
		c.ask("ConfigPublishRequest", map[string]any{"dataId": "com.example.Pay", "group": "mapping", "content": app})
	}
	if answer := c.ask("ConfigQueryRequest", map[string]any{"dataId": "com.example.Pay", "group": "mapping"}); answer["content"] != "orders,pay" {
		t.Errorf("mapping: %v", answer)
	}
}

func TestHTTP(t *testing.T) {
	p := registrytest.New(t)
	base := "http://" + p.Serve(New(p.Core).ServeHTTPOn)
	h := &http.Client{}
	t.Cleanup(h.CloseIdleConnections)
	call := func(method, path string, form url.Values) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, base+path+"?"+form.Encode(), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := h.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	form := func(pairs ...string) url.Values {
		out := url.Values{}
		for i := 0; i < len(pairs); i += 2 {
			out.Set(pairs[i], pairs[i+1])
		}
		return out
	}
	want := func(what string, method, path string, form url.Values, status int, contains string) {
		t.Helper()
		if got, body := call(method, path, form); got != status || !strings.Contains(body, contains) {
			t.Errorf("%s: %d %s, want %d with %q", what, got, body, status, contains)
		}
	}
	in := form("serviceName", "pay", "ip", "10.1.0.9", "port", "9000", "ephemeral", "false", "weight", "0.5", "metadata", `{"a":"b"}`)
	want("register", "POST", "/nacos/v1/ns/instance", in, 200, "ok")
	p.Eventually("it is listed", func() bool {
		_, body := call("GET", "/nacos/v1/ns/instance/list", form("serviceName", "pay"))
		return strings.Contains(body, `"weight":0.5`) && strings.Contains(body, `"ephemeral":false`)
	})
	in.Set("weight", "2")
	in.Set("enabled", "false")
	want("update", "PUT", "/nacos/v1/ns/instance", in, 200, "ok")
	p.Eventually("it is changed", func() bool {
		d := p.Dataplanes()[0]
		return *d.Spec.Weight == 200 && !*d.Spec.Enabled
	})
	want("v2", "GET", "/nacos/v2/ns/instance/list", form("serviceName", "pay"), 200, `"code":0`)
	want("deregister", "DELETE", "/nacos/v1/ns/instance", in, 200, "ok")
	if len(p.Dataplanes()) != 0 {
		t.Error("it is there")
	}
	beat := form("serviceName", "pay", "beat", `{"ip":"10.1.0.9","port":9000,"weight":1,"cluster":"DEFAULT","metadata":{}}`)
	want("beat", "PUT", "/nacos/v1/ns/instance/beat", beat, 200, `"code":10200`)
	want("light beat", "PUT", "/nacos/v1/ns/instance/beat", form("serviceName", "pay", "ip", "10.1.0.9", "port", "9000", "clusterName", "DEFAULT"), 200, `"code":10200`)
	want("beat of an unknown one", "PUT", "/nacos/v1/ns/instance/beat", form("serviceName", "pay", "ip", "10.1.0.9", "port", "1"), 200, `"code":20404`)

	want("publish", "POST", "/nacos/v1/cs/configs", form("dataId", "d", "group", "g", "content", "x"), 200, "true")
	want("get", "GET", "/nacos/v1/cs/configs", form("dataId", "d", "group", "g"), 200, "x")
	want("search", "GET", "/nacos/v1/cs/configs", form("search", "blur", "dataId", "d*", "group", ""), 200, `"totalCount":1`)
	want("poll of a change", "POST", "/nacos/v1/cs/configs/listener", form("Listening-Configs", "d\x02g\x02md5\x01"), 200, "d%02g%01")
	want("get of nothing", "GET", "/nacos/v1/cs/configs", form("dataId", "e", "group", "g"), 404, "not exist")
	want("publish encrypted", "POST", "/nacos/v1/cs/configs", form("dataId", "cipher-aes-d", "group", "g", "content", "c2VjcmV0", "encryptedDataKey", "a2V5"), 200, "true")
	want("get encrypted", "GET", "/nacos/v1/cs/configs", form("dataId", "cipher-aes-d", "group", "g"), 200, "c2VjcmV0")
	want("search encrypted", "GET", "/nacos/v1/cs/configs", form("search", "accurate", "dataId", "cipher-aes-d", "group", "g"), 200, `"encryptedDataKey":"a2V5"`)
	want("remove", "DELETE", "/nacos/v1/cs/configs", form("dataId", "d", "group", "g"), 200, "true")
	want("login", "POST", "/nacos/v1/auth/users/login", form("username", "nacos", "password", registrytest.ShopToken), 200, `"accessToken":"shop"`)
	want("login with a wrong token", "POST", "/nacos/v1/auth/users/login", form("username", "nacos", "password", "nacos"), 403, "not valid")
	want("a namespace that is not there", "POST", "/nacos/v1/ns/instance", form("namespaceId", "moon", "serviceName", "a", "ip", "10.0.0.1", "port", "1"), 400, "--registry-namespaces")
	want("no IP address", "POST", "/nacos/v1/ns/instance", form("serviceName", "a", "ip", "web", "port", "1"), 400, "no IP address")
	want("unknown", "GET", "/nacos/v1/raft", nil, 404, "not part")
}

func TestUsers(t *testing.T) {
	p := registrytest.New(t)
	p.Gate.Anonymous = nil
	c := connect(t, p.Serve(New(p.Core).Serve))
	c.setUp()
	if answer := c.ask("BatchInstanceRequest", register("orders", 1)); answer["errorCode"] != 403.0 {
		t.Errorf("without credentials: %v", answer)
	}
	c.token = registrytest.ShopToken
	if answer := c.ask("BatchInstanceRequest", register("orders", 1)); answer["errorCode"] != 403.0 {
		t.Errorf("in a namespace that is not of its token: %v", answer)
	}
	if answer := c.ask("ConfigQueryRequest", map[string]any{"dataId": "a", "group": "b", "tenant": ""}); answer["errorCode"] != 403.0 {
		t.Errorf("read in a namespace that is not of its token: %v", answer)
	}
	if answer := c.ask("ConfigQueryRequest", map[string]any{"dataId": "a", "group": "b", "tenant": "shop"}); answer["errorCode"] != 300.0 {
		t.Errorf("read in its own: %v", answer)
	}
	mine := register("orders", 1)
	mine["namespace"] = "shop"
	if answer := c.ask("BatchInstanceRequest", mine); answer["success"] != true {
		t.Errorf("in its own: %v", answer)
	}
	// A connection is of whom each request says: the token before gives the one after nothing.
	c.token = registrytest.Token
	if answer := c.ask("BatchInstanceRequest", register("orders", 2)); answer["success"] != true {
		t.Errorf("as an administrator: %v", answer)
	}
	c.token = registrytest.ShopToken
	if answer := c.ask("BatchInstanceRequest", register("orders", 3)); answer["errorCode"] != 403.0 {
		t.Errorf("as another user again: %v", answer)
	}
}

func FuzzPayload(f *testing.F) {
	b, err := encode("InstanceRequest", map[string]any{"serviceName": "a"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(withHeader("ConfigQueryRequest", []byte(`{"dataId":"a"}`), "accessToken", "t"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decode(b)
		if err != nil {
			return
		}
		again, err := decode(appendPayload(nil, p.kind, nil, p.body))
		if err != nil || again.kind != p.kind || string(again.body) != string(p.body) {
			t.Errorf("%q is read as %q: %v", p.kind, again.kind, err)
		}
	})
}

// A list that is not valid changes nothing, and what a failure leaves of one ends with the next.
func TestBatchFails(t *testing.T) {
	p := registrytest.New(t)
	provider := connect(t, p.Serve(New(p.Core).Serve))
	provider.setUp()
	bad := register("orders", 20001)
	bad["instances"] = append(bad["instances"].([]map[string]any), nil)
	if answer := provider.ask("BatchInstanceRequest", bad); answer["success"] == true {
		t.Errorf("a list with a null: %v", answer)
	}
	if n := len(p.Dataplanes()); n != 0 {
		t.Errorf("a list with a null has registered %d", n)
	}
	p.Client.Intercept(func(c resourcetest.Call) error {
		if d, ok := c.Object.(*meshv1alpha1.Dataplane); ok && c.Verb == resourcetest.Create && d.Spec.Ports[0].Port == 20002 {
			return errors.New("the disk is full")
		}
		return nil
	})
	if answer := provider.ask("BatchInstanceRequest", register("orders", 20001, 20002)); answer["success"] == true {
		t.Errorf("a write that fails: %v", answer)
	}
	p.Client.Intercept(nil)
	if answer := provider.ask("BatchInstanceRequest", register("orders", 20003)); answer["success"] != true {
		t.Fatal(answer)
	}
	for _, d := range p.Dataplanes() {
		if port := d.Spec.Ports[0].Port; port != 20003 {
			t.Errorf("port %d is left", port)
		}
	}
}
