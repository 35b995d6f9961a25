package app

import (
	"context"
	"errors"

	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/proxy/permit"
)

// openPermissions makes what sees to the permissions of workloads without a sidecar. In the userspace mode
// clients have the address of their agent, so that there is none.
func (a *agent) openPermissions() {
	if a.gateway != nil {
		return
	}
	if does, _ := modes.AbilityOf(a.mode.Name()); !does.Addresses {
		return
	}
	keeper, err := permit.New(permit.Config{Node: a.cfg.Name, Logger: a.log.With("component", "permissions by address")})
	if err != nil {
		a.log.Info("TrafficPermissions are not enforced for workloads without a sidecar on this node", "error", err)
		return
	}
	a.permissions = keeper
}

// permit takes an update over. Until the mode has a first state, the kernel has it before that. A feed that
// knows no workloads, as the API of a cluster, leaves what holds.
func (a *agent) permit(u node.Update) {
	if a.permissions == nil || u.Workloads == nil {
		return
	}
	a.permissions.Apply(u.Reset, u.Workloads)
	select {
	case <-a.agent.Ready():
	default:
		if err := a.permissions.Flush(); err != nil {
			a.log.Error("permissions are not enforced on this node yet", "error", err)
		}
	}
}

func (a *agent) permissionComponents() []component {
	if a.permissions == nil {
		return nil
	}
	return []component{{Name: "permissions by address", Run: func(ctx context.Context) error {
		return errors.Join(a.permissions.Run(ctx), a.permissions.Close())
	}}}
}
