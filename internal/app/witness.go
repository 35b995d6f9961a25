package app

import (
	"context"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/health"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/view"
	"github.com/proxima-mesh/proxima/internal/witness"
)

// detection is what notices machines that are gone: the streams of agents, what they say
// of each other, and the leases.
type detection struct {
	monitor *health.Monitor
	streams *witness.Server
	leases  *health.Controller
}

// newDetection makes the parts. publish gets the suspect nodes once startDetection runs.
func (cp *controlPlane) newDetection(client resource.Client, world *catalog.Catalog, publish func([]string)) *detection {
	d := &detection{}
	log := cp.log.With("part", "health")
	d.monitor = health.NewMonitor(health.MonitorConfig{
		Send: func(p health.Probe) bool { return d.streams.Send(p) }, Publish: publish, Logger: log,
	})
	d.streams = witness.NewServer(witness.ServerConfig{
		Admit: func(ctx context.Context, node string) error { return isNode(ctx, node, "show the heartbeat") }, Log: log,
	}, d.monitor)
	d.leases = health.New(health.Config{
		Client: client, Nodes: kind.Node, Leases: kind.Lease, Dataplanes: kind.Dataplane, Logger: log,
		Monitor: d.monitor,
		Keep: func(dead []resource.Key) map[resource.Key]string {
			return health.LastEndpoints(world.Snapshot(), dead)
		},
	})
	cp.metrics.MustRegister(d.monitor, d.leases)
	return d
}

func (d *detection) start(parts *parts) {
	parts.run("suspicion", d.monitor.Run)
	parts.run("health controller", d.leases.Run)
}

// suspects as the choice of endpoints takes them.
func (d *detection) suspects() map[string]bool {
	out := map[string]bool{}
	for _, s := range d.monitor.Suspects() {
		out[s.Node] = true
	}
	return out
}

// publishTo the views.
func (cp *controlPlane) publishTo(builder *view.Builder) func([]string) {
	return func(nodes []string) {
		if err := builder.SetSuspects(nodes); err != nil {
			cp.log.Error("suspect nodes are not in the views", "part", "health", "error", err)
		}
	}
}

// attend shows the control plane that this agent is there, and probes others for it.
func (a *agent) attend(parts *parts) error {
	log := a.log.With("part", "witness")
	port := 0
	if a.cfg.ProbePort != 0 {
		var err error
		if a.probes, err = witness.Listen(a.cfg.Name, a.cfg.ProbePort); err != nil {
			return &HintError{Err: err, Text: "the agent answers the probes of others by UDP; choose another port with --probe-port, or 0 to turn it off"}
		}
		if port = a.probes.Port(); port != a.cfg.ProbePort {
			log.Info("the port of probes is taken, another one is used; a firewall between the nodes has to let it pass",
				"wanted", a.cfg.ProbePort, "port", port)
		}
		parts.run("probes", a.probes.Run)
	}
	client := witness.NewClient(witness.ClientConfig{Conn: a.conn, Node: a.cfg.Name, ProbePort: port, Log: log})
	a.registry.MustRegister(client)
	parts.run("heartbeat", client.Run)
	return nil
}

// addTo the status what is known of machines that are late, suspect or not probed.
func (d *detection) addTo(s *Status) {
	leases := d.leases.State()
	s.Leases.Watched, s.Leases.Late, s.Leases.Held, s.Leases.Reason = leases.Leases, leases.Late, len(leases.Held) > 0, leases.Reason
	for _, h := range leases.Held {
		s.Leases.Expiries = append(s.Leases.Expiries, HeldExpiry{Object: h.Key.String(), Zone: h.Zone, Reason: h.Reason, Until: h.Until})
	}
	for _, m := range d.monitor.Suspects() {
		s.Suspects = append(s.Suspects, SuspectNode{Node: m.Node, Zone: m.Zone, Since: m.Since, Witnesses: m.Witnesses})
	}
	s.Unreachable = d.monitor.Unreachable()
}
