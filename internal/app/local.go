package app

import (
	"cmp"
	"errors"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// maxLocalConnections at the agent's socket: commands that people run, and a few
// for each workload that was started with `proxima run`.
const maxLocalConnections = 1024

// listenLocal opens the agent's socket; nil: none can be made, which is no reason not to
// serve. That another agent has it is an error.
func (a *agent) listenLocal() (net.Listener, error) {
	l, err := local.Listen(a.cfg.DataDir)
	var used *local.InUseError
	switch {
	case errors.As(err, &used):
		return nil, err
	case err != nil:
		a.log.Error("no socket for local programs: status, trace, node dump and run cannot reach this agent", "error", err)
		return nil, nil //nolint:nilnil // see above
	}
	a.log.Info("local programs are served", "socket", l.Addr().String())
	return listener.Limit(l, listener.Config{Name: "local programs", MaxConnections: maxLocalConnections, Logger: a.log}), nil
}

// localComponents answer programs of this machine.
func (a *agent) localComponents() ([]component, error) {
	if a.local == nil {
		return nil, nil
	}
	mux := http.NewServeMux()
	for pattern, handler := range admin.AgentHandlers(agentState{a}) {
		mux.Handle(pattern, handler)
	}
	if a.identity != nil {
		mux.HandleFunc("GET "+local.AttestPath, a.attest)
		mux.HandleFunc("GET "+local.PlacedPath, a.awaitPlaced)
	}
	if a.cfg.Cluster == nil {
		workloads, err := a.workloads()
		if err != nil {
			return nil, err
		}
		mux.Handle("/api/", workloads)
		mux.Handle("/apis/", workloads)
	}
	return []component{{Name: "local programs", Run: serve(a.local, mux)}}, nil
}

// api is the address (URL) of the API that the agent uses: that of its control plane, if it has one.
func (a *agent) api() string {
	if !a.cfg.joins() {
		return a.cfg.Cluster.REST.Host
	}
	return "https://" + a.cfg.Server
}

// workloads lets `proxima run` register workloads with this node's credential.
func (a *agent) workloads() (http.Handler, error) {
	client, err := kubeclient.New(a.restConfig(), []*resource.Descriptor{kind.Dataplane, kind.Service})
	if err != nil {
		return nil, err
	}
	return local.Workloads(local.WorkloadsConfig{
		Client: client, Node: a.cfg.Name, MachineID: a.cfg.MachineID, Logger: a.log.With("component", "local programs"),
	}), nil
}

// unsavedFiles remembers which files could not be written. The zero value is ready
// to use; safe for concurrent use.
type unsavedFiles struct {
	mu    sync.Mutex
	files map[string]admin.UnsavedFile
}

// note the result of writing a file.
func (u *unsavedFiles) note(file string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil {
		delete(u.files, file)
		return
	}
	since := time.Now()
	if earlier, ok := u.files[file]; ok {
		since = earlier.Since
	}
	if u.files == nil {
		u.files = map[string]admin.UnsavedFile{}
	}
	u.files[file] = admin.UnsavedFile{File: file, Error: err.Error(), Since: since}
}

// has reports whether the last attempt to write a file failed.
func (u *unsavedFiles) has(file string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.files[file]
	return ok
}

// list is ordered by file.
func (u *unsavedFiles) list() []admin.UnsavedFile {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := make([]admin.UnsavedFile, 0, len(u.files))
	for _, f := range u.files {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b admin.UnsavedFile) int { return cmp.Compare(a.File, b.File) })
	return out
}

// unsavedFiles of this agent. It tries the disk, so that a disk that is full or
// read-only is reported before there is a change to save.
func (a *agent) unsavedFiles() []admin.UnsavedFile {
	a.unsaved.note(a.dir(), tryDisk(a.dir()))
	out := a.unsaved.list()
	if a.feed != nil {
		if s := a.feed.Status(); s.SaveError != nil {
			out = append(out, admin.UnsavedFile{File: s.StateFile, Error: s.SaveError.Error(), Since: s.UnsavedSince})
		}
	}
	return out
}

// tryDisk writes a block to a file in a directory and removes it.
func tryDisk(dir string) error {
	f, err := os.CreateTemp(dir, ".try-*")
	if err != nil {
		return withoutPath(err)
	}
	_, err = f.Write(make([]byte, 4096))
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return errors.Join(withoutPath(err), os.Remove(f.Name()))
}

// withoutPath is the reason of a file system's error, without the name of a
// temporary file.
func withoutPath(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
