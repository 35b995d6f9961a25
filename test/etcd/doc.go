// Package etcd has no code of its own.
package etcd
