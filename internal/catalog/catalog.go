// Package catalog is the control plane's view of the state: namespaces,
// services, endpoint slices and Endpoints, nodes, workloads and the costs between
// zones as immutable indexed tables.
//
// It owns the tables and the one goroutine that writes them, fed by list and
// watch of a resource.Client. Enter at New; read with Catalog.Snapshot, follow
// with Catalog.Subscribe. Objects in the catalog are shared by all readers:
// they must not be changed, as they may be those of the API's watch cache (Config.Shared). Nobody may
// rely on their managedFields. The catalog never writes to the API and never waits for a reader.
//
// What is not in a table is gone: readers delete what depends on it. So no reader gets a table
// before its kind was listed as a whole. A kind with an object that cannot be read
// is not listed, and stops its readers alone: a subscription waits for its own kinds, and for those
// that say what services and workloads there are (common). Who reads a table without a
// subscription asks Listed first.
package catalog

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// Position says how far a catalog has come.
//
// Within one run of one catalog the Sequence rises with every batch that changed
// something, so equal positions mean equal content, and of two snapshots the one
// with the larger Sequence is the newer. It follows the store's revision where
// resource versions are numbers: it is never below the highest one seen. A
// restarted control plane therefore goes on about where the earlier one was, but
// kinds arrive on separate watches, so content at the same number may differ
// between runs. A position of another run is a hint of age and no proof of
// content; a client that resumes with one compares content. Positions of different
// epochs must not be compared at all.
type Position struct {
	Epoch    string
	Sequence uint64
}

// Config of a Catalog.
type Config struct {
	// Client to read with. Objects that it hands out belong to the catalog, which drops their managedFields, unless they are Shared.
	Client resource.Client
	// Shared says that the client keeps the objects in memory anyway, for others: the tables hold them as they are
	// (resource.ListOptions.Shared).
	Shared bool
	// Descriptors to follow. Those of kinds that the catalog has no table for are
	// ignored, so that all may be passed; the table of a kind without a
	// descriptor stays empty.
	Descriptors []*resource.Descriptor
	// Later says from when on kinds are followed that are not needed at first: from when the
	// channel of the kind is closed. Until then their tables are empty, and Synced does not wait
	// for them.
	Later map[schema.GroupKind]<-chan struct{}
	// Epoch names the history that resource versions belong to (store.Store).
	Epoch string
	// Tracer follows sampled changes; nil: none is.
	Tracer *tracing.Recorder
	// Logger; nil: silence.
	Logger *slog.Logger
}

// Catalog keeps the newest Snapshot. Safe for concurrent use.
type Catalog struct {
	client  resource.Client
	shared  bool
	epoch   string
	tracer  *tracing.Recorder
	log     *slog.Logger
	feeds   []feed
	inputs  chan input
	current atomic.Pointer[Snapshot]
	synced  chan struct{}

	mu   sync.Mutex // guards what follows, and publication against Subscribe
	subs map[*Subscription]struct{}
	// unlisted are the kinds that have not been listed yet, but for those of Config.Later.
	unlisted map[Kind]struct{}
}

// common are the kinds that readers use to understand the objects of others: which services
// and workloads there are, where they are and in which mesh. Every subscription waits for them.
var common = [...]Kind{Namespaces, Services, Slices, Nodes, Pods, Dataplanes, Meshes}

// inputBacklog is how many events may wait for the writer before the watches
// are held back; it only evens out bursts.
const inputBacklog = 1024

// New makes an empty catalog; Run fills it.
func New(config Config) *Catalog {
	c := &Catalog{
		client: config.Client,
		shared: config.Shared,
		epoch:  config.Epoch,
		tracer: config.Tracer,
		log:    config.Logger,
		inputs: make(chan input, inputBacklog),
		synced: make(chan struct{}),
		subs:   make(map[*Subscription]struct{}),

		unlisted: make(map[Kind]struct{}),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	for _, descriptor := range config.Descriptors {
		for kind, ops := range tables {
			if ops.groupKind() == descriptor.GVK.GroupKind() {
				f := feed{kind: Kind(kind), descriptor: descriptor, from: config.Later[ops.groupKind()]}
				c.feeds = append(c.feeds, f)
				if f.from == nil {
					c.unlisted[f.kind] = struct{}{}
				}
			}
		}
	}
	c.current.Store(newSnapshot(Position{Epoch: c.epoch}))
	return c
}

// Run feeds the catalog until ctx ends, and returns nil then. Failures of the
// client are logged and retried. It must be called once.
func (c *Catalog) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, f := range c.feeds {
		running.Go(func() { f.run(ctx, c) })
	}
	c.write(ctx)
	running.Wait()
	return nil
}

// Snapshot is the newest state. Lock-free. Until Synced it may lack objects.
func (c *Catalog) Snapshot() *Snapshot { return c.current.Load() }

// Tracer of Config, for those who follow the catalog; nil: tracing is off.
func (c *Catalog) Tracer() *tracing.Recorder { return c.tracer }

// Synced reports whether every kind has been listed once, but for those of Config.Later.
func (c *Catalog) Synced() bool {
	select {
	case <-c.synced:
		return true
	default:
		return false
	}
}

// WaitSynced blocks until Synced, or returns why ctx ended.
func (c *Catalog) WaitSynced(ctx context.Context) error {
	select {
	case <-c.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for catalog: %w", context.Cause(ctx))
	}
}

// Listed reports whether some kinds have been listed once, and those that all readers need, but
// for those of Config.Later. A kind that cannot be listed, as one of its objects cannot be read,
// is no reason to wait for who does not use it.
func (c *Catalog) Listed(kinds ...Kind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listed(kinds)
}

func (c *Catalog) listed(kinds []Kind) bool {
	for _, all := range [...][]Kind{common[:], kinds} {
		for _, kind := range all {
			if _, missing := c.unlisted[kind]; missing {
				return false
			}
		}
	}
	return true
}

// WaitListed blocks until Listed, or returns why ctx ended.
func (c *Catalog) WaitListed(ctx context.Context, kinds ...Kind) error {
	s := c.Subscribe(append([]Kind{Namespaces}, kinds...)...)
	defer s.Close()
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for catalog: %w", context.Cause(ctx))
	}
}

// write is the one writer. Inputs that are there together become one batch.
func (c *Catalog) write(ctx context.Context) {
	if len(c.unlisted) == 0 {
		close(c.synced)
	}
	for {
		var first input
		select {
		case <-ctx.Done():
			return
		case first = <-c.inputs:
		}
		c.publish(c.apply(first))
	}
}

// batchLimit bounds the inputs of one batch, so that readers see progress
// during a flood.
const batchLimit = 4096

// apply builds the next snapshot from the first input and all that already wait.
func (c *Catalog) apply(first input) *batch {
	b := newBatch(c.current.Load())
	b.add(first)
	for range batchLimit {
		select {
		case in := <-c.inputs:
			b.add(in)
			continue
		default:
		}
		break
	}
	return b
}

// publish makes the batch visible: to Snapshot first, then to the subscriptions
// of the kinds that it changed.
func (c *Catalog) publish(b *batch) {
	next, changed := b.commit()

	c.mu.Lock()
	defer c.mu.Unlock()
	c.current.Store(next)
	wasSynced := len(c.unlisted) == 0
	for kind := range b.listed {
		delete(c.unlisted, kind)
	}
	if len(c.unlisted) == 0 && !wasSynced {
		close(c.synced)
	}
	for s := range c.subs {
		if begins := !s.began; !begins {
			s.notify(next, changed, false)
		} else if c.listed(s.waits) {
			s.began = true
			s.notify(next, changed, true)
		}
	}
}
