package registry

import (
	"time"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// orphans are the ephemeral instances without a session, by owner: those of an owner that was
// restarted, whose clients have not come back yet, and those of owners that do not run.
type orphans struct {
	registrar *Registrar
	byOwner   map[string]map[resource.Key]struct{}
	// since is when an owner was first seen not to run.
	since map[string]time.Time
}

// newOrphans begins with none. Clients of an earlier run of this owner have the grace from now
// on to come back.
func newOrphans(r *Registrar, now time.Time) *orphans {
	return &orphans{registrar: r, byOwner: map[string]map[resource.Key]struct{}{}, since: map[string]time.Time{r.config.Owner: now}}
}

// apply notes who owns what.
func (o *orphans) apply(d *catalog.Delta) {
	for _, c := range d.Dataplanes {
		before, after := ownerOf(c.Old), ownerOf(c.New)
		if before == after {
			continue
		}
		if before != "" {
			if delete(o.byOwner[before], c.Key); len(o.byOwner[before]) == 0 {
				delete(o.byOwner, before)
			}
		}
		if after == "" {
			continue
		}
		if o.byOwner[after] == nil {
			o.byOwner[after] = map[resource.Key]struct{}{}
		}
		o.byOwner[after][c.Key] = struct{}{}
	}
}

func ownerOf(d *meshv1alpha1.Dataplane) string {
	if d == nil || !Registered(d) {
		return ""
	}
	return d.Annotations[AnnotationOwner]
}

// sweep ends what owners left that are gone for longer than the grace.
func (o *orphans) sweep(now time.Time) {
	r := o.registrar
	running := r.config.Running()
	for owner := range o.since {
		if owner != r.config.Owner && (running[owner] || o.byOwner[owner] == nil) {
			delete(o.since, owner)
		}
	}
	for owner, keys := range o.byOwner {
		if owner != r.config.Owner {
			if running[owner] || !r.config.Leads() {
				continue
			}
			if _, ok := o.since[owner]; !ok {
				o.since[owner] = now
			}
		}
		if since, ok := o.since[owner]; !ok || now.Sub(since) < r.config.Grace {
			continue
		}
		r.endUnclaimed(keys)
		delete(o.since, owner) // once for the own ones: later ones belong to sessions
	}
}

// endUnclaimed ends instances that no session keeps alive.
func (r *Registrar) endUnclaimed(keys map[resource.Key]struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range keys {
		if r.claims[key] == nil {
			r.endLocked(key)
		}
	}
}
