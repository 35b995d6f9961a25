package account

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/kernel/conntracktest"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// fakeTable has flows to the one service port of its directory.
type fakeTable struct {
	mu       sync.Mutex
	flows    []*conntrack.Entry
	perFlow  time.Duration // processor time
	fail     error
	acct     bool
	missing  error
	dumps    []int // limits
	at       []time.Time
	directed *Directory
}

func (f *fakeTable) Dump(_ context.Context, limit int, each func(*conntrack.Entry)) (d conntrack.Dump, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return d, f.fail
	}
	f.dumps, f.at = append(f.dumps, limit), append(f.at, time.Now())
	for i, e := range f.flows {
		if limit > 0 && i == limit {
			return conntrack.Dump{Flows: i, CPU: time.Duration(i) * f.perFlow}, nil
		}
		each(e)
	}
	return conntrack.Dump{Flows: len(f.flows), Whole: true, CPU: time.Duration(len(f.flows)) * f.perFlow}, nil
}

func (f *fakeTable) Accounting() (bool, error) { was := f.acct; f.acct = true; return was, f.missing }
func (f *fakeTable) Counting() (bool, error)   { return f.acct, f.missing }

func (f *fakeTable) Tracked() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return 2 * len(f.flows), nil
}

func (f *fakeTable) Life() (uint64, error) { return 1, nil }

func (f *fakeTable) Counts() iter.Seq2[proxy.PortName, proxy.Counts] {
	return func(func(proxy.PortName, proxy.Counts) bool) {}
}

// serve makes an endpoint that of web.
func (f *fakeTable) serve(endpoint string) {
	f.directed.Update([]proxy.Change{{Name: web, State: &proxy.PortState{
		Name: web, Port: proxy.Port{Protocol: proxy.TCP, Port: 80},
		Service: &proxy.Service{Name: web.ServiceName, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}},
		IPv4:    proxy.Choice{Cluster: []proxy.Target{target(endpoint, "zone-a")}},
	}}})
}

func (f *fakeTable) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// established connection of web, as the kernel dumps it.
func established(t *testing.T, id uint32) *conntrack.Entry {
	t.Helper()
	e := &conntrack.Entry{}
	if !e.Parse(conntracktest.Flow{
		ID: id, Protocol: conntracktest.TCP, Status: conntracktest.DNAT, State: 3, Bytes: &[2]uint64{},
		Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 255, byte(id >> 16), byte(id >> 8)}), uint16(1024+id&0xff)),
		To:     netip.MustParseAddrPort("10.96.0.1:80"), Endpoint: netip.MustParseAddrPort("10.0.0.1:80"),
	}.Attributes()) {
		t.Fatal("the flow is not understood")
	}
	return e
}

// counted is a counter that runs over a table of n flows.
func counted(t *testing.T, n int, change func(*fakeTable, *Config)) (*fakeTable, *Counter) {
	f := &fakeTable{directed: NewDirectory(func(netip.Addr) bool { return false })}
	for i := range n {
		f.flows = append(f.flows, established(t, uint32(i)))
	}
	f.serve("10.0.0.1:80")
	config := Config{Table: f, Directory: f.directed, Connections: f}
	if change != nil {
		change(f, &config)
	}
	c := NewCounter(config)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f, c
}

func exchangeOf(c *Counter) (state proxy.Accounting, x proxy.Exchange) {
	state, rows := c.Exchanges()
	for _, one := range rows {
		x = one
	}
	return state, x
}

func TestCounterEveryMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := counted(t, 10, nil)
		if state, _ := exchangeOf(NewCounter(Config{Table: f, Directory: f.directed, Connections: f})); state.Quality != proxy.Unavailable || state.Reason == "" {
			t.Errorf("before the first dump: %+v", state)
		}
		synctest.Wait()
		f.change(func() { f.flows[0].In += 100 })
		time.Sleep(Period)
		synctest.Wait()
		state, x := exchangeOf(c)
		if state.Quality != proxy.Measured || state.Covered != Period || x.BytesIn != 100 || x.Open != 10 || !f.acct {
			t.Errorf("after a minute: %+v, %+v", state, x)
		}
		f.change(func() { f.fail = errors.New("busy"); f.flows[0].In += 100 })
		time.Sleep(Period)
		synctest.Wait()
		if _, x := exchangeOf(c); x.BytesIn != 100 {
			t.Errorf("without a dump: %+v", x)
		}
		f.change(func() { f.fail = nil; f.flows[1].Counted = false })
		time.Sleep(Period)
		synctest.Wait()
		state, x = exchangeOf(c)
		if state.Quality != proxy.Estimated || !strings.Contains(state.Reason, "1 connections are older") || x.BytesIn != 200 || state.Covered != 3*Period {
			t.Errorf("with a flow that is not counted: %+v, %+v", state, x)
		}
	})
}

// TestCounterSample: a dump that would take more than 1 % of a core, at 100 s, becomes a
// sample, which stands for all.
func TestCounterSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := counted(t, 1000, func(f *fakeTable, _ *Config) { f.perFlow = 4 * time.Millisecond }) // 4 s: four times too much
		synctest.Wait()
		f.change(func() {
			for _, e := range f.flows {
				e.In += 1000
			}
		})
		time.Sleep(longest)
		synctest.Wait()
		state, x := exchangeOf(c)
		if state.Quality != proxy.Estimated || !strings.Contains(state.Reason, "sample of 200") {
			t.Errorf("state %+v", state)
		}
		if x.BytesIn != 1_000_000 || x.Open != 1000 {
			t.Errorf("%+v, want what all 1000 flows had", x)
		}
		closed := x.Closed
		time.Sleep(longest * countEvery)
		synctest.Wait()
		whole, part := 0, 0
		for _, limit := range f.dumps {
			switch limit {
			case 0:
				whole++
			case 250:
				part++
			default:
				t.Errorf("a limit of %d, want 200 and a quarter", limit)
			}
		}
		if _, x := exchangeOf(c); x.Closed != closed {
			t.Errorf("%d closed, though all are open", x.Closed)
		}
		if whole != 2 || part < countEvery-2 {
			t.Errorf("%d whole dumps, %d parts", whole, part)
		}
		f.change(func() { f.perFlow = 0; f.flows = f.flows[:20] })
		time.Sleep(2 * longest)
		synctest.Wait()
		if state, _ := exchangeOf(c); state.Quality != proxy.Measured {
			t.Errorf("small again: %+v", state)
		}
	})
}

func TestCounterPeriod(t *testing.T) {
	c := &Counter{log: NewCounter(Config{}).log}
	for cpu, want := range map[time.Duration]time.Duration{0: Period, 500 * time.Millisecond: Period, 800 * time.Millisecond: 80 * time.Second} {
		if got := c.period(conntrack.Dump{Flows: 1000, Whole: true, CPU: cpu}); got != want || c.sample.limit != 0 {
			t.Errorf("%v after a dump of %v, want %v", got, cpu, want)
		}
	}
}

func TestCounterUnavailable(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*fakeTable, *Config)
		want   string
	}{
		{"off", func(_ *fakeTable, c *Config) { c.Leave = true }, "--accounting=off"},
		{"no conntrack", func(f *fakeTable, _ *Config) { f.missing = fs.ErrNotExist }, "nf_conntrack is not loaded"},
		{"no privilege", func(f *fakeTable, _ *Config) { f.missing = fs.ErrPermission }, "permission denied"},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, c := counted(t, 1, tc.change)
			time.Sleep(10 * Period)
			synctest.Wait()
			state, _ := exchangeOf(c)
			if state.Quality != proxy.Unavailable || !strings.Contains(state.Reason, tc.want) || len(f.dumps) != 0 {
				t.Errorf("%s: %+v, %d dumps", tc.name, state, len(f.dumps))
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		f, c := counted(t, 1, func(f *fakeTable, c *Config) { c.Leave, f.acct = true, true })
		synctest.Wait()
		if state, _ := exchangeOf(c); state.Quality != proxy.Measured || len(f.dumps) != 1 {
			t.Errorf("the kernel counts by itself: %+v", state)
		}
	})
}

// TestEndpointsAreForgotten: endpoints that departed are not kept for ever where the table
// cannot be read.
func TestEndpointsAreForgotten(t *testing.T) {
	for name, change := range map[string]func(*fakeTable, *Config){
		"never":       func(f *fakeTable, _ *Config) { f.missing = fs.ErrPermission },
		"not for now": func(f *fakeTable, _ *Config) { f.fail = errors.New("busy") },
	} {
		synctest.Test(t, func(t *testing.T) {
			f, _ := counted(t, 1, change)
			for i := range 50 {
				f.serve(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 80).String())
				time.Sleep(Period)
				synctest.Wait()
			}
			f.directed.mu.Lock()
			defer f.directed.mu.Unlock()
			if n := len(f.directed.departed) + len(f.directed.older); n > 2 {
				t.Errorf("readable: %s: %d endpoints are kept", name, n)
			}
		})
	}
}
