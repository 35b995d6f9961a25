package cgroup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// ID is a cgroup as the kernel knows it.
type ID struct {
	// Number is never used again while the machine runs.
	Number uint64
	// Level is how far below the root it is; that of its children is one more.
	Level int
}

// UnavailableError is why there are no cgroups of workloads here.
type UnavailableError struct{ Reason string }

func (e *UnavailableError) Error() string { return "no cgroups for workloads: " + e.Reason }

// ErrInUse: a process is in the cgroup, or is about to be.
var ErrInUse = errors.New("the cgroup is in use")

// ErrNone: there is no such cgroup.
var ErrNone = errors.New("no such cgroup")

const (
	// prefix of all cgroups of workloads.
	prefix = "proxima-"
	// commandName is the child that a command is in.
	commandName = "command"
	// maxName of a directory (NAME_MAX of linux/limits.h).
	maxName = 255
	// MaxLevel is the deepest level that rules can match (nft_socket.c).
	MaxLevel = 255
)

// nameOf the cgroup of a workload that process pid runs.
func nameOf(namespace, name string, pid int) string {
	full := prefix + namespace + "." + name
	end := "-" + strconv.Itoa(pid)
	if len(full)+len(end) > maxName {
		sum := sha256.Sum256([]byte(full))
		hash := "-" + hex.EncodeToString(sum[:8])
		full = full[:maxName-len(end)-len(hash)] + hash
	}
	return full + end
}

// checkPath returns an error unless a path, as in /proc/PID/cgroup, is that of a workload's
// cgroup.
func checkPath(p string) error {
	if !strings.HasPrefix(p, "/") || path.Clean(p) != p || !strings.HasPrefix(path.Base(p), prefix) {
		return fmt.Errorf("cgroup %q: want the path of a workload's, /…/%sNAMESPACE.NAME-PID", p, prefix)
	}
	if levelOf(p) > MaxLevel {
		return fmt.Errorf("cgroup %q: it is more than %d levels below the root", p, MaxLevel)
	}
	return nil
}

// levelOf a path: 0 for the root.
func levelOf(p string) int { return strings.Count(strings.TrimSuffix(p, "/"), "/") }

// parseMounts finds in /proc/self/mountinfo where the whole hierarchy of version 2 is mounted
// (proc_pid_mountinfo(5)); empty: nowhere. The last mount counts: it hides those before it.
func parseMounts(data string) string {
	found := ""
	for line := range strings.Lines(data) {
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		kind := strings.Fields(after)
		if ok && len(fields) >= 5 && len(kind) > 0 && kind[0] == "cgroup2" && fields[3] == "/" {
			found = unescape(fields[4])
		}
	}
	return found
}

// unescape replaces \NNN, octal, as mountinfo writes spaces.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parseOwn finds the path in the hierarchy of version 2 in /proc/PID/cgroup: the line "0::PATH"
// (cgroups(7)); empty: there is none.
func parseOwn(data string) string {
	for line := range strings.Lines(data) {
		if p, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return p
		}
	}
	return ""
}

// parsePopulated reads cgroup.events.
func parsePopulated(data string) bool {
	for line := range strings.Lines(data) {
		if strings.TrimSpace(line) == "populated 0" {
			return false
		}
	}
	return true
}
