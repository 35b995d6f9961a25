package app

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/federation/secrets"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// secretKind is a kind of secrets: global notes on each of them what of it goes to which
// zones.
func secretKind(d *resource.Descriptor) local.Kind {
	k := selected(local.Kind{Descriptor: d, Zones: secrets.Zones, Prune: secrets.Prune})
	k.Type.KeepName = true
	return k
}

// isSecret: zones write secrets of their own, too, without a label.
func isSecret(gk schema.GroupKind) bool {
	return gk == kind.Secret.GVK.GroupKind() || gk == kind.GlobalSecret.GVK.GroupKind()
}

// secretUses judges writes of secrets; its client is set before the server runs.
type secretUses struct{ client resource.Client }

// prepare keeps the notes on a secret: control planes alone write them.
func (secretUses) prepare(w access.Write) {
	if w.Object == nil || !isSecret(w.Kind) {
		return
	}
	notes := w.Object.GetAnnotations()
	for _, name := range []string{secrets.AnnotationZones, secrets.AnnotationValues} {
		before, noted := "", false
		if w.Old != nil {
			before, noted = w.Old.GetAnnotations()[name], w.Old.GetAnnotations()[name] != ""
		}
		if !noted {
			delete(notes, name)
			continue
		}
		if notes == nil {
			notes = map[string]string{}
		}
		notes[name] = before
	}
	w.Object.SetAnnotations(notes)
}

// allow refuses to delete a secret that an object refers to.
func (s secretUses) allow(ctx context.Context, w access.Write) error {
	if w.Object != nil || w.Old == nil || w.Old.GetDeletionTimestamp() != nil || !isSecret(w.Kind) {
		return nil
	}
	key := resource.KeyOf(w.Old)
	var referrers []string
	for _, d := range []*resource.Descriptor{kind.Mesh, kind.ExternalService} {
		if !d.Namespaced && key.Namespace != "" {
			continue
		}
		objects, _, err := s.client.List(ctx, d, resource.ListOptions{Namespace: key.Namespace})
		if err != nil {
			return err
		}
		for _, obj := range objects {
			for _, r := range secrets.References(obj) {
				if r.Secret == key {
					referrers = append(referrers, fmt.Sprintf("%s %s (%s)", d.Singular, strings.TrimPrefix(resource.KeyOf(obj).String(), "/"), r.Field))
				}
			}
		}
	}
	if len(referrers) == 0 {
		return nil
	}
	d := kind.Secret
	if _, ok := w.Old.(*corev1.Secret); !ok {
		d = kind.GlobalSecret
	}
	const shown = 5
	more := ""
	if n := len(referrers) - shown; n > 0 {
		referrers, more = referrers[:shown], fmt.Sprintf(" and %d more", n)
	}
	return apierrors.NewConflict(d.GroupResource(), w.Old.GetName(), fmt.Errorf(
		"it is referred to by %s%s: remove the reference first", strings.Join(referrers, ", "), more))
}
