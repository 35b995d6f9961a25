// Package fromview is an agent's feed from a control plane: it follows the view of the
// node's zone, keeps it on disk, and delivers it as updates of the agent's model.
//
// Enter at [NewFeed], then [Feed.Run]. The control plane's side is package view, the
// encoding package view/wire. Package fromkube is the other feed. This package chooses no
// endpoints and proxies no traffic.
package fromview

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/tracing"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

const (
	// saveDelay is the pause after the state file was written; a change after it is
	// written at once. saveDelayPerMiB is added for its size, so that constant
	// change writes at most 1 MiB/s.
	saveDelay       = time.Second / 2
	saveDelayPerMiB = time.Second
	// saveRetry is the pause after a failure, so that the state is saved soon after the
	// disk has space again.
	saveRetry = 10 * time.Second
)

// FeedConfig configures a Feed.
type FeedConfig struct {
	// Conn is a connection to the control plane; it should be made with
	// stream.DialOptions, and the caller closes it. Nil: the feed makes its own from the
	// three fields below.
	Conn grpc.ClientConnInterface
	// Target is the control plane in gRPC's notation, mostly HOST:PORT.
	Target      string
	Credentials credentials.TransportCredentials
	// DialOptions are applied after the feed's own.
	DialOptions []grpc.DialOption
	// Node is this node's name, Zone its configured topology zone, which the control
	// plane's Node object overrides.
	Node string
	Zone locality.Zone
	// Cluster is what a gateway says of itself: wire.IngressCluster or wire.EgressCluster.
	Cluster string
	// Version of the agent, which it announces; empty: none.
	Version string
	// Mode in which the agent carries traffic, which it announces; empty: in none.
	Mode string
	// StateFile keeps the last state; empty: it is not kept.
	StateFile string
	// Update is called with every change, one at a time. The first has Reset. A change
	// is acknowledged when it returns; while it blocks, the control plane coalesces
	// further changes.
	Update func(node.Update)
	Tracer *tracing.Recorder // nil: tracing is off
	Logger *slog.Logger      // nil: discard
	// Registerer of metrics; nil: none. Registering twice panics.
	Registerer prometheus.Registerer
}

// Feed follows the view of this node's zone and keeps it through failures of the
// control plane and restarts of the agent. Make it with NewFeed.
type Feed struct {
	config FeedConfig
	client *stream.Client
	dirty  chan struct{}

	// Only the goroutine of Run uses these.
	pending node.Update        // while not all types are complete
	waiting []*stream.Response // to be acknowledged once they are

	mu       sync.Mutex
	types    []*typeState
	synced   bool
	fromDisk bool
	zone     locality.Zone
	// changes counts what was received, saved how much of it is on disk.
	changes, saved uint64
	// saveError of the last attempt, and the time of the first of consecutive failures.
	saveError    error
	unsavedSince time.Time
}

// NewFeed makes a feed.
func NewFeed(c FeedConfig) *Feed {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Feed{config: c, dirty: make(chan struct{}, 1), zone: c.Zone}
	if c.Registerer != nil {
		f.register(c.Registerer)
	}
	return f
}

// FeedStatus describes a feed.
type FeedStatus struct {
	stream.ClientStatus
	// Synced: the agent has a whole state. FromDisk: it started with that on disk.
	Synced, FromDisk bool
	// Unsaved: the state file, if there is one, lacks the newest changes.
	Unsaved bool
	// SaveError of the last attempt to write StateFile, UnsavedSince the time of the
	// first of consecutive failures; nil: it succeeded.
	SaveError    error
	UnsavedSince time.Time
	StateFile    string
	// Current: on the present stream the control plane has confirmed services and slices,
	// so what changed while there was none has been received.
	Current bool
	// Zone whose view this is.
	Zone locality.Zone
	// Positions by type; absent: only versions are known.
	Positions map[string]string
	// Rejected resources (type and name) with the reason.
	Rejected map[string]string
}

// Status of the feed. Safe at any time.
func (f *Feed) Status() FeedStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := FeedStatus{
		Synced:       f.synced,
		FromDisk:     f.fromDisk,
		Unsaved:      f.changes != f.saved,
		Zone:         f.zone,
		SaveError:    f.saveError,
		UnsavedSince: f.unsavedSince,
		StateFile:    f.config.StateFile,
		Rejected:     copyReasons(f.types),
		Positions:    map[string]string{},
	}
	for _, t := range f.types {
		if t.position != "" {
			s.Positions[t.typ] = t.position
		}
	}
	if f.client != nil {
		s.ClientStatus = f.client.Status()
	}
	s.Current = s.Connected && s.Synced && f.confirmed()
	return s
}

// confirmed reports whether services and slices have been confirmed since the last stream was
// admitted. f.mu is held.
func (f *Feed) confirmed() bool {
	n := 0
	for _, t := range f.types {
		if t.confirmed && (t.typ == wire.ServiceType || t.typ == wire.SliceType) {
			n++
		}
	}
	return n == 2
}

// Run follows the control plane until ctx ends, and returns nil then; the state
// is on disk by that time. It returns an error only if the configuration is
// invalid. Call it once.
func (f *Feed) Run(ctx context.Context) error {
	conn := f.config.Conn
	if conn == nil {
		options := append(stream.DialOptions(), grpc.WithTransportCredentials(f.config.Credentials))
		own, err := grpc.NewClient(f.config.Target, append(options, f.config.DialOptions...)...)
		if err != nil {
			return fmt.Errorf("node view of %s: %w", f.config.Target, err)
		}
		defer own.Close()
		conn = own
	}

	f.start()
	client := stream.NewClient(stream.ClientConfig{
		Conn: conn, Method: "/" + wire.GRPCService + "/" + wire.Method, Types: resourceTypes,
		Node: &core.Node{
			Id: f.config.Node, Cluster: f.config.Cluster, Locality: &core.Locality{Zone: string(f.config.Zone)},
			UserAgentName: "proxima", UserAgentVersionType: &core.Node_UserAgentVersion{UserAgentVersion: f.config.Version},
			Metadata: wire.Metadata(f.config.Mode),
		},
		Follower: (*follower)(f), Log: f.config.Logger,
	})
	f.mu.Lock()
	f.client = client
	f.mu.Unlock()

	// The saver outlives the client, so that the last change is saved too.
	saving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var saver sync.WaitGroup
	if f.config.StateFile != "" {
		saver.Go(func() { f.save(saving) })
	}
	err := client.Run(ctx)
	stop()
	saver.Wait()
	return err
}

// start with the state on disk, or with none.
func (f *Feed) start() {
	types, u, err := f.load()
	f.mu.Lock()
	f.types, f.pending = types, newUpdate()
	f.synced = err == nil
	f.fromDisk = err == nil
	f.mu.Unlock()
	switch {
	case err == nil:
		f.config.Logger.Info("starting with the state on disk", "file", f.config.StateFile,
			"services", len(u.Services), "slices", len(u.Slices))
		f.config.Update(whole(u))
	case !errors.Is(err, errNoState):
		f.config.Logger.Warn("state on disk is not used, everything will be fetched",
			"file", f.config.StateFile, "error", err)
	}
}

// resourceTypes are the types that a feed subscribes to. Offers are for ingresses, and few, so
// that all agents get them.
var resourceTypes = []string{
	wire.ServiceType, wire.SliceType, wire.NameType, wire.NameSliceType, wire.SuspectType, wire.LeavingType, wire.RemoteType, wire.OfferType,
	wire.VirtualIPType, wire.MeshType, wire.WorkloadType,
}

// passing are what is true for a short time. It is not saved: an agent that starts without its
// control plane could not learn that it has ended.
func passing(typ string) bool { return typ == wire.SuspectType || typ == wire.LeavingType }

func emptyTypes() []*typeState {
	out := make([]*typeState, 0, len(resourceTypes))
	for _, typ := range resourceTypes {
		out = append(out, newTypeState(typ))
	}
	return out
}

func (f *Feed) load() ([]*typeState, node.Update, error) {
	if f.config.StateFile == "" {
		return emptyTypes(), node.Update{}, errNoState
	}
	types, u, err := f.restore()
	if err != nil {
		return emptyTypes(), node.Update{}, err
	}
	return types, u, nil
}

func (f *Feed) restore() ([]*typeState, node.Update, error) {
	u := newUpdate()
	state, err := readState(f.config.StateFile)
	if err != nil {
		return nil, u, err
	}
	if state.GetNode() != f.config.Node {
		return nil, u, fmt.Errorf("it is of node %q", state.GetNode())
	}
	types := emptyTypes()
	for _, t := range types {
		for _, s := range state.GetTypes() {
			if s.GetTypeUrl() != t.typ {
				continue
			}
			if err := t.load(s, &u); err != nil {
				return nil, u, err
			}
		}
		switch {
		case t.complete:
		case t.typ == wire.NameType, t.typ == wire.NameSliceType, t.typ == wire.RemoteType, t.typ == wire.OfferType,
			t.typ == wire.VirtualIPType, t.typ == wire.MeshType, t.typ == wire.WorkloadType:
			t.complete = true // of a version without them: they will be fetched
		case passing(t.typ):
			t.complete = true // not saved: see saveNow
		default:
			return nil, u, fmt.Errorf("it lacks type %s", t.typ)
		}
	}
	return types, u, nil
}

// follower implements stream.Follower for a Feed.
type follower Feed

// Have implements stream.Follower.
func (f *follower) Have(typ string, cursor bool) map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.find(typ).initialVersions(cursor)
}

func (f *follower) find(typ string) *typeState {
	for _, t := range f.types {
		if t.typ == typ {
			return t
		}
	}
	return nil
}

// Connected implements stream.Follower.
func (f *follower) Connected(header metadata.MD) {
	f.waiting = nil
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.types {
		t.confirmed = false
	}
	zones := header.Get(wire.ZoneHeader)
	if len(zones) == 0 {
		return
	}
	zone := locality.Zone(zones[0])
	if f.zone != zone {
		f.config.Logger.Info("node is in another zone", "zone", zone, "before", f.zone)
	}
	f.zone = zone
}

// Receive implements stream.Follower.
func (f *follower) Receive(r *stream.Response) {
	u := &f.pending
	if f.synced { // only this goroutine writes the field
		fresh := newUpdate()
		u = &fresh
	}
	followed := (*Feed)(f).follow(r, u)
	refusal := f.store(r, u)
	if refusal != "" {
		f.config.Logger.Warn("resources refused, their last valid state stays", "type", r.Type, "reason", refusal)
		r.Reject(refusal)
	}
	switch {
	case f.synced:
		if !u.Empty() {
			f.config.Update(*u)
		}
		followed.record(refusal)
	case f.complete():
		f.config.Update(whole(*u))
		f.mu.Lock()
		f.synced = true
		f.mu.Unlock()
		for _, earlier := range f.waiting {
			earlier.Accept()
		}
		f.pending, f.waiting = node.Update{}, nil
	default:
		if refusal == "" {
			f.waiting = append(f.waiting, r)
		}
		return
	}
	if refusal == "" {
		r.Accept()
	}
	(*Feed)(f).setDirty()
}

// State is all that was received, decoded anew. It may be called from within Update.
func (f *Feed) State() node.Update {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := newUpdate()
	for _, t := range f.types {
		for name, r := range t.resources {
			_ = decodeInto(&u, t.typ, name, r.body) // it was decoded before
		}
	}
	return u
}

// store a response. It returns the reason to refuse it, if there is one.
func (f *follower) store(r *stream.Response, u *node.Update) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.find(r.Type)
	if t == nil {
		return fmt.Sprintf("type %q is not subscribed to", r.Type)
	}
	refused := t.apply(r.Resources, r.Removed, u)
	if r.Position != "" {
		t.position, t.complete, t.confirmed = r.Position, true, true
	}
	return t.refusal(refused)
}

func (f *follower) complete() bool {
	for _, t := range f.types {
		if !t.complete {
			return false
		}
	}
	return true
}

// save writes the state file after changes, with a pause in between, and
// once more when ctx ends.
func (f *Feed) save(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-f.dirty:
			pause := time.NewTimer(f.saveNow())
			select {
			case <-ctx.Done():
			case <-pause.C:
			}
			pause.Stop()
		}
	}
	select {
	case <-f.dirty:
		f.saveNow()
	default:
	}
}

// setDirty requests a save.
func (f *Feed) setDirty() {
	f.mu.Lock()
	f.changes++
	f.mu.Unlock()
	select {
	case f.dirty <- struct{}{}:
	default:
	}
}

// saveNow saves the state and returns the pause before the next time. A failure is
// retried even if nothing changes.
func (f *Feed) saveNow() time.Duration {
	f.mu.Lock()
	state := &nodev1.State{Node: f.config.Node, Zone: string(f.zone)}
	for _, t := range f.types {
		if !passing(t.typ) {
			state.Types = append(state.Types, t.toState())
		}
	}
	changes := f.changes
	f.mu.Unlock()
	size, err := writeState(f.config.StateFile, state)
	f.noteSave(err)
	if err != nil {
		f.config.Logger.Error("state not saved, a restart would use an older one",
			"file", f.config.StateFile, "error", err)
		f.setDirty()
		return saveRetry
	}
	f.mu.Lock()
	f.saved = changes
	f.mu.Unlock()
	return saveDelay + time.Duration(size>>20)*saveDelayPerMiB
}

// noteSave records the result of an attempt to save, for Status.
func (f *Feed) noteSave(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.saveError = err
	switch {
	case err == nil:
		f.unsavedSince = time.Time{}
	case f.unsavedSince.IsZero():
		f.unsavedSince = time.Now()
	}
}
