package app

import (
	"cmp"
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/heuristic"
	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/kubernetes/inject"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// ControlPlaneConfig configures a control plane.
type ControlPlaneConfig struct {
	// Store as --store names it: memory, sqlite:FILE, postgres://…, etcd://… or kubernetes.
	Store   string
	DataDir string
	// Preset and Cluster, with StoreKubernetes: what the control plane does there, and how it
	// reaches the API of the cluster.
	Preset  Preset
	Cluster *rest.Config
	// Namespace of the control plane's own objects in the cluster, and AgentServiceAccount of its
	// agents there, GatewayServiceAccount of its gateways.
	Namespace             string
	AgentServiceAccount   string
	GatewayServiceAccount string
	// ExtensionService is the Service, in Namespace, by which the API server of the cluster calls
	// this control plane: for admission, and with AggregatedAPI for the users of the cluster.
	// Empty: it does not.
	ExtensionService string
	AggregatedAPI    bool
	// AgentsByAggregatedAPI: agents get no certificate but by it.
	AgentsByAggregatedAPI bool
	// Injection of sidecars into Pods, by the same Service: their images and resources; nil: there is
	// none. It goes with ExtensionService, XDSPort, and PresetZone or PresetKubeProxyReplacement.
	Injection *inject.Config
	// reviewer and ballot of tests; nil: the cluster's.
	reviewer access.TokenReviewer
	ballot   election
	// APIAddress (HOST:PORT) of the API; port 0: any free one.
	APIAddress string
	// NoConsole: the API does not serve the files of the web console.
	NoConsole bool
	// GRPCPort of node views, on the API's host; 0: off.
	GRPCPort int
	// XDSPort for proxies and gRPC programs, on the API's host; 0: off. XDSPortChosen: somebody
	// asked for it, so it is an error if it cannot be served.
	XDSPort       int
	XDSPortChosen bool
	// Registries whose protocols are served.
	Registries RegistriesConfig
	// Feed of changes.
	Feed FeedConfig
	// Pulsar is the protocol for readers of the feed.
	Pulsar PulsarConfig
	// ServiceCIDRs at the first start; from then on the stored ones hold.
	ServiceCIDRs []netip.Prefix
	// OneAddressPool and OneNodePortPool: see apiserver.Config.
	OneAddressPool, OneNodePortPool bool
	// ExternalIPRanges: see apiserver.Config.
	ExternalIPRanges []netip.Prefix
	// MeshCIDRs are the ranges of virtual IPs of names below "mesh" at the first start, at
	// most one per family; from then on the stored ones hold. Empty: there are no such names.
	MeshCIDRs []netip.Prefix
	// WorkloadCIDRs are the addresses of workloads, which sidecars look up where programs connect to them
	// in place of a Service, as to those of a headless one. None: such connections leave the mesh.
	WorkloadCIDRs []netip.Prefix
	// MaxEndpointsPerSlice, 0: 100.
	MaxEndpointsPerSlice int
	// MaxMirroredPerSubset of an Endpoints object, 0: 1000.
	MaxMirroredPerSubset int
	// MaxTerminatedPods are kept; 0: 12500, negative: all.
	MaxTerminatedPods int
	// Traces of changes.
	Traces TracesConfig
	// Wrap, if not nil, surrounds all that controllers read and write: to limit, count or
	// refuse it.
	Wrap resource.Wrapper
	// Limits of requests to the API; zero fields: the defaults.
	Limits apiserver.Limits
	// Quota of each namespace; nil: no limits.
	Quota apiserver.Quota
	// RenewExpired is how long after its end a node's or zone's certificate can be
	// renewed by proof of its key; 0: not at all.
	RenewExpired time.Duration
	// Heuristics that the program was built with; nil: none.
	Heuristics heuristic.Set
	// SignerKubeconfig reaches the Kubernetes API at which external signers of meshes
	// are asked; empty: there are none.
	SignerKubeconfig string
	// DefaultTopologyMode of Services that name none, and whose namespace and Mesh name
	// none; empty: none. It must pass topology.CheckDefault.
	DefaultTopologyMode string
	// MachineID of this machine; empty: machine.ID.
	MachineID string
	// ClusterKeyFile or ClusterKeyCommand, if not empty, opens the keys that several
	// instances of the control plane share; see package clusterkey.
	ClusterKeyFile    string
	ClusterKeyCommand []string
	// AdvertiseAddress (host) by which other machines reach this instance; empty: that of
	// APIAddress.
	AdvertiseAddress string
	// TLSNames are further DNS names and IP addresses by which this control plane is reached;
	// they, and AdvertiseAddress, are in its certificate.
	TLSNames []string
	// TLSCertFile and TLSKeyFile are a certificate for those who reach the API by one of its names, as browsers do; empty: there is none.
	TLSCertFile, TLSKeyFile string
	// DNSAddress (ADDRESS:PORT) at which names of Services are answered for machines without
	// an agent; empty: nowhere.
	DNSAddress string
	// Role among several control planes; empty: RoleStandalone.
	Role Role
	// Zone that this is the control plane of, with RoleZone; Global (HOST:PORT) the address
	// of the global control plane's API; ZoneTokenFile a token of kind zone.
	Zone, Global, ZoneTokenFile string
	// OtherGlobals are the addresses of further instances of it.
	OtherGlobals []string
	// FederationProtocol that a zone speaks: 1 or 2; 0: 2.
	FederationProtocol int
	// ZoneTimeout, at global: a zone that is silent for so long is offline; 0: 15 s.
	ZoneTimeout time.Duration
	Logger      *slog.Logger
}

// Role of a control plane among several.
type Role string

// The roles.
const (
	RoleStandalone Role = "standalone"
	RoleZone       Role = "zone"
	RoleGlobal     Role = "global"
)

func (c *ControlPlaneConfig) role() Role { return cmp.Or(c.Role, RoleStandalone) }

// standsWithSidecars reports whether this is the control plane of a cluster that stands alone, whose Pods
// have sidecars: it has meshes with certificates then.
func (c *ControlPlaneConfig) standsWithSidecars() bool {
	return c.Store == StoreKubernetes && c.role() == RoleStandalone && c.Injection != nil && c.XDSPort != 0
}

// site that is served.
func (c *ControlPlaneConfig) site() locality.Site {
	return cmp.Or(locality.Site(c.Zone), locality.Local)
}

// Serving is the addresses at which a role serves.
type Serving struct {
	// API is the URL of the API, as clients on this machine use it.
	API string
	// GRPC (host:port) of node views; empty: off.
	GRPC string
	// XDS (host:port) for proxies; empty: off.
	XDS string
	// Node and Mode of the agent, where there is one.
	Node, Mode string
	// Instead is the mode that was asked for, where Mode runs in its place, and Missing the kernel's modules that it lacks.
	Instead string
	Missing []string
	// DNS (host:port) of names; empty: off.
	DNS string
	// Gateway (host:port) by which a gateway is reached from elsewhere; empty: it is none.
	Gateway string
}
