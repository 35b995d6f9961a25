// Package issue is the control plane's end of the agents' certificates: it decides
// whether a node may have the certificate of a workload, has it signed, and keeps the
// agents' trust up to date.
//
// Enter at NewServer, and at Board, which holds what agents trust and what they have
// acknowledged: the peers of package rotation. It never signs itself, and issues nothing
// that was not recorded first. Package workload is the agent's end.
package issue
