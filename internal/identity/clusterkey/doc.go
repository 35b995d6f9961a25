// Package clusterkey lets several instances of a control plane share their authority and
// key ring: the first keeps them in the store, encrypted, and the others take them from
// there.
//
// Enter at Join. What is kept is encrypted by a random key, which a Wrapper encrypts: a
// key file that every instance has (File), or a command that reaches a key management
// service (Command). An instance without the wrapper's key is refused, and never makes
// keys of its own. The package never logs a key, and writes none to disk: the caller
// does, where its packages expect them.
//
// A thief of the store without the wrapper's key reads nothing, and cannot change
// anything without notice. Replacing the whole record by an older one is not noticed.
package clusterkey
