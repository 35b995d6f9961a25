package apiserver

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/payload"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Events have two faces, v1 and events.k8s.io/v1, of the same rows. Within the
// server and in the store they are core Events; the other face, the alias, is
// converted on its way in and out, and only its validation is its own.

// isEventAlias reports whether a kind is the events.k8s.io version of core Events.
func isEventAlias(k *resource.Descriptor) bool {
	return k.GVK == eventsv1.SchemeGroupVersion.WithKind("Event")
}

// eventStrategy validates by the face that the client wrote.
type eventStrategy struct {
	strategy
	alias *resource.Descriptor
}

func (s eventStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	if !s.isAlias(ctx) {
		return s.strategy.Validate(ctx, obj)
	}
	return payload.Few(s.alias.Validate(kind.EventToV1(obj.(*corev1.Event)), nil))
}

func (s eventStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	if !s.isAlias(ctx) {
		return s.strategy.ValidateUpdate(ctx, obj, old)
	}
	return payload.Few(s.alias.Validate(kind.EventToV1(obj.(*corev1.Event)), kind.EventToV1(old.(*corev1.Event))))
}

func (s eventStrategy) isAlias(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && info.APIGroup == s.alias.GVK.Group && s.alias.Validate != nil
}

// eventFieldLabels maps the fields of the alias to those of what is stored.
func eventFieldLabels() map[string]string {
	out := map[string]string{"reason": "reason", "type": "type", "reportingController": "reportingComponent"}
	for _, field := range strings.Fields("kind namespace name uid apiVersion resourceVersion fieldPath") {
		out["regarding."+field] = "involvedObject." + field
	}
	return out
}

// registerEventConversions registers the conversions between the two versions.
func registerEventConversions(scheme *runtime.Scheme) error {
	for _, p := range []struct {
		from, to any
		convert  func(from, to any)
	}{
		{&eventsv1.Event{}, &corev1.Event{}, func(from, to any) {
			*to.(*corev1.Event) = *kind.EventFromV1(from.(*eventsv1.Event))
		}},
		{&corev1.Event{}, &eventsv1.Event{}, func(from, to any) {
			*to.(*eventsv1.Event) = *kind.EventToV1(from.(*corev1.Event))
		}},
		{&eventsv1.EventList{}, &corev1.EventList{}, func(from, to any) {
			in, out := from.(*eventsv1.EventList), to.(*corev1.EventList)
			out.ListMeta, out.Items = in.ListMeta, make([]corev1.Event, len(in.Items))
			for i := range in.Items {
				out.Items[i] = *kind.EventFromV1(&in.Items[i])
			}
		}},
		{&corev1.EventList{}, &eventsv1.EventList{}, func(from, to any) {
			in, out := from.(*corev1.EventList), to.(*eventsv1.EventList)
			out.ListMeta, out.Items = in.ListMeta, make([]eventsv1.Event, len(in.Items))
			for i := range in.Items {
				out.Items[i] = *kind.EventToV1(&in.Items[i])
			}
		}},
	} {
		err := scheme.AddConversionFunc(p.from, p.to, func(from, to any, _ conversion.Scope) error {
			p.convert(from, to)
			return nil
		})
		if err != nil {
			return fmt.Errorf("register conversion of %T: %w", p.from, err)
		}
	}
	return nil
}
