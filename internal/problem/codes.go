package problem

// Codes of commands and configuration.
const (
	Usage              Code = "usage"
	PrivilegeMissing   Code = "privilege-missing"
	ListenFailed       Code = "listen-failed"
	FileExists         Code = "file-exists"
	LogMissing         Code = "log-missing"
	LabNotUp           Code = "lab-not-up"
	LabExists          Code = "lab-exists"
	LabUnavailable     Code = "lab-unavailable"
	ReleaseInvalid     Code = "release-invalid"
	EnvoyUnusable      Code = "envoy-unusable"
	SidecarUnavailable Code = "sidecar-unavailable"
)

// Codes of the proxies of workloads.
const (
	ProxyCertificateEnds Code = "proxy-certificate-ends"
	ProxyRejects         Code = "proxy-rejects"
	ProxyOutdated        Code = "proxy-outdated"
	ProxyRefuses         Code = "proxy-refuses"
	SidecarMissing       Code = "sidecar-missing"
	SidecarNotRedirected Code = "sidecar-not-redirected"
)

// Codes of the way to an API server, and of its answers.
const (
	KubeconfigMissing     Code = "kubeconfig-missing"
	KubeconfigInvalid     Code = "kubeconfig-invalid"
	KubeconfigUnreadable  Code = "kubeconfig-unreadable"
	APIUnreachable        Code = "api-unreachable"
	APITimeout            Code = "api-timeout"
	APIUntrusted          Code = "api-untrusted"
	APICertificateInvalid Code = "api-certificate-invalid"
	APINotTLS             Code = "api-not-tls"
	APIUnauthorized       Code = "api-unauthorized"
	APIUnavailable        Code = "api-unavailable"
	ClockSkew             Code = "clock-skew"
	KindNotServed         Code = "kind-not-served"
	APIOfCluster          Code = "api-of-cluster"
	ObjectNotFound        Code = "object-not-found"
	NamespaceNotFound     Code = "namespace-not-found"
	ObjectInvalid         Code = "object-invalid"
	ObjectOutdated        Code = "object-outdated"
	FieldConflict         Code = "field-conflict"
	DeletionPending       Code = "deletion-pending"
)

// Codes of the control plane and its state.
const (
	StoreInUse         Code = "store-in-use"
	ClusterKey         Code = "cluster-key"
	StoreUnsupported   Code = "store-unsupported"
	StoreNotEmpty      Code = "store-not-empty"
	StoreUnwritable    Code = "store-unwritable"
	StoreUnreachable   Code = "store-unreachable"
	BackupIncomplete   Code = "backup-incomplete"
	AuditUnwritable    Code = "audit-unwritable"
	MachinesGone       Code = "machines-gone"
	ZonesApart         Code = "zones-apart"
	TunnelFails        Code = "tunnel-fails"
	RegistryTrouble    Code = "registry-trouble"
	TrafficUnavailable Code = "traffic-unavailable"
	IsolationFails     Code = "isolation-fails"
	PermissionsFail    Code = "permissions-fail"
	NodeViewOff        Code = "node-view-off"
	NodeNotDrained     Code = "node-not-drained"
	LastEndpoint       Code = "last-endpoint"
	ShiftPending       Code = "shift-pending"
)

// Codes of an agent.
const (
	AgentNotRunning      Code = "agent-not-running"
	AgentNotAnswering    Code = "agent-not-answering"
	AgentAccessDenied    Code = "agent-access-denied"
	AgentDisconnected    Code = "agent-disconnected"
	AgentStateUnsaved    Code = "agent-state-unsaved"
	AgentNoWorkloads     Code = "agent-no-workloads"
	DataDirectoryInUse   Code = "data-directory-in-use"
	DataDirectoryInvalid Code = "data-directory-invalid"
	DataDirectoryExposed Code = "data-directory-exposed"
	DiskLow              Code = "disk-low"
	OpenFilesLow         Code = "open-files-low"
	PortInUse            Code = "port-in-use"
	NodeNotFound         Code = "node-not-found"
	NodeNameTaken        Code = "node-name-taken"
	CredentialsMissing   Code = "credentials-missing"
	CredentialsMismatch  Code = "credentials-mismatch"
	CertificateNotValid  Code = "certificate-not-valid"
	AddressUnknown       Code = "workload-address-unknown"
	BindFailed           Code = "service-port-bind-failed"
	ModeUnavailable      Code = "mode-unavailable"
	KernelModeHeld       Code = "kernel-mode-held"
	OtherProxy           Code = "other-proxy"
	ConnectionsFull      Code = "connections-full"
	ForwardBlocked       Code = "forward-blocked"
	KernelTablesDiffer   Code = "kernel-tables-differ"
	RangeOverlaps        Code = "service-range-overlaps"
	RangeUnroutable      Code = "service-range-unroutable"
	DNSNotAnswering      Code = "dns-not-answering"
	ResolverNotSet       Code = "resolver-not-set"
	ResolverStale        Code = "resolver-stale"
	ResolverPort         Code = "resolver-port"
	ResolverFailed       Code = "resolver-failed"
	CaptureUnavailable   Code = "capture-unavailable"
)
