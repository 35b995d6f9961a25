package app

import (
	"cmp"
	"net/netip"
	"path/filepath"

	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/demand/wire"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/machine"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/fromview"
	"github.com/proxima-mesh/proxima/internal/node/membership"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/version"
	"github.com/proxima-mesh/proxima/internal/witness"
	"github.com/proxima-mesh/proxima/internal/workload"
)

// viewComponents are the view, whose updates go to update, and what the control plane gets in
// return: reports of demand and heartbeats.
func (a *agent) viewComponents(update func(node.Update)) ([]component, error) {
	a.feed = fromview.NewFeed(a.feedConfig(update))
	out := []component{
		{Name: "certificate renewal", Run: a.renewer.Run},
		{Name: "view", Run: a.feed.Run},
	}
	out = append(out, a.demandComponents()...)
	heartbeat, err := a.heartbeatComponents()
	return append(out, heartbeat...), err
}

func (a *agent) feedConfig(update func(node.Update)) fromview.FeedConfig {
	return fromview.FeedConfig{
		Conn: a.conn, Node: a.cfg.Name, Zone: locality.Zone(a.cfg.Zone), Version: cmp.Or(a.cfg.version, version.Get().Version),
		StateFile: a.viewFile(), Cluster: a.gateway.cluster(), Mode: a.modeLabel(),
		Update: update, Tracer: a.traces.tracer(), Logger: a.log.With("component", "view"), Registerer: a.registry,
	}
}

// planeComponents tie the agent to a control plane: the view, reports of demand,
// heartbeats, membership and the probes of workloads.
func (a *agent) planeComponents() ([]component, error) {
	out, err := a.viewComponents(a.apply)
	if err != nil {
		return nil, err
	}
	client, err := kubeclient.New(a.restConfig(), kind.All())
	if err != nil {
		return nil, err
	}
	a.member = membership.New(membership.Config{
		Client: client, Name: a.cfg.Name, Zone: locality.Zone(a.cfg.Zone), ControlPlane: a.cfg.ControlPlane,
		Lease: a.cfg.Lease, MachineID: a.cfg.MachineID, OnNode: a.learn, Mode: a.modeLabel(),
		Addresses: func() []netip.Addr { return machine.Addresses(a.cfg.Server) },
		Logger:    a.log.With("component", "membership"), Clock: clock.RealClock{},
	})
	watching, err := kubeclient.New(a.watchConfig(), kind.All())
	if err != nil {
		return nil, err
	}
	checks := workload.NewChecks(workload.ChecksConfig{
		Client: watching, Node: a.cfg.Name, Logger: a.log.With("component", "readiness"), Clock: clock.RealClock{},
	})
	return append(out,
		component{Name: "membership", Run: a.member.Run},
		component{Name: "readiness probes", Run: checks.Run},
	), nil
}

// modeLabel is the mode for the Node's label; empty: this is a gateway, which carries none of
// the machine's traffic.
func (a *agent) modeLabel() string {
	if a.gateway != nil {
		return ""
	}
	return a.mode.Name()
}

// demandComponents report to the control plane what traffic starts here, once the whole
// state is in place.
func (a *agent) demandComponents() []component {
	counter, ok := a.mode.(proxy.Counter)
	if !ok {
		a.log.Info("demand is not measured here: the mode cannot count", "mode", a.mode.Name())
		return nil
	}
	out := a.accountingComponents(counter)
	a.demand = wire.NewClient(wire.ClientConfig{
		Accountant: a.accountant(),
		Conn:       a.conn, Node: a.cfg.Name, Zone: func() locality.Zone { return a.feed.Status().Zone },
		Counter: counter, Source: a.agent.Source, Start: a.agent.Ready(), Logger: a.log.With("component", "demand"), Registerer: a.registry,
		File: filepath.Join(a.dir(), "demand.left"),
	})
	return append(out, component{Name: "demand", Run: a.demand.Run})
}

// heartbeatComponents show the control plane that this agent is alive, probe others for it,
// and answer its calls.
func (a *agent) heartbeatComponents() (out []component, err error) {
	log := a.log.With("component", "witness")
	port := 0
	if a.cfg.ProbePort != 0 {
		if a.probes, err = witness.Listen(a.cfg.Name, a.cfg.ProbePort); err != nil {
			return nil, &problem.Error{
				Code: problem.ListenFailed,
				Err:  err,
				Hint: "the agent answers the probes of others by UDP; choose another port with --probe-port, " +
					"or 0 to turn it off",
			}
		}
		if port = a.probes.Port(); port != a.cfg.ProbePort {
			log.Info("the port of probes is in use, another one was chosen; a firewall between the nodes must allow it",
				"wanted", a.cfg.ProbePort, "port", port)
		}
		out = append(out, component{Name: "probes", Run: a.probes.Run})
	}
	client := witness.NewClient(witness.ClientConfig{
		Conn: a.conn, Node: a.cfg.Name, ProbePort: port, Answer: a.answerCall, Logger: log, Registerer: a.registry,
	})
	return append(out, component{Name: "heartbeat", Run: client.Run}), nil
}
