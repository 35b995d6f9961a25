package access

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// SystemNamespace is where objects of other control planes are kept: at global those of
// zones, in a zone those of other zones.
const SystemNamespace = "proxima-system"

// Site is the place of a control plane among several. The zero value is one that stands
// alone.
type Site struct {
	// Zone whose control plane this is; empty: it is none.
	Zone string
	// AtGlobal: this is the global control plane.
	AtGlobal bool
	// Global is the address of the global control plane, of a zone; for messages.
	Global string
	// Direction in which a kind travels.
	Direction func(schema.GroupKind) resource.Direction
	// Shared reports a kind of which zones write objects of their own without a label, though
	// it travels from global to zones; nil: there is none.
	Shared func(schema.GroupKind) bool
}

// prepare sets what names the zone: of a Dataplane that is registered here, and of a Node
// that says nothing of its topology zone.
func (s *Site) prepare(w Write) {
	if s.Zone == "" || w.Subresource != "" {
		return
	}
	switch obj := w.Object.(type) {
	case *meshv1alpha1.Dataplane:
		if !s.foreign(obj) {
			metav1.SetMetaDataLabel(&obj.ObjectMeta, meshv1alpha1.LabelOrigin, meshv1alpha1.OriginZone)
			metav1.SetMetaDataLabel(&obj.ObjectMeta, meshv1alpha1.LabelZone, s.Zone)
		}
	case *corev1.Node:
		if obj.Labels[corev1.LabelTopologyZone] == "" {
			metav1.SetMetaDataLabel(&obj.ObjectMeta, corev1.LabelTopologyZone, s.Zone)
		}
	}
}

// Allow refuses writes of objects that another control plane owns, and of those that are
// owned elsewhere by their kind.
func (s *Site) Allow(w Write) error {
	if w.Kind == (schema.GroupKind{Group: meshGroup, Kind: "Zone"}) {
		return s.allowZone()
	}
	direction := resource.Stays
	if s.Direction != nil && (s.Zone != "" || s.AtGlobal) {
		direction = s.Direction(w.Kind)
	}
	if direction == resource.Stays {
		return nil
	}
	if s.foreign(w.Old) {
		return fmt.Errorf("it is a copy of an object of %s, which alone changes it: change it there", s.ownerOf(w.Old))
	}
	if s.foreign(w.Object) {
		return fmt.Errorf("labels %s and %s are set by control planes: leave them out (this one is %s)",
			meshv1alpha1.LabelOrigin, meshv1alpha1.LabelZone, s)
	}
	switch {
	case s.AtGlobal && direction != resource.GlobalToZone:
		return fmt.Errorf("a %s is written at the control plane of its zone; global has copies, which are read-only", w.Kind.Kind)
	case s.Zone != "" && direction == resource.GlobalToZone && (s.Shared == nil || !s.Shared(w.Kind)):
		return s.allowPolicy(w)
	}
	return nil
}

func (s *Site) allowZone() error {
	switch {
	case s.AtGlobal:
		return nil
	case s.Zone != "":
		return fmt.Errorf("zones are made at the global control plane (%s): this is that of zone %s", s.Global, s.Zone)
	}
	return errors.New("zones are made at a global control plane: this one stands alone (--role standalone)")
}

// allowPolicy decides on a kind that global owns, in a zone.
func (s *Site) allowPolicy(w Write) error {
	if w.Object == nil {
		return nil // it is this zone's: foreign was decided before
	}
	if w.Object.GetLabels()[meshv1alpha1.LabelOrigin] != meshv1alpha1.OriginZone {
		return fmt.Errorf("a %s is written at the global control plane (%s): write it there; or label it %s: %s, for zone %s alone",
			w.Kind.Kind, s.Global, meshv1alpha1.LabelOrigin, meshv1alpha1.OriginZone, s.Zone)
	}
	if w.Object.GetNamespace() == SystemNamespace {
		return fmt.Errorf("namespace %s is global's: choose another one for a %s of zone %s alone", SystemNamespace, w.Kind.Kind, s.Zone)
	}
	return nil
}

// foreign reports whether the labels of an object name another control plane.
func (s *Site) foreign(obj resource.Object) bool {
	if obj == nil {
		return false
	}
	labels := obj.GetLabels()
	origin, zone := labels[meshv1alpha1.LabelOrigin], labels[meshv1alpha1.LabelZone]
	switch {
	case origin == "":
		return zone != "" && zone != s.Zone
	case s.AtGlobal:
		return origin != meshv1alpha1.OriginGlobal || zone != ""
	}
	return origin != meshv1alpha1.OriginZone || zone != "" && zone != s.Zone
}

func (s *Site) ownerOf(obj resource.Object) string {
	if zone := obj.GetLabels()[meshv1alpha1.LabelZone]; zone != "" {
		return "zone " + zone
	}
	if s.Global != "" {
		return "global (" + s.Global + ")"
	}
	return "global"
}

// String names the control plane.
func (s *Site) String() string {
	if s.AtGlobal {
		return "global"
	}
	return "that of zone " + s.Zone
}
