package zookeeper

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	"github.com/proxima-mesh/proxima/internal/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client of the protocol, as far as its messages go.
type client struct {
	t        *testing.T
	conn     net.Conn
	xid      int32
	zxid     int64
	id       int64
	password []byte
	timeout  int32
	events   []string
}

func dial(t *testing.T, address string, from *client) *client {
	t.Helper()
	c := &client{t: t}
	if from != nil {
		c.id, c.password, c.zxid = from.id, from.password, from.zxid
	}
	var err error
	if c.conn, err = net.Dial("tcp", address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.conn.Close() })
	e := encoder{b: make([]byte, 4)}
	e.int(0)
	e.long(c.zxid)
	e.int(6000)
	e.long(c.id)
	e.buffer(c.password)
	e.bool(false)
	if _, err := c.conn.Write(framed(e.b)); err != nil {
		t.Fatal(err)
	}
	d := decoder{b: c.frame()}
	d.int()
	c.timeout, c.id, c.password = d.int(), d.long(), d.buffer()
	if d.bool(); d.err != nil {
		t.Fatal(d.err)
	}
	return c
}

func (c *client) frame() []byte {
	c.t.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	var head [4]byte
	if _, err := io.ReadFull(c.conn, head[:]); err != nil {
		c.t.Fatal(err)
	}
	b := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(c.conn, b); err != nil {
		c.t.Fatal(err)
	}
	return b
}

// next message: an event is noted, and is false.
func (c *client) next() (d decoder, result code, reply bool) {
	c.t.Helper()
	d = decoder{b: c.frame()}
	xid, zxid, result := d.int(), d.long(), code(d.int())
	if xid == xidEvent {
		kind := d.int()
		d.int()
		c.events = append(c.events, fmt.Sprintf("%d %s", kind, d.string()))
		return d, 0, false
	}
	if zxid < c.zxid {
		c.t.Errorf("transaction %x after %x", zxid, c.zxid)
	}
	c.zxid = zxid
	return d, result, true
}

// ask a request.
func (c *client) ask(op opcode, body func(*encoder)) (decoder, code) {
	c.t.Helper()
	c.xid++
	e := encoder{b: make([]byte, 4)}
	e.int(c.xid)
	e.int(int32(op))
	if body != nil {
		body(&e)
	}
	if _, err := c.conn.Write(framed(e.b)); err != nil {
		c.t.Fatal(err)
	}
	for {
		if d, result, reply := c.next(); reply {
			return d, result
		}
	}
}

// event is the next one.
func (c *client) event() string {
	c.t.Helper()
	for len(c.events) == 0 {
		if _, _, reply := c.next(); reply {
			c.t.Fatal("an answer without a question")
		}
	}
	out := c.events[0]
	c.events = c.events[1:]
	return out
}

func encodeChange(e *encoder, op opcode, path, data string, n int32) {
	e.string(path)
	switch op {
	case opCreate, opCreate2, opCreateContainer:
		e.buffer([]byte(data))
		e.openACL()
		e.int(n)
	case opSetData:
		e.buffer([]byte(data))
		e.int(n)
	case opDelete, opCheck:
		e.int(n)
	}
}

func (c *client) create(path, data string, mode int32) code {
	c.t.Helper()
	_, result := c.ask(opCreate, func(e *encoder) { encodeChange(e, opCreate, path, data, mode) })
	return result
}

func (c *client) delete(path string) code {
	c.t.Helper()
	_, result := c.ask(opDelete, func(e *encoder) { encodeChange(e, opDelete, path, "", anyVersion) })
	return result
}

func (c *client) set(path, data string, version int32) code {
	c.t.Helper()
	_, result := c.ask(opSetData, func(e *encoder) { encodeChange(e, opSetData, path, data, version) })
	return result
}

func (c *client) watched(op opcode, path string, watch bool) (decoder, code) {
	c.t.Helper()
	return c.ask(op, func(e *encoder) { e.string(path); e.bool(watch) })
}

func (c *client) children(path string, watch bool) string {
	c.t.Helper()
	d, result := c.watched(opGetChildren2, path, watch)
	if result != codeOK {
		return fmt.Sprint(result)
	}
	return strings.Join(d.strings(), ",")
}

func (c *client) get(path string, watch bool) (string, stat, code) {
	c.t.Helper()
	d, result := c.watched(opGetData, path, watch)
	if result != codeOK {
		return "", stat{}, result
	}
	data := string(d.buffer())
	return data, readStat(&d), result
}

func readStat(d *decoder) stat {
	return stat{
		czxid: d.long(), mzxid: d.long(), ctime: d.long(), mtime: d.long(), version: d.int(), cversion: d.int(), aversion: d.int(),
		owner: d.long(), length: d.int(), children: d.int(), pzxid: d.long(),
	}
}

func serve(t *testing.T) (*registrytest.Plane, string) {
	p := registrytest.New(t)
	return p, p.Serve(New(p.Core).Serve)
}

const orders = `{"name":"orders","id":"10.1.0.7:20001","address":"10.1.0.7","port":20001,"payload":{"@class":"org.apache.dubbo.registry.zookeeper.ZookeeperInstance",` +
	`"id":"10.1.0.7:20001","name":"orders","metadata":{"dubbo.metadata.revision":"1","zone":"east"}},"registrationTimeUTC":1}`

// An instance of an application: what is written is read, others are told before they can read it, and it is in
// the catalogue.
func TestInstance(t *testing.T) {
	p, address := serve(t)
	provider, consumer := dial(t, address, nil), dial(t, address, nil)
	if got := consumer.children("/services/orders", true); got != "" {
		t.Fatalf("children %q", got)
	}
	if got := consumer.children("/services", true); got != "" {
		t.Fatalf("applications %q", got)
	}
	if _, result := consumer.watched(opExists, "/services/orders/10.1.0.7:20001", true); result != codeNoNode {
		t.Errorf("exists: %d", result)
	}
	if got := provider.create("/services/orders", "", modePersistent); got != codeNodeExists {
		t.Errorf("a parent is created: %d", got)
	}
	const path = "/services/orders/10.1.0.7:20001"
	if got := provider.create(path, orders, modeEphemeral); got != codeOK {
		t.Fatalf("create: %d", got)
	}
	if got := provider.create(path, orders, modeEphemeral); got != codeNodeExists {
		t.Errorf("created again: %d", got)
	}
	var events []string
	for range 3 {
		events = append(events, consumer.event())
	}
	slices.Sort(events)
	if got := strings.Join(events, "; "); got != "1 "+path+"; 4 /services; 4 /services/orders" {
		t.Errorf("events %s", got)
	}
	if got := consumer.children("/services/orders", true); got != "10.1.0.7:20001" {
		t.Errorf("children %q", got)
	}
	data, s, result := consumer.get(path, true)
	if data != orders || s.owner != provider.id || s.version != 0 || result != codeOK {
		t.Errorf("data %q of %d, %+v, %d", data, provider.id, s, result)
	}
	l := p.Index.Listing(registry.Service{Namespace: "default", Name: "orders"}, "")
	if len(l.Instances) != 1 || l.Instances[0].Port != 20001 || l.Instances[0].Metadata["dubbo.metadata.revision"] != "1" || l.Instances[0].Zone != "east" {
		t.Fatalf("in the catalogue %+v", l.Instances)
	}
	next := strings.Replace(orders, `"1"`, `"2"`, 1)
	if got := provider.set(path, next, 1); got != codeBadVersion {
		t.Errorf("set with a version that is not: %d", got)
	}
	if got := provider.set(path, next, 0); got != codeOK {
		t.Fatalf("set: %d", got)
	}
	if got := consumer.event(); got != "3 "+path {
		t.Errorf("event %s", got)
	}
	if data, s, _ = consumer.get(path, true); data != next || s.version != 1 || s.mzxid <= s.czxid {
		t.Errorf("data %q, %+v", data, s)
	}
	if got := provider.delete("/services/orders"); got != codeNotEmpty {
		t.Errorf("delete a parent: %d", got)
	}
	// The end of the session is the end of its nodes.
	if _, result := provider.ask(opClose, nil); result != codeOK {
		t.Errorf("close: %d", result)
	}
	events = []string{consumer.event(), consumer.event()}
	slices.Sort(events)
	if got := strings.Join(events, "; "); got != "2 "+path+"; 4 /services/orders" {
		t.Errorf("events %s", got)
	}
	if got := consumer.children("/services/orders", false) + consumer.children("/services", false); got != "" {
		t.Errorf("children %q", got)
	}
}

// The session of a client goes on after a restart, with its instances and their watches.
func TestRestart(t *testing.T) {
	p := registrytest.New(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := p.ServeOn(l, New(p.Core).Serve)
	provider := dial(t, address, nil)
	const path = "/services/orders/10.1.0.7:20001"
	if got := provider.create(path, orders, modeEphemeral); got != codeOK {
		t.Fatalf("create: %d", got)
	}
	if got := provider.create("/dubbo/mapping/org.x.Orders", "orders", modePersistent); got != codeOK {
		t.Fatalf("create: %d", got)
	}
	if got := provider.set("/dubbo/mapping/org.x.Orders", "shop", anyVersion); got != codeOK {
		t.Fatalf("set: %d", got)
	}
	_, before, _ := provider.get("/dubbo/mapping/org.x.Orders", false)
	p.Restart()
	address = p.Serve(New(p.Core).Serve)
	thief := *provider
	thief.password = make([]byte, passwordSize)
	if got := dial(t, address, &thief); got.timeout != 0 || got.id != 0 {
		t.Errorf("another client has the session: %+v", got)
	}
	again := dial(t, address, provider)
	if again.id != provider.id || again.timeout != 6000 {
		t.Fatalf("session %d is %d, %d ms", provider.id, again.id, again.timeout)
	}
	if data, s, result := again.get(path, false); data != orders || s.owner != provider.id || result != codeOK {
		t.Errorf("after the restart: %q, %+v, %d", data, s, result)
	}
	if data, s, _ := again.get("/dubbo/mapping/org.x.Orders", false); data != "orders,shop" || s.version != before.version || s.mzxid != before.mzxid {
		t.Errorf("after the restart: %q, %+v, want %+v", data, s, before)
	}
	if !p.Registrar.Claimed(resource.KeyOf(p.Dataplanes()[0])) {
		t.Error("nothing keeps the instance alive")
	}
	// A watch that has nothing to tell stays; one that was missed is called.
	_, result := again.ask(opSetWatches, func(e *encoder) {
		e.long(again.zxid)
		e.strings([]string{path})
		e.strings([]string{"/services/orders/x", path})
		e.strings(nil)
	})
	if got := again.event(); result != codeOK || got != "1 "+path {
		t.Errorf("watches: %d, %s", result, got)
	}
	if got := again.delete(path); got != codeOK {
		t.Fatalf("delete: %d", got)
	}
	if got := again.event(); got != "2 "+path {
		t.Errorf("event %s", got)
	}
}

// What a client of Nacos or Kubernetes has is a node with the fields of Curator, which it alone can change.
func TestForeign(t *testing.T) {
	p, address := serve(t)
	in := &registry.Instance{
		Service: registry.Service{Namespace: "default", Name: "orders"}, Address: netip.MustParseAddr("10.1.0.8"), Port: 8080, Weight: 100,
		Enabled: true, Healthy: true, Protocol: registry.Nacos, Metadata: map[string]string{"dubbo.metadata.revision": "7"},
	}
	rpc := &registry.Instance{
		Service: registry.Service{Namespace: "default", Name: "providers:org.x.Orders:1.0.0:"}, Address: in.Address, Port: 20880, Weight: 100,
		Enabled: true, Healthy: true, Protocol: registry.Nacos,
		Metadata: map[string]string{"protocol": "tri", "path": "org.x.Orders", "version": "1.0.0", "methods": "get,put"},
	}
	for _, i := range []*registry.Instance{in, rpc} {
		if err := p.Registrar.Put(t.Context(), i, registry.User{}); err != nil {
			t.Fatal(err)
		}
	}
	c := dial(t, address, nil)
	p.Eventually("it is a node", func() bool { return c.children("/services/orders", false) == "10.1.0.8:8080" })
	data, s, _ := c.get("/services/orders/10.1.0.8:8080", false)
	var fields map[string]any
	if err := json.Unmarshal([]byte(data), &fields); err != nil {
		t.Fatal(err)
	}
	payload, _ := fields["payload"].(map[string]any)
	if payload["@class"] != classDubbo || fields["port"] != 8080.0 || fields["address"] != "10.1.0.8" || s.owner != 0 {
		t.Errorf("data %s, %+v", data, s)
	}
	for _, field := range []string{"name", "id", "sslPort", "registrationTimeUTC", "serviceType", "uriSpec", "enabled"} {
		if _, ok := fields[field]; !ok {
			t.Errorf("field %s is missing", field)
		}
	}
	if got := c.delete("/services/orders/10.1.0.8:8080"); got != codeNoAuth {
		t.Errorf("delete: %d", got)
	}
	p.Eventually("the provider is a node", func() bool { return c.children("/dubbo/org.x.Orders/providers", false) != "" })
	name := c.children("/dubbo/org.x.Orders/providers", false)
	if text, err := url.QueryUnescape(name); err != nil || text != "tri://10.1.0.8:20880/org.x.Orders?methods=get,put&version=1.0.0" {
		t.Errorf("provider %s, %v", text, err)
	}
	if got := c.children("/dubbo", false); got != "config,mapping,metadata,org.x.Orders" {
		t.Errorf("children %s", got)
	}
}

// A payload has a class that the clients of its service have; without one there is none.
func TestPayload(t *testing.T) {
	in := &registry.Instance{Service: registry.Service{Namespace: "default", Name: "pay"}, Address: netip.MustParseAddr("10.1.0.8"), Port: 1, Metadata: map[string]string{"a": "b"}}
	for _, c := range []struct {
		key    string
		spring bool
		want   string
	}{{"a", false, `"payload":null`}, {"a", true, classSpring}, {"dubbo.endpoints", true, classDubbo}} {
		in.Metadata = map[string]string{c.key: "b"}
		if got := string(dataOf(in, false, c.spring)); !strings.Contains(got, c.want) {
			t.Errorf("metadata %s, Spring Cloud %v: %s, want %s", c.key, c.spring, got, c.want)
		}
	}
	p, address := serve(t)
	in.Metadata, in.Protocol, in.Weight, in.Enabled, in.Healthy = map[string]string{"a": "b"}, registry.Nacos, 100, true, true
	if err := p.Registrar.Put(t.Context(), in, registry.User{}); err != nil {
		t.Fatal(err)
	}
	c := dial(t, address, nil)
	data := func() string { text, _, _ := c.get("/services/pay/10.1.0.8:1", false); return text }
	p.Eventually("it has no payload", func() bool { return strings.Contains(data(), `"payload":null`) })
	c.create("/services/pay", "", 0)
	c.create("/services/pay/x", `{"name":"pay","id":"x","address":"10.1.0.9","port":1,"payload":{"@class":"`+classSpring+`","id":"x","name":"pay","metadata":{}}}`, 1)
	p.Eventually("it has one of Spring Cloud", func() bool { return strings.Contains(data(), classSpring) })
}

// The nodes of Dubbo are what clients of Nacos know them as.
func TestDubbo(t *testing.T) {
	p, address := serve(t)
	c := dial(t, address, nil)
	provider := url.QueryEscape("tri://10.1.0.7:20001/org.x.Orders?application=orders&group=g&version=1.0.0&weight=200")
	rule := url.QueryEscape("override://0.0.0.0/org.x.Orders?category=configurators&dynamic=false&timeout=300")
	for _, n := range []struct {
		path, data string
		mode       int32
	}{
		{"/dubbo/org.x.Orders/providers/" + provider, "10.1.0.7", modeEphemeral},
		{"/dubbo/org.x.Orders/consumers/" + url.QueryEscape("consumer://10.1.0.9/org.x.Orders?version=1.0.0"), "", modeEphemeral},
		{"/dubbo/org.x.Orders/configurators/" + rule, "", modePersistent},
		{"/dubbo/orders/8a7b", `{"app":"orders","revision":"8a7b","services":{}}`, modePersistent},
		{"/dubbo/metadata/org.x.Orders/1.0.0/g/provider/orders", `{"parameters":{}}`, modePersistent},
		{"/dubbo/config/dubbo/orders.configurators", "configVersion: v3.0", modePersistent},
	} {
		if got := c.create(n.path, n.data, n.mode); got != codeOK {
			t.Errorf("create %s: %d", n.path, got)
		}
		if data, _, result := c.get(n.path, false); data != n.data || result != codeOK {
			t.Errorf("read %s: %q, %d", n.path, data, result)
		}
	}
	l := p.Index.Listing(registry.Service{Namespace: "default", Name: "providers:org.x.Orders:1.0.0:g"}, "")
	if len(l.Instances) != 1 || l.Instances[0].Metadata["protocol"] != "tri" || l.Instances[0].Weight != 200 {
		t.Errorf("provider %+v", l.Instances)
	}
	for _, key := range []registry.ConfigKey{
		{Namespace: "default", Group: "8a7b", DataID: "orders"}, {Namespace: "default", Group: "dubbo", DataID: "org.x.Orders:1.0.0:g:provider:orders"},
		{Namespace: "default", Group: "dubbo", DataID: "orders.configurators"},
	} {
		if p.Configs.Get(key) == nil {
			t.Errorf("there is no %s", key)
		}
	}
	if got := c.children("/dubbo/metadata/orders", false); got != "8a7b" {
		t.Errorf("revisions %s", got)
	}
	if got := c.create("/dubbo/metadata/org.x.Orders/2.0.0", "10.1.0.7", modePersistent); got != codeNodeExists {
		t.Errorf("a parent: %d", got)
	}
	// What Nacos publishes is a node.
	err := p.Configs.Put(t.Context(), registry.User{}, registry.ConfigKey{Namespace: "shop", Group: "mapping", DataID: "org.x.Stock"},
		func(spec *meshv1alpha1.RegistryConfigSpec, _ bool) error { spec.Content = "stock"; return nil })
	if err != nil {
		t.Fatal(err)
	}
	p.Eventually("it is read", func() bool {
		data, _, _ := c.get("/shop/dubbo/mapping/org.x.Stock", false)
		return data == "stock"
	})
	for _, n := range []string{"/dubbo/config/dubbo/orders.configurators", "/dubbo/org.x.Orders/configurators/" + rule, "/dubbo/org.x.Orders/providers/" + provider} {
		if got := c.delete(n); got != codeOK {
			t.Errorf("delete %s: %d", n, got)
		}
		if _, result := c.watched(opExists, n, false); result != codeNoNode {
			t.Errorf("after it was deleted %s: %d", n, result)
		}
	}
	for _, n := range []string{"/locks/a", "/services/a/b/c", "/zookeeper/config", "/nowhere/services/a/b"} {
		if got := c.create(n, "", modePersistent); got != codeNoAuth {
			t.Errorf("create %s: %d", n, got)
		}
	}
}

// All operations of a multi, or none.
func TestMulti(t *testing.T) {
	_, address := serve(t)
	c := dial(t, address, nil)
	multi := func(last string) (results []code) {
		d, result := c.ask(opMulti, func(e *encoder) {
			for _, path := range []string{"/services/a/10.0.0.1:1", "/services/a/10.0.0.2:1", last} {
				e.result(opCreate, -1)
				encodeChange(e, opCreate, path, "", modeEphemeral)
			}
			e.result(opCheck, -1)
			encodeChange(e, opCheck, "/services/a/10.0.0.1:1", "", 0)
			e.endOfResults()
		})
		if result != codeOK {
			t.Fatalf("multi: %d", result)
		}
		for {
			op, done, one := opcode(d.int()), d.bool(), code(d.int())
			if done || d.err != nil {
				return results
			}
			results = append(results, one)
			switch op {
			case opCreate:
				d.string()
			case opError:
				d.int()
			}
		}
	}
	if got := fmt.Sprint(multi("/elsewhere")); got != "[0 0 -102 -2]" {
		t.Errorf("results %s", got)
	}
	if got := c.children("/services/a", false); got != "" {
		t.Errorf("after it failed: %s", got)
	}
	if got := fmt.Sprint(multi("/services/b/10.0.0.1:1")); got != "[0 0 0 0]" {
		t.Errorf("results %s", got)
	}
	if got := c.children("/services/a", false); got != "10.0.0.1:1,10.0.0.2:1" {
		t.Errorf("after it: %s", got)
	}
}

// Persistent watches stay, recursive ones are of all that is below.
func TestPersistentWatches(t *testing.T) {
	_, address := serve(t)
	c, writer := dial(t, address, nil), dial(t, address, nil)
	for path, mode := range map[string]int32{"/services": 1, "/services/a": 0} {
		if _, result := c.ask(opAddWatch, func(e *encoder) { e.string(path); e.int(mode) }); result != codeOK {
			t.Fatalf("add watch: %d", result)
		}
	}
	const path = "/services/a/10.0.0.1:1"
	for range 2 {
		if writer.create(path, "", modeEphemeral) != codeOK || writer.delete(path) != codeOK {
			t.Fatal("create and delete")
		}
		var got []string
		for range 6 {
			got = append(got, c.event())
		}
		want := "1 /services/a; 1 " + path + "; 4 /services/a; 2 " + path + "; 2 /services/a; 4 /services/a"
		slices.Sort(got)
		sorted := strings.Split(want, "; ")
		slices.Sort(sorted)
		if !slices.Equal(got, sorted) {
			t.Errorf("events %v, want %v", got, sorted)
		}
	}
	if _, result := c.ask(opRemoveWatches, func(e *encoder) { e.string("/services"); e.int(3) }); result != codeOK {
		t.Errorf("remove: %d", result)
	}
	if _, result := c.ask(opRemoveWatches, func(e *encoder) { e.string("/services"); e.int(3) }); result != codeNoWatcher {
		t.Errorf("remove again: %d", result)
	}
}

// Clients from elsewhere show a token, and may write what it is for.
func TestCredentials(t *testing.T) {
	p := registrytest.New(t)
	p.Gate.Anonymous = nil
	address := p.Serve(New(p.Core).Serve)
	c := dial(t, address, nil)
	if got := c.create("/services/a/10.0.0.1:1", "", modeEphemeral); got != codeNoAuth {
		t.Errorf("without credentials: %d", got)
	}
	auth := func(c *client, token string) code {
		_, result := c.ask(opAuth, func(e *encoder) { e.int(0); e.string("digest"); e.buffer([]byte("any:" + token)) })
		return result
	}
	if got := auth(dial(t, address, nil), "wrong"); got != codeAuthFailed {
		t.Errorf("a wrong token: %d", got)
	}
	if got := auth(c, registrytest.ShopToken); got != codeOK {
		t.Errorf("a token: %d", got)
	}
	if got := c.create("/services/a/10.0.0.1:1", "", modeEphemeral); got != codeNoAuth {
		t.Errorf("in a namespace of others: %d", got)
	}
	if got := c.create("/shop/services/a/10.0.0.1:1", "", modeEphemeral); got != codeOK {
		t.Errorf("in its namespace: %d", got)
	}
}

// A client that does not come back, and one whose connection is lost.
func TestExpiry(t *testing.T) {
	p := registrytest.New(t)
	s := New(p.Core)
	address := p.Serve(s.Serve)
	c := dial(t, address, nil)
	if got := c.create("/services/a/10.0.0.1:1", "", modeEphemeral); got != codeOK {
		t.Fatalf("create: %d", got)
	}
	_ = c.conn.Close()
	again := dial(t, address, c)
	if again.id != c.id {
		t.Fatalf("session %d is %d", c.id, again.id)
	}
	_ = again.conn.Close()
	s.mu.Lock()
	session := s.sessions[c.id]
	s.mu.Unlock()
	session.expire() // as its timer does
	p.Eventually("the instance is gone", func() bool { return len(p.Dataplanes()) == 0 })
	p.Eventually("the tree has it no more", func() bool { return dial(t, address, nil).children("/services/a", false) == "" })
	if got := dial(t, address, c); got.timeout != 0 || got.id != 0 {
		t.Errorf("the session has ended, and is %+v", got)
	}
}

// The guide says which paths are mapped.
func TestGuide(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/how-to/registry-zookeeper.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(guide), "```paths\n")
	block, _, end := strings.Cut(rest, "```")
	if !ok || !end {
		t.Fatal("there are no paths")
	}
	_, address := serve(t)
	c := dial(t, address, nil)
	for path := range strings.Lines(block) {
		path = strings.TrimSpace(path)
		if got := c.create(path, "", modePersistent); got != codeOK {
			t.Errorf("create %s: %d", path, got)
		}
		if _, _, got := c.get("/shop"+path, false); got != codeNoNode {
			t.Errorf("in another namespace: %s: %d", path, got)
		}
	}
}

func TestWords(t *testing.T) {
	_, address := serve(t)
	dial(t, address, nil)
	for word, want := range map[string]string{"ruok": "imok", "srvr": "Mode: standalone\n", "mntr": "zk_server_state\tstandalone\n"} {
		n, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(n, word)
		got, err := io.ReadAll(n)
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s: %q, %v", word, got, err)
		}
		_ = n.Close()
	}
}

// A client that never reads holds no memory without bound, and nobody up.
func TestClientThatNeverReads(t *testing.T) {
	_, address := serve(t)
	lazy, writer := dial(t, address, nil), dial(t, address, nil)
	if got := writer.create("/services/a/10.0.0.1:1", strings.Repeat("x", 60_000), modeEphemeral); got != codeOK {
		t.Fatalf("create: %d", got)
	}
	e := encoder{b: make([]byte, 4)}
	e.int(1)
	e.int(int32(opGetData))
	e.string("/services/a/10.0.0.1:1")
	e.bool(false)
	request := framed(e.b)
	go func() {
		for range 1000 { // 60 MB of answers
			if _, err := lazy.conn.Write(request); err != nil {
				return
			}
		}
	}()
	for range 100 {
		if _, _, result := writer.get("/services/a/10.0.0.1:1", false); result != codeOK {
			t.Fatalf("get: %d", result)
		}
	}
}

func FuzzRequest(f *testing.F) {
	for _, op := range []opcode{opCreate, opMulti, opSetWatches2, opGetData, opAuth, opAddWatch} {
		e := encoder{}
		e.int(1)
		e.int(int32(op))
		encodeChange(&e, opCreate, "/services/a/b", "data", 1)
		f.Add(e.b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		d := decoder{b: in}
		d.int()
		op := opcode(d.int())
		switch op {
		case opMulti:
			for d.err == nil {
				one, done, _ := opcode(d.int()), d.bool(), d.int()
				if done {
					break
				}
				d.change(one)
			}
		case opSetWatches:
			d.long()
			d.strings()
		default:
			ch := d.change(op)
			if checkPath(ch.path) == nil {
				var t target
				if names := strings.Split(ch.path[1:], "/"); names[0] == rootDubbo {
					t.dubbo(names[1:])
				}
			}
		}
		if _, err := parseURL(string(in)); err == nil {
			_ = metadataOf(in)
		}
	})
}

// A sync is answered where the newest change is of nothing that the tree shows.
func TestSync(t *testing.T) {
	p, address := serve(t)
	c := dial(t, address, nil)
	before := p.Index.Position()
	p.Client.Seed(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n-1"}})
	p.Eventually("the position goes on", func() bool { return p.Index.Position() > before })
	d, result := c.ask(opSync, func(e *encoder) { e.string("/services") })
	if got := d.string(); result != codeOK || got != "/services" {
		t.Errorf("sync: %d, %q", result, got)
	}
}

// Several reads at once have an answer of bounded size.
func TestMultiReadIsBounded(t *testing.T) {
	_, address := serve(t)
	c := dial(t, address, nil)
	const path = "/dubbo/config/dubbo/large"
	if got := c.create(path, strings.Repeat("x", maxFrame/2), modePersistent); got != codeOK {
		t.Fatalf("create: %d", got)
	}
	read := func(n int) code {
		_, result := c.ask(opMultiRead, func(e *encoder) {
			for range n {
				e.result(opGetData, -1)
				e.string(path)
				e.bool(false)
			}
			e.endOfResults()
		})
		return result
	}
	if got := read(4); got != codeOK {
		t.Errorf("4 reads: %d", got)
	}
	if got := read(maxMulti); got != codeBadArguments {
		t.Errorf("%d reads: %d", maxMulti, got)
	}
}
