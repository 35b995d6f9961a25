package spiffe

import "fmt"

// Process is the caller's process, as the kernel described it while the connection was
// made. It is the same process for as long as the connection lives, or the caller is
// refused: process IDs are used again, so Started goes with every PID.
type Process struct {
	PID      int
	UID, GID uint32
	// Started is when the process began, in clock ticks since the machine did (proc(5),
	// field 22 of /proc/PID/stat).
	Started uint64
	// Cgroup is the path of its cgroup v2, as in /proc/PID/cgroup; empty: it has none.
	Cgroup string
	// Ancestors are its parents up to the first process, the nearest first.
	Ancestors []Ancestor
}

// Ancestor is a parent of a process, or a parent's parent.
type Ancestor struct {
	PID     int
	Started uint64
}

func (p Process) String() string {
	return fmt.Sprintf("process %d of user %d (cgroup %q)", p.PID, p.UID, p.Cgroup)
}
