package catalog

import meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"

// Overlay has Dataplanes that are made of other objects, as Pods, and that take the place of those of a Snapshot. The zero
// value has none. It is not safe for concurrent use.
type Overlay struct{ of Snapshot }

// Set adds or replaces the Dataplane of a key, or removes it (nil), and returns what changed; ok is
// false if nothing did: the same version was there.
func (o *Overlay) Set(key Key, d *meshv1alpha1.Dataplane) (c Change[*meshv1alpha1.Dataplane], ok bool) {
	t, _ := tables[Dataplanes].(*tableKind[*meshv1alpha1.Dataplane])
	if o.of.Dataplanes.indexes == nil {
		t.clear(&o.of)
	}
	c = Change[*meshv1alpha1.Dataplane]{Key: key, New: d}
	c.Old, _ = o.of.Dataplanes.Get(key)
	edit := o.of.Dataplanes.edit(t.indexes)
	if d == nil {
		edit.remove(key)
	} else {
		edit.put(d)
	}
	if len(edit.changed) == 0 {
		return c, false
	}
	o.of.Dataplanes = edit.commit()
	return c, true
}

// On is a snapshot with the Dataplanes of the overlay.
func (o *Overlay) On(s *Snapshot) *Snapshot {
	next := *s
	if o.of.Dataplanes.indexes == nil {
		tables[Dataplanes].clear(&o.of)
	}
	next.Dataplanes = o.of.Dataplanes
	return &next
}
