package spiffe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
)

// Workload is a Dataplane by namespace and name. Comparable.
type Workload struct{ Namespace, Name string }

func (w Workload) String() string { return w.Namespace + "/" + w.Name }

// ErrNoWorkload: the process is not one of a workload.
var ErrNoWorkload = errors.New("the process belongs to no workload of this node")

// Attestor finds the workload of a process. Errors: ErrNoWorkload, and others that mean
// that it is not clear now.
type Attestor interface {
	Attest(ctx context.Context, p Process) (Workload, error)
}

// Table is an Attestor of the workloads that run on this node, by their cgroup or by the
// process that started them. The zero value is empty. Safe for concurrent use.
type Table struct {
	mu        sync.RWMutex
	cgroups   map[string]Workload
	processes map[Ancestor]Workload
}

// AddCgroup makes all processes in a cgroup (v2, a path as in /proc/PID/cgroup), and in
// those below it, a workload's. The cgroup must not be writable for the workload's user.
// A cgroup that another workload has is an error, as is the root.
func (t *Table) AddCgroup(path string, w Workload) error {
	path = strings.TrimSuffix(path, "/")
	if !strings.HasPrefix(path, "/") || strings.Contains(path, "/../") || strings.HasSuffix(path, "/..") {
		return fmt.Errorf("cgroup %q of workload %s: want a path below the root", path, w)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if other, ok := t.cgroups[path]; ok && other != w {
		return fmt.Errorf("cgroup %s is that of workload %s", path, other)
	}
	if t.cgroups == nil {
		t.cgroups = map[string]Workload{}
	}
	t.cgroups[path] = w
	return nil
}

// RemoveCgroup makes a cgroup nobody's. One that is nobody's is no error.
func (t *Table) RemoveCgroup(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.cgroups, strings.TrimSuffix(path, "/"))
}

// AddProcess makes a process and all that it starts a workload's, for as long as it
// runs. started is its start time, as in Process.
func (t *Table) AddProcess(pid int, started uint64, w Workload) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := Ancestor{PID: pid, Started: started}
	if other, ok := t.processes[key]; ok && other != w {
		return fmt.Errorf("process %d is that of workload %s", pid, other)
	}
	if pid <= 1 {
		return fmt.Errorf("process %d of workload %s: everything on the machine descends from it", pid, w)
	}
	if t.processes == nil {
		t.processes = map[Ancestor]Workload{}
	}
	t.processes[key] = w
	return nil
}

// AddPeer makes the process at the other end of a Unix socket, and all that it starts, a
// workload's, until done is called. The caller has decided that the process may say so.
func (t *Table) AddPeer(conn net.Conn, w Workload) (done func(), err error) {
	for {
		inner, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = inner.NetConn()
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("workload %s: a connection of type %T has no process at its end", w, conn)
	}
	p, err := processOf(unixConn)
	if err != nil {
		return nil, fmt.Errorf("workload %s: %w", w, err)
	}
	if err := t.AddProcess(p.PID, p.Started, w); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { t.removeProcess(Ancestor{PID: p.PID, Started: p.Started}, w) }), nil
}

func (t *Table) removeProcess(key Ancestor, w Workload) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.processes[key] == w {
		delete(t.processes, key)
	}
}

// Remove everything of a workload.
func (t *Table) Remove(w Workload) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for path, owner := range t.cgroups {
		if owner == w {
			delete(t.cgroups, path)
		}
	}
	for p, owner := range t.processes {
		if owner == w {
			delete(t.processes, p)
		}
	}
}

// Attest implements Attestor. The nearest match counts: a workload may start another. If
// cgroup and process lead to different workloads, the process belongs to neither.
func (t *Table) Attest(_ context.Context, p Process) (Workload, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	byCgroup, inCgroup := t.byCgroup(p.Cgroup)
	byProcess, inProcess := t.byProcess(p)
	switch {
	case inCgroup && inProcess && byCgroup != byProcess:
		return Workload{}, fmt.Errorf("%s is in the cgroup of %s and was started by %s: %w", p, byCgroup, byProcess, ErrNoWorkload)
	case inCgroup:
		return byCgroup, nil
	case inProcess:
		return byProcess, nil
	}
	return Workload{}, fmt.Errorf("%s: %w", p, ErrNoWorkload)
}

// byCgroup finds the workload of the path, or of the nearest parent that has one.
func (t *Table) byCgroup(path string) (Workload, bool) {
	for path != "" && path != "/" {
		if w, ok := t.cgroups[path]; ok {
			return w, true
		}
		path = path[:strings.LastIndexByte(path, '/')]
	}
	return Workload{}, false
}

func (t *Table) byProcess(p Process) (Workload, bool) {
	if w, ok := t.processes[Ancestor{PID: p.PID, Started: p.Started}]; ok {
		return w, true
	}
	for _, a := range p.Ancestors {
		if w, ok := t.processes[a]; ok {
			return w, true
		}
	}
	return Workload{}, false
}
