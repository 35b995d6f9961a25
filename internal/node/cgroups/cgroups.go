// Package cgroups knows the cgroups of the workloads of a node: from the moment in which
// `proxima run` names one to the agent until no process is left in it.
//
// Enter at [New]; [Table.Hold] takes a cgroup from a `proxima run`, [Table.WorkloadOf] finds
// whose a socket is, and [Table.Run] removes the cgroups that nobody uses any more. The list
// is on disk, so that an agent that was killed tells the same connections apart as before.
//
// It makes no cgroup, moves no process and ends none.
package cgroups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Hierarchy is what the table asks the kernel; a *cgroup.Hierarchy.
type Hierarchy interface {
	Lookup(path string) (cgroup.ID, error)
	PathOf(number uint64) (string, error)
	Remove(path string) error
}

// Config of a Table. Hierarchy and File are required.
type Config struct {
	Hierarchy Hierarchy
	// File keeps the list.
	File string
	// Changed is called with all cgroups after each change, one call at a time.
	Changed func([]Group)
	Clock   clock.WithTicker // nil: the real one
	Logger  *slog.Logger     // nil: discard
}

// Group is the cgroup of a workload.
type Group struct {
	Path     string
	ID       cgroup.ID
	Workload resource.Key
}

// Table of cgroups. Safe for concurrent use.
type Table struct {
	cfg  Config
	wake chan struct{}
	// calling orders calls of Changed.
	calling sync.Mutex

	mu     sync.Mutex
	groups map[string]*entry // by path
}

type entry struct {
	Group
	holders int
}

// stored is the list on disk.
type stored struct {
	Version int           `json:"version"`
	Groups  []storedGroup `json:"groups"`
}

type storedGroup struct {
	Path      string `json:"path"`
	Number    uint64 `json:"number"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

const (
	fileVersion = 1
	fileMode    = 0o600
	// maxFile is more than any machine has processes for, in bytes.
	maxFile = 16 << 20
)

// New makes a table with what an earlier agent knew, as far as it is there. It calls Changed
// only if that is anything.
func New(cfg Config) *Table {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Changed == nil {
		cfg.Changed = func([]Group) {}
	}
	t := &Table{cfg: cfg, wake: make(chan struct{}, 1), groups: map[string]*entry{}}
	known, err := load(cfg.File)
	if err != nil {
		cfg.Logger.Warn("the list of cgroups of workloads is not usable: workloads are told apart again once their runs have named theirs",
			"file", cfg.File, "error", err)
	}
	for _, g := range known {
		id, err := cfg.Hierarchy.Lookup(g.Path)
		if err != nil || id.Number != g.Number {
			continue // it is gone, and another may have its path
		}
		t.groups[g.Path] = &entry{Group: Group{Path: g.Path, ID: id, Workload: resource.Key{Namespace: g.Namespace, Name: g.Name}}}
	}
	if len(t.groups) > 0 {
		t.changed()
	}
	return t
}

func load(file string) ([]storedGroup, error) {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("it has %d bytes", info.Size())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return decode(data)
}

func decode(data []byte) ([]storedGroup, error) {
	var s stored
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	if s.Version != fileVersion {
		return nil, fmt.Errorf("version %d, want %d", s.Version, fileVersion)
	}
	return s.Groups, nil
}

// Hold makes a cgroup a workload's until release is called and no process is in it. Several
// calls for one cgroup hold it together. A cgroup of another workload is an error.
func (t *Table) Hold(p string, workload resource.Key) (release func(), err error) {
	id, err := t.cfg.Hierarchy.Lookup(p)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	e := t.groups[p]
	if e != nil && e.ID == id && e.Workload != workload {
		t.mu.Unlock()
		return nil, fmt.Errorf("cgroup %s is that of workload %s", p, e.Workload)
	}
	fresh := e == nil || e.ID != id
	if fresh {
		e = &entry{Group: Group{Path: p, ID: id, Workload: workload}}
		t.groups[p] = e
	}
	e.holders++
	t.mu.Unlock()
	if fresh {
		t.changed()
	}
	return sync.OnceFunc(func() {
		t.mu.Lock()
		e.holders--
		t.mu.Unlock()
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}), nil
}

// Groups are all cgroups, by path.
func (t *Table) Groups() []Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list()
}

// list is Groups. t.mu is held.
func (t *Table) list() []Group {
	out := make([]Group, 0, len(t.groups))
	for _, e := range t.groups {
		out = append(out, e.Group)
	}
	slices.SortFunc(out, func(a, b Group) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// WorkloadOf finds the workload that a cgroup, by its number, belongs to: the cgroup is the
// workload's, or below it. ok is false if it is no workload's. It blocks for some questions to
// the kernel. Of a nil Table, too.
func (t *Table) WorkloadOf(number uint64) (workload resource.Key, ok bool) {
	if t == nil {
		return resource.Key{}, false
	}
	p, err := t.cfg.Hierarchy.PathOf(number)
	if err != nil {
		return resource.Key{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; p != "/" && p != "."; p = path.Dir(p) {
		if e := t.groups[p]; e != nil {
			return e.Workload, true
		}
	}
	return resource.Key{}, false
}

// Placed reports whether a workload has a cgroup. Of a nil Table, too.
func (t *Table) Placed(workload resource.Key) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.groups {
		if e.Workload == workload {
			return true
		}
	}
	return false
}

// changed tells of a change, and keeps the list.
func (t *Table) changed() {
	t.calling.Lock()
	defer t.calling.Unlock()
	all := t.Groups()
	t.cfg.Changed(all)
	s := stored{Version: fileVersion, Groups: []storedGroup{}}
	for _, g := range all {
		s.Groups = append(s.Groups, storedGroup{Path: g.Path, Number: g.ID.Number, Namespace: g.Workload.Namespace, Name: g.Workload.Name})
	}
	data, err := json.Marshal(s)
	if err == nil {
		err = atomicfile.Write(t.cfg.File, data, fileMode)
	}
	if err != nil {
		t.cfg.Logger.Warn("the list of cgroups of workloads is not saved: an agent that is started again tells their connections apart once their runs have named them",
			"file", t.cfg.File, "error", err)
	}
}

// lookAgain is how soon cgroups are looked at again that no run holds and that are in use. The
// kernel gives no notice of the end of a run that this agent does not know.
const lookAgain = 200 * time.Millisecond

// Run removes cgroups that nobody uses any more, until ctx ends; it returns nil then.
func (t *Table) Run(ctx context.Context) error {
	for {
		var again <-chan time.Time
		if t.collect() {
			again = t.cfg.Clock.After(lookAgain)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.wake:
		case <-again:
		}
	}
}

// collect removes what is not in use, and reports whether anything else is held by no run.
func (t *Table) collect() (left bool) {
	t.mu.Lock()
	var idle []*entry
	for _, e := range t.groups {
		if e.holders == 0 {
			idle = append(idle, e)
		}
	}
	t.mu.Unlock()
	gone := false
	for _, e := range idle {
		err := t.cfg.Hierarchy.Remove(e.Path)
		if err != nil {
			if !errors.Is(err, cgroup.ErrInUse) {
				t.cfg.Logger.Warn("the cgroup of a workload is not removed; it is tried again", "cgroup", e.Path, "error", err)
			}
			left = true
			continue
		}
		t.mu.Lock()
		if t.groups[e.Path] == e && e.holders == 0 {
			delete(t.groups, e.Path)
			gone = true
		}
		t.mu.Unlock()
		t.cfg.Logger.Info("the cgroup of a workload is gone", "cgroup", e.Path, "workload", e.Workload.String())
	}
	if gone {
		t.changed()
	}
	return left
}
