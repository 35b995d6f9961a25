package view

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
)

const (
	// saveDelay is the pause after the state file was written; a change after it is
	// written at once. saveDelayPerMiB is added for its size, so that constant
	// change writes at most 1 MiB/s.
	saveDelay       = time.Second / 2
	saveDelayPerMiB = time.Second
	// saveRetry after a failure: soon after the disk has room again, the state is
	// saved.
	saveRetry = 10 * time.Second
)

// FeedConfig configures a Feed.
type FeedConfig struct {
	// Conn reaches the control plane; it should be made with stream.DialOptions, and
	// stays the caller's. Nil: the feed makes one of its own from the three below.
	Conn grpc.ClientConnInterface
	// Target is the control plane in gRPC's notation, mostly HOST:PORT.
	Target      string
	Credentials credentials.TransportCredentials
	// DialOptions come after the feed's own.
	DialOptions []grpc.DialOption
	// Node is this node's name, Zone its topology zone as far as it knows; the
	// control plane's Node object overrules it.
	Node, Zone string
	// StateFile keeps the last state; empty: nowhere.
	StateFile string
	// Update takes every change, one at a time. The first has Reset. What it takes
	// is acknowledged when it returns; while it blocks, the control plane gathers
	// further changes.
	Update func(Update)
	Log    *slog.Logger // nil: silence
}

// Feed follows the view of this node's zone and keeps it through failures of the
// control plane and restarts of the agent. Make it with NewFeed.
type Feed struct {
	config FeedConfig
	client *stream.Client
	dirty  chan struct{}

	// Of the goroutine of Run alone.
	pending Update             // while not all types are complete
	waiting []*stream.Response // their answers

	mu       sync.Mutex
	types    []*held
	synced   bool
	fromDisk bool
	zone     string
	// changes counts what was received, saved how much of it is on disk.
	changes, saved uint64
	// saveError of the last attempt, and when the first one of a row failed.
	saveError    error
	unsavedSince time.Time
}

// NewFeed makes a feed.
func NewFeed(c FeedConfig) *Feed {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Feed{config: c, dirty: make(chan struct{}, 1), zone: c.Zone}
}

// FeedStatus describes a feed.
type FeedStatus struct {
	stream.ClientStatus
	// Synced: the agent has a whole state. FromDisk: it began with that on disk.
	Synced, FromDisk bool
	// Unsaved: the state file, if there is one, lacks the newest changes.
	Unsaved bool
	// SaveError is why StateFile could not be written the last time, UnsavedSince when
	// that began; nil: it could.
	SaveError    error
	UnsavedSince time.Time
	StateFile    string
	// Zone whose view this is.
	Zone string
	// Positions by type; absent: only versions are known.
	Positions map[string]string
	// Rejected resources (type and name) with the reason.
	Rejected map[string]string
}

// Status tells how it goes. Safe at any time.
func (f *Feed) Status() FeedStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := FeedStatus{
		Synced: f.synced, FromDisk: f.fromDisk, Unsaved: f.changes != f.saved, Zone: f.zone,
		SaveError: f.saveError, UnsavedSince: f.unsavedSince, StateFile: f.config.StateFile,
		Rejected: copyReasons(f.types), Positions: map[string]string{},
	}
	for _, h := range f.types {
		if h.position != "" {
			s.Positions[h.typ] = h.position
		}
	}
	if f.client != nil {
		s.ClientStatus = f.client.Status()
	}
	return s
}

// Run follows the control plane until ctx ends, and returns nil then; the state
// is on disk by that time. It returns an error only if the configuration is of no
// use. Call it once.
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
		Conn: conn, Method: "/" + Service + "/" + Method, Types: followed,
		Node:     &core.Node{Id: f.config.Node, Locality: &core.Locality{Zone: f.config.Zone}},
		Follower: (*follower)(f), Log: f.config.Log,
	})
	f.mu.Lock()
	f.client = client
	f.mu.Unlock()

	// The saver outlives the client: what came last is to be saved too.
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

// start begins with what is on disk, or with nothing.
func (f *Feed) start() {
	types, u, err := f.load()
	f.mu.Lock()
	f.types, f.pending = types, newUpdate()
	f.synced = err == nil
	f.fromDisk = err == nil
	f.mu.Unlock()
	switch {
	case err == nil:
		f.config.Log.Info("starting with the state on disk", "file", f.config.StateFile, "services", len(u.Services), "slices", len(u.Slices))
		f.config.Update(whole(u))
	case !errors.Is(err, errNoState):
		f.config.Log.Warn("state on disk is not used, everything will be fetched", "file", f.config.StateFile, "error", err)
	}
}

// followed are the types that a feed asks for.
var followed = []string{ServiceType, SliceType, NameType, NameSliceType, SuspectType}

func emptyTypes() []*held {
	out := make([]*held, 0, len(followed))
	for _, typ := range followed {
		out = append(out, newHeld(typ))
	}
	return out
}

func (f *Feed) load() ([]*held, Update, error) {
	if f.config.StateFile == "" {
		return emptyTypes(), Update{}, errNoState
	}
	types, u, err := f.restore()
	if err != nil {
		return emptyTypes(), Update{}, err
	}
	return types, u, nil
}

func (f *Feed) restore() ([]*held, Update, error) {
	u := newUpdate()
	state, err := readState(f.config.StateFile)
	if err != nil {
		return nil, u, err
	}
	if state.GetNode() != f.config.Node {
		return nil, u, fmt.Errorf("it is of node %q", state.GetNode())
	}
	types := emptyTypes()
	for _, h := range types {
		for _, s := range state.GetTypes() {
			if s.GetTypeUrl() != h.typ {
				continue
			}
			if err := h.load(s, &u); err != nil {
				return nil, u, err
			}
		}
		switch {
		case h.complete:
		case h.typ == NameType, h.typ == NameSliceType:
			h.complete = true // written before there were names: these will be fetched
		case h.typ == SuspectType:
			h.complete = true // not kept: see saveNow
		default:
			return nil, u, fmt.Errorf("it lacks type %s", h.typ)
		}
	}
	return types, u, nil
}

// follower is the part of a Feed that faces the stream.
type follower Feed

// Have implements stream.Follower.
func (f *follower) Have(typ string, cursor bool) map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.find(typ).have(cursor)
}

func (f *follower) find(typ string) *held {
	for _, h := range f.types {
		if h.typ == typ {
			return h
		}
	}
	return nil
}

// Connected implements stream.Follower.
func (f *follower) Connected(header metadata.MD) {
	f.waiting = nil
	zones := header.Get(zoneHeader)
	if len(zones) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.zone != zones[0] {
		f.config.Log.Info("node is in another zone", "zone", zones[0], "before", f.zone)
	}
	f.zone = zones[0]
}

// Receive implements stream.Follower.
func (f *follower) Receive(r *stream.Response) {
	u := &f.pending
	if f.synced { // only this goroutine writes it
		fresh := newUpdate()
		u = &fresh
	}
	refusal := f.take(r, u)
	if refusal != "" {
		f.config.Log.Warn("resources refused, their last good state stays", "type", r.Type, "reason", refusal)
		r.Reject(refusal)
	}
	switch {
	case f.synced:
		if !u.empty() {
			f.config.Update(*u)
		}
	case f.complete():
		f.config.Update(whole(*u))
		f.mu.Lock()
		f.synced = true
		f.mu.Unlock()
		for _, earlier := range f.waiting {
			earlier.Accept()
		}
		f.pending, f.waiting = Update{}, nil
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

// take records a response and returns what to refuse of it.
func (f *follower) take(r *stream.Response, u *Update) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.find(r.Type)
	if h == nil {
		return fmt.Sprintf("type %q was not asked for", r.Type)
	}
	refused := h.take(r.Resources, r.Removed, u)
	if r.Position != "" {
		h.position, h.complete = r.Position, true
	}
	return h.refusal(refused)
}

func (f *follower) complete() bool {
	for _, h := range f.types {
		if !h.complete {
			return false
		}
	}
	return true
}

// save writes the state file after a change, with a pause between two times, and
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

// setDirty asks for a save.
func (f *Feed) setDirty() {
	f.mu.Lock()
	f.changes++
	f.mu.Unlock()
	select {
	case f.dirty <- struct{}{}:
	default:
	}
}

// saveNow returns how long to gather before the next time. What could not be
// written is tried again even if nothing changes.
func (f *Feed) saveNow() time.Duration {
	f.mu.Lock()
	state := &nodev1.State{Node: f.config.Node, Zone: f.zone}
	for _, h := range f.types {
		// A suspicion lasts seconds. An agent that starts without its control plane would
		// have nobody to take it back.
		if h.typ != SuspectType {
			state.Types = append(state.Types, h.toState())
		}
	}
	changes := f.changes
	f.mu.Unlock()
	size, err := writeState(f.config.StateFile, state)
	f.noteSave(err)
	if err != nil {
		f.config.Log.Error("state not saved, a restart would begin with an older one", "file", f.config.StateFile, "error", err)
		f.setDirty()
		return saveRetry
	}
	f.mu.Lock()
	f.saved = changes
	f.mu.Unlock()
	return saveDelay + time.Duration(size>>20)*saveDelayPerMiB
}

// noteSave remembers the result of an attempt to save, for Status.
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
