package topology

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Units is a Demand that also knows what demand was counted in, and what endpoints state of
// their utilisation. It must not block. A *demand.Aggregator is one.
type Units interface {
	Units(port proxy.PortName) demand.Units
	// Rate of load per second.
	Rate(port proxy.PortName) float64
	Utilisation(port proxy.PortName) float64
}

// steadyUtilisation is how far what endpoints state may be from what a plan was made with,
// relative to that, before the plan is made anew: it is a mean of samples, and moves a little
// all the time.
const steadyUtilisation = 0.1

// paramsOf is what holds for a Service: paramsFor and, where it sets no utilisation, the one
// that its endpoints state.
func (c *Controller) paramsOf(service *corev1.Service, parts []*plannerv1alpha1.TrafficPlan) Params {
	p := paramsFor(service, parts)
	was := 0.0
	if len(parts) > 0 {
		was = parts[0].Spec.Parameters.Utilisation
	}
	if c.states(service) {
		p.Utilisation = c.stated(service, was)
		p.Stated = p.Utilisation > 0
	}
	return p
}

// states reports whether endpoints may state the utilisation of a Service, as it sets none.
func (c *Controller) states(service *corev1.Service) bool {
	if _, ok := c.demand.(Units); !ok {
		return false
	}
	set, problems := ParamsOf(service.Annotations)
	return problems == nil && set.Utilisation == 0
}

// stated is the utilisation that the endpoints of a Service state, at the port where it is
// highest; 0: they do not. was is what the plan was made with, which stays while it is about right.
func (c *Controller) stated(service *corev1.Service, was float64) float64 {
	now := 0.0
	for i := range service.Spec.Ports {
		name := proxy.PortName{ServiceName: serviceName(service), Port: service.Spec.Ports[i].Name}
		now = max(now, c.demand.(Units).Utilisation(name))
	}
	switch {
	case now == 0 && c.cold():
		return was
	case now == 0:
		return 0
	case was > 0 && math.Abs(now/was-1) <= steadyUtilisation:
		return was
	}
	return min(max(minUtilisation, math.Round(100*now)/100), maxUtilisation)
}

// unitsOf ports together; ok is false if Demand knows nothing of the kind.
func (c *Controller) unitsOf(service proxy.ServiceName, ports []string) (u demand.Units, ok bool) {
	from, ok := c.demand.(Units)
	if !ok {
		return u, false
	}
	sum := 0.0
	for _, port := range ports {
		name := proxy.PortName{ServiceName: service, Port: port}
		one, rate := from.Units(name), from.Rate(name)
		u.Nodes, u.ProxyConnections, u.Requests = u.Nodes+rate*one.Nodes, u.ProxyConnections+rate*one.ProxyConnections, u.Requests+rate*one.Requests
		u.Mixed = u.Mixed || one.Mixed
		sum += rate * (one.Nodes + one.ProxyConnections + one.Requests)
	}
	if sum > 0 {
		u.Nodes, u.ProxyConnections, u.Requests = u.Nodes/sum, u.ProxyConnections/sum, u.Requests/sum
	}
	return u, true
}

// sourcesText says who counted demand, and in what.
func sourcesText(u demand.Units) string {
	var parts []string
	for _, part := range []struct {
		share float64
		what  string
	}{
		{u.Nodes, "connections that nodes count"}, {u.ProxyConnections, "connections that proxies report"}, {u.Requests, "HTTP requests that proxies report"},
	} {
		if part.share > 0 {
			parts = append(parts, percentText(part.share)+" "+part.what)
		}
	}
	return strings.Join(parts, ", ")
}

// percentText of a share that is not 0.
func percentText(share float64) string {
	if share < 0.01 {
		return "< 1 %"
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}

// mixedText is about ports of which both are counted, and what helps.
func mixedText(u demand.Units) string {
	return sourcesText(u) + ": one connection may carry many requests, so zones whose clients connect without an HTTP proxy have more demand " +
		"than is planned for. Give all clients of the port a sidecar, or none"
}
