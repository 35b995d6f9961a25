// Package sockdiag counts the TCP connections of this machine's sockets (sock_diag(7)). It
// needs no privileges, and sees the sockets of its network namespace alone.
//
// Enter at [Connections]. It changes nothing.
package sockdiag
