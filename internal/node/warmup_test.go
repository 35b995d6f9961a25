package node

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// TestWarmUpByTheAgentsClock: an endpoint that becomes ready gets its full weight in steps
// without another update, as while every control plane is down; a restarted agent goes on
// where the ramp is; and neither a clock that is behind nor one that is ahead keeps an
// endpoint from its weight.
func TestWarmUpByTheAgentsClock(t *testing.T) {
	for name, tc := range map[string]struct {
		ago  time.Duration // when the second endpoint became ready, by this clock
		want []string      // shares of the second endpoint after 0, 15 and 30 seconds, in tenths of the first's
	}{
		"ready now":                     {0, []string{"10:1", "10:6", "1:1"}},
		"the agent restarts in between": {15 * time.Second, []string{"10:6", "1:1", "1:1"}},
		"the clock is behind":           {-time.Hour, []string{"10:1", "10:6", "1:1"}},
		"the clock is ahead":            {time.Hour, []string{"1:1", "1:1", "1:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mode := newFake()
				a := start(t, Options{Mode: mode})
				svc := service(0)
				svc.WarmUp = 30 * time.Second
				s := slice(0, 1, 2)
				s.SetReadySince(0, time.Now().Add(-24*time.Hour).Unix(), 2)
				s.SetReadySince(1, time.Now().Add(-tc.ago).Unix(), 2)
				a.Apply(proxy.Update{
					Reset: true, Services: map[proxy.ServiceName]*proxy.Service{svc.Name: svc}, Slices: map[proxy.SliceName]*proxy.Slice{s.Name: s},
				})
				for i, want := range tc.want {
					synctest.Wait()
					if i == 0 {
						time.Sleep(time.Millisecond) // of the agent's pause, on the fake clock
						synctest.Wait()
					}
					if got := ratio(mode.snapshot()[portName(0)]); got != want {
						t.Errorf("after %d s: %s, want %s", 15*i, got, want)
					}
					if i == 0 { // another version of the slice does not begin the ramp again
						again := *s
						again.Trigger = time.Unix(1, 0)
						a.Apply(change(&again))
					}
					time.Sleep(15 * time.Second)
				}
				if calls := mode.count(); calls > 12 {
					t.Errorf("%d calls of the mode for one ramp", calls)
				}
			})
		})
	}
}

func ratio(s *proxy.PortState) string {
	if s == nil || len(s.IPv4.Cluster) != 2 {
		return "no state"
	}
	return fmt.Sprintf("%d:%d", s.IPv4.Cluster[0].Weight, s.IPv4.Cluster[1].Weight)
}

// TestStartsAreKept: times are translated once, when an endpoint is first seen.
func TestStartsAreKept(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	make1 := func(since int64) *proxy.Slice {
		s := &proxy.Slice{Endpoints: []proxy.SliceEndpoint{{Addr: netip.MustParseAddr("10.0.0.1"), Ready: true}}}
		s.SetReadySince(0, since, 1)
		return s
	}
	future := now.Add(time.Hour).Unix()
	first := started(make1(future), nil, now)
	if !first.Starts[0].Equal(now) {
		t.Errorf("an endpoint starts at %s, in the future", first.Starts[0])
	}
	if again := started(make1(future), first, now.Add(time.Minute)); !again.Starts[0].Equal(now) {
		t.Errorf("the ramp begins again at %s", again.Starts[0])
	}
	if flapped := started(make1(future+5), first, now.Add(time.Minute)); !flapped.Starts[0].Equal(now.Add(time.Minute)) {
		t.Errorf("an endpoint that became ready again starts at %s", flapped.Starts[0])
	}
}
