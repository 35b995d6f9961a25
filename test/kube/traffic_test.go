package kube_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	kernelnetns "github.com/proxima-mesh/proxima/internal/kernel/netns"
)

// source is a pod that makes connections.
type source struct {
	node, zone string
	ns         *kernelnetns.NS
}

// traffic are connections from several pods to one address, for as long as a test lasts, in a
// fixed order of zones: so the demand of zones is known, whatever the machine does besides.
type traffic struct {
	address string
	zoneOf  map[string]string // by the name of the pod that answers
	stop    context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	phase *phase
	all   []*phase
	// quiet nodes make no connections.
	quiet map[string]bool
}

// phase of a traffic.
type phase struct {
	name string
	// made by source zone; to by source zone and that of the endpoint.
	made   map[string]int
	to     map[string]map[string]int
	failed int
	first  error
}

// newTraffic starts connections: of ten, so many of each zone, from its sources by turns.
func newTraffic(t *testing.T, address string, sources []source, ofTen map[string]int, zoneOf map[string]string) *traffic {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	l := &traffic{address: address, zoneOf: zoneOf, stop: stop, quiet: map[string]bool{}}
	l.begin("start")
	tickets := map[string]chan *phase{}
	for _, s := range sources {
		queue := make(chan *phase)
		tickets[s.node] = queue
		const atATime = 2
		for range atATime {
			l.running.Go(func() {
				// One thread in the namespace for all connections: to enter it takes longer than to connect.
				_ = s.ns.Do(func() error {
					for p := range queue {
						l.one(p, s.zone)
					}
					return nil
				})
			})
		}
	}
	l.running.Go(func() {
		l.dispatch(ctx, sources, ofTen, tickets)
		for _, queue := range tickets {
			close(queue)
		}
	})
	t.Cleanup(func() {
		stop()
		l.running.Wait()
	})
	return l
}

// dispatch tickets until ctx ends.
func (l *traffic) dispatch(ctx context.Context, sources []source, ofTen map[string]int, tickets map[string]chan *phase) {
	byZone := map[string][]source{}
	for _, s := range sources {
		byZone[s.zone] = append(byZone[s.zone], s)
	}
	turn := map[string]int{}
	for {
		for _, zone := range slices.Sorted(maps.Keys(ofTen)) {
			for range ofTen[zone] {
				s := byZone[zone][turn[zone]%len(byZone[zone])]
				turn[zone]++
				p, quiet := l.now(s.node)
				if quiet {
					continue
				}
				select {
				case tickets[s.node] <- p:
				case <-ctx.Done():
					return
				}
			}
		}
	}
}

func (l *traffic) now(node string) (p *phase, quiet bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phase, l.quiet[node]
}

// one connection from a zone; it runs in the namespace of the source.
func (l *traffic) one(p *phase, zone string) {
	name, err := ask(l.address)
	l.mu.Lock()
	defer l.mu.Unlock()
	p.made[zone]++
	to, known := l.zoneOf[name]
	if err == nil && !known {
		err = fmt.Errorf("answer of %q", name)
	}
	if err != nil {
		if p.failed++; p.first == nil {
			p.first = fmt.Errorf("after %s: %w", time.Now().Format(time.TimeOnly), err)
		}
		return
	}
	if p.to[zone] == nil {
		p.to[zone] = map[string]int{}
	}
	p.to[zone][to]++
}

// ask a pod for its name, by a connection of its own.
func ask(address string) (name string, err error) {
	c, err := net.DialTimeout("tcp", address, connectionTimeout)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(connectionTimeout))
	text, err := io.ReadAll(c)
	// The answer is complete: nothing has to be remembered of the connection, on neither side.
	_ = c.(*net.TCPConn).SetLinger(0)
	name, _, _ = strings.Cut(string(text), " ")
	return name, err
}

// begin a phase: connections that begin from now on count there.
func (l *traffic) begin(name string) *phase {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = &phase{name: name, made: map[string]int{}, to: map[string]map[string]int{}}
	l.all = append(l.all, l.phase)
	return l.phase
}

// silence a node, or let it make connections again.
func (l *traffic) silence(node string, quiet bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quiet[node] = quiet
}

// least is the number of connections of a phase from the zone that made the fewest.
func (l *traffic) least(p *phase, zones int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(p.made) < zones {
		return 0
	}
	return slices.Min(slices.Collect(maps.Values(p.made)))
}

// wantShares compares where the connections of a phase went with a plan, source by source: each
// share within a point and three standard errors.
func (l *traffic) wantShares(t *testing.T, p *phase, plan map[string]map[string]float64) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, from := range slices.Sorted(maps.Keys(plan)) {
		n := 0
		for _, k := range p.to[from] {
			n += k
		}
		for _, to := range slices.Sorted(maps.Keys(plan)) {
			want, is := plan[from][to], float64(p.to[from][to])/float64(n)
			t.Logf("%s: %s to %s: %6.2f %% of %d, plan %6.2f %%", p.name, from, to, 100*is, n, 100*want)
			if within := 0.01 + 3*math.Sqrt(want*(1-want)/float64(n)); !(math.Abs(is-want) <= within) {
				t.Errorf("%s: %s to %s: %.2f %% of %d connections, and the plan is %.2f %%", p.name, from, to, 100*is, n, 100*want)
			}
		}
	}
}

// wantNoFailure ends the traffic, and looks at all phases but the first.
func (l *traffic) wantNoFailure(t *testing.T) {
	t.Helper()
	l.stop()
	l.running.Wait()
	for _, p := range l.all[1:] {
		n := 0
		for _, k := range p.made {
			n += k
		}
		t.Logf("%-40s %7d connections, %d failed", p.name, n, p.failed)
		if p.failed > 0 {
			t.Errorf("%s: %d of %d connections failed, the first %v", p.name, p.failed, n, p.first)
		}
	}
}
