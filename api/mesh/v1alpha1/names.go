package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Labels and annotations that Proxima writes.
const (
	// LabelMesh on a Namespace or a Dataplane names the mesh it belongs to; on the Service
	// of an ExternalService, the mesh that it is reached from.
	LabelMesh = GroupName + "/mesh"
	// LabelExternalService on a Service names the ExternalService that it has the virtual
	// IPs of.
	LabelExternalService = GroupName + "/external-service"
	// LabelKumaMesh is read as LabelMesh where that is not there, as a label or an annotation,
	// and never written.
	LabelKumaMesh = "kuma.io/mesh"
	// DefaultMesh is the mesh of what names no other.
	DefaultMesh = "default"

	// DefaultServiceAccount of a Dataplane that names none.
	DefaultServiceAccount = "default"

	// LabelService on a workload, or among the tags of a Dataplane's port, is its service tag:
	// it is part of the service of that name, below "mesh", in all namespaces of the mesh. On
	// a Service, the tag whose workloads it has.
	LabelService = GroupName + "/service"
	// LabelKumaService is read as LabelService where that is not there, and never written.
	LabelKumaService = "kuma.io/service"

	// LabelProxyMode on a Node is the mode in which its agent carries traffic. Agents set it; in a
	// Kubernetes cluster, where Nodes are the kubelet's, the control plane does.
	LabelProxyMode = GroupName + "/proxy-mode"

	// LabelVirtualIPs on a ServiceCIDR: its addresses are those of VirtualIPs, and no
	// Service gets one of them.
	LabelVirtualIPs = GroupName + "/virtual-ips"

	// LabelSidecarInjection on a Namespace or a Pod says whether Pods get a sidecar: "enabled" or
	// "disabled". That of the Pod, a label or an annotation, goes before that of its namespace.
	LabelSidecarInjection = GroupName + "/sidecar-injection"
	// LabelKumaSidecarInjection is read as LabelSidecarInjection where that is not there, and
	// never written.
	LabelKumaSidecarInjection = "kuma.io/sidecar-injection"
	// AnnotationSidecar on a Pod is what its sidecar was made of (package inject), on a Dataplane who
	// has started it.
	AnnotationSidecar = GroupName + "/sidecar"
	// SidecarOfRun: proxima run has started the sidecar of a Dataplane.
	SidecarOfRun = "run"
	// AnnotationServerCA on a Pod with a sidecar has the authorities of the control plane (PEM).
	AnnotationServerCA = GroupName + "/server-ca"
	// AnnotationInboundPorts on a Pod, or on its namespace for Pods without it, are ports that its containers
	// listen on and do not declare, joined by commas: they are led to the sidecar, too.
	AnnotationInboundPorts = GroupName + "/inbound-ports"
	// AnnotationExcludeInbound and AnnotationExcludeOutbound on a Pod are ports, addresses and
	// prefixes, joined by commas, whose connections do not pass the sidecar.
	AnnotationExcludeInbound  = GroupName + "/exclude-inbound"
	AnnotationExcludeOutbound = GroupName + "/exclude-outbound"

	// AnnotationMachineID on a Dataplane with a loopback address is the machine
	// whose loopback interface has it (package machine). The server sets it.
	AnnotationMachineID = GroupName + "/machine-id"
	// AnnotationCgroup on a Dataplane is the path of the cgroup (version 2) of its processes, by
	// which the agent of its node tells its connections from those of others at its address.
	AnnotationCgroup = GroupName + "/cgroup"
	// AnnotationServiceAccount on a Dataplane is the account, in its namespace, of
	// the workload that registered it. The server sets it for credentials of
	// workloads; administrators may; credentials of nodes may not.
	AnnotationServiceAccount = GroupName + "/service-account"
)

// Names on a Node that is drained.
const (
	// TaintDrain is the key of the taint, of effect NoExecute, that "proxima node drain" sets.
	// It is the state of the drain: everything else follows from it.
	TaintDrain = "node.proxima.dev/drain"
	// AnnotationDrain records who drained the node, and what undraining it restores.
	AnnotationDrain = "node.proxima.dev/drain"
)

// Causes (metav1.StatusCause) of an answer that refuses a Dataplane because of its node.
const (
	// CauseNodeCordoned: the node takes no new workloads.
	CauseNodeCordoned metav1.CauseType = "NodeCordoned"
	// CauseNodeDrained: nor does it now, but it will again.
	CauseNodeDrained metav1.CauseType = "NodeDrained"
)

// Labels of objects that are synchronised between zones and global. Receivers set them
// on copies; users of a zone set the origin of their own policies.
const (
	// LabelOrigin is which kind of control plane owns an object.
	LabelOrigin = GroupName + "/origin"
	// OriginGlobal and OriginZone are its values.
	OriginGlobal = "global"
	OriginZone   = "zone"
	// LabelZone is the zone that owns an object of origin zone.
	LabelZone = GroupName + "/zone"
	// LabelDisplayName is the name of the original; beyond 63 characters, its
	// beginning and a hash.
	LabelDisplayName = GroupName + "/display-name"
	// LabelSourceNamespace is the namespace of the original, where the copy is in
	// another one.
	LabelSourceNamespace = GroupName + "/source-namespace"
	// AnnotationCreated on the copy of a policy or a route is when the original was created, in the
	// form of RFC 3339: the older one of two wins, wherever their copies are.
	AnnotationCreated = GroupName + "/created"
)

// Annotations on a ServiceExport, and on a Service.
const (
	// AnnotationToZones on a ServiceExport limits the zones that may use it: names of
	// zones, separated by commas.
	AnnotationToZones = GroupName + "/to-zones"
	// AnnotationToMeshes on a Service lets workloads of other meshes use it in its zone, by its
	// names and cluster addresses: names of meshes, separated by commas, or ToAllMeshes.
	AnnotationToMeshes = GroupName + "/to-meshes"
	ToAllMeshes        = "*"
	// AnnotationProxyProtocol on a Service: its endpoints take a header of the PROXY
	// protocol before each connection that comes from another zone. The value is v2.
	AnnotationProxyProtocol = GroupName + "/proxy-protocol"
)

// Values that the API fills in where a Dataplane leaves them out.
const (
	// DefaultDrainSeconds equals the default grace period of a Pod.
	DefaultDrainSeconds int32 = 30
	// DefaultWeight of a Dataplane that has none, and the highest one.
	DefaultWeight int32 = 100
	MaxWeight     int32 = 1000
	// The timings of a probe, as Kubernetes' core/v1 Probe has them.
	DefaultProbePeriodSeconds    int32 = 10
	DefaultProbeTimeoutSeconds   int32 = 1
	DefaultProbeSuccessThreshold int32 = 1
	DefaultProbeFailureThreshold int32 = 3
)

// Values of the string fields that are enumerations.
const (
	ProtocolTCP  = "TCP"
	ProtocolUDP  = "UDP"
	ProtocolSCTP = "SCTP"

	SchemeHTTP  = "HTTP"
	SchemeHTTPS = "HTTPS"

	// BackendBuiltin, BackendProvided and BackendExternal are the types of a Mesh's
	// authority.
	BackendBuiltin  = "Builtin"
	BackendProvided = "Provided"
	BackendExternal = "External"
	// MTLSStrict and MTLSPermissive are the modes of a Mesh's mutual TLS.
	MTLSStrict     = "Strict"
	MTLSPermissive = "Permissive"

	// Ways to verify the certificate of an ExternalService.
	VerifySecured = "Secured"
	VerifySkipSAN = "SkipSAN"
	VerifySkipCA  = "SkipCA"
	VerifySkipAll = "SkipAll"
	// MatchExact and MatchPrefix are the types of a SubjectAltNameMatch.
	MatchExact  = "Exact"
	MatchPrefix = "Prefix"
	// Versions of TLS.
	TLS12 = "1.2"
	TLS13 = "1.3"

	// ExportAll and ExportExported say which Services of a mesh other zones may use.
	ExportAll      = "All"
	ExportExported = "Exported"

	// AccessAllow and AccessDeny are a Mesh's access by default.
	AccessAllow = "Allow"
	AccessDeny  = "Deny"
	// OutboundAuto and OutboundAlways say when proxies begin TLS.
	OutboundAuto   = "Auto"
	OutboundAlways = "Always"
	// ScopeOnDemand, ScopeAll and ScopeDeclared say which Services a proxy knows.
	ScopeOnDemand = "OnDemand"
	ScopeAll      = "All"
	ScopeDeclared = "Declared"

	// MatchRegularExpression is a type of a ValueMatch, beside MatchExact and MatchPrefix.
	MatchRegularExpression = "RegularExpression"

	// Types of a health check.
	CheckOff  = "Off"
	CheckHTTP = "HTTP"
	CheckTCP  = "TCP"
	CheckGRPC = "GRPC"

	// Types of a balancer, and of what it hashes.
	BalanceLeastRequest = "LeastRequest"
	BalanceRoundRobin   = "RoundRobin"
	BalanceRandom       = "Random"
	BalanceRingHash     = "RingHash"
	BalanceMaglev       = "Maglev"
	HashHeader          = "Header"
	HashCookie          = "Cookie"
	HashQuery           = "Query"
	HashSourceIP        = "SourceIP"

	// Modes of a locality, and where traffic fails over to.
	LocalityPlan      = "Plan"
	LocalityStrict    = "Strict"
	LocalityOff       = "Off"
	FailoverAny       = "Any"
	FailoverNone      = "None"
	FailoverOnly      = "Only"
	FailoverAnyExcept = "AnyExcept"

	// Modes of passthrough, and what it matches.
	PassthroughAll     = "All"
	PassthroughNone    = "None"
	PassthroughMatched = "Matched"
	PassthroughDomain  = "Domain"
	PassthroughIP      = "IP"
	PassthroughCIDR    = "CIDR"

	// What an access log is of.
	LogAll    = "All"
	LogErrors = "Errors"

	// Types and operations of a ProxyPatch, and what it matches.
	PatchCluster       = "Cluster"
	PatchListener      = "Listener"
	PatchRoute         = "Route"
	PatchVirtualHost   = "VirtualHost"
	PatchNetworkFilter = "NetworkFilter"
	PatchHTTPFilter    = "HTTPFilter"
	PatchAdd           = "Add"
	PatchMerge         = "Merge"
	PatchJSON          = "JSONPatch"
	PatchRemove        = "Remove"
	PatchFirst         = "First"
	PatchLast          = "Last"
	PatchBefore        = "Before"
	PatchAfter         = "After"
	OriginInbound      = "Inbound"
	OriginOutbound     = "Outbound"
	OriginPassthrough  = "Passthrough"
	OriginProxy        = "Proxy"

	// Directions of a TypeSync.
	SyncToZone   = "ToZone"
	SyncToGlobal = "ToGlobal"

	// Kinds of a SecretKeyReference.
	KindSecret       = "Secret"
	KindGlobalSecret = "GlobalSecret"
	// DefaultSecretKey of a SecretKeyReference.
	DefaultSecretKey = "value"

	// SecretTypeOpaque of a GlobalSecret that says nothing of its type.
	SecretTypeOpaque = "Opaque"
)
