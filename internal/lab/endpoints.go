package lab

import (
	"context"
	"errors"
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// AwaitEndpoints follows the slices of a Service in the namespace default until
// they have so many ready endpoints in all; one of two families counts twice. It
// gives up after a while that suits a busy machine, or with ctx.
func AwaitEndpoints(ctx context.Context, client resource.Client, service string, want int) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	w, err := client.Watch(ctx, kind.EndpointSlice, resource.WatchOptions{ListOptions: resource.ListOptions{
		Namespace: metav1.NamespaceDefault, Labels: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}),
	}})
	if err != nil {
		return err
	}
	defer w.Stop()
	ready := map[string]int{} // by slice
	total := 0
	for event := range w.ResultChan() {
		slice, ok := event.Object.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		total -= ready[slice.Name]
		ready[slice.Name] = 0
		if event.Type != watch.Deleted {
			ready[slice.Name] = countReady(slice)
		}
		if total += ready[slice.Name]; total == want {
			return nil
		}
	}
	why := context.Cause(ctx)
	if why == nil {
		why = errors.New("the watch ended")
	}
	return fmt.Errorf("%d of %d endpoints of service %s are ready: %w", total, want, service, why)
}

func countReady(slice *discoveryv1.EndpointSlice) int {
	n := 0
	for _, e := range slice.Endpoints {
		if e.Conditions.Ready != nil && *e.Conditions.Ready {
			n++
		}
	}
	return n
}
