package garbage

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// As in Kubernetes: pkg/controller/podgc (quarantineTime), and the flag
// --terminated-pod-gc-threshold of kube-controller-manager.
const (
	DefaultQuarantine          = 40 * time.Second
	DefaultTerminatedThreshold = 12500
)

// podRetry is the wait after a deletion that failed.
const podRetry = 5 * time.Second

// PodsConfig of a Pods. Client, PodKind and NodeKind are required.
type PodsConfig struct {
	Client            resource.Client
	PodKind, NodeKind *resource.Descriptor
	// Quarantine is how long a Node must be missing before its pods go; 0: 40 s.
	Quarantine time.Duration
	// TerminatedThreshold is how many pods that have ended are kept; 0: 12500,
	// negative: all.
	TerminatedThreshold int
	Logger              *slog.Logger
}

// Pods collects pods of nodes that are gone, and pods that ended long ago.
type Pods struct {
	PodsConfig
	// changed holds a token while there is something to look at.
	changed chan struct{}

	mu    sync.Mutex
	pods  map[types.UID]*pod
	nodes map[string]bool
	// missing since when, of nodes that pods name.
	missing map[string]time.Time
	// podsListed and nodesListed: what exists is known.
	podsListed, nodesListed bool
}

type pod struct {
	uid     types.UID
	key     resource.Key
	node    string
	ended   bool
	created time.Time
}

// NewPods makes a collector; Run starts it.
func NewPods(cfg PodsConfig) *Pods {
	p := &Pods{
		PodsConfig: cfg, changed: make(chan struct{}, 1),
		pods: map[types.UID]*pod{}, nodes: map[string]bool{}, missing: map[string]time.Time{},
	}
	if p.Quarantine == 0 {
		p.Quarantine = DefaultQuarantine
	}
	if p.TerminatedThreshold == 0 {
		p.TerminatedThreshold = DefaultTerminatedThreshold
	}
	if p.Logger == nil {
		p.Logger = slog.New(slog.DiscardHandler)
	}
	return p
}

// Run works until ctx ends. It blocks, returns nil and may be called once.
func (p *Pods) Run(ctx context.Context) error {
	var reflectors sync.WaitGroup
	defer reflectors.Wait()
	for _, kind := range []*resource.Descriptor{p.PodKind, p.NodeKind} {
		reflectors.Go(func() { reflect(ctx, p.Client, kind, p, p.Logger) })
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
		case <-timer.C:
		}
		timer.Reset(p.sweep(ctx))
	}
}

func (p *Pods) replace(kind *resource.Descriptor, all []resource.Object) {
	p.mu.Lock()
	if kind == p.NodeKind {
		clear(p.nodes)
		p.nodesListed = true
	} else {
		clear(p.pods)
		p.podsListed = true
	}
	p.mu.Unlock()
	for _, obj := range all {
		p.set(kind, obj)
	}
	p.wake()
}

func (p *Pods) set(kind *resource.Descriptor, obj resource.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch o := obj.(type) {
	case *corev1.Node:
		p.nodes[o.Name] = true
	case *corev1.Pod:
		p.pods[o.UID] = &pod{
			uid: o.UID, key: resource.KeyOf(o), node: o.Spec.NodeName, created: o.CreationTimestamp.Time,
			ended: o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed,
		}
	}
	p.wake()
}

func (p *Pods) remove(_ *resource.Descriptor, obj resource.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch o := obj.(type) {
	case *corev1.Node:
		delete(p.nodes, o.Name)
	case *corev1.Pod:
		delete(p.pods, o.UID)
	}
	p.wake()
}

// disconnected: a Node that was not listed may exist.
func (p *Pods) disconnected(kind *resource.Descriptor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if kind == p.NodeKind {
		p.nodesListed = false
		clear(p.missing)
	} else {
		p.podsListed = false
	}
}

func (p *Pods) wake() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// sweep deletes what is due and returns when to come again.
func (p *Pods) sweep(ctx context.Context) time.Duration {
	due, next := p.due(time.Now())
	for _, d := range due {
		if err := p.delete(ctx, d); err != nil && ctx.Err() == nil {
			p.Logger.Warn("could not delete a pod of a node that is gone, will try again", "pod", d.key.String(), "error", err)
			next = min(next, podRetry)
		}
	}
	return next
}

// reason why a pod goes.
type reason struct {
	*pod
	// lost: its node is gone; else it has ended, and there are too many of those.
	lost bool
}

// due are the pods that may go now, and how long nothing else will be due.
func (p *Pods) due(now time.Time) (due []reason, next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next = time.Hour
	if !p.podsListed || !p.nodesListed {
		return nil, next // what is listed next wakes us
	}
	wanted := map[string]bool{}
	var ended []*pod
	for _, d := range p.pods {
		if d.ended {
			ended = append(ended, d)
		}
		if d.node == "" || p.nodes[d.node] {
			continue
		}
		wanted[d.node] = true
		since, known := p.missing[d.node]
		if !known {
			since = now
			p.missing[d.node] = now
		}
		if left := since.Add(p.Quarantine).Sub(now); left > 0 {
			next = min(next, left)
		} else {
			due = append(due, reason{d, true})
		}
	}
	for node := range p.missing {
		if !wanted[node] {
			delete(p.missing, node)
		}
	}
	if excess := len(ended) - p.TerminatedThreshold; p.TerminatedThreshold >= 0 && excess > 0 {
		slices.SortFunc(ended, func(a, b *pod) int {
			return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.key.String(), b.key.String()))
		})
		for _, d := range ended[:excess] {
			due = append(due, reason{d, false})
		}
	}
	return due, next
}

// delete a pod at once: there is no agent to end it. One that did not end
// by itself has failed, and says why.
func (p *Pods) delete(ctx context.Context, d reason) error {
	if d.lost {
		_, err := p.Client.Get(ctx, p.NodeKind, resource.Key{Name: d.node})
		if err == nil {
			return nil // it is back, the watch will deliver it
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("read node %s: %w", d.node, err)
		}
		if err := p.fail(ctx, d); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("mark it failed: %w", err)
		}
	}
	err := p.Client.Delete(ctx, p.PodKind, d.key, resource.Preconditions{UID: d.uid, Now: true})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	p.Logger.Info("pod collected", "pod", d.key.String(), "node", d.node, "nodeGone", d.lost)
	return nil
}

func (p *Pods) fail(ctx context.Context, d reason) error {
	obj, err := p.Client.Get(ctx, p.PodKind, d.key)
	if err != nil || obj.GetUID() != d.uid || d.ended {
		return err
	}
	pod := obj.(*corev1.Pod)
	pod.Status.Phase = corev1.PodFailed
	pod.Status.Conditions = append(slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget
	}), corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC",
		Message: "PodGC: node no longer exists", LastTransitionTime: metav1.Now(),
	})
	_, err = p.Client.UpdateStatus(ctx, kind.Pod, pod)
	return err
}
