package registries

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	"github.com/proxima-mesh/proxima/internal/registry/zookeeper"
)

// Paths that both servers are asked about, and their parents, which the real one is given first.
var (
	differentialParents = []string{"/services", "/services/a", "/services/b", "/dubbo", "/dubbo/config", "/dubbo/config/g", "/free", "/free/a", "/free/b"}
	differentialNodes   = []string{
		"/services/a/10.0.0.1:80", "/services/a/10.0.0.2:80", "/services/b/10.0.0.1:80", "/services/b/10.0.0.3:80", "/dubbo/config/g/x", "/dubbo/config/g/y",
		"/free/a/x", "/free/a/y", "/free/b/x",
	}
)

// side is one of two servers, with the same sessions.
type side struct {
	t        *testing.T
	address  string
	conns    []*zk.Conn
	watches  []sideWatch
	ways     []*way
	sessions []<-chan zk.Event
}

type sideWatch struct {
	session int
	events  <-chan zk.Event
}

const differentialSessions = 3

func newSide(t *testing.T, address string) *side {
	s := &side{
		t: t, address: address, conns: make([]*zk.Conn, differentialSessions), ways: make([]*way, differentialSessions),
		sessions: make([]<-chan zk.Event, differentialSessions),
	}
	for i := range s.conns {
		s.ways[i] = newWay(t, address)
		s.reopen(i)
	}
	for _, path := range differentialParents {
		_, _ = s.conns[0].Create(path, nil, 0, zk.WorldACL(zk.PermAll)) // they may be there
	}
	for _, path := range differentialNodes {
		_ = s.conns[0].Delete(path, -1)
	}
	return s
}

func (s *side) reopen(session int) {
	s.t.Helper()
	c, events, err := zk.Connect([]string{s.ways[session].address}, 10*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		s.t.Fatal(err)
	}
	untilState(s.t, events, zk.StateHasSession)
	s.conns[session], s.sessions[session] = c, events
}

// expire a session: its network is cut until the others see none of its nodes.
func (s *side) expire(session int) {
	s.t.Helper()
	s.watches = slices.DeleteFunc(s.watches, func(w sideWatch) bool { return w.session == session })
	id, other := s.conns[session].SessionID(), s.conns[(session+1)%len(s.conns)]
	if _, err := s.conns[session].Create(differentialNodes[0]+"0", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		s.t.Fatal(err)
	}
	s.ways[session].cut(true)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		left := 0
		paths := append([]string{differentialNodes[0] + "0"}, differentialNodes...)
		for _, parent := range []string{"/free/a", "/free/b"} { // with numbers
			names, _, err := other.Children(parent)
			if err != nil {
				s.t.Fatal(err)
			}
			for _, name := range names {
				paths = append(paths, parent+"/"+name)
			}
		}
		for _, path := range paths {
			if ok, stat, err := other.Exists(path); err != nil || ok && stat.EphemeralOwner == id {
				left++
			}
		}
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			s.t.Fatalf("%d nodes are left after a minute", left)
		}
	}
	s.ways[session].cut(false)
	untilState(s.t, s.sessions[session], zk.StateExpired)
	untilState(s.t, s.sessions[session], zk.StateHasSession)
}

// stat of a node, as far as both servers have the same.
func (s *side) stat(path string, stat *zk.Stat) string {
	if stat == nil {
		return "none"
	}
	owner := "-"
	for i, c := range s.conns {
		if stat.EphemeralOwner != 0 && c.SessionID() == stat.EphemeralOwner {
			owner = strconv.Itoa(i)
		}
	}
	out := fmt.Sprintf("version %d owner %s length %d children %d", stat.Version, owner, stat.DataLength, stat.NumChildren)
	if slices.Contains(differentialNodes, path) { // parents are there by themselves
		out += fmt.Sprintf(" created %t", stat.Mzxid == stat.Czxid)
	}
	return out
}

// operation of a random kind on random nodes, the same for both sides.
type operation struct {
	kind, session, version, flags int
	path, other, parent, data     string
}

func randomOperation(r *rand.Rand, n int) operation {
	o := operation{
		kind: r.IntN(100), session: r.IntN(differentialSessions), version: r.IntN(4) - 1, path: differentialNodes[r.IntN(len(differentialNodes))],
		other: differentialNodes[r.IntN(len(differentialNodes))], data: fmt.Sprintf("data %d", n),
	}
	o.parent = o.path[:strings.LastIndexByte(o.path, '/')]
	if strings.HasPrefix(o.path, "/services") && r.IntN(3) > 0 {
		o.flags = zk.FlagEphemeral
	}
	if strings.HasPrefix(o.path, "/free") {
		o.flags = []int{0, zk.FlagEphemeral, zk.FlagEphemeral | zk.FlagSequence}[r.IntN(3)]
	}
	if strings.HasPrefix(o.path, "/free") != strings.HasPrefix(o.other, "/free") { // what is in both is not one transaction
		o.other = o.path
	}
	return o
}

// run an operation, and say what came of it.
func (s *side) run(o operation) string {
	c, world := s.conns[o.session], zk.WorldACL(zk.PermAll)
	watch := func(events <-chan zk.Event, err error) {
		if events != nil {
			s.watches = append(s.watches, sideWatch{o.session, events})
		}
		_ = err
	}
	switch {
	case o.kind < 25:
		path, err := c.Create(o.path, []byte(o.data), int32(o.flags), world)
		return fmt.Sprint("create ", path, " ", err)
	case o.kind < 40:
		return fmt.Sprint("delete ", c.Delete(o.path, int32(o.version)))
	case o.kind < 55:
		stat, err := c.Set(o.path, []byte(o.data), int32(o.version))
		return fmt.Sprint("set ", s.stat(o.path, stat), " ", err)
	case o.kind < 65:
		data, stat, events, err := c.GetW(o.path)
		watch(events, err)
		return fmt.Sprint("get ", string(data), " ", s.stat(o.path, stat), " ", err)
	case o.kind < 75:
		ok, stat, events, err := c.ExistsW(o.path)
		watch(events, err)
		if !ok {
			return fmt.Sprint("exists ", ok, " ", err)
		}
		return fmt.Sprint("exists ", ok, " ", s.stat(o.path, stat), " ", err)
	case o.kind < 88:
		names, stat, events, err := c.ChildrenW(o.parent)
		watch(events, err)
		slices.Sort(names)
		return fmt.Sprint("children ", names, " ", s.stat(o.parent, stat), " ", err)
	case o.kind < 97:
		results, err := c.Multi(&zk.CheckVersionRequest{Path: o.other, Version: int32(o.version)},
			&zk.CreateRequest{Path: o.path, Data: []byte(o.data), Acl: world, Flags: int32(o.flags)},
			&zk.SetDataRequest{Path: o.other, Data: []byte(o.data + " again"), Version: -1})
		out := fmt.Sprint("multi ", err)
		for _, r := range results {
			out += fmt.Sprint(" ", r.Error)
		}
		return out
	}
	s.watches = slices.DeleteFunc(s.watches, func(w sideWatch) bool { return w.session == o.session })
	c.Close()
	s.reopen(o.session)
	return "close"
}

// events that the clients have been sent since the last call.
func (s *side) events() string {
	for _, c := range s.conns { // what was sent before the answer is there with it
		if _, err := c.Sync("/services"); err != nil {
			s.t.Fatal(err)
		}
	}
	var out []string
	s.watches = slices.DeleteFunc(s.watches, func(w sideWatch) bool {
		select {
		case e := <-w.events:
			out = append(out, fmt.Sprintf("%d %s %s", w.session, e.Type, e.Path))
			return true
		default:
			return false
		}
	})
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// The same random operations of several sessions at a real ZooKeeper and here: answers and events are equal.
// PROXIMA_ZOOKEEPER is the address of the real one, PROXIMA_ZOOKEEPER_OPERATIONS how many.
func TestZooKeeperDifferential(t *testing.T) {
	address := os.Getenv("PROXIMA_ZOOKEEPER")
	if address == "" {
		t.Skip("PROXIMA_ZOOKEEPER is not set: make interop-registries runs it")
	}
	count, err := strconv.Atoi(os.Getenv("PROXIMA_ZOOKEEPER_OPERATIONS"))
	if err != nil {
		count = 10_000
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("PROXIMA_ZOOKEEPER_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("PROXIMA_ZOOKEEPER_SEED=%d", seed)
	p := registrytest.New(t)
	theirs, ours := newSide(t, address), newSide(t, p.Serve(zookeeper.New(p.Core).WithNodes(newNodeStore(t), 64<<20).Serve))
	defer func() {
		for _, s := range []*side{theirs, ours} {
			for _, c := range s.conns {
				c.Close()
			}
		}
	}()
	r := rand.New(rand.NewPCG(seed, 1))
	for n := range count {
		if n%(count/2) == count/4 {
			session := r.IntN(differentialSessions)
			theirs.expire(session)
			ours.expire(session)
			if want, got := theirs.events(), ours.events(); got != want {
				t.Fatalf("events of the end of session %d before operation %d:\n ZooKeeper: %s\n here:      %s", session, n, want, got)
			}
		}
		o := randomOperation(r, n)
		want, got := theirs.run(o), ours.run(o)
		if got != want {
			t.Fatalf("operation %d, %+v:\n ZooKeeper: %s\n here:      %s", n, o, want, got)
		}
		if want, got = theirs.events(), ours.events(); got != want {
			t.Fatalf("events after operation %d, %+v:\n ZooKeeper: %s\n here:      %s", n, o, want, got)
		}
	}
}
