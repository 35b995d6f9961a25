package backend

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// Trigger remembers what was known of a Service's workloads at its last
// successful sync, so that the time of what changed since can be told
// (annotation endpoints.kubernetes.io/last-change-trigger-time). The zero value
// knows nothing; a Trigger is never changed.
type Trigger struct {
	service types.UID
	since   map[types.UID]time.Time // when each workload's readiness changed
}

// Next is the earliest change since the last sync, zero if none is known, and
// the Trigger to remember if this sync succeeds. A Service that is new to us
// dates from its creation.
func (t Trigger) Next(service *corev1.Service, pods []*corev1.Pod, dataplanes []*meshv1alpha1.Dataplane) (time.Time, Trigger) {
	known := t.service == service.UID && t.since != nil
	seen := Trigger{service: service.UID, since: make(map[types.UID]time.Time)}
	var earliest time.Time
	note := func(uid types.UID, since time.Time) {
		seen.since[uid] = since
		if since.After(t.since[uid]) && (earliest.IsZero() || since.Before(earliest)) {
			earliest = since
		}
	}
	for _, pod := range pods {
		_, since := podReady(pod)
		note(pod.UID, since)
	}
	for _, dataplane := range dataplanes {
		_, since := dataplaneReady(dataplane)
		note(dataplane.UID, since)
	}
	if !known {
		return service.CreationTimestamp.Time, seen
	}
	return earliest, seen
}
