// Package membership keeps a machine's Node and its Lease in the catalogue.
//
// It owns those two objects of one machine: what the machine is (labels,
// capacity), that it is ready, and the sign of life that the control plane
// judges it by. Enter at Member.Run. It never touches traffic: a node whose
// control plane is away goes on serving.
package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/controller/nodename"
	"github.com/proxima-mesh/proxima/internal/locality"
	objects "github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/version"
)

// LeaseDuration by default, and how many times it is renewed meanwhile: the kubelet renews
// every 10 s a Lease of 40 s.
const (
	LeaseDuration = 40 * time.Second
	renewals      = 4
)

// roleControlPlane keeps a node out of the zones' ratios (KEP-2433).
const roleControlPlane = "node-role.kubernetes.io/control-plane"

// Config of a Member.
type Config struct {
	Client objects.Client
	// Name of the Node.
	Name string
	// MachineID distinguishes this machine from others that use the same name.
	MachineID string
	// Zone and Region for the Node's labels; empty: labels that others set are
	// kept.
	Zone   locality.Zone
	Region locality.Region
	// ControlPlane labels the Node as one.
	ControlPlane bool
	// Mode that carries traffic, for the Node's label; empty: none does.
	Mode string
	// Lease is how long the Node is taken to live after a renewal, in whole seconds; 0:
	// LeaseDuration. It is renewed four times as often.
	Lease time.Duration
	// Addresses of the machine, for the Node's status, at most one per family. Nil:
	// those that others set are kept.
	Addresses func() []netip.Addr
	// OnNode hears of the Node's own zone label and of its taints, first with
	// what is known from Zone. It must not block.
	OnNode func(*corev1.Node)
	Logger *slog.Logger
	Clock  clock.WithTicker
}

// Member keeps one Node. Make it with New.
type Member struct {
	cfg Config
	// holder in the Lease, NODE/MACHINE.
	holder string
	status atomic.Pointer[Status]
	// refused are addresses that the server does not take, of which the log says so.
	refused []corev1.NodeAddress
}

// Status is how a Member keeps its Node and Lease.
type Status struct {
	// MachineID of this machine.
	MachineID string `json:"machineID,omitempty"`
	// Renewed is when the Lease was last renewed; zero: never.
	Renewed time.Time `json:"renewed,omitzero"`
	// Problem is why Node or Lease could not be written last; empty: they were.
	Problem string `json:"problem,omitempty"`
	// Conflict: a second machine tries to use the name of this node.
	Conflict string `json:"conflict,omitempty"`
}

// New makes a member; Run starts it.
func New(cfg Config) *Member {
	if cfg.Lease == 0 {
		cfg.Lease = LeaseDuration
	}
	m := &Member{cfg: cfg, holder: cfg.Name + "/" + cfg.MachineID}
	m.status.Store(&Status{MachineID: cfg.MachineID})
	return m
}

// Status now. Safe for concurrent use.
func (m *Member) Status() Status { return *m.status.Load() }

// renewEvery is the interval between two renewals.
func (m *Member) renewEvery() time.Duration { return m.cfg.Lease / renewals }

// Run keeps the Node and its Lease until ctx ends, and returns nil then. What
// can't be written is tried again, with growing pauses; it gives up only where
// this machine may not be the node that it is to be. The Node stays when Run ends,
// and so does its Lease until it has run out, but another machine may take the
// name at once.
func (m *Member) Run(ctx context.Context) error {
	err := m.keep(ctx)
	m.release(context.WithoutCancel(ctx))
	return err
}

func (m *Member) keep(ctx context.Context) error {
	// Up to a tenth less, so that many nodes do not beat at once.
	renew := backoff.Policy{First: m.renewEvery(), Last: m.renewEvery(), Jitter: 0.1}
	retry := backoff.Backoff{Policy: backoff.Policy{First: 200 * time.Millisecond, Last: m.renewEvery(), Jitter: 0.1}}
	healthy := true
	for {
		err := m.beat(ctx)
		if ctx.Err() != nil {
			return nil
		}
		m.note(err)
		var refused *RefusedError
		if errors.As(err, &refused) {
			return err
		}
		pause := renew.After(1)
		if err == nil {
			if !healthy {
				m.cfg.Logger.Info("node is up to date again", "node", m.cfg.Name)
			}
			healthy = true
			retry.Reset()
		} else {
			if healthy {
				m.cfg.Logger.Warn("node not up to date in the catalogue; it is tried again", "node", m.cfg.Name, "error", err)
			}
			healthy, pause = false, retry.Next()
		}
		if !backoff.SleepBy(ctx, m.cfg.Clock, pause) {
			return nil
		}
	}
}

// note keeps what Status shows.
func (m *Member) note(err error) {
	s := m.Status()
	s.Problem = ""
	if err != nil {
		s.Problem = err.Error()
	}
	m.status.Store(&s)
}

// RefusedError: the control plane does not let this machine be the node. It is no
// use to try again.
type RefusedError struct {
	Node string
	Err  error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("this machine may not be node %s: %v", e.Node, e.Err)
}
func (e *RefusedError) Unwrap() error { return e.Err }

// beat brings Node and Lease up to date. The Lease comes first where there is one:
// a machine that does not hold it must not touch the Node.
func (m *Member) beat(ctx context.Context) error {
	held, err := m.renewLease(ctx)
	if err != nil {
		return fmt.Errorf("lease of node %s: %w", m.cfg.Name, err)
	}
	node, err := m.keepNode(ctx)
	if apierrors.IsForbidden(err) {
		return &RefusedError{Node: m.cfg.Name, Err: err}
	}
	if err != nil {
		return fmt.Errorf("node %s: %w", m.cfg.Name, err)
	}
	if !held {
		if err := m.createLease(ctx, node); err != nil {
			return fmt.Errorf("lease of node %s: %w", m.cfg.Name, err)
		}
	}
	s := m.Status()
	s.Renewed, s.Conflict = m.cfg.Clock.Now(), nodename.Of(node)
	if s.Conflict != "" && m.Status().Conflict == "" {
		m.cfg.Logger.Warn("a second machine tries to use the name of this node", "node", m.cfg.Name, "conflict", s.Conflict)
	}
	m.status.Store(&s)
	if m.cfg.OnNode != nil {
		m.cfg.OnNode(node)
	}
	return nil
}

// keepNode creates the Node, or mends what is not as it should be.
func (m *Member) keepNode(ctx context.Context) (*corev1.Node, error) {
	obj, err := m.cfg.Client.Get(ctx, kind.Node, objects.Key{Name: m.cfg.Name})
	switch {
	case apierrors.IsNotFound(err):
		obj, err = m.cfg.Client.Create(ctx, kind.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.cfg.Name, Labels: m.labels()}})
		if err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	node := obj.(*corev1.Node)
	want := node.DeepCopy()
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	maps.Copy(want.Labels, m.labels())
	if !maps.Equal(want.Labels, node.Labels) {
		if obj, err = m.cfg.Client.Update(ctx, kind.Node, want); err != nil {
			return nil, err
		}
		node = obj.(*corev1.Node)
	}
	want = node.DeepCopy()
	m.fillStatus(&want.Status)
	return m.writeStatus(ctx, want, node)
}

func (m *Member) labels() map[string]string {
	labels := map[string]string{
		corev1.LabelHostname: m.cfg.Name, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
	}
	if m.cfg.Zone != "" {
		labels[corev1.LabelTopologyZone] = string(m.cfg.Zone)
	}
	if m.cfg.Region != "" {
		labels[corev1.LabelTopologyRegion] = string(m.cfg.Region)
	}
	if m.cfg.ControlPlane {
		labels[roleControlPlane] = ""
	}
	if m.cfg.Mode != "" {
		labels[meshv1alpha1.LabelProxyMode] = m.cfg.Mode
	}
	return labels
}

// fillStatus writes what the agent knows: the processors, itself, and that the
// node is ready. The time of a heartbeat is in the Lease, so an unchanged status
// is no write.
func (m *Member) fillStatus(s *corev1.NodeStatus) {
	cpus := resource.MustParse(strconv.Itoa(runtime.NumCPU()))
	if s.Capacity == nil {
		s.Capacity = corev1.ResourceList{}
	}
	if s.Allocatable == nil {
		s.Allocatable = corev1.ResourceList{}
	}
	s.Capacity[corev1.ResourceCPU], s.Allocatable[corev1.ResourceCPU] = cpus, cpus
	s.NodeInfo.KubeletVersion = version.Kubernetes + "+proxima-" + version.Get().Version
	s.NodeInfo.MachineID = m.cfg.MachineID
	s.NodeInfo.OperatingSystem, s.NodeInfo.Architecture = runtime.GOOS, runtime.GOARCH
	s.Addresses = m.addresses(s.Addresses)
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == corev1.NodeReady {
			if c.Status == corev1.ConditionTrue {
				return
			}
			*c = m.ready()
			return
		}
	}
	s.Conditions = append(s.Conditions, m.ready())
}

func (m *Member) ready() corev1.NodeCondition {
	now := metav1.NewTime(m.cfg.Clock.Now())
	return corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "AgentReady", Message: "the agent of this node runs",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
}

// leaseKey names the Lease.
func (m *Member) leaseKey() objects.Key {
	return objects.Key{Namespace: corev1.NamespaceNodeLease, Name: m.cfg.Name}
}

// renewLease says that the node lives, if there is a Lease; held is false if there
// is none. The control plane refuses it while another machine holds the Lease.
func (m *Member) renewLease(ctx context.Context) (held bool, err error) {
	obj, err := m.cfg.Client.Get(ctx, kind.Lease, m.leaseKey())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	lease := obj.(*coordinationv1.Lease).DeepCopy()
	m.fillLease(&lease.Spec)
	_, err = m.cfg.Client.Update(ctx, kind.Lease, lease)
	return err == nil, err
}

func (m *Member) createLease(ctx context.Context, node *corev1.Node) error {
	key := m.leaseKey()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
	}}
	m.fillLease(&lease.Spec)
	_, err := m.cfg.Client.Create(ctx, kind.Lease, lease)
	return err
}

func (m *Member) fillLease(s *coordinationv1.LeaseSpec) {
	now := metav1.NewMicroTime(m.cfg.Clock.Now())
	seconds := int32(m.cfg.Lease / time.Second)
	s.HolderIdentity, s.LeaseDurationSeconds, s.RenewTime = &m.holder, &seconds, &now
}

// releaseTimeout bounds how long the end of an agent may wait for its Lease.
const releaseTimeout = time.Second

// release lets another machine take the name at once. The time of the last renewal
// stays, so that the node is as alive as before until the Lease runs out.
func (m *Member) release(ctx context.Context) {
	if m.Status().Renewed.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	obj, err := m.cfg.Client.Get(ctx, kind.Lease, m.leaseKey())
	if err == nil {
		lease := obj.(*coordinationv1.Lease).DeepCopy()
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != m.holder {
			return
		}
		lease.Spec.HolderIdentity = new(string)
		_, err = m.cfg.Client.Update(ctx, kind.Lease, lease)
	}
	if err != nil {
		m.cfg.Logger.Info("lease not released; another machine has to wait until it runs out", "node", m.cfg.Name, "error", err)
	}
}
