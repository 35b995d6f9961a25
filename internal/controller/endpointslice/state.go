package endpointslice

import (
	"strconv"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// state is what the controller remembers of a Service between syncs. written and
// deleted are guarded by Controller.mu, as the dispatcher reads them; the rest
// belongs to the worker that has the Service.
type state struct {
	lastWrite time.Time
	failures  int
	trigger   trigger

	// revision is the highest resource version that our writes got.
	revision uint64
	// written is the resource version of our last write of each slice, by name.
	written map[string]string
	// deleted are the slices that we deleted and that may still be in sight.
	deleted map[types.UID]struct{}
}

func (c *Controller) state(key resource.Key) *state {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.states[key]
	if st == nil {
		st = &state{written: make(map[string]string), deleted: make(map[types.UID]struct{})}
		c.states[key] = st
	}
	return st
}

// wrote remembers the outcome of a write.
func (c *Controller) wrote(st *state, made resource.Object) {
	if n, err := strconv.ParseUint(made.GetResourceVersion(), 10, 64); err == nil {
		st.revision = max(st.revision, n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	st.written[made.GetName()] = made.GetResourceVersion()
}

// shows reports whether a snapshot shows all our writes: its slices are known up
// to the revision of the last one, and none that we deleted is left.
//
// Revisions of one kind are ordered, so this holds also if somebody else changed
// or deleted the slice right after us; waiting for our own version to appear
// would then never end.
func (st *state) shows(revision uint64, existing []*discoveryv1.EndpointSlice) bool {
	if revision < st.revision {
		return false
	}
	for _, slice := range existing {
		if _, gone := st.deleted[slice.UID]; gone {
			return false
		}
	}
	return true
}

// echo reports whether a change of a slice is just our own write coming back.
func (c *Controller) echo(service resource.Key, was, is *discoveryv1.EndpointSlice) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.states[service]
	if st == nil {
		return false
	}
	if is != nil {
		return st.written[is.Name] == is.ResourceVersion
	}
	// It left the catalog and cannot come back: a UID is never used again.
	_, ours := st.deleted[was.UID]
	delete(st.deleted, was.UID)
	delete(st.written, was.Name)
	return ours
}

// trigger remembers what was known at the last successful sync, so that the time
// of what changed since can be told.
type trigger struct {
	service types.UID
	since   map[types.UID]time.Time // readySince of each workload
}

// next is the earliest change since the last sync, and what to remember if this
// one succeeds. A Service that is new to us dates from its creation.
func (t trigger) next(in *Input) (time.Time, trigger) {
	known := t.service == in.Service.UID && t.since != nil
	seen := trigger{service: in.Service.UID, since: make(map[types.UID]time.Time)}
	var earliest time.Time
	note := func(uid types.UID, since time.Time) {
		seen.since[uid] = since
		if since.After(t.since[uid]) && (earliest.IsZero() || since.Before(earliest)) {
			earliest = since
		}
	}
	for _, pod := range in.Pods {
		_, since := podReady(pod)
		note(pod.UID, since)
	}
	for _, dataplane := range in.Dataplanes {
		note(dataplane.UID, dataplaneWorkload(dataplane).readySince)
	}
	if !known {
		return in.Service.CreationTimestamp.Time, seen
	}
	return earliest, seen
}
