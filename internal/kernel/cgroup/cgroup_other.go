//go:build !linux

package cgroup

import "os/exec"

// Hierarchy is the cgroups of version 2 of this machine.
type Hierarchy struct{}

// Find says that there are none.
func Find() (*Hierarchy, error) { return nil, &UnavailableError{Reason: "only Linux has them"} }

// Group is the cgroup of a workload; there are none here.
type Group struct{}

// Create fails: Find has said why.
func (*Hierarchy) Create(string, string) (*Group, error) { return nil, ErrNone }

// Path of no cgroup is empty.
func (*Group) Path() string { return "" }

// Start does nothing.
func (*Group) Start(*exec.Cmd) {}

// Close does nothing.
func (*Group) Close() error { return nil }

// Sweep has nothing to remove.
func (*Hierarchy) Sweep() {}

// Lookup finds nothing.
func (*Hierarchy) Lookup(string) (ID, error) { return ID{}, ErrNone }

// PathOf finds nothing.
func (*Hierarchy) PathOf(uint64) (string, error) { return "", ErrNone }

// Remove has nothing to remove.
func (*Hierarchy) Remove(string) error { return nil }
