package app

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/cluster"
	"github.com/proxima-mesh/proxima/internal/federation/stream"
	"github.com/proxima-mesh/proxima/internal/machine"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/version"
)

// instances is this process's part in a control plane that may have several.
type instances struct {
	// members are the instances; nil: there is this one alone.
	members *cluster.Members
	// run is this instance among them.
	run string
	// ballots elect the leader; nil with members.
	ballots  *cluster.Election
	log      *slog.Logger
	api      *api
	instance *instance
	// registries here; nil: there are none.
	registries *registries
}

// newInstances takes part in the election of the instances on the store. Where there is one
// instance only, it takes part in nothing.
func newInstances(cfg ControlPlaneConfig, started time.Time, s *storage, a *api, i *instance, log *slog.Logger) *instances {
	x := &instances{log: log.With("component", "instances"), api: a, instance: i}
	if !s.shared() {
		return x
	}
	run := make([]byte, 8)
	_, _ = rand.Read(run) // crypto/rand.Read never fails
	x.run = hex.EncodeToString(run)
	host := advertisedHost(cfg.AdvertiseAddress, a.address)
	self := cluster.Member{
		Name: instanceName(a.address), Run: x.run, Version: version.Get().Version, Started: started,
		API: net.JoinHostPort(host, portOf(a.address)),
	}
	if i.listener != nil {
		self.GRPC = net.JoinHostPort(host, portOf(i.listener.Addr()))
	}
	x.members = cluster.NewMembers(cluster.MembersConfig{Store: s.store, Self: self, Logger: x.log, Registerer: s.metrics})
	x.ballots = cluster.NewElection(cluster.ElectionConfig{
		Store: s.store, Name: self.Name, Run: self.Run, Logger: x.log, Registerer: s.metrics,
	})
	return x
}

// election decides when this instance leads.
func (x *instances) election() election {
	if x.ballots == nil {
		return unopposed{}
	}
	return x.ballots
}

func (x *instances) components() []component {
	if x.members == nil {
		return nil
	}
	out := []component{
		{Name: "instances", Run: x.members.Run},
		{Name: "agents of this instance", Run: x.countAgents},
		{Name: "endpoints of the API", Scope: leader, Run: x.publishEndpoints},
	}
	if x.registries != nil {
		out = append(out, component{Name: "registry clients of this instance", Run: x.countRegistryClients})
	}
	return out
}

// list returns where all instances are reached that other machines reach; nil: there is this
// one alone.
func (x *instances) list() []stream.Instance {
	if x.members == nil {
		return nil
	}
	var out []stream.Instance
	for _, m := range x.members.List() {
		if m.API != "" && m.GRPC != "" && !m.Leaving {
			out = append(out, stream.Instance{API: m.API, GRPC: m.GRPC})
		}
	}
	return out
}

// leaderAddress is that of the leader's gRPC port; empty: this instance leads, or none is known
// to.
func (x *instances) leaderAddress() string {
	s := x.ballots.Status()
	if s.Leads || s.Vacant {
		return ""
	}
	for _, m := range x.members.List() {
		if m.Run == s.Term.Run {
			return m.GRPC
		}
	}
	return ""
}

// publishEndpoints keeps the endpoints of the Service "kubernetes".
func (x *instances) publishEndpoints(ctx context.Context) error {
	retry := backoff.Backoff{Policy: backoff.Policy{First: 100 * time.Millisecond, Last: 10 * time.Second}}
	for ctx.Err() == nil {
		changed := x.members.Changed()
		var at []netip.AddrPort
		for _, m := range x.members.List() {
			if a, err := netip.ParseAddrPort(m.API); err == nil {
				at = append(at, a)
			}
		}
		if err := x.api.server.PublishEndpoints(ctx, at); err != nil {
			x.log.Warn("endpoints of default/kubernetes not written; it is tried again", "error", err)
			backoff.Sleep(ctx, retry.Next())
			continue
		}
		retry.Reset()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}

// countPeriod is how often the number of agents in the list of instances is brought up to
// date.
const countPeriod = time.Second

// countAgents tells the other instances how many agents follow their view here.
func (x *instances) countAgents(ctx context.Context) error {
	ticker := time.NewTicker(countPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		n := len(x.instance.views.Status())
		x.members.Update(func(m *cluster.Member) { m.Agents = n })
	}
}

// registryServers are the servers of a registry protocol at the other instances.
func (x *instances) registryServers(p registry.Protocol) []registry.Server {
	var out []registry.Server
	for _, m := range x.members.List() {
		r, serves := m.Registries[string(p)]
		if host, _, err := net.SplitHostPort(m.API); serves && err == nil && m.Run != x.run && !m.Leaving {
			out = append(out, registry.Server{Host: host, Port: strconv.Itoa(r.Port), Clients: r.Clients})
		}
	}
	return out
}

// countRegistryClients tells the other instances how many clients registries have here.
func (x *instances) countRegistryClients(ctx context.Context) error {
	ticker := time.NewTicker(countPeriod)
	defer ticker.Stop()
	for {
		counts := x.registries.connections()
		x.members.Update(func(m *cluster.Member) { m.Registries = counts })
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// inTerm refuses writes of the leader's components that would be committed without the fence
// of their term.
func inTerm(ctx context.Context, call resource.Call, next func(context.Context) error) error {
	if _, ok := cluster.InTerm(ctx); call.Verb.Writes() && !ok {
		return fmt.Errorf("%s %s %s: a write of the leader outside its term", call.Verb, call.Kind.Singular, call.Key)
	}
	return next(ctx)
}

// instanceName is this machine's, with the port of the API where that is not the usual one:
// several instances may be on one machine.
func instanceName(api net.Addr) string {
	name := "localhost"
	if host, err := os.Hostname(); err == nil {
		name = strings.ToLower(host)
	}
	if port := portOf(api); port != defaultAPIPort {
		name += ":" + port
	}
	return name
}

const defaultAPIPort = "6443"

// advertisedHost is how other machines reach this one: as configured, else by the address
// that is listened on, else by the one on the default route.
func advertisedHost(configured string, listening net.Addr) string {
	if configured != "" {
		return configured
	}
	at, err := netip.ParseAddrPort(listening.String())
	if err == nil && !at.Addr().IsUnspecified() {
		return at.Addr().Unmap().String()
	}
	if own := machine.Addresses(""); len(own) > 0 {
		return own[0].String()
	}
	return "127.0.0.1"
}

func portOf(a net.Addr) string {
	_, port, _ := net.SplitHostPort(a.String())
	return port
}
