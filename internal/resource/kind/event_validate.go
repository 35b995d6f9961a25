package kind

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Lengths that the comments on events/v1 Event give.
const (
	maxEventWord = 128
	maxEventNote = 1024
)

// validateEvent is deliberately lax: v1 always was, and refuses no Event for
// its metadata either. Field names are those of v1 for both faces.
func validateEvent(e, _ *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	if e.EventTime.IsZero() {
		errs = append(errs, checkCountedEvent(e)...)
	} else {
		errs = append(errs, checkTimedEvent(e)...)
	}
	return append(errs, invalid(field.NewPath("namespace"), e.Namespace, utilvalidation.IsDNS1123Subdomain(e.Namespace))...)
}

// checkCountedEvent checks an Event of the older generation.
func checkCountedEvent(e *corev1.Event) field.ErrorList {
	of := e.InvolvedObject.Namespace
	ok := e.Namespace == of
	if of == "" { // cluster-scoped; "default" is where older clients put these
		ok = e.Namespace == metav1.NamespaceNone || e.Namespace == metav1.NamespaceDefault
	}
	return namespaceMismatch(e, ok)
}

// checkTimedEvent checks an Event of the generation with an event time.
func checkTimedEvent(e *corev1.Event) field.ErrorList {
	errs := namespaceMismatch(e, e.InvolvedObject.Namespace != "" ||
		e.Namespace == metav1.NamespaceDefault || e.Namespace == metav1.NamespaceSystem)
	controller := field.NewPath("reportingController")
	if e.ReportingController == "" {
		errs = append(errs, field.Required(controller, ""))
	}
	errs = append(errs, checkQualifiedName(controller, e.ReportingController)...)
	for _, w := range []struct{ name, value string }{
		{"reportingInstance", e.ReportingInstance}, {"action", e.Action}, {"reason", e.Reason},
	} {
		if w.value == "" {
			errs = append(errs, field.Required(field.NewPath(w.name), ""))
		}
		errs = append(errs, checkLength(w.name, w.value, maxEventWord)...)
	}
	return append(errs, checkLength("message", e.Message, maxEventNote)...)
}

func namespaceMismatch(e *corev1.Event, ok bool) field.ErrorList {
	if ok {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("involvedObject", "namespace"),
		e.InvolvedObject.Namespace, "does not match event.namespace")}
}

func checkLength(name, value string, most int) field.ErrorList {
	if len(value) <= most {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath(name), "", fmt.Sprintf("can have at most %v characters", most))}
}

func validateEventsV1Event(e, old *eventsv1.Event) field.ErrorList {
	v1 := EventFromV1(e)
	errs := validateEvent(v1, nil)
	if old != nil {
		return append(errs, checkEventUpdate(v1, EventFromV1(old))...)
	}
	errs = append(errs, checkMeta(v1, nil, true, validation.NameIsDNSSubdomain)...)
	errs = append(errs, checkSeries(v1)...)
	if v1.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if v1.Type != corev1.EventTypeNormal && v1.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", v1.Type)))
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"firstTimestamp", !v1.FirstTimestamp.IsZero()},
		{"lastTimestamp", !v1.LastTimestamp.IsZero()},
		{"count", v1.Count != 0},
		{"source", v1.Source != corev1.EventSource{}},
	} {
		if f.set {
			errs = append(errs, field.Invalid(field.NewPath(f.name), "", "needs to be unset"))
		}
	}
	return errs
}

// checkEventUpdate lets a series go on; all else of an Event is history.
func checkEventUpdate(e, old *corev1.Event) field.ErrorList {
	errs := checkMeta(e, old, true, validation.NameIsDNSSubdomain)
	if !equality.Semantic.DeepEqual(e.Series, old.Series) {
		errs = append(errs, checkSeries(e)...)
	}
	for _, f := range []struct {
		name    string
		is, was any
	}{
		{"involvedObject", e.InvolvedObject, old.InvolvedObject},
		{"reason", e.Reason, old.Reason},
		{"message", e.Message, old.Message},
		{"source", e.Source, old.Source},
		{"firstTimestamp", e.FirstTimestamp, old.FirstTimestamp},
		{"lastTimestamp", e.LastTimestamp, old.LastTimestamp},
		{"count", e.Count, old.Count},
		{"type", e.Type, old.Type},
		{"eventTime", e.EventTime, old.EventTime},
		{"action", e.Action, old.Action},
		{"related", e.Related, old.Related},
		{"reportingController", e.ReportingController, old.ReportingController},
		{"reportingInstance", e.ReportingInstance, old.ReportingInstance},
	} {
		errs = append(errs, validation.ValidateImmutableField(f.is, f.was, field.NewPath(f.name))...)
	}
	return errs
}

func checkSeries(e *corev1.Event) field.ErrorList {
	if e.Series == nil {
		return nil
	}
	var errs field.ErrorList
	if e.Series.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if e.Series.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}
