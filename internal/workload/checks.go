package workload

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

const (
	// checksAtOnce bounds how many probes of one node are under way.
	checksAtOnce = 64
	// checkRetry and checkRetryMax bound the pause before a verdict that could not
	// be written, or a watch that broke, is taken up again.
	checkRetry    = 200 * time.Millisecond
	checkRetryMax = 10 * time.Second
)

// ChecksConfig of a node's Checks.
type ChecksConfig struct {
	Client resource.Client
	// Node whose Dataplanes are asked.
	Node   string
	Logger *slog.Logger
	Clock  clock.WithTicker
}

// Checks probes the readiness of a node's Dataplanes that are not run by
// "proxima run", and writes what comes of it into their Ready condition. Probes
// go by the network, to the Dataplane's own address only; those that run a
// command are left to "proxima run". Make it with NewChecks.
type Checks struct {
	cfg   ChecksConfig
	slots chan struct{}
	// probe makes the prober of a Dataplane; a test's own may take its place.
	probe   func(*v1alpha1.Dataplane) (*prober, error)
	running map[resource.Key]*check
	wg      sync.WaitGroup
}

// check is one Dataplane that is probed.
type check struct {
	uid        types.UID
	generation int64
	stop       context.CancelFunc
	// seen holds the newest state of the watch that has not been processed.
	seen chan *v1alpha1.Dataplane
}

// NewChecks makes the probing of one node; Run starts it.
func NewChecks(cfg ChecksConfig) *Checks {
	return &Checks{cfg: cfg, slots: make(chan struct{}, checksAtOnce), probe: newProber, running: map[resource.Key]*check{}}
}

// Run probes until ctx ends, and returns nil then. It must be called once. While
// the control plane is away probing goes on, and what changed is written when
// it is back.
func (c *Checks) Run(ctx context.Context) error {
	defer c.wg.Wait()
	defer c.keepOnly(nil)
	return reflector.Run(ctx, reflector.Config{
		Client:       c.cfg.Client,
		Kind:         kind.Dataplane,
		Select:       resource.ListOptions{Fields: fields.OneTermEqualSelector("spec.nodeName", c.cfg.Node)},
		AlwaysRelist: true, // they are few, and the server may be another after a cut
		Backoff:      backoff.Policy{First: checkRetry, Last: checkRetryMax},
		Clock:        c.cfg.Clock,
		Logger:       c.cfg.Logger,
		Level:        slog.LevelDebug,
	}, func(e reflector.Event) error {
		switch e.Type {
		case reflector.Delete:
			c.drop(resource.KeyOf(e.Object()))
			return nil
		case reflector.Replace:
			c.keepOnly(e.Keys())
		}
		for _, obj := range e.Objects {
			c.apply(ctx, obj.(*v1alpha1.Dataplane))
		}
		return nil
	})
}

// keepOnly ends the checks of Dataplanes that are not listed.
func (c *Checks) keepOnly(listed map[resource.Key]bool) {
	for key := range c.running {
		if !listed[key] {
			c.drop(key)
		}
	}
}

func (c *Checks) drop(key resource.Key) {
	if running := c.running[key]; running != nil {
		running.stop()
		delete(c.running, key)
	}
}

// isOurs: there is something to probe by the network, and no process keeps a lease,
// which "proxima run" does from its first sign of life on.
func (c *Checks) isOurs(dp *v1alpha1.Dataplane) bool {
	return dp.Spec.NodeName == c.cfg.Node && dp.Spec.Readiness != nil && dp.Spec.Readiness.Exec == nil && dp.Status.Lease == nil
}

// take begins, goes on with or ends the check of a Dataplane in its newest state.
// One that is terminating is asked on: while it drains, it serves or does not.
func (c *Checks) apply(ctx context.Context, dp *v1alpha1.Dataplane) {
	key := resource.KeyOf(dp)
	running := c.running[key]
	if running != nil && (!c.isOurs(dp) || running.uid != dp.UID || running.generation != dp.Generation) {
		c.drop(key)
		running = nil
	}
	if !c.isOurs(dp) {
		return
	}
	if running == nil {
		checking, stop := context.WithCancel(ctx)
		running = &check{uid: dp.UID, generation: dp.Generation, stop: stop, seen: make(chan *v1alpha1.Dataplane, 1)}
		c.running[key] = running
		c.wg.Go(func() { c.keep(checking, running, dp) })
		return
	}
	select { // the newest replaces an older one that was not read
	case <-running.seen:
	default:
	}
	running.seen <- dp
}

// keep makes the Dataplane say what the probes say, until ctx ends.
func (c *Checks) keep(ctx context.Context, running *check, dp *v1alpha1.Dataplane) {
	verdicts := c.verdicts(ctx, dp)
	var want *condition
	var retry <-chan time.Time
	pauses := backoff.Backoff{Policy: backoff.Policy{First: checkRetry, Last: checkRetryMax}}
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-verdicts:
			want = &v
		case dp = <-running.seen:
			if want == nil || says(dp, *want) {
				continue
			}
		case <-retry:
		}
		err := c.write(ctx, resource.KeyOf(dp), running, *want)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			retry = nil
			pauses.Reset()
			continue
		}
		pause := pauses.Next()
		retry = c.cfg.Clock.After(pause)
		c.cfg.Logger.Warn("readiness not written; it is tried again", "dataplane", resource.KeyOf(dp).String(),
			"ready", want.ready, "error", err, "retry_in", pause.String())
	}
}

// verdicts starts the probing of a Dataplane.
func (c *Checks) verdicts(ctx context.Context, dp *v1alpha1.Dataplane) <-chan condition {
	p, err := c.probe(dp)
	if err != nil {
		out := make(chan condition, 1)
		out <- condition{reason: "ProbeInvalid", message: err.Error()}
		return out
	}
	p.slots, p.startPeriod, p.reportsFailure = c.slots, 0, true
	p.initialDelay = max(0, dp.CreationTimestamp.Add(p.initialDelay).Sub(c.cfg.Clock.Now()))
	if meta.IsStatusConditionTrue(dp.Status.Conditions, v1alpha1.DataplaneReady) {
		// It was found ready before this agent started, or this probe was written. It
		// stays so until probes fail; and not all of a node are asked at once.
		p.ready = true
		p.initialDelay = max(p.initialDelay, rand.N(p.period))
	}
	return p.watch(ctx, c.cfg.Clock)
}

func says(dp *v1alpha1.Dataplane, want condition) bool {
	have := meta.FindStatusCondition(dp.Status.Conditions, v1alpha1.DataplaneReady)
	return have != nil && (have.Status == metav1.ConditionTrue) == want.ready && have.Reason == want.reason
}

// write puts a verdict into the newest state, unless that is not ours to judge
// any more.
func (c *Checks) write(ctx context.Context, key resource.Key, running *check, want condition) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	obj, err := c.cfg.Client.Get(ctx, kind.Dataplane, key)
	if apierrors.IsNotFound(err) {
		return nil // the watch delivers it
	}
	if err != nil {
		return err
	}
	dp := obj.(*v1alpha1.Dataplane)
	if dp.UID != running.uid || dp.Generation != running.generation || !c.isOurs(dp) {
		return nil // the watch delivers it
	}
	changed := meta.SetStatusCondition(&dp.Status.Conditions, want.asCondition(c.cfg.Clock.Now()))
	if !changed {
		return nil
	}
	if _, err := c.cfg.Client.UpdateStatus(ctx, kind.Dataplane, dp); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	c.cfg.Logger.Info("readiness", "dataplane", key.String(), "ready", want.ready, "reason", want.reason, "message", want.message)
	return nil
}
