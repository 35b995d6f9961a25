package spiffe

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// procFS is where the kernel describes processes.
const procFS = "/proc"

// processOf the other end of a Unix socket. The credentials are those of the process
// that called connect, also if another one has the descriptor now.
func processOf(conn *net.UnixConn) (Process, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Process{}, err
	}
	var cred *unix.Ucred
	var credErr error
	pidfd := -1
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if handle, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
			pidfd = handle
		}
	}); err != nil {
		return Process{}, err
	}
	if pidfd >= 0 {
		defer unix.Close(pidfd)
	}
	if credErr != nil {
		return Process{}, fmt.Errorf("credentials of the caller: %w", credErr)
	}
	if cred.Pid <= 0 {
		return Process{}, errors.New("the caller is in a PID namespace that this process does not see: share the host's")
	}
	p, err := readProcess(os.DirFS(procFS), int(cred.Pid), cred.Uid, cred.Gid)
	if err != nil {
		return Process{}, err
	}
	// From Linux 6.5 on a pidfd shows whether the connected process still runs, so that
	// what was read is not that of a later process with the same ID.
	if pidfd >= 0 {
		if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); errors.Is(err, unix.ESRCH) {
			return Process{}, fmt.Errorf("process %d: it has ended", p.PID)
		}
	}
	return p, nil
}

// StartTime of a process that runs, as in Process.
func StartTime(pid int) (uint64, error) {
	started, _, err := stat(os.DirFS(procFS), pid)
	if err != nil {
		return 0, fmt.Errorf("start time of process %d: %w", pid, err)
	}
	return started, nil
}

// readProcess reads the attributes of a process from /proc.
func readProcess(proc fs.FS, pid int, uid, gid uint32) (Process, error) {
	p := Process{PID: pid, UID: uid, GID: gid}
	started, parent, err := stat(proc, pid)
	if err != nil {
		return Process{}, fmt.Errorf("process %d: %w", pid, err)
	}
	p.Started = started
	if p.Cgroup, err = cgroup(proc, pid); err != nil {
		return Process{}, fmt.Errorf("cgroup of process %d: %w", pid, err)
	}
	child := started
	for range maxAncestors {
		if parent <= 0 {
			break
		}
		begin, next, err := stat(proc, parent)
		if err != nil || begin > child {
			// It has ended, or its ID is another process's now: above it nothing is sure.
			break
		}
		p.Ancestors = append(p.Ancestors, Ancestor{PID: parent, Started: begin})
		child, parent = begin, next
	}
	// Still the same process: what was read above is of it.
	if again, _, err := stat(proc, pid); err != nil || again != started {
		return Process{}, fmt.Errorf("process %d: it has ended", pid)
	}
	return p, nil
}

// same reports whether a process still runs.
func (p Process) same() bool {
	started, _, err := stat(os.DirFS(procFS), p.PID)
	return err == nil && started == p.Started
}

const (
	// maxAncestors bounds the walk up to the first process.
	maxAncestors = 64
	// Fields of /proc/PID/stat behind the name, which starts at 2 (proc(5)).
	fieldParent  = 4 - 3
	fieldStarted = 22 - 3
)

func stat(proc fs.FS, pid int) (started uint64, parent int, err error) {
	data, err := fs.ReadFile(proc, strconv.Itoa(pid)+"/stat")
	if err != nil {
		return 0, 0, err
	}
	return parseStat(data)
}

// parseStat reads start time and parent. The name, in parentheses, may hold anything.
func parseStat(data []byte) (started uint64, parent int, err error) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return 0, 0, errors.New("stat: no name")
	}
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) <= fieldStarted {
		return 0, 0, errors.New("stat: cut off")
	}
	if parent, err = strconv.Atoi(fields[fieldParent]); err != nil {
		return 0, 0, fmt.Errorf("stat: parent: %w", err)
	}
	if started, err = strconv.ParseUint(fields[fieldStarted], 10, 64); err != nil {
		return 0, 0, fmt.Errorf("stat: start time: %w", err)
	}
	return started, parent, nil
}

func cgroup(proc fs.FS, pid int) (string, error) {
	data, err := fs.ReadFile(proc, strconv.Itoa(pid)+"/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // a kernel without cgroups
	}
	if err != nil {
		return "", err
	}
	return parseCgroup(data), nil
}

// parseCgroup finds the path in the unified hierarchy: the line "0::PATH" (cgroups(7)).
func parseCgroup(data []byte) string {
	for line := range strings.SplitSeq(string(data), "\n") {
		if path, ok := strings.CutPrefix(line, "0::"); ok && strings.HasPrefix(path, "/") && !strings.HasSuffix(path, " (deleted)") {
			return path
		}
	}
	return ""
}
