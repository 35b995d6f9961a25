// Package nodename shows on a Node that a second machine tries to use its name.
//
// It owns one condition of Nodes, Conflict. Who may use a name is decided where
// Leases are written; this package only reports it, so that it is seen on the
// machine that has the name. Enter at New. It never touches traffic or Leases.
package nodename

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

const (
	// Conflict is the condition of a Node whose name a second machine tries to use.
	Conflict corev1.NodeConditionType = "NodeNameConflict"
	// Quiet is how long after the last attempt the condition holds. A machine that is
	// refused tries again every 10 s.
	Quiet = time.Minute

	reasonAttempt = "SecondMachine"
	reasonQuiet   = "NoSecondMachine"
)

// Attempt of a machine to use a node name that another one has.
type Attempt struct {
	Node, Machine, Holder string
}

// Config of a Controller.
type Config struct {
	Client resource.Client
	// Attempts that were refused.
	Attempts <-chan Attempt
	Logger   *slog.Logger
	Clock    clock.WithTicker
}

// Controller keeps the condition. Make it with New.
type Controller struct {
	cfg Config
	// last attempt by node; the condition is True.
	last map[string]time.Time
}

// New makes a controller; Run starts it.
func New(cfg Config) *Controller { return &Controller{cfg: cfg, last: map[string]time.Time{}} }

// Run reports attempts until ctx ends, and returns nil then. A condition that was
// left by an earlier run is cleared as well.
func (c *Controller) Run(ctx context.Context) error {
	nodes, _, err := c.cfg.Client.List(ctx, kind.Node, resource.ListOptions{})
	if err != nil && ctx.Err() == nil {
		c.cfg.Logger.Warn("conditions of node names not read; those of an earlier run may stay", "error", err)
	}
	for _, obj := range nodes {
		if Of(obj.(*corev1.Node)) != "" {
			c.last[obj.GetName()] = c.cfg.Clock.Now()
		}
	}
	ticker := c.cfg.Clock.NewTicker(Quiet / 4)
	defer ticker.Stop()
	for {
		select {
		case a := <-c.cfg.Attempts:
			c.report(ctx, a)
		case <-ticker.C():
			c.clearQuiet(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *Controller) report(ctx context.Context, a Attempt) {
	_, known := c.last[a.Node]
	c.last[a.Node] = c.cfg.Clock.Now()
	if !known {
		c.cfg.Logger.Warn("a second machine tries to use a node name", "node", a.Node, "machine", a.Machine, "holder", a.Holder)
	}
	c.set(ctx, a.Node, corev1.ConditionTrue, reasonAttempt, fmt.Sprintf(
		"machine %s tries to use the name of this node, which machine %s has, and is refused: stop its agent, or give it another --node-name",
		a.Machine, a.Holder))
}

// clearQuiet clears conditions that no attempt was made for.
func (c *Controller) clearQuiet(ctx context.Context) {
	for node, last := range c.last {
		if c.cfg.Clock.Since(last) >= Quiet && c.set(ctx, node, corev1.ConditionFalse, reasonQuiet, "one machine uses the name of this node") {
			delete(c.last, node)
		}
	}
}

// set writes the condition; false: it is to be tried again.
func (c *Controller) set(ctx context.Context, name string, status corev1.ConditionStatus, reason, message string) bool {
	obj, err := c.cfg.Client.Get(ctx, kind.Node, resource.Key{Name: name})
	if apierrors.IsNotFound(err) {
		return true
	}
	if err == nil {
		node := obj.(*corev1.Node).DeepCopy()
		if !setCondition(node, status, reason, message, metav1.NewTime(c.cfg.Clock.Now())) {
			return true
		}
		_, err = c.cfg.Client.UpdateStatus(ctx, kind.Node, node)
	}
	if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) {
		c.cfg.Logger.Warn("condition of a node not written; it is tried again", "node", name, "error", err)
	}
	return err == nil
}

// setCondition reports whether something changed.
func setCondition(n *corev1.Node, status corev1.ConditionStatus, reason, message string, now metav1.Time) bool {
	want := corev1.NodeCondition{
		Type:               Conflict,
		Status:             status,
		Reason:             reason,
		Message:            message,
		LastHeartbeatTime:  now,
		LastTransitionTime: now,
	}
	for i := range n.Status.Conditions {
		have := &n.Status.Conditions[i]
		if have.Type != Conflict {
			continue
		}
		if have.Status == status && have.Message == message {
			return false
		}
		if have.Status == status {
			want.LastTransitionTime = have.LastTransitionTime
		}
		*have = want
		return true
	}
	n.Status.Conditions = append(n.Status.Conditions, want)
	return true
}

// Of is the message of a Node's condition; "": no second machine tries to use its
// name.
func Of(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == Conflict && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}
