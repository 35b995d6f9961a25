// Package local joins the synchronisation of control planes to the objects of the
// local one, through a resource.Client.
//
// It owns the two drivers of package federation: Outlet follows the kinds that this
// control plane sends and keeps the scopes that streams read; Inlet applies what a
// peer sends, object by object, along the one write path. It also owns how objects are
// encoded, and where checkpoints are kept. Enter at NewOutlet and NewInlet. It never
// opens a connection; package stream does.
package local

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/payload"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Kind declares how objects of a kind are synchronised.
type Kind struct {
	Descriptor *resource.Descriptor
	// Type as on the wire; TypeOf makes it of the descriptor.
	Type federation.Type
	// Mesh that an object belongs to; nil: none.
	Mesh func(resource.Object) string
	// Zones that use an object, of types that fan out to SelectedZones; AnyZone among
	// them: all.
	Zones func(resource.Object) []string
	// Local selects objects that do not travel; nil: none.
	Local func(resource.Object) bool
	// Untouched selects objects of this control plane that a copy of the same name replaces:
	// what every control plane makes by itself, as long as nobody has changed it; nil: none.
	Untouched func(resource.Object) bool
	// Policy: what a zone labels as its own gives way to an object of global of the same name.
	Policy bool
	// Ranked: of two objects that say different things the older one wins, so the time at which the
	// original was created travels, as AnnotationCreated of the copy.
	Ranked bool
	// OwnStatus: the status is what each control plane observes itself. It does not
	// travel, and that of a copy is not touched.
	OwnStatus bool
	// Prune removes what changes often and means nothing elsewhere, as times of renewal;
	// nil: nothing does. The object is a copy.
	Prune func(resource.Object)
	// Stamp sets the fields that name the zone of an object, whatever the zone wrote;
	// nil: there are none.
	Stamp func(obj resource.Object, zone string)
}

// givesWay reports whether an object of this control plane gives way to a copy of its name.
func (k Kind) givesWay(own resource.Object) bool {
	return k.Untouched != nil && k.Untouched(own) || k.zonesOwn(own)
}

// zonesOwn reports whether an object is a policy that a user has labelled as the zone's own.
func (k Kind) zonesOwn(obj resource.Object) bool {
	return k.Policy && obj.GetLabels()[federation.LabelOrigin] == federation.OriginZone && obj.GetAnnotations()[federation.AnnotationSyncName] == ""
}

// AnyZone stands for all zones.
const AnyZone = "*"

// LabelWithheld on a copy at global keeps it from the other zones: its zone is disabled.
// Streams of its zone remove the label.
const LabelWithheld = meshv1alpha1.GroupName + "/withheld"

// TypeOf returns the type of a kind: name, direction and scope are the descriptor's.
// ok is false for a kind that stays where it is.
func TypeOf(d *resource.Descriptor) (t federation.Type, ok bool) {
	t = federation.Type{Name: typeName(d), Namespaced: d.Namespaced}
	switch d.Direction {
	case resource.GlobalToZone:
		t.Direction = federation.GlobalToZone
	case resource.ZoneToGlobal:
		t.Direction = federation.ZoneToGlobal
	case resource.ZoneToZones:
		t.Direction = federation.ZoneToZones
	default:
		return t, false
	}
	return t, true
}

// typeName is the group and the kind: versions of an API differ between programs.
func typeName(d *resource.Descriptor) string {
	return d.GVK.Group + "/" + d.GVK.Kind
}

// Types of kinds, in their order.
func Types(kinds []Kind) (*federation.Types, error) {
	var out []federation.Type
	for _, k := range kinds {
		out = append(out, k.Type)
	}
	return federation.NewTypes(out...)
}

// bySide returns the kinds that a side sends, or receives.
func bySide(kinds []Kind, side federation.Side, sends bool) ([]Kind, error) {
	types, err := Types(kinds)
	if err != nil {
		return nil, err
	}
	of := types.ReceivedBy(side)
	if sends {
		of = types.SentBy(side)
	}
	wanted := map[string]bool{}
	for _, t := range of {
		wanted[t.Name] = true
	}
	var out []Kind
	for _, k := range kinds {
		if wanted[k.Type.Name] {
			out = append(out, k)
		}
	}
	return out, nil
}

func typesOf(kinds []Kind) []federation.Type {
	var out []federation.Type
	for _, k := range kinds {
		out = append(out, k.Type)
	}
	return out
}

// payloadLimits bound what is decoded: those of the API server for a body of JSON.
var payloadLimits = payload.Limits{Depth: 64, Values: 500_000, Members: 50_000}

// encode makes what travels of an object. Metadata but for name, labels and annotations
// is of the store that has it.
func (k Kind) encode(obj resource.Object) (*federation.Object, error) {
	if k.Prune != nil {
		obj = obj.DeepCopyObject().(resource.Object)
		k.Prune(obj)
	}
	body, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", k.Type.Name, resource.KeyOf(obj), err)
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", k.Type.Name, resource.KeyOf(obj), err)
	}
	if err := withUnknown(obj, fields); err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", k.Type.Name, resource.KeyOf(obj), err)
	}
	for _, name := range []string{"metadata", "apiVersion", "kind"} {
		delete(fields, name)
	}
	if k.OwnStatus {
		delete(fields, "status")
	}
	if body, err = json.Marshal(fields); err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", k.Type.Name, resource.KeyOf(obj), err)
	}
	o := &federation.Object{
		Key:    federation.Key{Namespace: obj.GetNamespace(), Name: obj.GetName()},
		Labels: obj.GetLabels(), Annotations: annotations(obj), Payload: body,
	}
	if created := obj.GetCreationTimestamp(); k.Ranked && !created.IsZero() {
		o.Annotations[meshv1alpha1.AnnotationCreated] = created.UTC().Format(time.RFC3339)
	}
	if k.Mesh != nil {
		o.Mesh = k.Mesh(obj)
	}
	return o, nil
}

// annotations that travel: not those of an earlier hop, nor kubectl's copy of what was
// applied, which would name another object.
func annotations(obj resource.Object) map[string]string {
	out := map[string]string{}
	for name, value := range obj.GetAnnotations() {
		switch name {
		case federation.AnnotationSyncName, federation.AnnotationSyncVersion, AnnotationUnknown, meshv1alpha1.AnnotationCreated,
			"kubectl.kubernetes.io/last-applied-configuration":
		default:
			out[name] = value
		}
	}
	return out
}

// decode makes the object that a put creates.
func (k Kind) decode(put federation.Put) (resource.Object, error) {
	obj, fields, err := k.unmarshal(put.Object.Payload)
	if err != nil {
		return nil, err
	}
	notes := maps.Clone(put.Object.Annotations)
	delete(notes, AnnotationUnknown) // the peer's
	if len(fields) > 0 {
		if notes == nil {
			notes = map[string]string{}
		}
		if notes[AnnotationUnknown], err = (unknown{Fields: fields, Payload: put.Object.Payload}).encoded(); err != nil {
			return nil, err
		}
	}
	// Whatever metadata the payload has: these are all.
	meta, err := metaOf(obj)
	if err != nil {
		return nil, err
	}
	*meta = metav1.ObjectMeta{
		Namespace: put.Key.Namespace, Name: put.Key.Name,
		Labels: put.Object.Labels, Annotations: notes,
	}
	if k.Stamp != nil && put.Owner.Zone != "" {
		k.Stamp(obj, put.Owner.Zone)
	}
	return obj, nil
}

func metaOf(obj resource.Object) (*metav1.ObjectMeta, error) {
	a, ok := obj.(metav1.ObjectMetaAccessor)
	if !ok {
		return nil, fmt.Errorf("%T has no metadata", obj)
	}
	meta, ok := a.GetObjectMeta().(*metav1.ObjectMeta)
	if !ok {
		return nil, fmt.Errorf("metadata of %T is a %T", obj, a.GetObjectMeta())
	}
	return meta, nil
}
