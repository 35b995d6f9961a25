package app

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/event"
	"github.com/proxima-mesh/proxima/internal/kubernetes/inject"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Reasons of Events of Pods, and who reports them.
const (
	reasonNoSidecar     = "SidecarMissing"
	reasonNotRedirected = "SidecarNotRedirected"
	podEventsComponent  = "proxima-sidecars"
)

// podEvents tells in Events what is wrong with the sidecars of Pods.
type podEvents struct {
	client resource.Client
	tables *catalog.Catalog
	// certified reports whether a mesh has certificates here.
	certified func(mesh string) bool
	log       *slog.Logger
}

// warn in an Event of a Pod. Its name is that of what it says, so that whoever says the same again, as
// another leader does, writes nothing while there is one. Nothing depends on an Event: an error is logged,
// and returned for those that try again.
func (e *podEvents) warn(ctx context.Context, pod *corev1.Pod, reason, message string) error {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, pod.UID, "/", reason, "/", message)
	suffix := fmt.Sprintf(".%016x", h.Sum64())
	w := event.Warning(event.About(corev1.SchemeGroupVersion.WithKind("Pod"), pod), podEventsComponent, time.Now(), reason, message)
	w.GenerateName = ""
	w.Name = pod.Name[:min(len(pod.Name), validation.DNS1123SubdomainMaxLength-len(suffix))] + suffix
	_, err := e.client.Create(ctx, kind.Event, w)
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	if ctx.Err() == nil {
		e.log.Warn("an Event of a pod was not written", "pod", resource.KeyOf(pod).String(), "reason", reason, "message", message, "error", err)
	}
	return err
}

const (
	// eventPace is the least time between two Events: a namespace of thousands of Pods may get the label.
	eventPace = 200 * time.Millisecond
	// eventRetry is the pause after an Event could not be written.
	eventRetry = 10 * time.Second
)

// follow tells each Pod that should have a sidecar and has none, once, until ctx ends.
func (e *podEvents) follow(ctx context.Context) error {
	sub := e.tables.Subscribe(catalog.Pods, catalog.Namespaces)
	defer sub.Close()
	due, told := map[resource.Key]bool{}, map[resource.Key]types.UID{}
	for {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if len(due) > 0 {
			wait, cancel = context.WithTimeout(ctx, eventRetry)
		}
		delta, err := sub.Next(wait)
		retry := wait.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !retry:
			return err
		}
		for _, c := range delta.Pods {
			due[c.Key] = true
			if c.New == nil {
				delete(told, c.Key)
			}
		}
		for _, c := range delta.Namespaces { // rare
			for key := range e.tables.Snapshot().Pods.Namespace(c.Key.Name) {
				due[key] = true
			}
		}
		if !e.tell(ctx, due, told) {
			return nil
		}
	}
}

// tell those that are due, and leave in due what is to be tried again; false: ctx has ended.
func (e *podEvents) tell(ctx context.Context, due map[resource.Key]bool, told map[resource.Key]types.UID) bool {
	for key := range due {
		tables := e.tables.Snapshot()
		pod, ok := tables.Pods.Get(key)
		namespace, _ := tables.Namespaces.Get(resource.Key{Name: key.Namespace})
		if !ok || told[key] == pod.UID || !inject.Missing(pod, namespace) {
			delete(due, key)
			continue
		}
		if e.warn(ctx, pod, reasonNoSidecar, e.missing(pod, namespace)) == nil {
			told[key] = pod.UID
			delete(due, key)
		}
		if !backoff.Sleep(ctx, eventPace) {
			return false
		}
	}
	return true
}

// missing is why a Pod has no sidecar, and what to do.
func (e *podEvents) missing(pod *corev1.Pod, namespace *corev1.Namespace) string {
	if mesh := kind.PodMesh(pod, namespace); !e.certified(mesh) {
		return fmt.Sprintf("it has no sidecar, although it should: mesh %s has no certificates: set spec.mtls of the Mesh, and then %s", mesh, again(pod))
	}
	return "it has no sidecar, although it should: it was created before that was asked for, while no replica of the control plane answered, " +
		"or with something that the warning at its creation named: " + again(pod)
}

// again is how a Pod is created again. Which controller made it is told by the labels that controllers
// give their Pods, and by its name.
func again(pod *corev1.Pod) string {
	restart := func(of, name string) string {
		return fmt.Sprintf("kubectl --namespace %s rollout restart %s/%s", pod.Namespace, of, name)
	}
	if hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; hash != "" {
		if i := strings.LastIndex(pod.Name, "-"+hash+"-"); i > 0 {
			return restart("deployment", pod.Name[:i])
		}
	}
	last := strings.LastIndexByte(pod.Name, '-')
	switch {
	case last <= 0:
	case pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name:
		return restart("statefulset", pod.Name[:last])
	case pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != "":
		return restart("daemonset", pod.Name[:last])
	}
	return fmt.Sprintf("delete it, and create it again: kubectl --namespace %s delete pod %s", pod.Namespace, pod.Name)
}
