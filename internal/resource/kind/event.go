package kind

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// eventTTL is kube-apiserver's default for --event-ttl, one hour.
const eventTTL = 3600

// Event describes v1 Event. It and EventsV1Event are two faces of the same
// rows, stored as v1.
var Event = &resource.Descriptor{
	GVK:            corev1.SchemeGroupVersion.WithKind("Event"),
	Resource:       "events",
	Singular:       "event",
	ShortNames:     []string{"ev"},
	Namespaced:     true,
	TTL:            eventTTL,
	CreateOnUpdate: true,

	New:     func() resource.Object { return &corev1.Event{} },
	NewList: func() runtime.Object { return &corev1.EventList{} },

	Validate: compare(validateEvent),

	Fields: of(func(e *corev1.Event) fields.Set {
		set := fields.Set{
			"reason":             e.Reason,
			"reportingComponent": e.ReportingController,
			"source":             orElse(e.Source.Component, e.ReportingController),
			"type":               e.Type,
		}
		return withReference(set, "involvedObject", e.InvolvedObject)
	}),
	Columns: eventColumns(),
	Cells:   of(eventCells),
}

// EventsV1Event describes events.k8s.io/v1 Event. Rows are those of Event:
// EventFromV1 and EventToV1 convert.
var EventsV1Event = &resource.Descriptor{
	GVK:            eventsv1.SchemeGroupVersion.WithKind("Event"),
	Resource:       "events",
	Singular:       "event",
	ShortNames:     []string{"ev"},
	Namespaced:     true,
	TTL:            eventTTL,
	CreateOnUpdate: true,

	New:     func() resource.Object { return &eventsv1.Event{} },
	NewList: func() runtime.Object { return &eventsv1.EventList{} },

	Validate: compare(validateEventsV1Event),

	Fields: of(func(e *eventsv1.Event) fields.Set {
		set := fields.Set{
			"reason":              e.Reason,
			"reportingController": e.ReportingController,
			"type":                e.Type,
		}
		return withReference(set, "regarding", e.Regarding)
	}),
	Columns: eventColumns(),
	Cells:   of(func(e *eventsv1.Event) []any { return eventCells(EventFromV1(e)) }),
}

func withReference(set fields.Set, prefix string, r corev1.ObjectReference) fields.Set {
	set[prefix+".kind"] = r.Kind
	set[prefix+".namespace"] = r.Namespace
	set[prefix+".name"] = r.Name
	set[prefix+".uid"] = string(r.UID)
	set[prefix+".apiVersion"] = r.APIVersion
	set[prefix+".resourceVersion"] = r.ResourceVersion
	set[prefix+".fieldPath"] = r.FieldPath
	return set
}

// EventFromV1 converts an events.k8s.io/v1 Event to the v1 Event of the same
// row. Nothing is lost, nothing is shared with e.
func EventFromV1(e *eventsv1.Event) *corev1.Event {
	e = e.DeepCopy()
	out := &corev1.Event{
		ObjectMeta:          e.ObjectMeta,
		InvolvedObject:      e.Regarding,
		Reason:              e.Reason,
		Message:             e.Note,
		Source:              e.DeprecatedSource,
		FirstTimestamp:      e.DeprecatedFirstTimestamp,
		LastTimestamp:       e.DeprecatedLastTimestamp,
		Count:               e.DeprecatedCount,
		Type:                e.Type,
		EventTime:           e.EventTime,
		Action:              e.Action,
		Related:             e.Related,
		ReportingController: e.ReportingController,
		ReportingInstance:   e.ReportingInstance,
	}
	if e.Series != nil {
		out.Series = &corev1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	if e.Kind != "" {
		out.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Event"))
	}
	return out
}

// EventToV1 is the inverse of EventFromV1.
func EventToV1(e *corev1.Event) *eventsv1.Event {
	e = e.DeepCopy()
	out := &eventsv1.Event{
		ObjectMeta:               e.ObjectMeta,
		EventTime:                e.EventTime,
		ReportingController:      e.ReportingController,
		ReportingInstance:        e.ReportingInstance,
		Action:                   e.Action,
		Reason:                   e.Reason,
		Regarding:                e.InvolvedObject,
		Related:                  e.Related,
		Note:                     e.Message,
		Type:                     e.Type,
		DeprecatedSource:         e.Source,
		DeprecatedFirstTimestamp: e.FirstTimestamp,
		DeprecatedLastTimestamp:  e.LastTimestamp,
		DeprecatedCount:          e.Count,
	}
	if e.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	if e.Kind != "" {
		out.SetGroupVersionKind(eventsv1.SchemeGroupVersion.WithKind("Event"))
	}
	return out
}

func eventColumns() []metav1.TableColumnDefinition {
	doc := corev1.Event{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		column("Last Seen", doc["lastTimestamp"]),
		column("Type", doc["type"]),
		column("Reason", doc["reason"]),
		column("Object", doc["involvedObject"]),
		wide("Subobject", corev1.ObjectReference{}.SwaggerDoc()["fieldPath"]),
		wide("Source", doc["source"]),
		column("Message", doc["message"]),
		wide("First Seen", doc["firstTimestamp"]),
		wide("Count", doc["count"]),
		func() metav1.TableColumnDefinition { c := nameColumn(); c.Priority = 1; return c }(),
	}
}

// eventCells reads both generations of Event: the one that counts and the one
// with an event time and a series.
func eventCells(e *corev1.Event) []any {
	first := since(e.FirstTimestamp.Time)
	if e.FirstTimestamp.IsZero() {
		first = since(e.EventTime.Time)
	}
	last := since(e.LastTimestamp.Time)
	if e.LastTimestamp.IsZero() {
		last = first
	}
	count := e.Count
	if e.Series != nil {
		last, count = since(e.Series.LastObservedTime.Time), e.Series.Count
	} else if count == 0 {
		count = 1
	}
	target := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		target += "/" + e.InvolvedObject.Name
	}
	source := orElse(e.Source.Component, e.ReportingController)
	if instance := orElse(e.Source.Host, e.ReportingInstance); instance != "" {
		source += ", " + instance
	}
	return []any{
		last, e.Type, e.Reason, target, e.InvolvedObject.FieldPath, source,
		strings.TrimSpace(e.Message), first, int64(count), e.Name,
	}
}
