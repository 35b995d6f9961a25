package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/etcd"
)

// TestKillWriter kills processes in the midst of commits: what they said is
// committed is there, at most one more is, and no transaction is in half.
func TestKillWriter(t *testing.T) {
	url := stateURL(shareMember(t))
	s := open(t, url, etcd.Options{})
	for round := range 4 {
		key := fmt.Sprintf("w%d", round)
		p := startChild(t, child{Writer: &childWriter{URL: url, Key: key}})
		acknowledged := 0
		for p.lines.Scan() {
			n, err := strconv.Atoi(p.lines.Text())
			if err != nil {
				t.Fatal(err)
			}
			if acknowledged = n; n == 20+7*round {
				_ = p.cmd.Process.Kill() // what it had printed until then is read on
			}
		}
		p.kill()
		got := records(t, s, store.ListOptions{Prefix: key + "/"})
		if n := len(got); n%2 != 0 || n/2 < acknowledged || n/2 > acknowledged+1 {
			t.Errorf("%d keys are there, %d pairs were acknowledged", n, acknowledged)
		}
		for i, r := range got {
			if want := fmt.Sprintf("%s/%06d/%c", key, i/2+1, 'a'+i%2); r.Key != want {
				t.Fatalf("key %d is %q, want %q", i, r.Key, want)
			}
		}
	}
}

// written is a commit that was acknowledged.
type written struct {
	key, value string
	revision   store.Revision
}

// TestMemberKilled kills the leader of three members under load from three
// instances: no acknowledged write is lost or doubled, and every instance's
// watchers see the same history.
func TestMemberKilled(t *testing.T) {
	c := startCluster(t)
	url := c.url()
	rounds := 2
	if os.Getenv("PROXIMA_SOAK") != "" {
		rounds = 20
	}
	var stores []*etcd.Store
	var watchers []store.Watcher
	for range 3 {
		s := open(t, url, etcd.Options{})
		w, err := s.Watch(context.Background(), "", newest(t, s))
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		stores, watchers = append(stores, s), append(watchers, w)
	}
	l := &load{stop: make(chan struct{})}
	for i, s := range stores {
		for j := range 4 {
			l.running.Go(func() { l.write(t, s, fmt.Sprintf("i%d/c%d", i, j)) })
		}
	}
	for range rounds {
		l.more(t, 150)
		leader := leaderOf(t, c)
		c.processes[leader].kill()
		l.more(t, 150) // two members go on
		c.restart(t, leader)
	}
	l.more(t, 50)
	close(l.stop)
	l.running.Wait()
	if len(l.acknowledged) == 0 {
		t.Fatal("nothing was written")
	}
	t.Logf("%d commits acknowledged, %d of unknown outcome", len(l.acknowledged), l.unknown)
	check(t, url, stores, watchers, l.acknowledged)
}

// check compares what was acknowledged with the history of each instance.
func check(t *testing.T, url string, stores []*etcd.Store, watchers []store.Watcher, acknowledged []written) {
	t.Helper()
	end := newest(t, open(t, url, etcd.Options{}))
	for i, w := range watchers {
		_ = stores[i].Ready(background(t))
		all, err := drain(background(t), w, end)
		if err != nil {
			t.Errorf("instance %d: %v", i, err)
			continue
		}
		byRevision := map[store.Revision]store.Event{}
		last := store.Revision(0)
		for _, e := range all {
			if e.Record.Modified <= last {
				t.Fatalf("instance %d: revision %d comes after %d", i, e.Record.Modified, last)
			}
			last = e.Record.Modified
			byRevision[last] = e
		}
		for _, a := range acknowledged {
			if e := byRevision[a.revision]; e.Record.Key != a.key || string(e.Record.Value) != a.value {
				t.Errorf("instance %d: acknowledged %+v, the history has %s=%s", i, a, e.Record.Key, e.Record.Value)
			}
		}
		// Each value is one more than the one before: none is lost or twice.
		values := map[string]int{}
		for _, e := range all {
			n, err := strconv.Atoi(string(e.Record.Value))
			if err != nil || n != values[e.Record.Key]+1 {
				t.Fatalf("instance %d: %s is %q after %d", i, e.Record.Key, e.Record.Value, values[e.Record.Key])
			}
			values[e.Record.Key] = n
		}
	}
}

// load raises counters on condition, and remembers what was acknowledged.
type load struct {
	stop    chan struct{}
	running sync.WaitGroup

	mu           sync.Mutex
	acknowledged []written
	unknown      int
}

func (l *load) write(t *testing.T, s *etcd.Store, key string) {
	value, at := 0, store.Revision(0)
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		next := strconv.Itoa(value + 1)
		revision, err := s.Commit(context.Background(), store.Txn{
			Conditions: []store.Condition{{Key: key, Modified: at}}, Ops: []store.Op{put(key, next)},
		})
		if err == nil {
			value, at = value+1, revision
			l.mu.Lock()
			l.acknowledged = append(l.acknowledged, written{key, next, revision})
			l.mu.Unlock()
			continue
		}
		var conflict *store.ConflictError
		if errors.As(err, &conflict) {
			t.Errorf("%s: %v, it has one writer", key, err)
			return
		}
		var unknown *etcd.UnknownError
		if errors.As(err, &unknown) {
			l.mu.Lock()
			l.unknown++
			l.mu.Unlock()
		}
		if value, at, err = read(s, key); err != nil {
			t.Errorf("%s: %v", key, err)
			return
		}
	}
}

// read reads a counter, for as long as it takes.
func read(s *etcd.Store, key string) (value int, at store.Revision, err error) {
	for deadline := time.Now().Add(timeout); ; {
		rec, ok, _, err := s.Get(context.Background(), key, 0)
		if err == nil && ok {
			value, err = strconv.Atoi(string(rec.Value))
			return value, rec.Modified, err
		}
		if err == nil || time.Now().After(deadline) {
			return 0, 0, err
		}
	}
}

// more waits until so many more commits are acknowledged.
func (l *load) more(t *testing.T, n int) {
	t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.acknowledged)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(timeout)
	for end := count() + n; count() < end; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d commits were not made in %s", n, timeout)
		}
	}
}

func leaderOf(t *testing.T, c *cluster) int {
	t.Helper()
	for i, m := range c.members {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{m.Client}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		status, err := client.Status(background(t), m.Client)
		_ = client.Close()
		if err != nil {
			t.Fatal(err)
		}
		if status.Leader == status.Header.MemberId {
			return i
		}
	}
	t.Fatalf("no leader among %s", strings.TrimPrefix(c.url(), "etcd://"))
	return 0
}
