package doctor

// IDs of the checks. An ID that was in a release keeps its meaning.
const (
	checkDataDirectory  = "data-directory"
	checkPermissions    = "permissions"
	checkOpenFiles      = "open-files"
	checkLowPorts       = "low-ports"
	checkControlPlane   = "control-plane"
	checkStore          = "store"
	checkAudit          = "audit"
	checkFeed           = "feed"
	checkTraces         = "traces"
	checkAgentTraces    = "agent-traces"
	checkMachines       = "machines"
	checkZones          = "zones"
	checkRegistries     = "registries"
	checkAgent          = "agent"
	checkAgentState     = "agent-state"
	checkTunnel         = "tunnel"
	checkIsolation      = "isolation"
	checkNodePermission = "node-permissions"
	checkCertificate    = "certificate"
	checkNodeName       = "node-name"
	checkBounds         = "credential-bounds"
	checkPort           = "port"
	checkResolver       = "resolver"
	checkServiceRange   = "service-range"
	checkForwarding     = "forwarding"
	checkConnections    = "connections"
	checkKernelTables   = "kernel-tables"
	checkLayer          = "ebpf-layer"
	checkKernelLimits   = "kernel-limits"
	checkOtherProxies   = "other-proxies"
	checkKernelFeatures = "kernel"

	checkProxyCertificates = "proxy-certificates"
	checkProxyConfig       = "proxy-configuration"
	checkProxyVersions     = "proxy-versions"
	checkProxyRefusals     = "proxy-refusals"
	checkSidecars          = "sidecars"
)

// Check documents a check.
type Check struct {
	ID string
	// Looks describes what the check examines.
	Looks string
	// Remedy for what it finds wrong; empty: it only reports.
	Remedy string
}

// Checks are all checks, in the order of Examine. The slice is the caller's.
func Checks() []Check {
	return []Check{
		{checkDataDirectory, "The data directory can be made or written, and its disk has 256 MB free.", "Free disk space, or choose another `--data-dir`."},
		{checkPermissions, "Keys, tokens and state are readable by their owner alone.", "`chmod -R go=` on the data directory."},
		{checkOpenFiles, "The limit of open files, which bounds the connections of the userspace mode.", "Raise it with `ulimit -n` or `LimitNOFILE=`."},
		{checkLowPorts, "Which service ports this user can listen on.", ""},
		{checkControlPlane, "The control plane answers, trusts the credentials, and has this machine's time.", "See the code; set both clocks by NTP."},
		{checkStore, "The store of the control plane accepts writes.", "Free space on its disk."},
		{checkAudit, "The control plane can write its audit logs.", "Free space on its disk."},
		{checkTraces, "The collector of `--otlp-endpoint` takes the traces of the control plane.", "Start the collector, or correct the address."},
		{checkAgentTraces, "The collector of `--otlp-endpoint` takes the traces of the agent.", "Start the collector, or correct the address."},
		{checkFeed, "The control plane writes its change feed, at all its roots, without a gap.", "Free space on its disk, or another root (`--feed-root`)."},
		{checkMachines, "Leases are renewed, no node is suspect, and probes reach all nodes.", "Start the machine or its agent; open the UDP port of probes."},
		{checkZones, "Control planes of zones and global are connected; no deletions are held, and no objects refused.",
			"Start what does not run; `proxima zone confirm` for what is held."},
		{checkRegistries, "What clients of registries registered is served, reached and kept alive, and servers admit more clients.",
			"As the finding says: a port of the protocol, another address, or another name."},
		{checkProxyCertificates, "More than a quarter of the life of each proxy's certificate is left.", "As the finding says; `proxima proxy status` has the reason."},
		{checkProxyConfig, "Proxies of workloads and gateways, with a supervisor or without, and gRPC programs accept their configuration.", "Change the policy or object that is named; `proxima proxy config --diff`."},
		{checkProxyVersions, "Supervisors of proxies are not older than the control plane.", "Install the release on their machines, and start the workloads again."},
		{checkProxyRefusals, "No proxy of a workload that has a supervisor refuses connections while the doctor looks, for some seconds; of admins alone.",
			"`proxima explain connection` says which policy decides, and what would let the client in."},
		{checkSidecars, "Pods that should have a sidecar have one, and their connections are led to it.", "As the finding says; an Event of each Pod says more."},
		{checkAgent, "This machine's agent runs, answers and is connected.", "Start or restart it; its log says why."},
		{checkAgentState, "The agent can write the files that its next start needs.", "Free space on the disk."},
		{checkTunnel, "Connections from this node to services of other zones succeeded in the last 5 minutes.", "As the finding says."},
		{checkIsolation, "The agent keeps workloads of this node to their meshes.", "As the finding says; `kubectl describe mesh` names for whom it does not."},
		{checkNodePermission, "The kernel has the TrafficPermissions of workloads of this node without a sidecar.",
			"Start the agent in a kernel mode, on a kernel with nf_tables; its log has each attempt."},
		{checkCertificate, "The agent's certificate is valid and is renewed.", "As the finding says, mostly a new token."},
		{checkNodeName, "No other machine has this node's name.", "Stop one of the agents, or give it another name and token."},
		{checkBounds, "A credential that registers workloads in every namespace, on a machine without the control plane.", ""},
		{checkPort, "The default ports of roles that do not run here are free.", "Stop the other program, or choose another port."},
		{checkResolver, "Programs resolve the names of Services through the machine's resolver.", "`proxima doctor --fix`, or `--undo` if no agent answers."},
		{checkServiceRange, "Addresses of service ranges lead to this machine and overlap none of its networks.", "Another range, CAP_NET_ADMIN, or a route."},
		{checkForwarding, "The kernel forwards packets, for clients on other machines, and no chain of another program drops what it has no rule for.", "Accept translated connections in the chain that is named."},
		{checkConnections, "The kernel's table of connections has room for more.", "Raise net.netfilter.nf_conntrack_max."},
		{checkLayer, "In mode ebpf: whether the layer gives sockets their endpoints, or why connections only pass to the mode below. With mode auto: what mode ebpf would save here.", ""},
		{checkKernelTables, "The kernel's tables are those that the mode wrote.", "Find what changes them with `proxima node dump`."},
		{checkKernelLimits, "The mode does all that service ports ask for (Windows).", "See what it does not do with `proxima status`; run such Services on Linux nodes, or change them."},
		{checkOtherProxies, "No kube-proxy runs here, and none left its rules.", "Stop it, and run its cleanup."},
		{checkKernelFeatures, "Which proxy modes this kernel can run.", ""},
	}
}
