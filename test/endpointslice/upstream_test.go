package endpointslice

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	upstream "k8s.io/endpointslice"
	upstreamutil "k8s.io/endpointslice/util"

	ours "github.com/proxima-mesh/proxima/internal/controller/endpointslice"
)

// world is the API, as far as both controllers need it.
type world struct {
	slices map[string]*discoveryv1.EndpointSlice
	writes int
	named  int
}

func (w *world) list() []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, name := range slices.Sorted(maps.Keys(w.slices)) {
		out = append(out, w.slices[name])
	}
	return out
}

// copied is the same state, without writes so far.
func (w *world) copied() *world {
	out := &world{slices: make(map[string]*discoveryv1.EndpointSlice, len(w.slices)), named: w.named}
	for name, s := range w.slices {
		out.slices[name] = s.DeepCopy()
	}
	return out
}

func (w *world) create(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	w.writes++
	w.named++
	made := s.DeepCopy()
	made.Name = fmt.Sprintf("%s%05d", s.GenerateName, w.named)
	made.UID = types.UID(made.Name)
	w.slices[made.Name] = made
	return made
}

func (w *world) update(s *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	w.writes++
	was := w.slices[s.Name]
	switch {
	case was == nil:
		return nil, fmt.Errorf("update of %s, which is not there", s.Name)
	case was.AddressType != s.AddressType:
		return nil, fmt.Errorf("update of %s changes its address type", s.Name)
	}
	made := s.DeepCopy()
	made.UID = was.UID
	w.slices[s.Name] = made
	return made, nil
}

func (w *world) delete(name string) error {
	w.writes++
	if w.slices[name] == nil {
		return fmt.Errorf("delete of %s, which is not there", name)
	}
	delete(w.slices, name)
	return nil
}

// situation is what the slices of a Service are to follow.
type situation struct {
	service *corev1.Service
	pods    []*corev1.Pod
	nodes   map[string]*corev1.Node
	max     int
	trigger time.Time
}

// runOurs carries out our plan, and returns whether pods were left out.
func (w *world) runOurs(s *situation) (skipped bool, err error) {
	plan := ours.Reconcile(ours.Input{
		Service: s.service, Pods: s.pods, Slices: w.list(), TriggerTime: s.trigger,
		Node:    func(name string) *corev1.Node { return s.nodes[name] },
		Options: ours.Options{MaxEndpoints: s.max},
	})
	for _, slice := range plan.Create {
		w.create(slice)
	}
	for _, slice := range plan.Update {
		if _, err := w.update(slice); err != nil {
			return false, err
		}
	}
	for _, slice := range plan.Delete {
		if err := w.delete(slice.Name); err != nil {
			return false, err
		}
	}
	return len(plan.Skipped) > 0, nil
}

// runTheirs has the library do its work.
func (w *world) runTheirs(s *situation) (skipped bool, err error) {
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, node := range s.nodes {
		if err := nodes.Add(node); err != nil {
			return false, err
		}
	}
	reconciler := upstream.NewReconciler(
		&clientset{world: w}, corelisters.NewNodeLister(nodes), int32(s.max),
		upstreamutil.NewEndpointSliceTracker(), nil, record.NewFakeRecorder(100),
		ours.ManagedBy, upstream.WithPreferSameTrafficDistributionEnabled(true),
	)
	// What it is given is a cache's; a copy keeps one side from seeing the
	// other's changes, should there be any.
	err = reconciler.Reconcile(logr.Discard(), s.service.DeepCopy(), s.pods, w.copied().list(), s.trigger)
	if err != nil && strings.Contains(err.Error(), "Not Found") {
		return true, nil
	}
	return false, err
}

// clientset is a kubernetes.Interface that has EndpointSlices alone.
type clientset struct {
	kubernetes.Interface
	world *world
}

func (c *clientset) DiscoveryV1() discoveryclient.DiscoveryV1Interface {
	return discovery{world: c.world}
}

type discovery struct {
	discoveryclient.DiscoveryV1Interface
	world *world
}

func (d discovery) EndpointSlices(string) discoveryclient.EndpointSliceInterface {
	return sliceClient{world: d.world}
}

type sliceClient struct {
	discoveryclient.EndpointSliceInterface
	world *world
}

func (c sliceClient) Create(_ context.Context, s *discoveryv1.EndpointSlice, _ metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	return c.world.create(s), nil
}

func (c sliceClient) Update(_ context.Context, s *discoveryv1.EndpointSlice, _ metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error) {
	return c.world.update(s)
}

func (c sliceClient) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	return c.world.delete(name)
}
