package federation

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// Labels and annotations of synchronised objects. Receivers set them, whatever the
// peer wrote.
const (
	LabelOrigin          = meshv1alpha1.LabelOrigin
	OriginGlobal         = meshv1alpha1.OriginGlobal
	OriginZone           = meshv1alpha1.OriginZone
	LabelZone            = meshv1alpha1.LabelZone
	LabelDisplayName     = meshv1alpha1.LabelDisplayName
	LabelSourceNamespace = meshv1alpha1.LabelSourceNamespace
	// AnnotationSyncName is the name of the resource in the stream.
	AnnotationSyncName = meshv1alpha1.GroupName + "/sync-name"
	// AnnotationSyncVersion is the version of the resource in the stream.
	AnnotationSyncVersion = meshv1alpha1.GroupName + "/sync-version"
)

// Limits of what is accepted. Kubernetes limits annotations to 256 KiB together and
// an object to about 1.5 MiB, etcd's default for a request.
const (
	maxObject      = 2 << 20
	maxLabels      = 256
	maxAnnotations = 256 << 10
)

// Key names an object in the local store. Namespace is empty for cluster-scoped
// types.
type Key struct{ Namespace, Name string }

// Owner is the control plane that owns an object: global, or a zone.
type Owner struct {
	// Zone is empty for global.
	Zone string
}

// String is "global" or "zone NAME".
func (o Owner) String() string {
	if o.Zone == "" {
		return OriginGlobal
	}
	return OriginZone + " " + o.Zone
}

// OwnerOf returns the owner that labels name; ok is false for an object that no
// receiver has labelled: the local control plane owns it. Users of a zone label their
// policies with the origin alone.
func OwnerOf(labels map[string]string) (owner Owner, ok bool) {
	zone := labels[LabelZone]
	switch labels[LabelOrigin] {
	case OriginGlobal:
		return Owner{}, true
	case OriginZone:
		return Owner{Zone: zone}, zone != ""
	}
	return Owner{}, false
}

// Leaves reports whether a side sends an object with these labels: its own ones, and
// at global also those of zones that are for other zones. zone is the peer at global,
// and the side's own at a zone.
func (t Type) Leaves(side Side, zone string, labels map[string]string) bool {
	if !t.sentBy(side) {
		return false
	}
	owner, labelled := OwnerOf(labels)
	switch {
	case side == AtZone:
		return !labelled || owner.Zone == zone
	case t.Direction == ZoneToZones:
		return labelled && owner.Zone != "" && owner.Zone != zone
	default:
		return !labelled || owner.Zone == ""
	}
}

// Object is a synchronised object as it travels.
type Object struct {
	Key
	Mesh                string
	Labels, Annotations map[string]string
	// Payload is JSON of all but the metadata.
	Payload []byte
}

// Resource is the name of the object in a stream. It always has a slash.
func (o *Object) Resource() string { return ResourceName(o.Key) }

// ResourceName is the name in a stream of the object that its owner stores by a key.
func ResourceName(k Key) string { return k.Namespace + "/" + k.Name }

// Marshal encodes the object: equal objects of one program version to equal bytes.
func (o *Object) Marshal() ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&federationv1.Object{
		Namespace: o.Namespace, Name: o.Name, Mesh: o.Mesh,
		Labels: o.Labels, Annotations: o.Annotations, Payload: o.Payload,
	})
	if err != nil {
		return nil, fmt.Errorf("marshal object %s: %w", o.Resource(), err)
	}
	return b, nil
}

// ParseObject decodes what Marshal wrote and checks all but the payload, which only
// the rules of its kind can check.
func ParseObject(b []byte) (*Object, error) {
	if len(b) > maxObject {
		return nil, fmt.Errorf("object of %d bytes: the limit is %d", len(b), maxObject)
	}
	var m federationv1.Object
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("parse object: %w", err)
	}
	o := &Object{
		Key:  Key{Namespace: m.GetNamespace(), Name: m.GetName()},
		Mesh: m.GetMesh(), Labels: m.GetLabels(), Annotations: m.GetAnnotations(), Payload: m.GetPayload(),
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	return o, nil
}

func (o *Object) check() error {
	if err := checkName("name", o.Name, false, false); err != nil {
		return err
	}
	if err := checkName("namespace", o.Namespace, true, true); err != nil {
		return err
	}
	if err := checkName("mesh", o.Mesh, true, true); err != nil {
		return err
	}
	if len(o.Labels) > maxLabels {
		return fmt.Errorf("%d labels: the limit is %d", len(o.Labels), maxLabels)
	}
	for key, value := range o.Labels {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return fmt.Errorf("invalid label %.80q: %s", key, problems[0])
		}
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			return fmt.Errorf("invalid value %.80q of label %s: %s", value, key, problems[0])
		}
	}
	size := 0
	for key, value := range o.Annotations {
		// Kubernetes lowers the key first, too.
		if problems := validation.IsQualifiedName(strings.ToLower(key)); len(problems) > 0 {
			return fmt.Errorf("invalid annotation %.80q: %s", key, problems[0])
		}
		size += len(key) + len(value)
	}
	if size > maxAnnotations {
		return fmt.Errorf("annotations of %d bytes: the limit is %d", size, maxAnnotations)
	}
	if !utf8.Valid(o.Payload) {
		return errors.New("payload is not UTF-8")
	}
	return nil
}

// stamp returns the labels and annotations of a copy: those of the object, but for
// the ones that only a receiver sets. Of an object that global relays, global has set
// what names the original.
func (o *Object) stamp(owner Owner, relayed bool, key Key, version string) (labels, annotations map[string]string) {
	labels = make(map[string]string, len(o.Labels)+4)
	for k, v := range o.Labels {
		labels[k] = v
	}
	delete(labels, LabelZone)
	labels[LabelOrigin] = OriginGlobal
	if owner.Zone != "" {
		labels[LabelOrigin], labels[LabelZone] = OriginZone, owner.Zone
	}
	if !relayed || labels[LabelDisplayName] == "" {
		labels[LabelDisplayName] = displayName(o.Name)
		delete(labels, LabelSourceNamespace)
		if key.Namespace != o.Namespace && o.Namespace != "" {
			labels[LabelSourceNamespace] = o.Namespace
		}
	}
	annotations = make(map[string]string, len(o.Annotations)+2)
	for k, v := range o.Annotations {
		annotations[k] = v
	}
	annotations[AnnotationSyncName], annotations[AnnotationSyncVersion] = o.Resource(), version
	return labels, annotations
}
