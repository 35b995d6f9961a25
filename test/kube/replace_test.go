package kube_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// load makes connections to a Service from a pod, one after the other, and counts the failures
// of each phase.
type load struct {
	mu    sync.Mutex
	phase string
	// made and failed connections, by phase, and the first error of each.
	made, failed map[string]int
	first        map[string]error
	stop         context.CancelFunc
	done         chan struct{}
}

// connectionTimeout is how long a connection may take: a packet that is sent again takes a
// second more.
const connectionTimeout = 5 * time.Second

func (r *rig) load(address string) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{made: map[string]int{}, failed: map[string]int{}, first: map[string]error{}, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for ctx.Err() == nil {
			phase := l.now()
			err := r.one(address)
			l.mu.Lock()
			l.made[phase]++
			if err != nil {
				l.failed[phase]++
				if l.first[phase] == nil {
					l.first[phase] = err
				}
			}
			l.mu.Unlock()
		}
	}()
	r.t.Cleanup(func() {
		stop()
		<-l.done
	})
	return l
}

// one connection of the pod on node theirs.
func (r *rig) one(address string) error {
	ns, _ := r.namespace(vantage{node: "theirs", from: "pod"})
	ctx, cancel := context.WithTimeout(context.Background(), connectionTimeout)
	defer cancel()
	c, err := ns.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(connectionTimeout))
	text, err := io.ReadAll(c)
	if err == nil && !strings.HasPrefix(string(text), "web-") {
		err = fmt.Errorf("answer %q", text)
	}
	return err
}

func (l *load) now() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phase
}

// during begins a phase, in which f runs, and waits for a number of connections in it.
func (l *load) during(t *testing.T, phase string, least int, f func()) {
	t.Helper()
	l.mu.Lock()
	l.phase = phase
	l.mu.Unlock()
	f()
	testkit.Eventually(t, phase, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.made[phase] >= least
	})
}

// TestReplaceKubeProxy: on a node under load kube-proxy is replaced by our agent, and put back.
// No connection fails, but those that kube-proxy's own cleanup breaks.
func TestReplaceKubeProxy(t *testing.T) {
	r := newRig(t, "nftables")
	node := r.nodes["theirs"]
	ruleset := func() string {
		out, err := node.NS.Output(t.Context(), "nft", "list", "tables")
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	serves := func(table string) {
		r.until(table+" is complete", func() bool {
			out, err := node.NS.Output(t.Context(), "nft", "list", "ruleset")
			return err == nil && strings.Contains(string(out), table) && strings.Contains(string(out), "10.96.1.1")
		})
		r.until("the Service answers", func() bool { return r.one("10.96.1.1:80") == nil })
	}
	serves("kube-proxy")
	const each = 1500
	const cleanup = "kube-proxy --cleanup"
	l := r.load("10.96.1.1:80")
	l.during(t, "kube-proxy", each, func() {})
	l.during(t, "kube-proxy has ended", each, func() { r.kubeProxy.Stop(t) })
	var agent interface{ Stop(testing.TB) }
	l.during(t, "the agent starts", each, func() { agent = r.agent("theirs"); serves("proxima") })
	l.during(t, cleanup, 1, func() { node.KubeProxy(t, "nftables", true).Wait(t) })
	if tables := ruleset(); strings.Contains(tables, "kube-proxy") {
		t.Errorf("kube-proxy --cleanup left\n%s", tables)
	}
	l.during(t, "the agent alone", each, func() {})
	l.during(t, "the agent has ended", each, func() { agent.Stop(t) })
	l.during(t, "kube-proxy is back", each, func() { node.KubeProxy(t, "nftables", false); serves("kube-proxy") })
	l.during(t, "proxima node --cleanup", 1, func() { node.Run(t, "cleanup", testkit.Binary(t), "node", "--cleanup").Wait(t) })
	if tables := ruleset(); strings.Contains(tables, "proxima") {
		t.Errorf("proxima node --cleanup left\n%s", tables)
	}
	l.during(t, "kube-proxy alone", each, func() {})
	l.stop()
	<-l.done
	total := 0
	for phase, n := range l.made {
		total += n
		t.Logf("%-24s %6d connections, %d failed", phase, n, l.failed[phase])
		if failed := l.failed[phase]; failed > 0 && phase != cleanup {
			t.Errorf("%s: %d of %d connections failed, the first by %v", phase, failed, n, l.first[phase])
		}
	}
	if total < 10_000 {
		t.Errorf("%d connections, want 10,000", total)
	}
}
