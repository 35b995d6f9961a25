package local

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Checker says what a zone would make of an object of global, by the rules of an Inlet. It
// stores nothing. All fields are required. Safe for concurrent use.
type Checker struct {
	// Zone is this zone's name.
	Zone   string
	Client resource.Client
	Kinds  []Kind
	// Try does all that a create, or an update of an object with a resource version, would,
	// and stores nothing.
	Try func(ctx context.Context, d *resource.Descriptor, obj resource.Object) error
	// Uses are what of this zone depends on an object, as sentences; nil: nothing does.
	Uses func(obj resource.Object) []string
}

// Verdict is what would become of an object; zero: it would be applied as it is.
type Verdict struct {
	// Refusal is why it would be refused; empty: it would not.
	Refusal string
	// Warnings are what else to know.
	Warnings []string
}

// Check an object of a type: body is what Kind.Marshal made of it. An error means that it
// could not be found out.
func (c *Checker) Check(ctx context.Context, typ string, body []byte) (Verdict, error) {
	k, ok := c.kind(typ)
	if !ok {
		return Verdict{Warnings: []string{fmt.Sprintf("its version does not take objects of type %s: it would not have it", typ)}}, nil
	}
	put, err := federation.Preview(c.Zone, k.Type, body)
	if err != nil {
		return Verdict{Refusal: err.Error()}, nil
	}
	obj, err := k.decode(put)
	if err != nil {
		return Verdict{Refusal: err.Error()}, nil
	}
	var v Verdict
	if _, fields, err := k.unmarshal(put.Object.Payload); err == nil && len(fields) > 0 {
		v.Warnings = append(v.Warnings, fmt.Sprintf("its version does not know the fields %s, which have no effect there",
			strings.Join(fields[:min(len(fields), maxFields)], ", ")))
	}
	existing, err := c.Client.Get(ctx, k.Descriptor, keyOf(put.Key))
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return Verdict{}, err
	default:
		owner, labelled := federation.OwnerOf(existing.GetLabels())
		own := !labelled || owner.Zone == c.Zone
		switch {
		case own && k.zonesOwn(existing):
			v.Warnings = append(v.Warnings, fmt.Sprintf("it would replace %s, a policy of the zone itself", keyOfObject(existing)))
		case own && !k.givesWay(existing), !own && owner != put.Owner:
			v.Warnings = append(v.Warnings, fmt.Sprintf("it would wait: %s is the name of an object of the zone itself", keyOfObject(existing)))
			return v, nil
		}
		meta, err := metaOf(obj)
		if err != nil {
			return Verdict{}, err
		}
		meta.UID, meta.ResourceVersion = existing.GetUID(), existing.GetResourceVersion()
	}
	switch err := c.Try(ctx, k.Descriptor, obj); {
	case err == nil:
	case namespaceMissing(err):
		v.Warnings = append(v.Warnings, "it would wait: "+err.Error())
	case refuses(err):
		v.Refusal = err.Error()
	default:
		return Verdict{}, err
	}
	return v, nil
}

// CheckDeletion says what the end of an object of global would mean here. Its arguments and
// errors are those of Check.
func (c *Checker) CheckDeletion(ctx context.Context, typ string, body []byte) (Verdict, error) {
	k, ok := c.kind(typ)
	if !ok {
		return Verdict{}, nil // it does not have it
	}
	put, err := federation.Preview(c.Zone, k.Type, body)
	if err != nil {
		return Verdict{Refusal: err.Error()}, nil
	}
	existing, err := c.Client.Get(ctx, k.Descriptor, keyOf(put.Key))
	switch {
	case apierrors.IsNotFound(err):
		return Verdict{}, nil
	case err != nil:
		return Verdict{}, err
	}
	var v Verdict
	owner, labelled := federation.OwnerOf(existing.GetLabels())
	if !labelled || owner != put.Owner {
		v.Warnings = append(v.Warnings, fmt.Sprintf("%s would stay: it is an object of the zone itself", keyOfObject(existing)))
		return v, nil
	}
	if holders := existing.GetFinalizers(); len(holders) > 0 {
		v.Warnings = append(v.Warnings, "it would end when its finalizers are removed: "+strings.Join(holders, ", "))
	}
	if c.Uses != nil {
		v.Warnings = append(v.Warnings, c.Uses(existing)...)
	}
	return v, nil
}

// kind of a type that global sends.
func (c *Checker) kind(typ string) (Kind, bool) {
	i := slices.IndexFunc(c.Kinds, func(k Kind) bool { return k.Type.Name == typ })
	if i < 0 || c.Kinds[i].Type.Direction != federation.GlobalToZone {
		return Kind{}, false
	}
	return c.Kinds[i], true
}

// Marshal makes what travels of an object.
func (k Kind) Marshal(obj resource.Object) ([]byte, error) {
	o, err := k.encode(obj)
	if err != nil {
		return nil, err
	}
	return o.Marshal()
}
