package zookeeper

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
)

// curatorJSON of an instance, as Spring Cloud writes it.
func curatorJSON(service, id string) string {
	host, port, _ := strings.Cut(id, ":")
	return `{"name":"` + service + `","id":"` + id + `","address":"` + host + `","port":` + port +
		`,"payload":{"@class":"x","id":"` + id + `","name":"` + service + `","metadata":{"version":"v2"}}}`
}

// Mappings, rules and metadata go between a real ZooKeeper, at the address in PROXIMA_ZOOKEEPER, and a control plane.
func TestMirrorEntriesOfZooKeeper(t *testing.T) {
	address := os.Getenv("PROXIMA_ZOOKEEPER")
	if address == "" {
		t.Skip("PROXIMA_ZOOKEEPER is not set: the address of a ZooKeeper whose nodes /entries/… may be changed")
	}
	here := registrytest.New(t)
	server := New(here.Core)
	port := here.Serve(server.Serve)
	old, local := dial(t, address, nil), dial(t, port, nil)
	const root = "/entries"
	const rule = "/dubbo/shop.Orders/configurators/override%3A%2F%2F0.0.0.0%2Fshop.Orders%3Fcategory%3Dconfigurators"
	const rev = "/dubbo/orders/5a1f"
	const definition = "/dubbo/metadata/shop.Orders/1.0.0/provider/orders"
	create := func(path, data string) {
		t.Helper()
		for i := 1; i < len(root+path); i++ {
			if (root + path)[i] == '/' {
				old.create((root + path)[:i], "10.0.0.1", modePersistent)
			}
		}
		if r := old.create(root+path, data, modePersistent); r != codeOK {
			t.Fatalf("create %s: %d", path, r)
		}
	}
	create("/dubbo/mapping/shop.Orders", "old-orders")
	create(rule, "")
	create(rev, `{"app":"orders","revision":"5a1f","services":{}}`)
	create(definition, `{"canonicalName":"shop.Orders"}`)
	local.create("/dubbo/mapping/shop.Orders", "new-orders", modePersistent)
	m := mirror.New(mirror.Config{
		Old: NewClient(ClientConfig{Servers: []string{address}, Root: root, Namespace: "default"}), Catalogue: &mirror.Catalogue{Client: here.Client, Namespaces: []string{"default"}},
		Here:       NewClient(ClientConfig{Servers: []string{port}, Namespace: "default", Proxima: true}),
		OldEntries: NewEntries(ClientConfig{Servers: []string{address}, Root: root, Namespace: "default"}), HereEntries: NewEntries(ClientConfig{Servers: []string{port}, Namespace: "default", Proxima: true}),
		OldName: "zk://old", HereName: "proxima://here", Follow: true, Hold: time.Millisecond,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	defer func() { cancel(); <-done }()
	is := func(c *client, path, want string) {
		t.Helper()
		here.Eventually(path+" is "+want, func() bool {
			data, _, r := c.get(path, false)
			return r == codeOK && strings.Contains(data, want)
		})
	}
	for _, path := range []string{rule, rev, definition} {
		is(local, path, "")
	}
	is(local, "/dubbo/mapping/shop.Orders", "old-orders")
	is(old, root+"/dubbo/mapping/shop.Orders", "new-orders")
	local.create("/dubbo/config/dubbo/orders.tag-router", "tags: 1", modePersistent)
	is(old, root+"/dubbo/config/dubbo/orders.tag-router", "tags: 1")
	if _, r := old.ask(opSetData, func(e *encoder) {
		encodeChange(e, opSetData, root+"/dubbo/config/dubbo/orders.tag-router", "tags: 2", anyVersion)
	}); r != codeOK {
		t.Fatalf("set data: %d", r)
	}
	is(local, "/dubbo/config/dubbo/orders.tag-router", "tags: 2")
	if r := old.delete(root + rule); r != codeOK {
		t.Fatalf("delete: %d", r)
	}
	here.Eventually("the rule is gone", func() bool { _, _, r := local.get(rule, false); return r == codeNoNode })
	if s := m.Status(); s.EntriesSkipped != 0 || s.EntryConflicts != 0 {
		t.Errorf("status %+v", s)
	}
}

// A mirror between a real ZooKeeper, at the address in PROXIMA_ZOOKEEPER, and a control plane.
func TestMirrorOfZooKeeper(t *testing.T) {
	address := os.Getenv("PROXIMA_ZOOKEEPER")
	if address == "" {
		t.Skip("PROXIMA_ZOOKEEPER is not set: the address of a ZooKeeper whose nodes /services/mirror-… may be changed")
	}
	here := registrytest.New(t)
	server := New(here.Core)
	server.minTimeout = time.Second
	port := here.Serve(server.Serve)
	start := func() (stop func()) {
		m := mirror.New(mirror.Config{
			Old: NewClient(ClientConfig{Servers: []string{address}, Namespace: "default"}), Catalogue: &mirror.Catalogue{Client: here.Client, Namespaces: []string{"default"}},
			Here:    NewClient(ClientConfig{Servers: []string{port}, Namespace: "default", Proxima: true, Timeout: time.Second}),
			OldName: "zk://old", HereName: "proxima://here", Follow: true, Apart: CopiedApart, Refuse: Refuse, Hold: time.Millisecond,
		})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := m.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		stop = func() { cancel(); <-done }
		t.Cleanup(stop)
		return stop
	}
	provider := dial(t, address, nil)
	for _, path := range []string{"/services", "/services/mirror-orders", "/dubbo", "/dubbo/mirror.Stock", "/dubbo/mirror.Stock/providers"} {
		provider.create(path, "", modePersistent)
	}
	const url = "tri%3A%2F%2F10.1.0.9%3A50051%2Fmirror.Stock%3Finterface%3Dmirror.Stock%26version%3D1.0.0"
	const path = "/services/mirror-orders/10.1.0.7:80"
	if r := provider.create(path, curatorJSON("mirror-orders", "10.1.0.7:80"), modeEphemeral); r != codeOK {
		t.Fatalf("create: %d", r)
	}
	provider.create("/dubbo/mirror.Stock/providers/"+url, "10.1.0.9", modeEphemeral)
	stop := start()
	has := func(service string, want int) {
		t.Helper()
		here.Eventually(service, func() bool {
			provider.ask(opExists, func(e *encoder) { e.string("/services"); e.bool(false) }) // it keeps the session alive
			return len(here.Index.Registered(registry.Service{Namespace: "default", Name: service})) == want
		})
	}
	has("mirror-orders", 1)
	has("providers:mirror.Stock:1.0.0:", 1)

	// An instance here appears there, marked, and one that registers there itself is not removed with the copy.
	local := dial(t, port, nil)
	const other = "/services/mirror-pay/10.1.0.8:81"
	if r := local.create(other, curatorJSON("mirror-pay", "10.1.0.8:81"), modeEphemeral); r != codeOK {
		t.Fatalf("create here: %d", r)
	}
	marked := func(want bool) {
		t.Helper()
		here.Eventually("the copy is there", func() bool {
			local.ask(opExists, func(e *encoder) { e.string(other); e.bool(false) })
			data, _, r := provider.get(other, false)
			return (r == codeOK && strings.Contains(data, registry.KeyMirroredFrom) && strings.Contains(data, `"version":"v2"`)) == want
		})
	}
	marked(true)
	// A mirror that was killed: its node is taken over by the next one, in one transaction.
	_, before, _ := provider.get(other, false)
	again := start()
	stop()
	marked(true)
	again()
	marked(false)
	stop = start()
	marked(true)
	_, after, _ := provider.get(other, false)
	if before.owner == after.owner {
		t.Error("the node is still of the session of the first mirror")
	}
	// As clients of Java do: what is there is deleted, and created again.
	if r := provider.delete(other); r != codeOK {
		t.Errorf("delete: %d", r)
	}
	if r := provider.create(other, curatorJSON("mirror-pay", "10.1.0.8:81"), modeEphemeral); r != codeOK {
		t.Errorf("the mirror was faster: %d", r)
	}
	marked(false)
	_ = local.conn.Close()
	has("mirror-pay", 1) // as a copy of it
	stop()
	if data, _, r := provider.get(other, false); r != codeOK || strings.Contains(data, registry.KeyMirroredFrom) {
		t.Errorf("the instance itself is gone with the mirror: %d %s", r, data)
	}
}
