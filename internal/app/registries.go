package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/cluster"
	"github.com/proxima-mesh/proxima/internal/controller/registered"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/machine"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/dubbo"
	"github.com/proxima-mesh/proxima/internal/registry/eureka"
	"github.com/proxima-mesh/proxima/internal/registry/nacos"
	"github.com/proxima-mesh/proxima/internal/registry/zookeeper"
	"github.com/proxima-mesh/proxima/internal/store"
)

// RegistriesConfig says which registry protocols are served.
type RegistriesConfig struct {
	// Ports on the API's host; 0: off. That of gRPC is NacosPort + 1000, as clients expect.
	NacosPort, EurekaPort, ZooKeeperPort int
	// ZooKeeperQuota in bytes of nodes that clients of ZooKeeper have outside of what is mapped; 0: they have none.
	ZooKeeperQuota int64
	TLS            registry.TLSMode
	// Anonymous are the addresses of clients that need no credentials.
	Anonymous []netip.Prefix
	// Namespaces maps names of registries to those of Kubernetes.
	Namespaces registry.Namespaces
}

func (c *RegistriesConfig) on() bool {
	return c.NacosPort != 0 || c.EurekaPort != 0 || c.ZooKeeperPort != 0
}

// registryPort is one port of a registry protocol.
type registryPort struct {
	protocol registry.Protocol
	flag     string
	port     int
	// alpn are the protocols that clients negotiate in TLS.
	alpn []string
	// share of the file descriptors that its connections may take.
	share float64
	// serve blocks until ctx ends.
	serve    func(context.Context, net.Listener) error
	listener net.Listener
	// connections is how many clients are connected that can be asked to move to another instance; nil: none.
	connections func() int
}

// registries serve the clients of registry protocols. Nil: there are none.
type registries struct {
	core  *registry.Core
	ports []*registryPort
	// machineID of this machine.
	machineID string
}

// checkRegistries refuses ports for registries where there is nothing to serve them from.
func checkRegistries(cfg *ControlPlaneConfig) error {
	why, hint := "", ""
	switch {
	case cfg.Registries.ZooKeeperQuota != 0 && cfg.Registries.ZooKeeperPort == 0:
		why = "--zookeeper-extra-quota is for clients of ZooKeeper, which are not served"
		hint = "set --zookeeper-port, too; where the state is in a Kubernetes cluster, leave both out"
	case !cfg.Registries.on():
		return nil
	case cfg.role() == RoleGlobal:
		why, hint = "global has no endpoints and no workloads: the control planes of zones serve them", "set it at the control planes of the zones"
	case cfg.Store == StoreKubernetes && cfg.Preset == PresetPlannerOnly:
		why, hint = "preset planner-only writes nothing in the cluster", "use preset kube-proxy-replacement or zone"
	case cfg.Store == StoreKubernetes && cfg.Registries.ZooKeeperPort != 0:
		why = "clients of ZooKeeper are not served where the state is in a Kubernetes cluster, whose objects have no common order"
		hint = "leave --zookeeper-port out there, or serve them by a control plane of a zone with a store of its own"
	default:
		return nil
	}
	return &problem.Error{Code: problem.Usage, Err: errors.New("registries: " + why), Hint: hint}
}

// newRegistries opens the ports of the registry protocols that are on.
func newRegistries(cfg ControlPlaneConfig, s *storage, a *api, i *instance, x *instances, log *slog.Logger) (*registries, error) {
	if !cfg.Registries.on() {
		return nil, nil
	}
	log = log.With("component", "registries")
	core := &registry.Core{
		Registrar: registry.NewRegistrar(registry.RegistrarConfig{
			Client: a.client, Catalog: i.catalog, Owner: instanceName(a.address), MachineID: s.machineID, Running: x.running, Leads: x.leads, Logger: log,
		}),
		Index:   registry.NewIndex(registry.IndexConfig{Catalog: i.catalog, Site: cfg.site(), Mark: x.mark(), Logger: log}),
		Configs: registry.NewConfigs(a.client, i.catalog, log),
		Gate:    &registry.Gate{Anonymous: cfg.Registries.Anonymous, Check: registryUsers(s.tokens), Local: new(machine.Interfaces).Has},
		Meters:  registry.NewMeters(s.metrics), Client: a.client, Namespaces: cfg.Registries.Namespaces, Logger: log,
	}
	if x.members != nil {
		core.Others = x.registryServers
	}
	return openRegistries(cfg, core, s, a, log)
}

// openRegistries opens the ports of the registry protocols that are on.
func openRegistries(cfg ControlPlaneConfig, core *registry.Core, s *storage, a *api, log *slog.Logger) (r *registries, err error) {
	r = &registries{core: core, ports: registryPorts(&cfg.Registries, core, s.store), machineID: s.machineID}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	pair, err := serverCertificate(cfg, s.ca, a.address, nil)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, err
	}
	for _, p := range r.ports {
		address, err := onPort(a.address.String(), p.port)
		if err != nil {
			return nil, err
		}
		limit := listener.DescriptorShare(maxViewConnections, p.share)
		l, err := listen(string(p.protocol), p.flag, address, limit, log)
		if err != nil {
			return nil, err
		}
		p.listener = registry.Listener(l, cfg.Registries.TLS, &tls.Config{
			MinVersion: tls.VersionTLS12, CipherSuites: listener.CipherSuites(), Certificates: []tls.Certificate{certificate}, NextProtos: p.alpn,
		})
		core.Meters.Listens(p.protocol, l.Addr().String())
		core.Meters.Limit(p.protocol, limit)
	}
	return r, nil
}

// registryPorts are those that are on, with their servers. What is not of the catalogue is in s.
func registryPorts(cfg *RegistriesConfig, core *registry.Core, s store.Store) []*registryPort {
	var out []*registryPort
	pushing := registryShare
	if cfg.NacosPort != 0 && cfg.ZooKeeperPort != 0 {
		pushing /= 2
	}
	if cfg.NacosPort != 0 {
		n := nacos.New(core)
		out = append(out,
			&registryPort{protocol: registry.Nacos, flag: "--nacos-port", port: cfg.NacosPort, alpn: []string{"http/1.1"}, share: proxyShare, serve: n.ServeHTTPOn},
			&registryPort{protocol: registry.Nacos, flag: "--nacos-port", port: cfg.NacosPort + nacosGRPCOffset, alpn: []string{"h2"}, share: pushing, serve: n.Serve, connections: n.Connections})
	}
	if cfg.EurekaPort != 0 {
		out = append(out, &registryPort{
			protocol: registry.Eureka, flag: "--eureka-port", port: cfg.EurekaPort, alpn: []string{"http/1.1"}, share: proxyShare, serve: eureka.New(core).Serve,
		})
	}
	if cfg.ZooKeeperPort != 0 {
		z := zookeeper.New(core).WithStore(s)
		if cfg.ZooKeeperQuota > 0 {
			z.WithNodes(s, cfg.ZooKeeperQuota)
		}
		out = append(out, &registryPort{protocol: registry.ZooKeeper, flag: "--zookeeper-port", port: cfg.ZooKeeperPort, share: pushing, serve: z.Serve})
	}
	return out
}

// nacosGRPCOffset is from the port of HTTP to that of gRPC, as clients of Nacos 2 have it.
const nacosGRPCOffset = 1000

// registryUsers finds the users of tokens.
func registryUsers(tokens *identity.Tokens) func(context.Context, string) (registry.User, error) {
	return func(ctx context.Context, text string) (registry.User, error) {
		info, err := tokens.Lookup(ctx, text)
		if err != nil {
			return registry.User{}, err
		}
		subject, err := info.Subject()
		if err != nil {
			return registry.User{}, err
		}
		user := registry.User{Name: subject.User}
		switch info.Kind {
		case identity.Admin:
			user.Admin = true
		case identity.ReadOnly:
			user.ReadOnly = true
		case identity.Workload:
			namespace, account, _ := strings.Cut(info.Name, "/")
			user.Namespaces, user.ServiceAccount, user.Bounds = []string{namespace}, account, boundsOf(info.Bounds)
		case identity.Node:
			user.Namespaces, user.Bounds = info.Namespaces, boundsOf(info.Bounds)
			switch {
			case info.Everywhere():
				user.Namespaces = nil
			case len(user.Namespaces) == 0:
				user.Namespaces = []string{"default"}
			}
		default:
			return registry.User{}, fmt.Errorf("a token of kind %s registers no instances: use one of kind workload, node or admin", info.Kind)
		}
		return user, nil
	}
}

// boundsOf a credential, for what is registered with it.
func boundsOf(b identity.Bounds) func(*meshv1alpha1.Dataplane) error {
	return func(d *meshv1alpha1.Dataplane) error {
		if err := b.CheckLabels(d.Labels); err != nil {
			return err
		}
		for _, text := range d.Spec.Addresses {
			if a, err := netip.ParseAddr(text); len(b.Addresses) > 0 && (err != nil || !b.AllowsAddress(a)) {
				return fmt.Errorf("address %s is not in the ranges of its token", text)
			}
		}
		return nil
	}
}

func (r *registries) components() []component {
	if r == nil {
		return nil
	}
	out := []component{{Name: "registry index", Run: r.core.Index.Run}, {Name: "registrar", Run: r.core.Registrar.Run}, {Name: "registry configuration", Run: r.core.Configs.Run}}
	for _, p := range r.ports {
		out = append(out, component{Name: string(p.protocol), Run: func(ctx context.Context) error { return p.serve(ctx, p.listener) }})
	}
	return out
}

func (r *registries) close() {
	if r == nil {
		return
	}
	for _, p := range r.ports {
		if p.listener != nil {
			_ = p.listener.Close()
		}
	}
}

// connections of clients that can be asked to move to another instance.
func (r *registries) connections() map[string]cluster.Registry {
	out := map[string]cluster.Registry{}
	for _, p := range r.ports {
		if p.connections != nil {
			out[string(p.protocol)] = cluster.Registry{Port: p.port, Clients: p.connections()}
		}
	}
	return out
}

// status of the registries that are served.
func (r *registries) status() []registry.Status {
	if r == nil {
		return nil
	}
	return r.core.Status()
}

// registryTroubles is what is wrong with instances that clients of registries registered, whether or not any
// registry is served.
func (c *standalone) registryTroubles() []registry.Trouble {
	x := registry.Examination{
		Snapshot: c.instance.catalog.Snapshot(), Served: c.registries.status(), Owner: instanceName(c.api.address), Running: c.others.running(),
	}
	if c.registries != nil {
		x.Claimed = c.registries.core.Registrar.Claimed
	}
	return registry.Examine(x)
}

// runRegistered keeps the Services of what registry clients registered. It runs where no registry is
// served, too: instances may be left of another configuration.
func (c *controllers) runRegistered(ctx context.Context) error {
	return registered.New(registered.Config{
		Client: c.client, Catalog: c.instance.catalog, Logger: c.log.With("component", "registered services"),
	}).Run(ctx)
}

// runDubbo keeps the metadata of applications of Dubbo, where registries are served.
func (c *controllers) runDubbo(ctx context.Context) error {
	if c.registries == nil {
		<-ctx.Done()
		return nil
	}
	return dubbo.New(dubbo.Config{
		Client: c.client, Catalog: c.instance.catalog, MachineID: c.registries.machineID, Meters: c.registries.core.Meters,
		Logger: c.log.With("component", "metadata of dubbo"),
	}).Run(ctx)
}

// mark returns the Mark of an Index (registry.IndexConfig); nil: there is this instance alone.
func (x *instances) mark() func(context.Context) (uint64, error) {
	if x.members == nil {
		return nil
	}
	return func(ctx context.Context) (uint64, error) {
		revision, err := x.members.Mark(ctx)
		return uint64(revision), err
	}
}

// running are the names of the instances that run; nil: there is this one alone.
func (x *instances) running() map[string]bool {
	if x.members == nil {
		return map[string]bool{instanceName(x.api.address): true}
	}
	out := map[string]bool{}
	for _, m := range x.members.List() {
		out[m.Name] = true
	}
	return out
}

// leads reports whether this instance leads.
func (x *instances) leads() bool { return x.ballots == nil || x.ballots.Status().Leads }
