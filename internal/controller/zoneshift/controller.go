package zoneshift

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/controller/event"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Keep is how long a ZoneShift stays after its end, for those who look for the cause of what
// happened.
const Keep = 24 * time.Hour

// retry is the pause after a write that failed for another reason than a conflict, which
// comes with the next delta.
const retry = time.Second

// component that events are from.
const component = "zone-shift"

// Config of a Controller. Client and Catalog are required.
type Config struct {
	// Client writes ZoneShifts and events.
	Client  resource.Client
	Catalog *catalog.Catalog
	Clock   clock.PassiveClock // nil: the real one
	Logger  *slog.Logger       // nil: silence
}

// Controller puts ZoneShifts into effect and ends them. Make it with New.
type Controller struct {
	Config
	mu sync.Mutex
	// ends of the shifts in effect, by what they take out; for metrics.
	ends map[string]time.Time
}

// New makes a controller; Run starts it.
func New(cfg Config) *Controller {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Controller{Config: cfg}
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	sub := c.Catalog.Subscribe(catalog.ZoneShifts)
	defer sub.Close()
	var next time.Time // zero: nothing is due
	for {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if !next.IsZero() {
			wait, cancel = context.WithTimeout(ctx, max(next.Sub(c.Clock.Now()), 0))
		}
		delta, err := sub.Next(wait)
		cancel()
		if ctx.Err() != nil || errors.Is(err, catalog.ErrClosed) {
			return nil
		}
		if err == nil {
			c.ended(ctx, delta)
		}
		next = c.sweep(ctx, c.Catalog.Snapshot())
	}
}

// ended writes an event for each shift that was deleted in effect: it was ended by hand.
func (c *Controller) ended(ctx context.Context, d catalog.Delta) {
	for _, change := range d.ZoneShifts {
		if change.New == nil && kind.ShiftInEffect(change.Old) {
			c.tell(ctx, change.Old, false, "Ended", kind.ShiftTarget(&change.Old.Spec)+" is in use again: the shift was deleted")
		}
	}
}

// sweep decides on every shift, one after the other, and returns when the next decision is
// due; zero: no time is known.
func (c *Controller) sweep(ctx context.Context, s *catalog.Snapshot) (next time.Time) {
	now := c.Clock.Now()
	due := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	active := backend.ShiftsOf(s)
	ends := map[string]time.Time{}
	for _, z := range s.ZoneShifts.All() {
		d := decide(s, z, active, now)
		switch {
		case z.DeletionTimestamp != nil:
			continue
		case d.delete:
			if err := c.Client.Delete(ctx, kind.ZoneShift, resource.KeyOf(z), resource.Preconditions{UID: z.UID}); err != nil && !apierrors.IsNotFound(err) {
				due(now.Add(retry))
			}
			continue
		case d.write && !c.write(ctx, z, d):
			due(now.Add(retry))
			continue
		}
		if d.active {
			ends[kind.ShiftTarget(&z.Spec)] = z.Spec.Until.Time
			if d.write {
				active = append(active, z)
			}
		}
		if !d.due.IsZero() {
			due(d.due)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = ends
	return next
}

// decision on a shift.
type decision struct {
	// write: the condition is another than before. seen: but for the generation it is of.
	write  bool
	seen   bool
	active bool
	reason string
	text   string
	effect Effect
	// delete: it ended long ago.
	delete bool
	// due is when the next decision is; zero: with the next change.
	due time.Time
}

// decide on a shift while others are in effect. It is pure.
func decide(s *catalog.Snapshot, z *mesh.ZoneShift, active backend.Shifts, now time.Time) (d decision) {
	until := z.Spec.Until.Time
	condition := meta.FindStatusCondition(z.Status.Conditions, mesh.ZoneShiftActive)
	is := condition != nil && condition.Status == metav1.ConditionTrue
	switch {
	case !now.Before(until):
		d.reason, d.text = mesh.ZoneShiftExpired, kind.ShiftTarget(&z.Spec)+" is in use: the time of the shift is over"
		if condition != nil && condition.Reason == d.reason {
			d.due = until.Add(Keep)
			if since := condition.LastTransitionTime.Add(Keep); since.After(d.due) { // it was ended by an end in the past
				d.due = since
			}
			d.delete = !now.Before(d.due)
			return d
		}
	case is:
		d.active, d.reason, d.text, d.due = true, condition.Reason, condition.Message, until
		d.write = condition.ObservedGeneration != z.Generation // another end, or another reason
		d.seen = true
		return d
	case condition != nil && condition.Reason == mesh.ZoneShiftLastEndpoints && condition.ObservedGeneration == z.Generation:
		d.reason, d.due = condition.Reason, until
		return d
	default:
		d.due = until
		d.effect = Evaluate(s, &z.Spec, active, nil)
		if last := d.effect.LastEndpoints(); len(last) > 0 && !z.Spec.Force {
			d.reason, d.text = mesh.ZoneShiftLastEndpoints, Refusal(&z.Spec, last)
			break
		}
		d.active, d.reason = true, mesh.ZoneShiftInEffect
		d.text = fmt.Sprintf("new connections go to endpoints in %s only where no other one is ready (endpoints: %d, Services: %d)",
			kind.ShiftTarget(&z.Spec), d.effect.Endpoints, len(d.effect.Services))
	}
	d.write = true
	return d
}

// Refusal says why a shift is not put into effect, and what to do.
func Refusal(spec *mesh.ZoneShiftSpec, last []string) string {
	const listed = 10
	names := strings.Join(last[:min(len(last), listed)], ", ")
	if more := len(last) - listed; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("Service %s would have no endpoint outside %s: start another one elsewhere, or set spec.force (--force), "+
		"with which these go on serving it", names, kind.ShiftTarget(spec))
}

// write the condition, and an event; false: it is to be tried again.
func (c *Controller) write(ctx context.Context, z *mesh.ZoneShift, d decision) bool {
	next := z.DeepCopyObject().(*mesh.ZoneShift)
	status := metav1.ConditionFalse
	if d.active {
		status = metav1.ConditionTrue
	}
	if d.active && !d.seen {
		next.Status.Services, next.Status.Endpoints = int32(len(d.effect.Services)), int32(d.effect.Endpoints)
	}
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: mesh.ZoneShiftActive, Status: status, Reason: d.reason, Message: d.text, ObservedGeneration: z.Generation,
		LastTransitionTime: metav1.NewTime(c.Clock.Now()),
	})
	_, err := c.Client.UpdateStatus(ctx, kind.ZoneShift, next)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return true // the other write comes with the next delta
	case err != nil:
		if ctx.Err() == nil {
			c.Logger.Warn("the state of a zone shift was not written; it is tried again", "shift", z.Name, "error", err)
		}
		return false
	}
	if d.seen {
		return true
	}
	text := d.text
	if d.active {
		text += ", until " + z.Spec.Until.UTC().Format(time.RFC3339) + ": " + z.Spec.Reason
	}
	c.tell(ctx, z, d.reason == mesh.ZoneShiftLastEndpoints, d.reason, text)
	return true
}

func (c *Controller) tell(ctx context.Context, z *mesh.ZoneShift, warning bool, reason, text string) {
	c.Logger.Info("zone shift", "shift", z.Name, "zone", z.Spec.Zone, "node", z.Spec.Node, "state", reason, "message", text)
	about := event.About(mesh.SchemeGroupVersion.WithKind("ZoneShift"), z)
	e := event.Normal(about, component, c.Clock.Now(), reason, text)
	if warning {
		e = event.Warning(about, component, c.Clock.Now(), reason, text)
	}
	if _, err := c.Client.Create(ctx, kind.Event, e); err != nil && ctx.Err() == nil {
		c.Logger.Warn("event could not be written", "shift", z.Name, "error", err)
	}
}
