package diag

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// Weigh adds to what is said of endpoints why their shares differ: the weights of their own
// in own, by address and port, and how far they have warmed up at a time. from are the slices that
// were explained, before warm-up.
func (s *Service) Weigh(svc *proxy.Service, from []*proxy.Slice, own map[netip.AddrPort]uint32, now time.Time) {
	steps := map[netip.AddrPort]int{}
	for _, slice := range from {
		for i := range slice.Endpoints {
			if step := choose.WarmStep(svc, from, slice, i, now); step < choose.WarmSteps {
				for _, p := range slice.Ports {
					steps[netip.AddrPortFrom(slice.Endpoints[i].Addr.Unmap(), p.Port)] = step
				}
			}
		}
	}
	for i := range s.Ports {
		for k := range s.Ports[i].Families {
			for n := range s.Ports[i].Families[k].Endpoints {
				e := &s.Ports[i].Families[k].Endpoints[n]
				at, err := netip.ParseAddrPort(e.Address)
				if err != nil || e.Reason != Used {
					continue
				}
				e.Why = weighed(e, own[at], steps[at])
			}
		}
	}
}

func weighed(e *Endpoint, weight uint32, step int) string {
	var why []string
	if weight != 0 {
		e.Weight = weight
		why = append(why, fmt.Sprintf("weight %d (%d is the default)", weight, trafficplan.DefaultWeight))
	}
	if step != 0 {
		e.WarmUp = float64(step) / choose.WarmSteps
		why = append(why, fmt.Sprintf("warming up, at %d %% of its weight", 100*step/choose.WarmSteps))
	}
	if why == nil {
		return e.Why
	}
	return e.Why + ": " + strings.Join(why, "; ")
}
