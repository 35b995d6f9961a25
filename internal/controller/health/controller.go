package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// LeaseNamespace is where nodes keep their Leases, as in Kubernetes.
	LeaseNamespace = "kube-node-lease"
	// ReasonLeaseExpired is the reason of the conditions set here.
	ReasonLeaseExpired = "LeaseExpired"

	nodeKind      = "Node"
	dataplaneKind = "Dataplane"

	tick       = time.Second
	watchRetry = time.Second
)

// Config of a Controller.
type Config struct {
	Client resource.Client
	// Descriptors of the kinds it looks at.
	Nodes, Leases, Dataplanes *resource.Descriptor
	// Monitor has machines probed before a wave of expiries is marked; nil: there are no
	// witnesses.
	Monitor *Monitor
	// Keep names those of some Dataplanes that are the last endpoints of a Service, with
	// that Service: a wave does not mark them. Nil: none is.
	Keep func([]resource.Key) map[resource.Key]string
	// Logger; nil: silence.
	Logger *slog.Logger
}

// Controller keeps the Ready conditions of the dead. One instance per control
// plane is to run.
type Controller struct {
	client  resource.Client
	kinds   []*resource.Descriptor
	log     *slog.Logger
	monitor *Monitor
	keep    func([]resource.Key) map[resource.Key]string
	state   atomic.Pointer[State]
	marked  atomic.Uint64 // expiries that were marked

	tracker Tracker
	nodes   map[string]*corev1.Node
	leases  map[string]*coordinationv1.Lease
	// synced counts the kinds whose watch is up and complete.
	synced map[*resource.Descriptor]bool
}

// State for the status command.
type State struct {
	Leases, Late int
	// Held have run out and are not marked yet.
	Held []Held
	// Reason sums up why, or why nothing is known; empty: there is nothing to say.
	Reason string
}

// New makes a controller; Run starts it.
func New(c Config) *Controller {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Keep == nil {
		c.Keep = func([]resource.Key) map[resource.Key]string { return nil }
	}
	h := &Controller{
		client: c.Client, kinds: []*resource.Descriptor{c.Nodes, c.Leases, c.Dataplanes}, log: c.Logger,
		monitor: c.Monitor, keep: c.Keep,
		nodes: map[string]*corev1.Node{}, leases: map[string]*coordinationv1.Lease{},
		synced: map[*resource.Descriptor]bool{},
	}
	h.state.Store(&State{Reason: "not started"})
	return h
}

// State as of the last look. Safe for concurrent use.
func (h *Controller) State() State { return *h.state.Load() }

// Run works until ctx ends, and returns nil then. It must be called once.
func (h *Controller) Run(ctx context.Context) error {
	events := make(chan reflector.Event)
	var watching sync.WaitGroup
	watching.Go(func() {
		reflector.RunAll(ctx, reflector.Config{
			Client:       h.client,
			AlwaysRelist: true, // a lease that was renewed during a cut must not look expired
			Backoff:      backoff.Policy{First: watchRetry, Last: watchRetry},
			Logger:       h.log,
			Level:        slog.LevelWarn,
		}, h.kinds, events)
	})
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			watching.Wait()
			return nil
		case e := <-events:
			h.observe(e)
		case <-ticker.C:
			if h.seesAll() {
				h.look(ctx)
			}
		}
	}
}

func (h *Controller) seesAll() bool {
	for _, d := range h.kinds {
		if !h.synced[d] {
			return false
		}
	}
	return true
}

func (h *Controller) observe(e reflector.Event) {
	now := time.Now().Round(0) // by the wall: it goes on while the machine sleeps
	h.synced[e.Kind] = e.Type != reflector.Disconnected
	switch e.Type {
	case reflector.Delete:
		h.drop(e.Object())
		return
	case reflector.Replace:
		h.dropGone(e)
	}
	for _, obj := range e.Objects {
		switch o := obj.(type) {
		case *corev1.Node:
			h.nodes[o.Name] = o
			if h.monitor != nil {
				h.monitor.setNode(o.Name, locality.ZoneOf(o.Labels))
			}
			h.observeNode(o.Name, now)
		case *coordinationv1.Lease:
			if o.Namespace == LeaseNamespace {
				h.leases[o.Name] = o
				h.observeNode(o.Name, now)
			}
		case *meshv1alpha1.Dataplane:
			h.observeDataplane(o, now)
		}
	}
}

// dropGone forgets what a new list does not hold any more.
func (h *Controller) dropGone(e reflector.Event) {
	there := e.Keys()
	switch e.Kind {
	case h.kinds[0]:
		for name, o := range h.nodes {
			if !there[resource.Key{Name: name}] {
				h.drop(o)
			}
		}
	case h.kinds[1]:
		for name, o := range h.leases {
			if !there[resource.Key{Namespace: LeaseNamespace, Name: name}] {
				h.drop(o)
			}
		}
	case h.kinds[2]:
		for key := range h.tracker.leases {
			if key.Kind == dataplaneKind && !there[key.Key] {
				h.tracker.Forget(key)
			}
		}
	}
}

func (h *Controller) drop(obj resource.Object) {
	switch o := obj.(type) {
	case *corev1.Node:
		delete(h.nodes, o.Name)
		if h.monitor != nil {
			h.monitor.forgetNode(o.Name)
		}
		h.tracker.Forget(nodeKey(o.Name))
	case *coordinationv1.Lease:
		if o.Namespace == LeaseNamespace {
			delete(h.leases, o.Name)
			h.tracker.Forget(nodeKey(o.Name))
		}
	case *meshv1alpha1.Dataplane:
		h.tracker.Forget(Key{Kind: dataplaneKind, Key: resource.KeyOf(o)})
	}
}

func nodeKey(name string) Key { return Key{Kind: nodeKind, Key: resource.Key{Name: name}} }

// observeNode: a Node without a Lease is not ours to judge, nor a Lease without
// a Node.
func (h *Controller) observeNode(name string, now time.Time) {
	node, lease := h.nodes[name], h.leases[name]
	if node == nil || lease == nil || lease.Spec.RenewTime == nil {
		h.tracker.Forget(nodeKey(name))
		return
	}
	l := Lease{Renewed: lease.Spec.RenewTime.Time, Machine: name, Down: nodeIsMarked(node)}
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		l.Duration = time.Duration(*s) * time.Second
	}
	if h.tracker.Observe(nodeKey(name), l, now) && h.monitor != nil {
		h.monitor.renewed(name)
	}
}

func (h *Controller) observeDataplane(dp *meshv1alpha1.Dataplane, now time.Time) {
	key := Key{Kind: dataplaneKind, Key: resource.KeyOf(dp)}
	lease := dp.Status.Lease
	if lease == nil || dp.DeletionTimestamp != nil {
		h.tracker.Forget(key) // without a lease it lives until it is deleted
		return
	}
	h.tracker.Observe(key, Lease{
		Renewed: lease.RenewTime.Time, Machine: dp.Spec.NodeName, Down: dataplaneIsMarked(dp),
		Duration: time.Duration(lease.DurationSeconds) * time.Second,
	}, now)
}

func nodeIsMarked(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status != corev1.ConditionTrue && c.Reason == ReasonLeaseExpired
		}
	}
	return false
}

func dataplaneIsMarked(dp *meshv1alpha1.Dataplane) bool {
	c := meta.FindStatusCondition(dp.Status.Conditions, meshv1alpha1.DataplaneReady)
	return c != nil && c.Status != metav1.ConditionTrue && c.Reason == ReasonLeaseExpired
}

// Zone implements Witnesses, for Run alone.
func (h *Controller) Zone(machine string) locality.Zone {
	if n := h.nodes[machine]; n != nil {
		return locality.ZoneOf(n.Labels)
	}
	return ""
}

// Evidence implements Witnesses.
func (h *Controller) Evidence(machine string) (Evidence, bool) {
	if h.monitor == nil {
		return Evidence{}, false
	}
	return h.monitor.evidence(machine)
}

// look decides and marks. What could not be marked is found again at the next
// look.
func (h *Controller) look(ctx context.Context) {
	v := h.tracker.Advance(time.Now().Round(0), h)
	if v.Restarted {
		h.log.Info("was away: all lease clocks start again")
	}
	if h.monitor != nil {
		h.monitor.confirm(v.Probe)
	}
	h.keepLast(&v)
	h.note(v)
	for _, death := range v.Dead {
		marked, err := h.mark(ctx, death.Key)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			h.log.Warn("cannot mark as not ready; will try again", "object", death.Key, "error", err)
		case marked:
			h.marked.Add(1)
			h.log.Info("marked as not ready: lease ran out", "object", death.Key, "zone", death.Zone, "confirmed_by", death.By)
		}
	}
}

// keepLast holds what a wave would take from a Service that has nothing else.
func (h *Controller) keepLast(v *Verdict) {
	var dead []resource.Key
	wave := false
	for _, d := range v.Dead {
		if d.Kind == dataplaneKind {
			dead, wave = append(dead, d.Key.Key), wave || d.Wave
		}
	}
	if !wave {
		return
	}
	kept := h.keep(dead)
	v.Dead = slices.DeleteFunc(v.Dead, func(d Death) bool {
		service, last := kept[d.Key.Key]
		if !last || !d.Wave || d.Kind != dataplaneKind {
			return false
		}
		v.Held = append(v.Held, Held{Key: d.Key, Zone: d.Zone, Reason: "service " + service + " has no other endpoint"})
		return true
	})
}

// note publishes the state, and logs what is held.
func (h *Controller) note(v Verdict) {
	before := h.State()
	now := State{Leases: v.Leases, Late: v.Late, Held: v.Held}
	if len(v.Held) > 0 {
		first := v.Held[0]
		now.Reason = fmt.Sprintf("%d of %d leases ran out together; %d are not marked not ready yet; the first, %s: %s",
			v.Late, v.Leases, len(v.Held), first.Key, first.Reason)
	}
	h.state.Store(&now)
	if now.Reason != before.Reason && now.Reason != "" {
		h.log.Warn("leases ran out together", "leases", v.Leases, "late", v.Late, "held", len(v.Held), "first", v.Held[0].Key, "reason",
			v.Held[0].Reason)
	} else if now.Reason == "" && len(before.Held) > 0 {
		h.log.Info("no expiry is held any more")
	}
}

// mark reads what is newest and marks it, unless it turns out to live.
func (h *Controller) mark(ctx context.Context, key Key) (marked bool, err error) {
	renewed, ok := h.tracker.Renewed(key)
	if !ok {
		return false, nil
	}
	if key.Kind == nodeKind {
		marked, err = h.markNode(ctx, key, renewed)
	} else {
		marked, err = h.markDataplane(ctx, key, renewed)
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || errors.Is(err, errAlive) {
		return false, nil // the watch will deliver it
	}
	if err != nil {
		return false, fmt.Errorf("mark %s: %w", key, err)
	}
	return marked, nil
}

// errAlive: the lease was renewed meanwhile.
var errAlive = errors.New("renewed meanwhile")

const messageExpired = "its lease was not renewed in time; it is ready again as soon as it says so"

func (h *Controller) markNode(ctx context.Context, key Key, renewed time.Time) (bool, error) {
	obj, err := h.client.Get(ctx, h.kinds[1], resource.Key{Namespace: LeaseNamespace, Name: key.Name})
	if err != nil {
		return false, err
	}
	if r := obj.(*coordinationv1.Lease).Spec.RenewTime; r == nil || !r.Time.Equal(renewed) {
		return false, errAlive
	}
	if obj, err = h.client.Get(ctx, h.kinds[0], key.Key); err != nil {
		return false, err
	}
	node := obj.(*corev1.Node)
	if nodeIsMarked(node) {
		return false, nil
	}
	now := metav1.Now()
	condition := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: ReasonLeaseExpired,
		Message: messageExpired, LastTransitionTime: now, LastHeartbeatTime: metav1.NewTime(renewed)}
	found := false
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			if c.Status == condition.Status {
				condition.LastTransitionTime = c.LastTransitionTime
			}
			*c, found = condition, true
		}
	}
	if !found {
		node.Status.Conditions = append(node.Status.Conditions, condition)
	}
	_, err = h.client.UpdateStatus(ctx, kind.Node, node)
	return err == nil, err
}

func (h *Controller) markDataplane(ctx context.Context, key Key, renewed time.Time) (bool, error) {
	obj, err := h.client.Get(ctx, h.kinds[2], key.Key)
	if err != nil {
		return false, err
	}
	dp := obj.(*meshv1alpha1.Dataplane)
	if dp.Status.Lease == nil || !dp.Status.Lease.RenewTime.Time.Equal(renewed) {
		return false, errAlive
	}
	if dataplaneIsMarked(dp) {
		return false, nil
	}
	meta.SetStatusCondition(&dp.Status.Conditions, metav1.Condition{Type: meshv1alpha1.DataplaneReady,
		Status: metav1.ConditionFalse, Reason: ReasonLeaseExpired, Message: messageExpired, ObservedGeneration: dp.Generation})
	_, err = h.client.UpdateStatus(ctx, kind.Dataplane, dp)
	return err == nil, err
}
