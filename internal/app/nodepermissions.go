package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/proxy/permit"
)

// openPermissions makes what sees to the permissions of workloads without a sidecar, or knows which are
// not enforced here: in the userspace mode clients have the address of their agent.
func (a *agent) openPermissions() {
	if a.gateway != nil {
		return
	}
	cfg := permit.Config{Node: a.cfg.Name, Logger: a.log.With("component", "permissions by address")}
	if !a.cfg.joins() {
		cfg.Unable = "the agent follows the API of a cluster, and has no control plane that resolves TrafficPermissions"
	} else if does, _ := modes.AbilityOf(a.mode.Name()); !does.Addresses {
		cfg.Unable = fmt.Sprintf("in mode %s clients have the address of their agent", a.mode.Name())
	}
	keeper, err := permit.New(cfg)
	if err != nil {
		a.log.Info("TrafficPermissions are not enforced for workloads without a sidecar on this node", "error", err)
		cfg.Unable = err.Error()
		if keeper, err = permit.New(cfg); err != nil {
			return // it opens nothing
		}
	}
	a.permissions = keeper
	a.registry.MustRegister(keeper)
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

// permissionStatus is nil for a gateway.
func (a *agent) permissionStatus() *permit.Status {
	if a.permissions == nil {
		return nil
	}
	s := a.permissions.Status()
	return &s
}

func (a *agent) permissionComponents() []component {
	if a.permissions == nil {
		return nil
	}
	return []component{{Name: "permissions by address", Run: func(ctx context.Context) error {
		return errors.Join(a.permissions.Run(ctx), a.permissions.Close())
	}}}
}
