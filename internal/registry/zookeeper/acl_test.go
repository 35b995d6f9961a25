package zookeeper

import (
	"fmt"
	"testing"

	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	"github.com/proxima-mesh/proxima/internal/registry/znode"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

func (c *client) auth(credentials string) code {
	c.t.Helper()
	_, result := c.ask(opAuth, func(e *encoder) { e.int(0); e.string("digest"); e.buffer([]byte(credentials)) })
	return result
}

func (c *client) createACL(path string, list ...znode.ACL) code {
	c.t.Helper()
	_, result := c.ask(opCreate, func(e *encoder) { e.string(path); e.buffer(nil); e.acl(list); e.int(modePersistent) })
	return result
}

func (c *client) setACL(path string, version int32, list ...znode.ACL) (stat, code) {
	c.t.Helper()
	d, result := c.ask(opSetACL, func(e *encoder) { e.string(path); e.acl(list); e.int(version) })
	return readStat(&d), result
}

func (c *client) acl(path string) string {
	c.t.Helper()
	d, result := c.ask(opGetACL, func(e *encoder) { e.string(path) })
	if result != codeOK {
		return fmt.Sprint(result)
	}
	list := d.acl()
	return fmt.Sprint(list, readStat(&d).aversion)
}

func entry(perms int32, scheme, id string) znode.ACL {
	return znode.ACL{Perms: perms, Identity: znode.Identity{Scheme: scheme, ID: id}}
}

// ACLs of nodes that are not mapped are kept, and are the same at each instance of the control plane and after a restart.
func TestACL(t *testing.T) {
	st := memory.New(memory.Options{})
	t.Cleanup(func() { _ = st.Close() })
	here := registrytest.NewNamed(t, "cp-1")
	there := registrytest.NewBeside(t, here, "cp-2")
	addressA := here.Serve(New(here.Core).WithNodes(st, 1<<20).Serve)
	addressB := there.Serve(New(there.Core).WithNodes(st, 1<<20).Serve)
	world := entry(znode.PermAll, "world", "anyone")
	owner, other := dial(t, addressA, nil), dial(t, addressB, nil)
	if got := owner.createACL("/app", entry(znode.PermAll, "auth", "")); got != codeInvalidACL {
		t.Errorf("scheme auth without credentials: %d", got)
	}
	if got := owner.auth("alice:secret"); got != codeOK {
		t.Fatalf("credentials: %d", got)
	}
	id := digestOf("alice:secret").ID
	for name, list := range map[string][]znode.ACL{
		"none": nil, "ip": {entry(znode.PermAll, "ip", "::1")}, "no hash": {entry(znode.PermAll, "digest", "alice")}, "a user of world": {entry(1, "world", "alice")},
	} {
		if got := owner.createACL("/app", list...); got != codeInvalidACL {
			t.Errorf("%s: %d", name, got)
		}
	}
	if got := owner.createACL("/app", entry(znode.PermAll, "auth", ""), entry(znode.PermRead, "world", "anyone")); got != codeOK {
		t.Fatalf("create: %d", got)
	}
	if got := owner.createACL("/open", world); got != codeOK {
		t.Fatalf("create: %d", got)
	}
	other.ask(opSync, func(e *encoder) { e.string("/") })
	if got := other.acl("/open"); got != "[{31 {world anyone}}] 0" {
		t.Errorf("an open ACL is %s", got)
	}
	if got := owner.acl("/app"); got != "[{31 {digest "+id+"}} {1 {world anyone}}] 0" {
		t.Errorf("its ACL is %s", got)
	}
	if got := other.acl("/app"); got != "[{31 {digest alice:x}} {1 {world anyone}}] 0" {
		t.Errorf("others see %s", got)
	}

	// Another client may read, and nothing else.
	if _, _, got := other.get("/app", false); got != codeOK {
		t.Errorf("read: %d", got)
	}
	_, setting := other.setACL("/app", anyVersion, world)
	for name, got := range map[string]code{"set": other.set("/app", "x", anyVersion), "create": other.createACL("/app/x", world), "setACL": setting} {
		if got != codeNoAuth {
			t.Errorf("%s by another: %d", name, got)
		}
	}
	if got := owner.createACL("/app/x", world); got != codeOK {
		t.Errorf("create: %d", got)
	}
	if got := other.delete("/app/x"); got != codeNoAuth {
		t.Errorf("delete by another: %d", got)
	}

	// A change of the ACL has a version of its own. A watch that was set before tells nothing that may not be read.
	if _, _, got := other.get("/app", true); got != codeOK {
		t.Errorf("read: %d", got)
	}
	if _, got := owner.setACL("/app", 1, world); got != codeBadVersion {
		t.Errorf("another version: %d", got)
	}
	if s, got := owner.setACL("/app", 0, entry(znode.PermAll, "digest", id)); got != codeOK || s.aversion != 1 || s.version != 0 {
		t.Errorf("setACL: %d, %+v", got, s)
	}
	other.ask(opSync, func(e *encoder) { e.string("/") })
	if _, _, got := other.get("/app", true); got != codeNoAuth || other.children("/app", false) != fmt.Sprint(codeNoAuth) || other.acl("/app") != fmt.Sprint(codeNoAuth) {
		t.Errorf("read by another: %d", got)
	}
	if _, got := other.watched(opExists, "/app", false); got != codeNoAuth {
		t.Errorf("exists: %d", got)
	}
	if got := owner.set("/app", "1", 0); got != codeOK {
		t.Errorf("set: %d", got)
	}
	other.ask(opSync, func(e *encoder) { e.string("/") })
	if len(other.events) != 0 {
		t.Errorf("a client that may not read is told %v", other.events)
	}
	if got := other.auth("alice:secret"); got != codeOK {
		t.Fatal(got)
	}
	if _, _, got := other.get("/app", false); got != codeOK {
		t.Errorf("read with credentials: %d", got)
	}

	// The store has it.
	later := registrytest.NewBeside(t, here, "cp-3")
	c := dial(t, later.Serve(New(later.Core).WithNodes(st, 1<<20).Serve), nil)
	if _, _, got := c.get("/app", false); got != codeNoAuth {
		t.Errorf("after a start: %d", got)
	}
	if got := c.auth("alice:secret"); got != codeOK || c.acl("/app") != "[{31 {digest "+id+"}}] 1" {
		t.Errorf("after a start: %d, %s", got, c.acl("/app"))
	}
}

// Scheme ip is of where a client comes from, and is none of the identities that scheme auth stands for.
func TestACLOfAddresses(t *testing.T) {
	st := memory.New(memory.Options{})
	t.Cleanup(func() { _ = st.Close() })
	h := registrytest.NewNamed(t, "cp-1")
	c := dial(t, h.Serve(New(h.Core).WithNodes(st, 1<<20).Serve), nil)
	if got := c.createACL("/here", entry(znode.PermAll, "ip", "127.0.0.0/8")); got != codeOK {
		t.Fatalf("create: %d", got)
	}
	if got := c.createACL("/elsewhere", entry(znode.PermRead, "ip", "127.0.0.1"), entry(znode.PermAll, "ip", "10.0.0.0/8")); got != codeOK {
		t.Fatalf("create: %d", got)
	}
	if got := c.createACL("/auth", entry(znode.PermAll, "auth", "")); got != codeInvalidACL {
		t.Errorf("scheme auth without credentials: %d", got)
	}
	if got := c.acl("/here"); got != "[{31 {ip 127.0.0.0/8}}] 0" {
		t.Errorf("the ACL is %s", got)
	}
	for path, want := range map[string]code{"/here": codeOK, "/elsewhere": codeNoAuth} {
		if got := c.set(path, "x", anyVersion); got != want {
			t.Errorf("set of %s: %d, want %d", path, got, want)
		}
		if _, _, got := c.get(path, false); got != codeOK {
			t.Errorf("get of %s: %d", path, got)
		}
	}
}

// The hash is that of ZooKeeper: DigestAuthenticationProvider.generateDigest("super:admin").
func TestDigest(t *testing.T) {
	if got := digestOf("super:admin").ID; got != "super:xQJmxLMiHGwaqBvst5y6rkB6HQs=" {
		t.Errorf("super:admin is %s", got)
	}
}
