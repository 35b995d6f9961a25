package observed

import (
	"bytes"
	"context"
	"log/slog"
	"time"

	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

const (
	// debounce is how long changes are collected.
	debounce = 50 * time.Millisecond
	// maxBatch of policies in one report.
	maxBatch = 100
)

// ReporterConfig configures a Reporter. Client, Kinds and Send are required.
type ReporterConfig struct {
	Client resource.Client
	// Kinds of policies by the name of their type between control planes.
	Kinds map[string]*resource.Descriptor
	// Send a report to global. It returns when global has stored it.
	Send   func(ctx context.Context, all []Status) error
	Clock  clock.Clock  // nil: the real one
	Logger *slog.Logger // nil: silence
}

// Reporter sends what this zone observes of the policies of global. It runs where an
// instance leads.
type Reporter struct {
	cfg   ReporterConfig
	again chan struct{}
}

// NewReporter makes a reporter; Run starts it.
func NewReporter(c ReporterConfig) *Reporter {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Reporter{cfg: c, again: make(chan struct{}, 1)}
}

// Again sends everything once more: global may have lost it. It does not block.
func (r *Reporter) Again() {
	select {
	case r.again <- struct{}{}:
	default:
	}
}

var (
	watchPolicy = backoff.Policy{First: 200 * time.Millisecond, Last: 10 * time.Second, Jitter: 0.2}
	sendPolicy  = backoff.Policy{First: 200 * time.Millisecond, Last: 30 * time.Second, Jitter: 0.3}
)

// state is of one Run.
type state struct {
	// known is what is observed now, and the version of the policy that it is of; dirty what
	// global does not have.
	known map[policy]observation
	dirty map[policy]bool
}

type policy struct {
	typ string
	key resource.Key
}

type observation struct {
	version    string
	conditions []byte
}

// Run works until ctx ends, and returns nil then. Call it once.
func (r *Reporter) Run(ctx context.Context) error {
	types := map[*resource.Descriptor]string{}
	var kinds []*resource.Descriptor
	for typ, d := range r.cfg.Kinds {
		types[d] = typ
		kinds = append(kinds, d)
	}
	events, stop := reflector.Start(ctx, reflector.Config{
		Client: r.cfg.Client, Backoff: watchPolicy, Clock: r.cfg.Clock, Logger: r.cfg.Logger, Level: slog.LevelDebug,
	}, kinds)
	defer stop()
	s := state{known: map[policy]observation{}, dirty: map[policy]bool{}}
	retry := backoff.Backoff{Policy: sendPolicy}
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			s.follow(types[e.Kind], e)
		case <-r.again:
			for p := range s.known {
				s.dirty[p] = true
			}
		case <-due:
			due = nil
			if err := r.send(ctx, &s); err != nil {
				r.cfg.Logger.Debug("status of policies not sent; it is tried again", "error", err)
				due = r.cfg.Clock.After(retry.Next())
				continue
			}
			retry.Reset()
		}
		if due == nil && len(s.dirty) > 0 {
			due = r.cfg.Clock.After(debounce)
		}
	}
}

func (s *state) follow(typ string, e reflector.Event) {
	switch e.Type {
	case reflector.Replace:
		there := e.Keys()
		for p := range s.known {
			if p.typ == typ && !there[p.key] {
				s.forget(p)
			}
		}
		fallthrough
	case reflector.Set:
		for _, obj := range e.Objects {
			s.note(policy{typ, resource.KeyOf(obj)}, obj)
		}
	case reflector.Delete:
		s.forget(policy{typ, resource.KeyOf(e.Object())})
	}
}

// forget a policy: with its copy, what is observed of it is void at global, too.
func (s *state) forget(p policy) {
	delete(s.known, p)
	delete(s.dirty, p)
}

func (s *state) note(p policy, obj resource.Object) {
	if owner, copied := federation.OwnerOf(obj.GetLabels()); !copied || owner.Zone != "" {
		s.forget(p)
		return
	}
	own, _ := statusOf(obj)
	data, err := encode(own)
	if err != nil {
		return // a time before the year 0: no control plane writes one
	}
	now := observation{version: obj.GetAnnotations()[federation.AnnotationSyncVersion], conditions: data}
	if old, ok := s.known[p]; ok && old.version == now.version && bytes.Equal(old.conditions, data) {
		return
	}
	s.known[p], s.dirty[p] = now, true
}

// send what is dirty, in batches.
func (r *Reporter) send(ctx context.Context, s *state) error {
	for len(s.dirty) > 0 {
		var batch []Status
		var sent []policy
		for p := range s.dirty {
			batch = append(batch, Status{Type: p.typ, Policy: p.key, Conditions: s.known[p].conditions})
			if sent = append(sent, p); len(sent) == maxBatch {
				break
			}
		}
		if err := r.cfg.Send(ctx, batch); err != nil {
			return err
		}
		for _, p := range sent {
			delete(s.dirty, p)
		}
	}
	return nil
}
