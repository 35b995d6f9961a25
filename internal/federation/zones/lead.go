package zones

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// Finalizer of Zones: it goes when what belongs to the zone has gone.
const Finalizer = meshv1alpha1.GroupName + "/zone"

// againAfter is when the objects of a disabled or deleted zone are looked for again: a
// write that began before may have ended since.
const againAfter = time.Second

// LeaderConfig is what the leader works with. All fields are required.
type LeaderConfig struct {
	// Client writes as the leader.
	Client resource.Client
	// RevokeTokens withdraws all tokens of a zone.
	RevokeTokens func(ctx context.Context, zone string) error
	// Forget what a zone observed of policies.
	Forget func(ctx context.Context, zone string) error
	// Alive reports whether an instance of the control plane runs.
	Alive func(instance string) bool
}

// Lead does what one instance does for all: it follows Zones and their insights until ctx
// ends, and returns nil then.
func (z *Zones) Lead(ctx context.Context, c LeaderConfig) error {
	l := &lead{zones: z, config: c, log: z.log}
	events, stop := reflector.Start(ctx, reflector.Config{
		Client: c.Client, Backoff: retryPolicy, Clock: clock.RealClock{}, Logger: z.log, Level: slog.LevelDebug,
	}, []*resource.Descriptor{kind.Zone})
	defer stop()
	ticker := time.NewTicker(stalePeriod)
	defer ticker.Stop()
	retry := backoff.Backoff{Policy: retryPolicy}
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			if e.Type != reflector.Replace && e.Type != reflector.Set {
				continue
			}
		case <-again:
		case <-ticker.C:
			l.markOffline(ctx)
			continue
		}
		again = nil
		unfinished, err := l.reconcile(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			z.log.Warn("zones are not as their objects say; it is tried again", "error", err)
			again = time.After(retry.Next())
		case unfinished:
			again = time.After(againAfter)
		default:
			retry.Reset()
		}
	}
}

type lead struct {
	zones  *Zones
	config LeaderConfig
	log    *slog.Logger
}

// reconcile makes what is stored of each zone what its Zone says. It reports whether it has
// changed something that must be looked at again.
func (l *lead) reconcile(ctx context.Context) (unfinished bool, err error) {
	objects, _, err := l.config.Client.List(ctx, kind.Zone, resource.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list zones: %w", err)
	}
	for _, obj := range objects {
		zone := obj.(*meshv1alpha1.Zone)
		changed := false
		switch {
		case zone.DeletionTimestamp != nil && slices.Contains(zone.Finalizers, Finalizer):
			changed, err = l.remove(ctx, zone)
		case zone.DeletionTimestamp != nil:
		case !slices.Contains(zone.Finalizers, Finalizer):
			own := zone.DeepCopy()
			own.Finalizers = append(own.Finalizers, Finalizer)
			_, err = l.config.Client.Update(ctx, kind.Zone, own)
		default:
			changed, err = l.withhold(ctx, zone.Name, !kind.ZoneEnabled(zone))
		}
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return unfinished, fmt.Errorf("zone %s: %w", zone.Name, err)
		}
		unfinished = unfinished || changed || err != nil
	}
	return unfinished, nil
}

// withhold keeps what a zone offers from the other zones, or gives it back.
func (l *lead) withhold(ctx context.Context, zone string, withheld bool) (changed bool, err error) {
	for _, k := range l.zones.config.Kinds {
		if k.Type.Direction != federation.ZoneToZones {
			continue
		}
		copies, err := l.copies(ctx, k, zone)
		if err != nil {
			return changed, err
		}
		for _, obj := range copies {
			if (obj.GetLabels()[local.LabelWithheld] != "") == withheld {
				continue
			}
			own := obj.DeepCopyObject().(resource.Object)
			set := own.GetLabels()
			if withheld {
				set[local.LabelWithheld] = "true"
			} else {
				delete(set, local.LabelWithheld)
			}
			own.SetLabels(set)
			if _, err := l.config.Client.Update(ctx, k.Descriptor, own); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return true, err
			}
			changed = true
		}
	}
	return changed, nil
}

// copies of a zone's objects of one kind.
func (l *lead) copies(ctx context.Context, k local.Kind, zone string) ([]resource.Object, error) {
	of := labels.SelectorFromSet(labels.Set{federation.LabelOrigin: federation.OriginZone, federation.LabelZone: zone})
	objects, _, err := l.config.Client.List(ctx, k.Descriptor, resource.ListOptions{Labels: of})
	if err != nil {
		return nil, fmt.Errorf("list copies of %s: %w", k.Type.Name, err)
	}
	return objects, nil
}

// remove deletes what belongs to a zone that is being deleted, at global alone. It begins
// with the tokens, so that nothing comes back.
func (l *lead) remove(ctx context.Context, zone *meshv1alpha1.Zone) (changed bool, err error) {
	if err := l.config.RevokeTokens(ctx, zone.Name); err != nil {
		return false, fmt.Errorf("revoke its tokens: %w", err)
	}
	if err := l.config.Forget(ctx, zone.Name); err != nil {
		return false, fmt.Errorf("forget what it observed: %w", err)
	}
	for _, k := range l.zones.config.Kinds {
		if k.Type.Direction == federation.GlobalToZone {
			continue
		}
		copies, err := l.copies(ctx, k, zone.Name)
		if err != nil {
			return true, err
		}
		for _, obj := range copies {
			err := l.config.Client.Delete(ctx, k.Descriptor, resource.KeyOf(obj),
				resource.Preconditions{UID: obj.GetUID(), Now: true, Propagation: metav1.DeletePropagationOrphan})
			if err != nil && !apierrors.IsNotFound(err) {
				return true, fmt.Errorf("delete %s %s: %w", k.Type.Name, resource.KeyOf(obj), err)
			}
			changed = true
		}
	}
	if changed {
		return true, nil // what is written meanwhile goes with the next pass
	}
	for _, gone := range []struct {
		kind *resource.Descriptor
		key  resource.Key
	}{{kind.ConfigMap, l.zones.checkpointKey(zone.Name)}, {kind.ZoneInsight, resource.Key{Name: zone.Name}}} {
		err := l.config.Client.Delete(ctx, gone.kind, gone.key, resource.Preconditions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("delete %s %s: %w", gone.kind.Singular, gone.key, err)
		}
	}
	own := zone.DeepCopy()
	own.Finalizers = slices.DeleteFunc(own.Finalizers, func(f string) bool { return f == Finalizer })
	if _, err := l.config.Client.Update(ctx, kind.Zone, own); err != nil {
		return false, err
	}
	l.log.Info("zone deleted, with the copies of its objects and its tokens", "zone", zone.Name)
	return false, nil
}

// stalePeriod is how often insights are looked at that no instance keeps.
const stalePeriod = 5 * time.Second

// markOffline corrects the insights of zones that were connected to an instance that has
// gone.
func (l *lead) markOffline(ctx context.Context) {
	objects, _, err := l.config.Client.List(ctx, kind.ZoneInsight, resource.ListOptions{})
	if err != nil {
		l.log.Warn("insights of zones not read", "error", err)
		return
	}
	for _, obj := range objects {
		insight := obj.(*meshv1alpha1.ZoneInsight)
		if insight.Status.Online || open(insight.Status.Subscriptions) != nil {
			l.zones.change(ctx, insight.Name, func(i *meshv1alpha1.ZoneInsightStatus) { l.expire(insight.Name, i) })
		}
	}
}

// open is the newest connection, if it has not ended.
func open(all []meshv1alpha1.Subscription) *meshv1alpha1.Subscription {
	if n := len(all); n > 0 && all[n-1].DisconnectTime == nil {
		return &all[n-1]
	}
	return nil
}

func (l *lead) expire(zone string, i *meshv1alpha1.ZoneInsightStatus) {
	if s := open(i.Subscriptions); s != nil {
		if l.zones.holds(zone, s) || s.Instance != l.zones.config.Instance && l.config.Alive(s.Instance) {
			return
		}
		now := metav1.NowMicro()
		s.DisconnectTime = &now
	}
	n := len(i.Subscriptions)
	if n == 0 || time.Since(i.Subscriptions[n-1].DisconnectTime.Time) > l.zones.config.Timeout {
		i.Online = false
	}
}

// holds reports whether a connection is to this instance.
func (z *Zones) holds(zone string, s *meshv1alpha1.Subscription) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	p := z.peers[zone]
	return p != nil && p.subscription != nil && p.subscription.ID == s.ID
}
