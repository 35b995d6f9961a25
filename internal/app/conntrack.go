package app

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

// openConntrack makes the settings of the kernel's table of connections that kube-proxy's
// configuration asks for, and measures its use. A setting that cannot be made, as in a container
// whose /proc/sys is read-only, is no reason not to serve.
func (a *agent) openConntrack() {
	if _, kernel := modes.RequirementOf(a.mode.Name()); !kernel || a.gateway != nil {
		return
	}
	use := func(which func(flows, limit int) int) func() float64 {
		return func() float64 {
			flows, limit, _ := conntrack.Use(conntrack.Settings) // 0: no module, or no Linux
			return float64(which(flows, limit))
		}
	}
	a.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "proxima_conntrack_flows", Help: "Flows in the kernel's table of connections.",
		}, use(func(flows, _ int) int { return flows })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "proxima_conntrack_limit", Help: "Flows that the kernel's table of connections can have; further ones are dropped.",
		}, use(func(_, limit int) int { return limit })))
	if a.cfg.Cluster == nil {
		return
	}
	c, log := a.cfg.Cluster.Conntrack, a.log.With("component", "connections")
	changed, err := conntrack.Limits{
		Max: c.Max(runtime.NumCPU()), TCPEstablished: c.TCPEstablished, TCPCloseWait: c.TCPCloseWait,
		UDP: c.UDP, UDPStream: c.UDPStream, TCPBeLiberal: c.TCPBeLiberal,
	}.Apply(conntrack.Settings)
	for _, text := range changed {
		log.Info("setting of the kernel's table of connections was changed, as kube-proxy's configuration says", "setting", text)
	}
	if err != nil {
		log.Warn("settings of the kernel's table of connections could not be made; make them on the host", "error", err)
	}
}
