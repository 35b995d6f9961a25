package resource

import (
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Direction is the way a kind travels between a zone and global.
type Direction uint8

// Directions.
const (
	// Stays: never leaves the control plane that holds it.
	Stays Direction = iota
	// ZoneToGlobal: owned by the zone, global keeps an inventory.
	ZoneToGlobal
	// GlobalToZone: owned by global, read-only in zones.
	GlobalToZone
	// ZoneToZones: owned by the zone, sent to global and on to the other zones.
	ZoneToZones
)

// Descriptor describes a kind: there is one value for each, in package kind. The
// functions are pure and may be nil. A Descriptor is never changed. Those who keep
// something by kind use GVK as the key, as tests have descriptors of their own.
type Descriptor struct {
	GVK        schema.GroupVersionKind
	Resource   string // plural, as in URLs
	Singular   string
	ShortNames []string
	Categories []string
	Namespaced bool
	Direction  Direction
	// Status: the kind has a status sub-resource.
	Status bool
	// CreateOnUpdate: an update (PUT) of an object that does not exist creates it. It is true of
	// the kinds of which it is true in Kubernetes.
	CreateOnUpdate bool
	// TTL in seconds after which an object deletes itself; 0: never (Events).
	TTL uint64

	New     func() Object
	NewList func() runtime.Object

	// Default fills what the user left out. Runs on every read and write.
	Default func(obj Object)
	// Prepare runs before validation of a write by the user: it sets what the
	// server owns and resets what the write may not touch. old is nil for create.
	Prepare func(obj, old Object)
	// PrepareStatus is the same for a write of the status.
	PrepareStatus func(obj, old Object)
	// Validate returns every mistake, each with its field. old is nil for create.
	Validate func(obj, old Object) field.ErrorList
	// ValidateStatus is the same for a write of the status.
	ValidateStatus func(obj, old Object) field.ErrorList
	// Warnings returns warnings about what is accepted but unwise.
	Warnings func(obj, old Object) []string

	// Compact makes an object small that was just decoded, and will be kept: it calls share with
	// every string that objects of the kind often have alike, and drops spare capacity. Metadata
	// are not its concern. share replaces the string by an equal one that others refer to, too.
	Compact func(obj Object, share func(*string))

	// Fields are the selectable fields besides metadata.name and
	// metadata.namespace, exactly as Kubernetes serves them.
	Fields func(obj Object) fields.Set
	// Columns as kubectl prints them; a column with Priority > 0 is wide only.
	Columns []metav1.TableColumnDefinition
	// Cells are the values of one row, one for each column.
	Cells func(obj Object) []any
}

// GroupResource of the kind.
func (d *Descriptor) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: d.GVK.Group, Resource: d.Resource}
}

// PrepareWhole is Prepare and PrepareStatus of one write (WithStatus). old is nil for create.
func (d *Descriptor) PrepareWhole(obj, old Object) {
	whole := obj.DeepCopyObject().(Object)
	if d.Prepare != nil {
		d.Prepare(obj, old)
	}
	if !d.Status || d.PrepareStatus == nil {
		return
	}
	d.PrepareStatus(whole, obj) // the status that was given, and what has become of all else
	reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(whole).Elem())
}

// ValidateWhole is Validate and ValidateStatus of one write. old is nil for create. A
// mistake that both find is returned once.
func (d *Descriptor) ValidateWhole(obj, old Object) field.ErrorList {
	var errs field.ErrorList
	if d.Validate != nil {
		errs = d.Validate(obj, old)
	}
	if !d.Status || d.ValidateStatus == nil {
		return errs
	}
	if old == nil {
		// A status is added to an object that exists: this one, without a status.
		old = obj.DeepCopyObject().(Object)
		old.SetResourceVersion("1")
		if d.Prepare != nil {
			d.Prepare(old, nil)
		}
		given := obj.GetResourceVersion() // "" in a create
		obj.SetResourceVersion("1")
		defer obj.SetResourceVersion(given)
	}
	for _, e := range d.ValidateStatus(obj, old) {
		if !slices.ContainsFunc(errs, func(o *field.Error) bool { return o.Error() == e.Error() }) {
			errs = append(errs, e)
		}
	}
	return errs
}
