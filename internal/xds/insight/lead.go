package insight

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// stalePeriod is how often the leader looks for connections that no instance has.
const stalePeriod = 30 * time.Second

// Lead does what one instance does for all, until ctx ends, and returns nil then: it ends the
// connections of instances that have gone, and notes certificates that have expired. alive reports whether an instance runs. client writes
// as the leader.
func (r *Recorder) Lead(ctx context.Context, client resource.Client, alive func(instance string) bool) error {
	ticker := r.clock.NewTicker(stalePeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		if err := r.sweep(ctx, client, alive); err != nil && ctx.Err() == nil {
			r.log.Warn("insights of proxies not read, or not corrected", "error", err)
		}
	}
}

func (r *Recorder) sweep(ctx context.Context, client resource.Client, alive func(instance string) bool) error {
	for role := range roles {
		if Role(role) != OfWorkload && !r.config.Gateways {
			continue
		}
		if err := r.sweepRole(ctx, client, Role(role), alive); err != nil {
			return err
		}
	}
	return nil
}

func (r *Recorder) sweepRole(ctx context.Context, client resource.Client, role Role, alive func(instance string) bool) error {
	objects, _, err := client.List(ctx, roles[role].insight, resource.ListOptions{})
	if err != nil {
		return err
	}
	leader := Recorder{config: Config{Client: client}, clock: r.clock}
	for _, obj := range objects {
		key, status := Subject{role, resource.KeyOf(obj)}, statusOf(obj)
		c := status.Certificate
		expired := c != nil && c.Expiry.Time.Before(r.clock.Now())
		if obj.GetLabels()[meshv1alpha1.LabelOrigin] == meshv1alpha1.OriginZone || !expired && !r.abandoned(key, status, alive) {
			continue
		}
		status, err = leader.change(ctx, key, nil, func(i *meshv1alpha1.ClientInsightStatus) {
			if r.abandoned(key, i, alive) {
				now := metav1.NewMicroTime(r.clock.Now())
				i.Subscriptions[len(i.Subscriptions)-1].DisconnectTime = &now
				i.Online = false
			}
			if role != OfWorkload {
				leader.conclude(i, Conditions(i, r.clock.Now()))
			}
		})
		if err == nil && role == OfWorkload {
			err = leader.condition(ctx, key.Key, nil, Conditions(status, r.clock.Now()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// abandoned: the newest connection is open, and its instance has gone, or was another process of
// this instance's name.
func (r *Recorder) abandoned(key Subject, i *meshv1alpha1.ClientInsightStatus, alive func(string) bool) bool {
	n := len(i.Subscriptions)
	if n == 0 || i.Subscriptions[n-1].DisconnectTime != nil {
		return false
	}
	last := &i.Subscriptions[n-1]
	if last.Instance != r.config.Instance {
		return !alive(last.Instance)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.proxies[key]
	return p == nil || p.connection == nil || p.connection.id != last.ID
}
