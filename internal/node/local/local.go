// Package local is the Unix socket by which programs of a machine talk to its
// agent: its path, the agent's end of it, and the client's.
//
// It owns where the socket is, that a data directory has one agent, the client
// that distinguishes an agent that is not there from one that does not answer, and the
// narrow API by which `proxima run` registers workloads with the node's own
// credential. Enter at Lock and Listen for an agent, at Client for a program.
// What the agent answers about itself is the business of package app.
package local

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/proxima-mesh/proxima/internal/problem"
)

// Paths that the agent serves on the socket.
const (
	// AlivePath answers at once while the agent's process runs.
	AlivePath = "/livez"
	// StatusPath, TracePath and DumpPath are the questions of `proxima status`,
	// `trace` and `node dump`.
	StatusPath = "/status"
	TracePath  = "/trace"
	DumpPath   = "/dump"
	// AttestPath makes the calling process, and what it starts, the workload that the
	// parameters namespace and name say, while the request is open.
	// The parameter cgroup, if there is one, is the path of the cgroup that the workload is in.
	AttestPath = "/attest"
	// PlacedPath answers when connections from the cgroup that the parameter cgroup says are
	// kept to the mesh of its workload, or need not be.
	PlacedPath = "/placed"
)

// ToldApartHeader of an answer at AttestPath says that the node tells the workload's
// connections from those of others at its address by its cgroup.
const ToldApartHeader = "Proxima-Told-Apart"

const (
	// SystemDataDir is the data directory of root, whose agent has SystemSocket.
	SystemDataDir = "/var/lib/proxima"
	SystemSocket  = "/run/proxima/agent.sock"

	// maxPath of a socket: sun_path has 104 bytes on BSD and macOS, 108 on Linux,
	// with a zero at its end (unix(4), unix(7)).
	maxPath = 103
)

// Sockets lists where the agent of a data directory has its socket: the first
// path that can be used. That is
//
//   - SystemSocket, for root with SystemDataDir;
//   - DATADIR/node/agent.sock, if that is no longer than a socket's path may be;
//   - a name made from a hash of the data directory, in /run/proxima for root, else in
//     proxima-UID in the directory for temporary files.
//
// The same user gets the same list for the same directory.
func Sockets(dataDir string) []string { return sockets(dataDir, os.Geteuid()) }

func sockets(dataDir string, uid int) []string {
	if abs, err := filepath.Abs(dataDir); err == nil {
		dataDir = abs
	}
	var out []string
	if uid == 0 && dataDir == SystemDataDir {
		out = append(out, SystemSocket)
	}
	if path := filepath.Join(dataDir, "node", "agent.sock"); len(path) <= maxPath {
		out = append(out, path)
	}
	sum := sha256.Sum256([]byte(dataDir))
	name := "agent-" + hex.EncodeToString(sum[:8]) + ".sock"
	if uid == 0 {
		return append(out, filepath.Join(filepath.Dir(SystemSocket), name))
	}
	return append(out, filepath.Join(os.TempDir(), "proxima-"+strconv.Itoa(uid), name))
}

// SpiffeSocket is where the agent of a data directory has the socket of the SPIFFE
// Workload API. Workloads of other users have to reach it, so that of root's agent is in
// /run/proxima; others have it beside their own socket.
func SpiffeSocket(dataDir string) string { return spiffeSocket(dataDir, os.Geteuid()) }

func spiffeSocket(dataDir string, uid int) string {
	if abs, err := filepath.Abs(dataDir); err == nil {
		dataDir = abs
	}
	sum := sha256.Sum256([]byte(dataDir))
	name := "spiffe-" + hex.EncodeToString(sum[:8]) + ".sock"
	run := filepath.Dir(SystemSocket)
	switch path := filepath.Join(dataDir, "node", "spiffe.sock"); {
	case uid == 0 && dataDir == SystemDataDir:
		return filepath.Join(run, "spiffe.sock")
	case uid == 0:
		return filepath.Join(run, name)
	case len(path) <= maxPath:
		return path
	}
	return filepath.Join(os.TempDir(), "proxima-"+strconv.Itoa(uid), name)
}

// InUseError says that another agent has the data directory.
type InUseError struct {
	// Path that is in use: the agent's directory, or its socket.
	Path string
}

func (e *InUseError) Error() string { return fmt.Sprintf("%s is in use by another agent", e.Path) }

// Code implements problem.Coded.
func (e *InUseError) Code() problem.Code { return problem.DataDirectoryInUse }

// Hint says what to do.
func (e *InUseError) Hint() string {
	return "stop the other agent (\"proxima status\" with the same --data-dir shows it), or give this one a --data-dir of its own"
}

// NoAgentError says that no agent runs that has the data directory.
type NoAgentError struct {
	DataDir string
	Err     error
}

func (e *NoAgentError) Error() string {
	return fmt.Sprintf("no agent with data directory %s runs on this machine", e.DataDir)
}

func (e *NoAgentError) Unwrap() error { return e.Err }

// Code implements problem.Coded.
func (e *NoAgentError) Code() problem.Code { return problem.AgentNotRunning }

// Hint says what to do.
func (e *NoAgentError) Hint() string {
	return "start it with \"proxima up\" or \"proxima node\"; if it runs with another --data-dir, give the same one here"
}

// DeniedError says that the agent belongs to another user.
type DeniedError struct{ Socket string }

func (e *DeniedError) Error() string {
	return fmt.Sprintf("the agent at %s belongs to another user", e.Socket)
}

// Code implements problem.Coded.
func (e *DeniedError) Code() problem.Code { return problem.AgentAccessDenied }

// Hint says what to do.
func (e *DeniedError) Hint() string { return "run this as that user, or as root" }

// HungError says that there is an agent, and that it does not answer.
type HungError struct{ Socket string }

func (e *HungError) Error() string { return fmt.Sprintf("the agent does not answer at %s", e.Socket) }

// Code implements problem.Coded.
func (e *HungError) Code() problem.Code { return problem.AgentNotAnswering }

// Hint says what to do.
func (e *HungError) Hint() string {
	return "its process is stopped or hangs: send SIGCONT if it was stopped, else restart it; traffic in kernel modes goes on by its last state"
}

// IsHung reports whether an error says that the agent does not answer.
func IsHung(err error) bool {
	var hung *HungError
	return errors.As(err, &hung)
}

// IsNoAgent reports whether an error says that no agent runs.
func IsNoAgent(err error) bool {
	var none *NoAgentError
	return errors.As(err, &none)
}

// AliveTimeout is how long an agent may take to show that it is alive. With what
// the command does besides, an agent that hangs is reported within 2 s.
const AliveTimeout = 1500 * time.Millisecond
