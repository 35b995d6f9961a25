// Package lease elects one instance of a control plane in a Kubernetes cluster, by a Lease of
// coordination.k8s.io.
//
// It owns the life of a term: from winning the Lease until it is lost or given back. Enter at
// New; client-go's leaderelection does the work on the Lease.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Periods of client-go's defaults (k8s.io/component-base, leaderelection): a leader that has not
// renewed for DefaultLease is replaced, gives up itself after DefaultRenew, and everybody tries
// every DefaultRetry. As DefaultRenew is the shorter, two never lead at a time, as long as their
// clocks run at about the same speed.
const (
	DefaultLease = 15 * time.Second
	DefaultRenew = 10 * time.Second
	DefaultRetry = 2 * time.Second
)

// Config of an Election.
type Config struct {
	// REST reaches the API of the cluster. It is copied.
	REST *rest.Config
	// Lease that is competed for.
	Lease resource.Key
	// Identity of this instance, which no other one has: that of its pod and its start.
	Identity string
	// Periods; 0: the defaults.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Logger; nil: silence.
	Logger *slog.Logger
}

// Election takes part for one instance. Make it with New.
type Election struct {
	cfg   Config
	lock  *resourcelock.LeaseLock
	seen  *seen
	leads atomic.Bool
}

// New makes an election. It opens no connection.
func New(cfg Config) (*Election, error) {
	if cfg.Identity == "" || cfg.Lease.Name == "" || cfg.Lease.Namespace == "" {
		return nil, errors.New("election by lease: an identity and the name and namespace of a Lease are needed")
	}
	if cfg.LeaseDuration == 0 {
		cfg.LeaseDuration, cfg.RenewDeadline, cfg.RetryPeriod = DefaultLease, DefaultRenew, DefaultRetry
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	own := rest.CopyConfig(cfg.REST)
	// A request that hangs must not outlast the deadline of a renewal.
	own.Timeout = cfg.RenewDeadline / 2
	client, err := coordinationv1.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("election by lease: %w", err)
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: cfg.Lease.Namespace, Name: cfg.Lease.Name}, Client: client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: cfg.Identity},
	}
	return &Election{cfg: cfg, lock: lock, seen: &seen{LeaseLock: lock, at: time.Now()}}, nil
}

// Run takes part until ctx ends, and returns nil then. Whenever this instance has won, lead is
// called, with a context that ends when the Lease is lost or ctx does. The Lease is given back
// after lead has returned, so the next leader begins at once and never beside this one. An error
// of lead is returned.
func (e *Election) Run(ctx context.Context, lead func(term context.Context) error) error {
	for ctx.Err() == nil {
		if err := e.term(ctx, lead); err != nil {
			return err
		}
	}
	return nil
}

// term takes part until this instance has led once, or ctx ends.
func (e *Election) term(ctx context.Context, lead func(context.Context) error) error {
	// It is renewed after ctx, too, until the term is over.
	renewing, stop := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.FromSlogHandler(e.cfg.Logger.Handler())))
	defer stop()
	won := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.seen, LeaseDuration: e.cfg.LeaseDuration, RenewDeadline: e.cfg.RenewDeadline, RetryPeriod: e.cfg.RetryPeriod,
		Name: e.cfg.Lease.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) { won <- held },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("election by lease: %w", err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		elector.Run(renewing)
	}()
	defer func() { stop(); <-over }()
	select {
	case held := <-won:
		err := e.lead(ctx, held, lead)
		if held.Err() == nil {
			stop()
			<-over
			e.giveBack(renewing)
		}
		return err
	case <-over: // the Lease was lost before anybody led
		return nil
	case <-ctx.Done():
		return nil
	}
}

// giveBack the Lease, so that the next leader need not wait until it has run out. client-go could
// do so itself (ReleaseOnCancel), but would then try it before it tells a leader that it has lost
// the Lease.
func (e *Election) giveBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.RenewDeadline)
	defer cancel()
	record, _, err := e.lock.Get(ctx)
	if err == nil && record.HolderIdentity == e.cfg.Identity {
		now := metav1.Now()
		err = e.lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
	}
	if err != nil {
		e.cfg.Logger.Warn("the Lease was not given back: the next leader begins when it has run out", "lease", e.cfg.Lease.String(), "error", err)
	}
}

// lead while the Lease is held.
func (e *Election) lead(ctx, held context.Context, lead func(context.Context) error) error {
	term, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(held, end)()
	e.cfg.Logger.Info("this instance leads", "lease", e.cfg.Lease.String())
	e.leads.Store(true)
	err := lead(term)
	e.leads.Store(false)
	switch {
	case ctx.Err() != nil:
		e.cfg.Logger.Info("this instance hands over", "lease", e.cfg.Lease.String())
		return nil
	case held.Err() != nil:
		e.cfg.Logger.Warn("this instance leads no more: the Lease was not renewed in time", "lease", e.cfg.Lease.String())
		return nil
	}
	return err
}

// Leader is the identity of the instance that led last, as far as this one has seen; empty: none.
func (e *Election) Leader(ctx context.Context) (string, error) {
	record, _, err := e.lock.Get(ctx)
	if err != nil {
		return "", err
	}
	return record.HolderIdentity, nil
}

// Other is the identity of the instance that holds the Lease, as this one saw it last; empty: it
// is this instance, or none. Nothing is asked of the API.
func (e *Election) Other() string {
	if holder := e.seen.holder(); holder != e.cfg.Identity {
		return holder
	}
	return ""
}
