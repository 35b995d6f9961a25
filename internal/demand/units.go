package demand

import (
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Units say what the demand of a service port was counted in during the last minutes, and by
// whom: the parts, of 1 in all. All are 0 without traffic.
type Units struct {
	// Nodes counted new connections, and proxies did.
	Nodes            float64 `json:"connectionsOfNodes"`
	ProxyConnections float64 `json:"connectionsOfProxies"`
	// Requests are HTTP requests, which proxies count.
	Requests float64 `json:"requestsOfProxies"`
	// Mixed: there are both connections and requests. One connection carries any number of
	// requests, so zones that count connections appear smaller than they are.
	Mixed bool `json:"mixed,omitempty"`
}

// units of a service port, as they are remembered.
type units struct {
	nodes, proxies, requests fading
	mixed                    bool
	// stated is the sum of the utilisation that endpoints stated, in so many responses.
	stated, responses fading
}

const (
	// mixedFrom so many connections and as many requests, of those that are remembered, a
	// port is mixed; with mixedTo of either it is no more.
	mixedFrom, mixedTo = 5, 1
	// leastResponses that state a utilisation: the mean of fewer is left to chance. With
	// fewer than one it is forgotten.
	leastResponses = 20
)

func (u *units) note(now time.Time, t *Traffic, byProxy bool) {
	if n := t.Connections - t.Requests; n > 0 {
		if byProxy {
			u.proxies.add(now, float64(n))
		} else {
			u.nodes.add(now, float64(n))
		}
	}
	if t.Requests > 0 {
		u.requests.add(now, float64(t.Requests))
	}
	if t.Utilisation.Reports > 0 {
		u.stated.add(now, t.Utilisation.Sum)
		u.responses.add(now, float64(t.Utilisation.Reports))
	}
}

func (u *units) now(now time.Time) Units {
	out := Units{Nodes: u.nodes.now(now), ProxyConnections: u.proxies.now(now), Requests: u.requests.now(now)}
	least := min(out.Nodes+out.ProxyConnections, out.Requests)
	u.mixed = least >= mixedFrom || u.mixed && least >= mixedTo
	out.Mixed = u.mixed
	if sum := out.Nodes + out.ProxyConnections + out.Requests; sum > 0 {
		out.Nodes, out.ProxyConnections, out.Requests = out.Nodes/sum, out.ProxyConnections/sum, out.Requests/sum
	}
	return out
}

// utilisation is the mean that endpoints stated; 0: too few responses did.
func (u *units) utilisation(now time.Time) float64 {
	n := u.responses.now(now)
	if n < leastResponses {
		return 0
	}
	return u.stated.now(now) / n
}

// Units of a service port now.
func (a *Aggregator) Units(name proxy.PortName) Units {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.ports[name]; p != nil {
		return p.units.now(time.Now())
	}
	return Units{}
}

// Utilisation of the endpoints of a service port, as they stated it in their responses: 1 is
// fully used. 0: not known.
func (a *Aggregator) Utilisation(name proxy.PortName) float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.ports[name]; p != nil {
		return p.units.utilisation(time.Now())
	}
	return 0
}
