package registries

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	"github.com/proxima-mesh/proxima/internal/registry/zookeeper"
)

// aclEntries are what the test's ACLs are of; some are none that ZooKeeper takes.
func aclEntries() []zk.ACL {
	out := []zk.ACL{
		{Scheme: "world", ID: "anyone"}, {Scheme: "world", ID: "alice"}, {Scheme: "auth", ID: ""}, {Scheme: "digest", ID: "alice"}, {Scheme: "none", ID: "x"},
	}
	out = append(out, zk.DigestACL(0, "alice", "secret")...)
	out = append(out, zk.DigestACL(0, "bob", "secret")...)
	for _, id := range []string{"127.0.0.1", "127.9.9.9/8", "127.0.0.2", "10.0.0.0/8", "0.0.0.0/0", "127.0.0.1/32", "127.0.0.1/33", "127.0.0.1/", "127.1", "::1"} {
		out = append(out, zk.ACL{Scheme: "ip", ID: id})
	}
	return out
}

// The same random operations on nodes with ACLs, of clients with and without credentials, at a real ZooKeeper and here:
// answers are equal. PROXIMA_ZOOKEEPER is the address of the real one.
func TestZooKeeperACLDifferential(t *testing.T) {
	address := os.Getenv("PROXIMA_ZOOKEEPER")
	if address == "" {
		t.Skip("PROXIMA_ZOOKEEPER is not set: make interop-registries runs it")
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("PROXIMA_ZOOKEEPER_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("PROXIMA_ZOOKEEPER_SEED=%d", seed)
	p := registrytest.New(t)
	root := fmt.Sprintf("/acl-%d", seed)
	var sides [2][]*zk.Conn
	for i, at := range []string{address, p.Serve(zookeeper.New(p.Core).WithNodes(newNodeStore(t), 64<<20).Serve)} {
		for _, user := range []string{"alice:secret", "bob:secret", ""} {
			c, _ := connectZooKeeper(t, 10*time.Second, at)
			if user != "" {
				if err := c.AddAuth("digest", []byte(user)); err != nil {
					t.Fatal(err)
				}
			}
			sides[i] = append(sides[i], c)
		}
		if _, err := sides[i][0].Create(root, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	r := rand.New(rand.NewPCG(seed, 2))
	for n := range 3000 {
		o := randomACLOperation(r, root)
		want, got := o.run(sides[0][o.client]), o.run(sides[1][o.client])
		if got != want {
			t.Fatalf("operation %d, %+v:\n ZooKeeper: %s\n here:      %s", n, o, want, got)
		}
	}
}

type aclOperation struct {
	kind, client int
	path         string
	acl          []zk.ACL
	version      int32
}

func randomACLOperation(r *rand.Rand, root string) aclOperation {
	o := aclOperation{kind: r.IntN(8), client: r.IntN(3), path: fmt.Sprintf("%s/%d", root, r.IntN(4)), version: int32(r.IntN(4) - 1)}
	if r.IntN(3) == 0 {
		o.path += fmt.Sprintf("/%d", r.IntN(2))
	}
	entries := aclEntries()
	for range 1 + r.IntN(2) {
		a := entries[r.IntN(len(entries))]
		a.Perms = int32(1 + r.IntN(zk.PermAll))
		o.acl = append(o.acl, a)
	}
	return o
}

// run returns the answer, as far as both servers have the same.
func (o aclOperation) run(c *zk.Conn) string {
	var out any
	var err error
	var stat *zk.Stat
	switch o.kind {
	case 0, 1:
		out, err = c.Create(o.path, []byte("x"), 0, o.acl)
	case 2:
		err = c.Delete(o.path, -1)
	case 3:
		out, stat, err = c.Get(o.path)
	case 4:
		stat, err = c.Set(o.path, []byte("y"), o.version)
	case 5:
		out, stat, err = c.GetACL(o.path)
	case 6:
		stat, err = c.SetACL(o.path, o.acl, o.version)
	case 7:
		out, stat, err = c.Exists(o.path)
	}
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprint(out)
	if stat != nil {
		text += fmt.Sprintf(" version %d of the ACL %d children %d", stat.Version, stat.Aversion, stat.NumChildren)
	}
	return text
}
