package endpointslice

import (
	"cmp"
	"maps"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// draft is a slice on its way from what it was to what it will be.
type draft struct {
	was     *discoveryv1.EndpointSlice // nil: new
	now     *discoveryv1.EndpointSlice // nil: unchanged
	deleted bool
}

// endpoints as they will be; not to be changed.
func (d *draft) endpoints() []discoveryv1.Endpoint {
	if d.now != nil {
		return d.now.Endpoints
	}
	return d.was.Endpoints
}

// ports of the endpoints; not to be changed.
func (d *draft) ports() []discoveryv1.EndpointPort {
	if d.now != nil {
		return d.now.Ports
	}
	return d.was.Ports
}

// edit makes the draft differ from what it was. Everything that plans change
// later (endpoints, labels) is its own; the rest is shared.
func (d *draft) edit(labels map[string]string) *discoveryv1.EndpointSlice {
	if d.now == nil {
		now := *d.was
		now.Labels = labels
		now.Endpoints = slices.Clone(d.was.Endpoints)
		d.now = &now
	}
	return d.now
}

// packer places the endpoints of one group into slices. Writes are what a slice
// costs, for everybody who watches, so slices that need not change are left
// alone even if that leaves them half empty.
type packer struct {
	max    int
	labels map[string]string
	group  *group
	fresh  func(ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice
}

func (p *packer) pack(existing []*discoveryv1.EndpointSlice) []*draft {
	drafts := make([]*draft, 0, len(existing)+1)
	placed := make([]bool, len(p.group.want))
	for _, slice := range existing {
		drafts = append(drafts, p.refresh(slice, placed))
	}
	var rest []discoveryv1.Endpoint
	for i, done := range placed {
		if !done {
			rest = append(rest, p.group.want[i])
		}
	}
	rest = p.fillChanged(drafts, rest)
	for len(rest) >= p.max {
		drafts = p.fillNew(drafts, rest[:p.max])
		rest = rest[p.max:]
	}
	if rest = p.fillUnchanged(drafts, rest); len(rest) > 0 {
		drafts = p.fillNew(drafts, rest)
	}
	return drafts
}

// refresh is step 1: drop what is not wanted (any more, or a second time, or
// beyond the maximum), and bring the others up to date.
func (p *packer) refresh(slice *discoveryv1.EndpointSlice, placed []bool) *draft {
	d := &draft{was: slice}
	keep := make([]discoveryv1.Endpoint, 0, len(slice.Endpoints))
	changed := false
	for i := range slice.Endpoints {
		have := &slice.Endpoints[i]
		at, wanted := p.group.index[idOf(have)]
		if !wanted || placed[at] || len(keep) == p.max {
			changed = true
			continue
		}
		placed[at] = true
		want := p.group.want[at]
		if sameEndpoint(have, &want) {
			keep = append(keep, *have)
			continue
		}
		changed = true
		want.Hints = have.Hints
		keep = append(keep, want)
	}
	switch {
	case changed && len(keep) == 0:
		d.deleted = true
	case changed:
		d.edit(p.labels).Endpoints = keep
	case !maps.Equal(slice.Labels, p.labels):
		d.edit(p.labels)
	}
	return d
}

// fillChanged is step 2: slices that are written anyway take what they can, the
// fullest first.
func (p *packer) fillChanged(drafts []*draft, rest []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	var changed []*draft
	for _, d := range drafts {
		if d.now != nil && !d.deleted {
			changed = append(changed, d)
		}
	}
	slices.SortStableFunc(changed, func(a, b *draft) int {
		return cmp.Compare(len(b.endpoints()), len(a.endpoints()))
	})
	for _, d := range changed {
		n := min(p.max-len(d.now.Endpoints), len(rest))
		d.now.Endpoints = append(d.now.Endpoints, rest[:n]...)
		rest = rest[n:]
	}
	return rest
}

// fillNew is the first half of step 3: whatever fills a whole slice gets a new
// one, so that less than a slice is left to place elsewhere.
func (p *packer) fillNew(drafts []*draft, endpoints []discoveryv1.Endpoint) []*draft {
	slice := p.fresh(p.group.ports)
	slice.Endpoints = append(slice.Endpoints, endpoints...)
	return append(drafts, &draft{now: slice})
}

// fillUnchanged is the second half: if one more slice can take all that is left,
// the fullest such does.
func (p *packer) fillUnchanged(drafts []*draft, rest []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	if len(rest) == 0 {
		return nil
	}
	var best *draft
	for _, d := range drafts {
		if d.now != nil || d.deleted || len(d.was.Endpoints)+len(rest) > p.max {
			continue
		}
		if best == nil || len(d.was.Endpoints) > len(best.was.Endpoints) {
			best = d
		}
	}
	if best == nil {
		return rest
	}
	now := best.edit(p.labels)
	now.Endpoints = append(now.Endpoints, rest...)
	return nil
}
