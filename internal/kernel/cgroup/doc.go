// Package cgroup gives the command of a workload a cgroup (version 2) of its own. The kernel
// knows of each socket in which cgroup it was made, so that connections of workloads that
// share an address can be told apart.
//
// Enter at [Find]. Who starts a command calls [Hierarchy.Create] and [Group.Start]; the agent
// calls [Hierarchy.Lookup], [Hierarchy.PathOf] and [Hierarchy.Remove]. Where a machine has no
// such cgroups, or this process may not make them, Find says why. The package sets no limits,
// enables no controllers, and never moves a process that runs.
//
// # Location and names
//
// The cgroup of a workload is a child of the one of `proxima run`, which a service manager may
// have made: its limits and its accounting hold for the command as before, and it ends the
// command with everything else of the service. No controller is enabled in between, so that
// processes may be in the parent too (cgroups(7), "no internal processes").
//
//	OWN/proxima-NAMESPACE.NAME-PID           the workload
//	OWN/proxima-NAMESPACE.NAME-PID/command   its command, and all that it starts
//
// PID is that of `proxima run`. A name that would be too long ends in a hash.
//
// Who a connection is from (isolation of meshes, certificates) is decided by the upper one.
// Other processes of a workload go into a child of their own: a sidecar into "sidecar", beside
// "command". So a rule that sends the command's connections to the sidecar matches "command"
// alone, by `socket cgroupv2 level Level+1`, and leaves those of the sidecar as they are, while
// both are the workload's for everything else.
//
// # Life
//
// Whoever made a cgroup holds a lock (flock(2)) on its directory, which the kernel releases
// with the process. An empty cgroup that nobody holds is garbage: Remove deletes it, Create
// does so beside its own, and neither can delete one that is about to be used.
//
// A process of root can leave its cgroup, by writing to cgroup.procs of another. Others
// cannot: the directories belong to root.
package cgroup
