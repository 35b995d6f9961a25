package app

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity/spiffe"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/node/cgroups"
	"github.com/proxima-mesh/proxima/internal/node/isolation"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

// openCgroups makes what tells workloads at one address apart: `proxima run` names the cgroup
// of its command, and
//
//	cgroups.Table ──► isolation (rules of the mode)
//	      │       ──► spiffe.Table (who asks for a certificate)
//	      └──◄── nodeIdentity (whose certificate a connection gets)
func (a *agent) openCgroups() {
	if a.identity == nil || a.gateway != nil {
		return
	}
	h, err := cgroup.Find()
	if err != nil {
		a.log.Info("workloads that share an address are not told apart", "reason", err)
		return
	}
	if !a.isolation.TellsCgroups() {
		a.log.Info("the mode does not tell connections apart by cgroups: meshes are kept apart by addresses alone", "mode", a.mode.Name())
	}
	var known []cgroups.Group
	a.cgroups = cgroups.New(cgroups.Config{
		Hierarchy: h, File: filepath.Join(a.dir(), "cgroups.json"), Logger: a.log.With("component", "cgroups"),
		Changed: func(all []cgroups.Group) {
			a.exemptCgroups(all)
			a.isolation.Place(placed(all))
			a.identity.place(known, all)
			known = all
		},
	})
	a.identity.cgroups = a.cgroups
}

// exemptCgroups of workloads from the eBPF layer: a sidecar takes their connections by the address that was asked
// for (proxima run --redirect cgroup).
func (a *agent) exemptCgroups(all []cgroups.Group) {
	layer := modes.LayerOf(a.mode)
	if layer == nil {
		return
	}
	out := make(map[proxy.Cgroup]struct{}, len(all))
	for _, p := range placed(all) {
		out[p.Cgroup] = struct{}{}
	}
	layer.ExemptCgroups(out)
}

// redirectedPods tells the eBPF layer whose connections their sidecars take; nil: there is no layer.
func (a *agent) redirectedPods() func(map[uint64]struct{}) {
	if layer := modes.LayerOf(a.mode); layer != nil {
		return layer.ExemptNetworks
	}
	return nil
}

func placed(all []cgroups.Group) []isolation.Placed {
	out := make([]isolation.Placed, 0, len(all))
	for _, g := range all {
		out = append(out, isolation.Placed{
			Cgroup: proxy.Cgroup{ID: g.ID.Number, Level: uint8(g.ID.Level)}, Path: g.Path,
			Workload: proxy.ServiceName{Namespace: g.Workload.Namespace, Name: g.Workload.Name},
		})
	}
	return out
}

// place makes processes in cgroups those of workloads.
func (n *nodeIdentity) place(before, now []cgroups.Group) {
	for _, g := range before {
		if !slices.Contains(now, g) {
			n.table.RemoveCgroup(g.Path)
		}
	}
	for _, g := range now {
		if err := n.table.AddCgroup(g.Path, spiffe.Workload{Namespace: g.Workload.Namespace, Name: g.Workload.Name}); err != nil {
			n.log.Warn("processes of a cgroup are not known as those of its workload", "error", err)
		}
	}
}

// cgroupComponents remove the cgroups that nobody uses any more.
func (a *agent) cgroupComponents() []component {
	if a.cgroups == nil {
		return nil
	}
	return []component{{Name: "cgroups of workloads", Run: a.cgroups.Run}}
}

// placedTimeout bounds how long the start of a command waits for its rules.
const placedTimeout = 2 * time.Second

// awaitPlaced answers when connections from a cgroup are kept to their mesh.
func (a *agent) awaitPlaced(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), placedTimeout)
	defer cancel()
	if err := a.isolation.AwaitPlaced(ctx, r.URL.Query().Get("cgroup")); err != nil {
		http.Error(w, "the workload of the cgroup is not known to this agent yet", http.StatusGatewayTimeout)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
