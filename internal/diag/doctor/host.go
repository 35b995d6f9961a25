package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/proxima-mesh/proxima/internal/problem"
)

// privateFiles: keys, tokens and state are for this user alone. A data directory that a
// control plane of another user shares with root's agent, as packages make it, belongs to
// root, and the group may write to it; the sticky bit keeps what others made there.
func (x examiner) privateFiles() Finding {
	f := Finding{ID: checkPermissions, Check: "permissions of the data directory"}
	if runtime.GOOS == "windows" {
		f.Note = "not checked on this system"
		return f
	}
	var open []string
	shared := false
	for _, name := range []string{"", "pki", "tokens", "node", "kubeconfig", "store.db", "keys"} {
		path := filepath.Join(x.DataDir, name)
		info, err := os.Stat(path)
		others := fs.FileMode(0o077)
		if name == "" && err == nil && info.Mode()&fs.ModeSticky != 0 {
			shared, others = true, 0o007
		}
		if err == nil && info.Mode().Perm()&others != 0 {
			open = append(open, fmt.Sprintf("%s (%04o)", path, info.Mode().Perm()))
		}
	}
	// Files of a private directory cannot be reached by others, whatever their own mode.
	if info, err := os.Stat(x.DataDir); err != nil || info.Mode().Perm()&0o077 == 0 || len(open) == 0 {
		return f
	}
	fix := "chmod -R go= " + x.DataDir
	if shared { // the group stays
		fix = "chmod o= " + x.DataDir + "; chmod -R go= " + x.DataDir + "/*"
	}
	f.fail(problem.DataDirectoryExposed, "other users can read "+strings.Join(open, ", "), fix)
	return f
}

// dataDirectory must be writable, or makeable, and have space left.
func (x examiner) dataDirectory() Finding {
	f := Finding{ID: checkDataDirectory, Check: "data directory " + x.DataDir}
	dir := x.DataDir
	for {
		info, err := os.Stat(dir)
		if err == nil && !info.IsDir() {
			f.fail(problem.DataDirectoryInvalid, dir+" is not a directory", "choose another --data-dir")
			return f
		}
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			f.fail(problem.DataDirectoryInvalid, err.Error(), "choose a --data-dir that this user can read")
			return f
		}
		dir = filepath.Dir(dir)
	}
	if err := writable(dir); err != nil {
		f.fail(problem.DataDirectoryInvalid, fmt.Sprintf("%s can't be written: %v", dir, err), "choose a --data-dir that this user can write to")
		return f
	}
	const enough = 256 << 20
	if free, ok := freeBytes(dir); ok && free < enough {
		f.fail(problem.DiskLow, fmt.Sprintf("only %d MB are free", free>>20), "free disk space: writes are refused, and nothing is lost, when the disk is full")
	}
	return f
}

// openFiles: each proxied connection takes up to six descriptors.
func openFiles() Finding {
	f := Finding{ID: checkOpenFiles, Check: "limit of open files"}
	limit, ok := openFileLimit()
	if !ok {
		f.Note = "not limited here"
		return f
	}
	f.Note = strconv.FormatUint(limit, 10)
	if limit < 4096 {
		f.fail(problem.OpenFilesLow, fmt.Sprintf("%d: the userspace mode proxies about %d connections at a time", limit, limit/4),
			"raise it with ulimit -n, or LimitNOFILE= in a unit file")
	}
	return f
}

// lowPorts is about which service ports this user can listen on.
func lowPorts() Finding {
	f := Finding{ID: checkLowPorts, Check: "ports below 1024"}
	first, ok := firstFreePort()
	switch {
	case os.Geteuid() == 0 || (ok && first <= 1):
		f.Note = "can be served"
	case ok:
		f.Note = fmt.Sprintf("service ports below %d can't be served by this user; use higher ones, or run as root", first)
	default:
		f.Note = "may need privileges"
	}
	return f
}

// ports checks the ports that "proxima up" would listen on: those of a control
// plane if none answers, those of an agent if none is here.
func (x examiner) ports(plane, agent bool) []Finding {
	var findings []Finding
	for _, p := range x.Ports {
		if p.Agent && !agent || !p.Agent && !plane {
			continue
		}
		f := Finding{ID: checkPort, Check: fmt.Sprintf("port %d", p.Number), Note: "free"}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number)))
		switch {
		case err == nil:
			l.Close()
		case errors.Is(err, syscall.EADDRINUSE):
			f.fail(problem.PortInUse, "it is in use by another program, or by an agent with another data directory",
				"stop that program, or choose another port with "+p.Flag+"; --data-dir names the agent's data directory")
		default:
			f.fail(problem.PortInUse, err.Error(), "choose another port with "+p.Flag)
		}
		findings = append(findings, f)
	}
	return findings
}

func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".proxima-doctor-*")
	if err != nil {
		var pathErr *os.PathError
		if errors.As(err, &pathErr) {
			return pathErr.Err
		}
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// procUint reads one number of a file under /proc.
func procUint(path string) (uint64, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	return n, err == nil
}
