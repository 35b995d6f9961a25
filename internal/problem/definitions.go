package problem

// Definition documents a code.
type Definition struct {
	Code Code
	// Meaning: what is the case when a command or the doctor reports it.
	Meaning string
	// Remedy that helps in most cases; the hint of an Error is more exact.
	Remedy string
}

// Definitions are all codes, by subject, in the order of the reference. The slice is
// the caller's.
func Definitions() []Definition {
	return []Definition{
		{Usage, "The command line or the configuration is wrong.", "Read the usage that the error names; settings are in the reference of `proxima.yaml`."},
		{PrivilegeMissing, "This user may not do that on this machine.", "Run the command as root, or as the user that the error names."},
		{ListenFailed, "An address that a component listens on cannot be opened.", "Stop the program that uses it, or choose another one with the flag that the error names."},
		{FileExists, "A file that would be replaced is there.", "Choose another directory, or replace it with `--force`."},
		{LogMissing, "The data directory has no such log.", "Name the control plane's directory with `--data-dir`."},
		{LabNotUp, "There is no lab of this name.", "Start it with `proxima lab up`."},
		{LabExists, "A lab of this name is up, or parts of it are.", "Take it down with `proxima lab down`, or choose another name."},
		{LabUnavailable, "This machine cannot run labs.", "Run it as root on Linux; `proxima demo` needs no root."},
		{ReleaseInvalid, "Files of a release are damaged, missing, or not signed by the key.", "Download what the error names again; use none of the files until `proxima version --verify` passes."},
		{EnvoyUnusable, "There is no Envoy that a sidecar can run, or it is too old.", "Install Envoy 1.37 or newer, and name it with `--envoy`."},
		{SidecarUnavailable, "What a sidecar needs is missing on this machine.", "Do what the error names: an agent, the program `proxima-sidecar`, or a cgroup."},

		{ProxyCertificateEnds, "Less than a quarter of the life of a proxy's certificate is left: its renewal fails.", "`proxima proxy status NAMESPACE/NAME` says why."},
		{ProxyRejects, "A proxy rejects a part of its configuration, and keeps what it had.", "Change the policy or object that is named; `proxima proxy config NAMESPACE/NAME --diff` has the reasons."},
		{ProxyOutdated, "The supervisor of a proxy is older than the control plane.", "Install the new release on its machine, and start the workload again."},
		{ProxyRefuses, "The proxy of a workload refuses connections now: by a TrafficPermission, mode Strict, or passthrough.", "`proxima explain connection CLIENT TARGET` says which policy decides, and what would let the client in."},
		{SidecarMissing, "A Pod should have a sidecar, and has none.", "Create it again, as by `kubectl rollout restart`; an Event of the Pod says what else is needed."},
		{SidecarNotRedirected, "The agent of a node cannot lead the connections of a Pod to its sidecar: the Pod does not start.", "Do what the finding and the Event of the Pod name, mostly `agent.netnsDir` of the chart."},

		{KubeconfigMissing, "No kubeconfig was named, and none is in the data directory.", "Start a control plane with `proxima up`, or name a kubeconfig with `--kubeconfig`."},
		{KubeconfigInvalid, "The kubeconfig names no cluster or cannot be parsed.", "Use the kubeconfig that `proxima up` leaves in its data directory."},
		{KubeconfigUnreadable, "This user may not read the kubeconfig.", "Run the command as the user that owns the file."},
		{APIUnreachable, "No connection to the API server.", "Check that the control plane runs, its address in the kubeconfig, and the network between."},
		{APITimeout, "The API server did not answer in time.", "Run `proxima status` on the control plane's machine; check firewalls between."},
		{APIUntrusted, "The server's certificate is of another authority than the kubeconfig trusts.", "Use the kubeconfig of that control plane's data directory."},
		{APICertificateInvalid, "The server's certificate is for another name, or out of its time.", "Check the server's name in the kubeconfig and this machine's clock."},
		{APINotTLS, "What listens at the address does not speak TLS.", "Check the server in the kubeconfig."},
		{APIUnauthorized, "The server refused the credentials.", "Make a token with `proxima token create` on the control plane's machine."},
		{APIUnavailable, "The server answers that it cannot serve the request now.", "Look at `proxima status` and at the control plane's log."},
		{ClockSkew, "The control plane's clock differs from this machine's by more than a minute.", "Set both clocks, best by NTP: leases and certificates depend on them."},
		{APIOfCluster, "The server has no API of Proxima's: it may be the API server of a Kubernetes cluster.", "In a cluster run the command in a pod of the control plane, or enable `aggregatedAPI` of the chart."},
		{KindNotServed, "The server does not serve this kind of object.", "Compare the versions of this program and of the server with `proxima doctor`."},
		{ObjectNotFound, "There is no such object.", "List the kind with `proxima get KIND -A`; `-n` chooses the namespace."},
		{NamespaceNotFound, "There is no such namespace.", "Create it by applying a Namespace of that name."},
		{ObjectInvalid, "The server does not accept the object.", "Correct the fields that the error names."},
		{ObjectOutdated, "The object was changed since the version that the file names.", "Remove `metadata.resourceVersion`, or start from the newest version."},
		{FieldConflict, "Other writers own fields that the file sets to other values.", "Leave these fields out, or apply with `--force-conflicts`."},
		{DeletionPending, "The object is being deleted and still there.", "Wait longer with `--timeout`, or delete it with `--now`."},

		{ClusterKey, "The keys that the instances of a control plane share cannot be opened, or are not this instance's.", "Give all instances the same `--cluster-key-file`, and each a data directory of its own."},
		{StoreInUse, "Another process uses the store.", "Stop it, or give each control plane a store of its own."},
		{StoreUnsupported, "The store is not available for this use.", "Use `sqlite:FILE` or `postgres://…`."},
		{StoreNotEmpty, "There is a state where one is to be restored.", "Restore into an empty store, or replace files with `--force`."},
		{StoreUnwritable, "The store refuses writes, mostly because its disk is full.", "Free space on the disk, or mount it writable; writes are accepted again without a restart."},
		{StoreUnreachable, "The database of the store cannot be reached.", "Check the database and the URL of `--store`."},
		{BackupIncomplete, "The control plane did not finish the backup.", "Read the control plane's log."},
		{AuditUnwritable, "An audit log cannot be written; requests go on without records.", "Free space on the disk; the log goes on by itself and counts the records that are lost."},
		{MachinesGone, "Machines are gone or not reachable, or may be.", "Switch the machine on or start its agent; `kubectl delete node NAME` if it is gone for good."},
		{ZonesApart, "A zone and global are not connected, or not in step: deletions are held, or objects refused.", "Start what does not run; `proxima zone confirm` applies what is held."},
		{RegistryTrouble, "Instances that clients of registries (Nacos, Eureka, ZooKeeper) registered cannot be reached or renewed, or a server has as many clients as it admits.", "As the finding says: a port of the protocol, another address, or another name."},
		{TunnelFails, "Connections from this node to services of other zones were reset.", "As the error says: an ingress that runs, mTLS in the mesh, a workload at the client's address."},
		{TrafficUnavailable, "The server of `--traffic-from` does not say what the traffic of Services is.", "As the error says; try the expression in the server's own interface."},
		{IsolationFails, "The agent cannot refuse connections between meshes.", "As the error says; the agent tries again."},
		{PermissionsFail, "The node does not enforce the TrafficPermissions of its workloads without a sidecar.", "Use a kernel mode, on a kernel with nf_tables; or give the workloads a sidecar."},
		{NodeViewOff, "The agent needs the gRPC port of the control plane, which is turned off.", "Choose a port with `--grpc-port`."},
		{NodeNotDrained, "A reboot of the node would interrupt connections that have time left, or is asked for too early.", "Run `proxima node drain NAME` again: it goes on where it was."},
		{LastEndpoint, "To drain the node, or to take out the zone, would leave a Service without an endpoint.", "Start another instance of it elsewhere, or use `--force`."},
		{ShiftPending, "The control plane has not put a zone shift into effect yet.", "Look at `proxima status`: a control plane without a leader decides nothing. `proxima zone shift ZONE --end` takes it back."},

		{AgentNotRunning, "No agent with this data directory runs on this machine.", "Start it with `proxima up` or `proxima node`, or name its directory with `--data-dir`."},
		{AgentNotAnswering, "The agent's process is there and does not answer.", "Send it SIGCONT if it was stopped, or restart it; kernel modes go on with the last state."},
		{AgentAccessDenied, "The agent belongs to another user.", "Run the command as that user, or as root."},
		{AgentDisconnected, "The agent has no connection to the control plane and serves its last state.", "Read its log; check that port 6444 of the control plane is reachable."},
		{AgentStateUnsaved, "The agent cannot write files that its next start needs.", "Free space on the disk, or mount it writable."},
		{AgentNoWorkloads, "The agent follows a Kubernetes API, which registers no workloads.", "Name the kubeconfig of a control plane with `--kubeconfig`."},
		{DataDirectoryInUse, "Another agent uses the data directory.", "Stop that agent, or give this one a `--data-dir` of its own."},
		{DataDirectoryInvalid, "The data directory cannot be used by this user.", "Choose another `--data-dir`."},
		{DataDirectoryExposed, "Other users can read keys, tokens or state.", "`chmod -R go=` on the data directory."},
		{DiskLow, "The disk of the data directory is nearly full.", "Free disk space: writes are refused when it is full."},
		{OpenFilesLow, "The process may open few files, each of which limits proxied connections.", "Raise the limit with `ulimit -n`, or `LimitNOFILE=` in a unit file."},
		{PortInUse, "A default port is used by another program.", "Stop that program, or choose another port with the flag that is named."},
		{NodeNotFound, "The API has no node of this machine's name.", "Check `--node-name` against `kubectl get nodes`."},
		{NodeNameTaken, "Another machine has the name of this node, or the name could not be claimed.", "Stop the agent on one of them, or give it another `--node-name` and token."},
		{CredentialsMissing, "This machine has no credentials for the control plane.", "Join with `--token-file`; make a token with `proxima token create --kind node`."},
		{CredentialsMismatch, "The token or the credentials are another node's.", "Use this node's token, or run the agent with that `--node-name`."},
		{CertificateNotValid, "The agent's certificate ran out, was withdrawn or cannot be renewed.", "Do what the fix says; mostly a new token."},
		{AddressUnknown, "No address of this machine leads to the server, so that of the workload is not known.", "Give the address with `--address`."},
		{BindFailed, "The userspace mode cannot listen on a service port.", "See the hint: a privilege, another port, or a kernel mode."},
		{ModeUnavailable, "The chosen proxy mode does not work on this machine.", "Choose another one with `--mode`; `proxima doctor` lists those that work."},
		{KernelModeHeld, "Another agent has the kernel mode of this network namespace.", "Stop that agent, or use `--mode userspace`, or a network namespace of its own."},
		{OtherProxy, "A second service proxy runs on this machine, or left its rules.", "Stop it and run its cleanup, such as `kube-proxy --cleanup`."},
		{ConnectionsFull, "The kernel's table of connections is nearly full; a full one drops new connections.", "Raise net.netfilter.nf_conntrack_max, or find who makes so many connections."},
		{ForwardBlocked, "A chain of another program drops forwarded connections that no rule accepts, those to Services among them.", "Accept translated connections in that chain, as the fix says."},
		{KernelTablesDiffer, "The kernel's tables are not those that the mode wrote.", "Find the program that changes them with `proxima node dump`; the agent repairs them."},
		{RangeOverlaps, "A service range overlaps a network of this machine.", "Use another range: add a ServiceCIDR, move Services, delete the old one."},
		{RangeUnroutable, "Addresses of a service range lead nowhere, or away from this machine.", "Run the agent with CAP_NET_ADMIN, add a route, or use a range in 127.0.0.0/8."},
		{DNSNotAnswering, "The agent's DNS server does not answer.", "Read the agent's log; check `--dns-address` if it was given."},
		{ResolverNotSet, "Programs of this machine do not resolve names of Services.", "Run `proxima doctor --fix` as root."},
		{ResolverStale, "The machine's resolver points at an agent that does not answer.", "Start the agent, or run `proxima doctor --undo` as root."},
		{ResolverPort, "`/etc/resolv.conf` cannot name the port of the agent's DNS server.", "Run the agent with `--dns-port 53`, or redirect port 53 of an address to it."},
		{CaptureUnavailable, "Questions of port 53 cannot be captured on this machine.", "Run the agent without `--dns-capture`, and `proxima doctor --fix` as root."},
		{ResolverFailed, "The machine's resolver could not be set.", "Set it by hand as the page on names describes."},
	}
}
