// Package event makes the Events by which controllers report to users.
//
// Enter at Warning and Normal. It writes nothing: whether an event that could not be written
// matters is its caller's to know.
package event

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// About refers to an object in its present state.
func About(kind schema.GroupVersionKind, obj metav1.Object) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: obj.GetNamespace(), Name: obj.GetName(),
		UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(),
	}
}

// Warning about an object, by a component of Kubernetes' name for it. It is in the
// object's namespace; about one of the cluster, in "default".
func Warning(about corev1.ObjectReference, component string, at time.Time, reason, message string) *corev1.Event {
	return of(corev1.EventTypeWarning, about, component, at, reason, message)
}

// Normal is the same for what is as it should be.
func Normal(about corev1.ObjectReference, component string, at time.Time, reason, message string) *corev1.Event {
	return of(corev1.EventTypeNormal, about, component, at, reason, message)
}

func of(eventType string, about corev1.ObjectReference, component string, at time.Time, reason, message string) *corev1.Event {
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	now := metav1.NewTime(at)
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, GenerateName: about.Name + "-"},
		InvolvedObject: about,
		Type:           eventType, Reason: reason, Message: message,
		Source: corev1.EventSource{Component: component}, ReportingController: component,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
}
