package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// checkpointInterval is how long checkpoints that are not urgent are collected before they
// are stored. An older one makes a reconnect after a crash cost a little more.
const checkpointInterval = time.Second

// storeTimeout bounds a write of checkpoints that no stream waits for.
const storeTimeout = time.Second

// ErrSuperseded: a newer stream of the same peer has begun.
var ErrSuperseded = errors.New("a newer stream of the same peer has begun")

// InletConfig configures an Inlet.
type InletConfig struct {
	Client resource.Client
	// Kinds of both directions, in the order in which they are synchronised.
	Kinds []Kind
	Side  federation.Side
	// Zone is this zone's name; at global, that of the zone that sends.
	Zone string
	// Node is who this side says it is.
	Node *core.Node
	// Namespace in which global keeps the namespaced objects of zones.
	Namespace   string
	Checkpoints Checkpoints
	// ByVersions: every stream begins with the versions of the copies, not with the position of
	// the checkpoint, as a store may have lost copies without having lost that.
	ByVersions bool
	Clock      clock.Clock  // nil: the real one
	Log        *slog.Logger // nil: silence
}

// Inlet applies what one peer sends. It implements federation.Inlet. Make it with
// NewInlet.
type Inlet struct {
	config InletConfig
	kinds  map[string]Kind

	// mu orders transactions; it is held while the store works.
	mu       sync.Mutex
	receiver *federation.Receiver // nil: to be made from the store
	flow     *flow
	// pending checkpoints are stored when due fires, or a flow ends; due is nil if there
	// are none.
	pending map[string]federation.Checkpoint
	due     clock.Timer
	// status as of the last transaction, under a lock of its own: it is read while a
	// transaction goes on.
	statusMu sync.Mutex
	status   []federation.ReceivedType
}

// NewInlet makes an inlet.
func NewInlet(c InletConfig) (*Inlet, error) {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	kinds, err := bySide(c.Kinds, c.Side, false)
	if err != nil {
		return nil, err
	}
	c.Kinds = kinds
	i := &Inlet{config: c, kinds: map[string]Kind{}, pending: map[string]federation.Checkpoint{}}
	for _, k := range kinds {
		i.kinds[k.Type.Name] = k
	}
	return i, nil
}

// flow is one stream.
type flow struct {
	inlet    *Inlet
	protocol int
	send     func(proto.Message) error
	// closed ends what waits to store checkpoints.
	closed  chan struct{}
	closing sync.Once
	storing sync.WaitGroup
}

// Open implements federation.Inlet.
func (i *Inlet) Open(ctx context.Context, s federation.StreamOptions, send func(proto.Message) error) (federation.Flow, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f := &flow{inlet: i, protocol: s.Protocol, send: send, closed: make(chan struct{})}
	i.checkpoint(ctx) // of the flow before, if that is still open
	if i.receiver == nil {
		if err := i.load(ctx); err != nil {
			return nil, err
		}
	}
	i.flow = f
	requests, err := i.connect(s)
	if err != nil {
		i.abandon()
		return nil, fmt.Errorf("begin stream: %w", err)
	}
	i.publish()
	for _, r := range requests {
		if err := send(r); err != nil {
			return nil, fmt.Errorf("send request: %w", err)
		}
	}
	return f, nil
}

func (i *Inlet) connect(s federation.StreamOptions) (out []proto.Message, err error) {
	if s.Protocol == 1 {
		requests, err := federation.ProjectedReceiver{Receiver: i.receiver}.Connect()
		for _, r := range requests {
			out = append(out, r)
		}
		return out, err
	}
	requests, err := i.receiver.Connect(s.Versions)
	for _, r := range requests {
		out = append(out, r)
	}
	return out, err
}

// load makes the receiver from the store.
func (i *Inlet) load(ctx context.Context) error {
	checkpoints, err := i.config.Checkpoints.Load(ctx)
	if err != nil {
		return fmt.Errorf("load checkpoints: %w", err)
	}
	var states []federation.State
	for _, k := range i.config.Kinds {
		s := federation.State{Type: k.Type.Name, Checkpoint: checkpoints[k.Type.Name]}
		if i.config.ByVersions {
			s.Checkpoint.Position = ""
		}
		objects, _, err := i.config.Client.List(ctx, k.Descriptor, resource.ListOptions{})
		if err != nil {
			return fmt.Errorf("list copies of %s: %w", k.Type.Name, err)
		}
		for _, obj := range objects {
			c, ok := i.copyOf(obj)
			if !ok {
				continue
			}
			if k.learnt(obj) { // the peer sends it again if it gets the versions
				c.Version, s.Checkpoint.Position = "", ""
			}
			s.Copies = append(s.Copies, c)
		}
		states = append(states, s)
	}
	i.receiver, err = federation.NewReceiver(federation.ReceiverConfig{
		Side: i.config.Side, Zone: i.config.Zone, Node: i.config.Node, Types: typesOf(i.config.Kinds), Namespace: i.config.Namespace,
	}, states)
	return err
}

// copyOf reads what a receiver has written on a copy. ok is false for an object that
// does not arrive by this inlet.
func (i *Inlet) copyOf(obj resource.Object) (c federation.Copy, ok bool) {
	owner, labelled := federation.OwnerOf(obj.GetLabels())
	if !labelled || (i.config.Side == federation.AtGlobal) != (owner.Zone == i.config.Zone) {
		return c, false
	}
	notes := obj.GetAnnotations()
	c = federation.Copy{
		Resource: notes[federation.AnnotationSyncName], Version: notes[federation.AnnotationSyncVersion],
		Key: federation.Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}, Owner: owner,
	}
	return c, c.Resource != ""
}

// Receive implements federation.Flow.
func (f *flow) Receive(ctx context.Context, m proto.Message) error {
	i := f.inlet
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.flow != f {
		return ErrSuperseded
	}
	var tx *federation.Transaction
	var err error
	now := i.config.Clock.Now()
	switch m := m.(type) {
	case *discovery.DeltaDiscoveryResponse:
		tx, err = i.receiver.Step(now, m)
	case *discovery.DiscoveryResponse:
		tx, err = federation.ProjectedReceiver{Receiver: i.receiver}.Step(now, m)
	default:
		err = fmt.Errorf("%w: a %T", federation.ErrProtocol, m)
	}
	if err != nil || tx == nil {
		return err
	}
	return i.finish(ctx, tx)
}

// finish applies a transaction and sends the answer. i.mu is held. After an error the
// flow is at its end, and the next one begins from the store.
func (i *Inlet) finish(ctx context.Context, tx *federation.Transaction) error {
	outcome, err := i.apply(ctx, tx)
	if err != nil {
		i.abandon()
		return fmt.Errorf("apply %s: %w", tx.Type, err)
	}
	var progress federation.Progress
	var answer proto.Message
	if f := i.flow; f != nil && f.protocol == 1 {
		p, a, err := federation.ProjectedReceiver{Receiver: i.receiver}.Advance(tx, outcome, i.config.Clock.Now())
		if err != nil {
			return err
		}
		if progress = p; a != nil {
			answer = a
		}
	} else {
		p, err := i.receiver.Advance(tx, outcome, i.config.Clock.Now())
		if err != nil {
			return err
		}
		if progress = p; p.Answer != nil {
			answer = p.Answer
		}
	}
	i.publish()
	if progress.Checkpoint != nil {
		i.pending[tx.Type] = *progress.Checkpoint
		if progress.Urgent || i.flow == nil {
			i.checkpoint(ctx)
		} else {
			i.checkpointLater(i.flow)
		}
	}
	if answer == nil || i.flow == nil {
		return nil
	}
	return i.flow.send(answer)
}

// abandon makes the next flow begin from the store. i.mu is held.
func (i *Inlet) abandon() {
	i.flow, i.receiver = nil, nil
	if i.due != nil {
		i.due.Stop()
		i.due = nil
	}
	clear(i.pending) // another instance may have stored newer ones by then
}

// checkpoint stores what is pending. i.mu is held. What cannot be stored is tried again
// with the next one: nothing is lost but time, as the next stream begins further back.
func (i *Inlet) checkpoint(ctx context.Context) {
	if i.due != nil {
		i.due.Stop()
		i.due = nil
	}
	if len(i.pending) == 0 {
		return
	}
	if err := i.config.Checkpoints.Store(ctx, maps.Clone(i.pending)); err != nil {
		i.config.Log.Warn("checkpoint not stored", "zone", i.config.Zone, "error", err)
		return
	}
	clear(i.pending)
}

// checkpointLater stores what is pending after the interval, off the way of changes. i.mu is
// held.
func (i *Inlet) checkpointLater(f *flow) {
	if i.due != nil {
		return
	}
	due := i.config.Clock.NewTimer(checkpointInterval)
	i.due = due
	f.storing.Go(func() {
		defer due.Stop()
		select {
		case <-f.closed:
			return // Close has stored it
		case <-due.C():
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.due != due {
			return // stored meanwhile, or abandoned
		}
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		i.checkpoint(ctx)
	})
}

// Close implements federation.Flow.
func (f *flow) Close() {
	f.closing.Do(func() { close(f.closed) })
	defer f.storing.Wait()
	i := f.inlet
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.flow != f {
		return
	}
	i.flow = nil
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	i.checkpoint(ctx)
	// Until the next stream, others may change the copies.
	i.receiver = nil
}

// Confirm deletes the held objects of an owner. token is that of the Status that the
// operator saw. Errors: federation.ErrChanged, or one of the store.
func (i *Inlet) Confirm(ctx context.Context, typ string, owner federation.Owner, token string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.receiver == nil {
		return fmt.Errorf("confirm deletions of %s: the peer is not connected: %w", typ, federation.ErrChanged)
	}
	tx, err := i.receiver.Confirm(typ, owner, token)
	if err != nil {
		return err
	}
	i.config.Log.Info("deletions confirmed", "type", typ, "owner", owner.String(), "zone", i.config.Zone, "count", len(tx.Deletes))
	return i.finish(ctx, tx)
}

// Retry applies what waits of all types: something that it waits for may be there.
func (i *Inlet) Retry(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, k := range i.config.Kinds {
		if i.receiver == nil {
			return nil
		}
		if tx := i.receiver.Retry(k.Type.Name); tx != nil {
			if err := i.finish(ctx, tx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Run retries what waits for a namespace, or for a name that an object of this control
// plane has, whenever a namespace comes or such an object goes. It blocks until ctx
// ends, and returns nil then.
func (i *Inlet) Run(ctx context.Context, namespaces *resource.Descriptor) error {
	var running sync.WaitGroup
	retry := func() error {
		if err := i.Retry(ctx); err != nil {
			i.config.Log.Warn("waiting objects not applied", "zone", i.config.Zone, "error", err)
		}
		return nil
	}
	watch := func(kind *resource.Descriptor, removals bool) {
		running.Go(func() {
			follow(ctx, i.config.Clock, i.config.Client, kind, nil, handler{
				replace: func([]resource.Object, uint64) error { return retry() },
				change: func(obj resource.Object, removed bool, _ uint64) error {
					if obj == nil || removed != removals {
						return nil
					}
					return retry()
				},
			})
		})
	}
	watch(namespaces, false)
	for _, k := range i.config.Kinds {
		if k.Type.KeepName {
			watch(k.Descriptor, true)
		}
	}
	running.Wait()
	return nil
}

func (i *Inlet) publish() {
	status := i.receiver.Status()
	i.statusMu.Lock()
	defer i.statusMu.Unlock()
	i.status = status
}

// Status describes every type, as of the last transaction; nil before the first stream.
// The caller must not change it.
func (i *Inlet) Status() []federation.ReceivedType {
	i.statusMu.Lock()
	defer i.statusMu.Unlock()
	return i.status
}
