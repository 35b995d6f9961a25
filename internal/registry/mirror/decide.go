package mirror

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/proxima-mesh/proxima/internal/registry"
)

// rules of one direction.
type rules struct {
	// origin is what the copies say that they are from.
	origin string
	// standby: the registry that is written keeps copies back while the instance itself is there, so they are
	// offered all the same, for when it goes.
	standby bool
	// apart reports whether the copy of an instance is another object than the instance would be there. Nil: it is not.
	apart func(*registry.Instance) bool
	// loopback addresses mean the same in both registries: they are on one machine.
	loopback bool
	// refuse says why the registry that is written cannot have an instance; empty: it can. Nil: it can.
	refuse func(*registry.Instance) string
}

// decide which copies of a service's instances the other registry, which has there, is to have. skipped are the reasons
// why it does not have others.
func (r *rules) decide(from, there []*registry.Instance) (copies map[identity]*registry.Instance, skipped []string) {
	itself := originals(there)
	copies = map[identity]*registry.Instance{}
	for _, in := range slices.SortedFunc(slices.Values(from), (*registry.Instance).Compare) {
		id := identityOf(in)
		other := itself[id]
		switch {
		case in.MirroredFrom() != "", copies[id] != nil:
			continue
		case other != nil && (!r.standby || other.Key() != in.Key() || r.apart != nil && r.apart(in)):
			continue
		}
		if why := r.unfit(in); why != "" {
			skipped = append(skipped, fmt.Sprintf("%s: %s", id, why))
			continue
		}
		copies[id] = r.copy(in)
	}
	return copies, skipped
}

// unfit says why an instance is not copied.
func (r *rules) unfit(in *registry.Instance) string {
	switch {
	case in.Address.IsUnspecified():
		return "it has no address"
	case in.Address.IsLoopback() && !r.loopback:
		return "its loopback address is another machine in the other registry"
	case r.refuse != nil:
		return r.refuse(in)
	}
	return ""
}

func (r *rules) copy(in *registry.Instance) *registry.Instance {
	out := *in
	out.Metadata = maps.Clone(in.Metadata)
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	out.Metadata[registry.KeyMirroredFrom] = r.origin
	out.Ephemeral, out.Node = true, ""
	return &out
}

// originals are the instances of a list that are no copies.
func originals(list []*registry.Instance) map[identity]*registry.Instance {
	out := map[identity]*registry.Instance{}
	for _, in := range list {
		if in.MirroredFrom() == "" {
			out[identityOf(in)] = in
		}
	}
	return out
}

// keep adds to copies what was published and is missing, where the instance itself is not there.
func keep(copies, published map[identity]*registry.Instance, there []*registry.Instance) (kept int) {
	itself := originals(there)
	for id, in := range published {
		if copies[id] == nil && itself[id] == nil {
			copies[id] = in
			kept++
		}
	}
	return kept
}

// same reports whether two sets of copies are alike, as far as a registry shows them.
func same(a, b map[identity]*registry.Instance) bool {
	return maps.EqualFunc(a, b, func(x, y *registry.Instance) bool {
		return x.ID == y.ID && x.Cluster == y.Cluster && x.Zone == y.Zone && x.SecurePort == y.SecurePort && x.Weight == y.Weight &&
			x.Enabled == y.Enabled && x.Healthy == y.Healthy && x.Protocol == y.Protocol && maps.Equal(x.Metadata, y.Metadata) &&
			reflect.DeepEqual(x.Detail, y.Detail)
	})
}

// missing is how many of the copies a registry does not show, nor the instances themselves.
func missing(copies map[identity]*registry.Instance, there []*registry.Instance) int {
	n := len(copies)
	seen := map[identity]bool{}
	for _, in := range there {
		if id := identityOf(in); copies[id] != nil && !seen[id] {
			seen[id] = true
			n--
		}
	}
	return n
}
