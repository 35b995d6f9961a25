// Package sockdiag asks the kernel about the sockets of this machine (sock_diag(7)): how many
// connections they have, and in which cgroup one was made. It needs no privileges, and sees the
// sockets of its network namespace alone.
//
// Enter at [Connections] and [CgroupOf]. It changes nothing.
package sockdiag

import "errors"

// ErrNoSocket: there is no such socket in this network namespace, or it is closed.
var ErrNoSocket = errors.New("there is no such socket")
