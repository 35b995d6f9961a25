// Package workload keeps the certificates of a node and its workloads fresh, and what
// they trust: the agent's end of package issue.
//
// Enter at New, Manager.Add and Manager.Run; the users of certificates call
// Manager.Current and Manager.Trust, which never block.
//
// Everything is on disk before it is used, readable for its owner only, so that an agent
// which starts while every control plane is away serves with what it had. A certificate
// is replaced at two thirds of its life, ± 10 %, or when another authority issues. One
// that has run out is never handed out: connections fail closed.
//
// It never opens a connection: the caller gives the one to the control plane.
package workload
