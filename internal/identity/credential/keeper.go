package credential

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// KeeperConfig of a Keeper. Dir and Client are required.
type KeeperConfig struct {
	// Dir is the agent's directory for it.
	Dir    string
	Client identityv1.IdentityClient
	// Saved gets the result of each attempt to write the file; nil: nobody does.
	Saved  func(file string, err error)
	Logger *slog.Logger // nil: silence
}

// Keeper has what the TLS of services needs on a node: the newest that the control plane
// sent, or the copy on disk. Safe for concurrent use.
type Keeper struct {
	cfg    KeeperConfig
	wanted chan struct{} // closed when a service needs something
	want   sync.Once

	mu       sync.Mutex
	services map[proxy.ServiceName]*held
	// whole: the control plane has sent everything since the start. problem is why not.
	whole   bool
	problem error
}

// held is what there is for one service.
type held struct {
	generation uint64
	problem    string
	roots      *x509.CertPool
	pair       *tls.Certificate
	stored     stored
}

// NewKeeper makes a keeper with what an earlier run kept. A file that cannot be used is
// logged, and given up.
func NewKeeper(c KeeperConfig) *Keeper {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Saved == nil {
		c.Saved = func(string, error) {}
	}
	k := &Keeper{cfg: c, wanted: make(chan struct{}), services: map[proxy.ServiceName]*held{}}
	all, err := load(c.Dir)
	if err != nil {
		c.Logger.Error("certificates and keys for external services are not read from disk; they come from the control plane", "error", err)
	}
	for _, s := range all {
		h, err := s.parse()
		if err != nil {
			h = &held{problem: "damaged on disk: " + err.Error()}
		}
		k.services[s.service()] = h
	}
	return k
}

// Want has Run get what the node needs. Until then it asks nobody: few nodes need anything.
func (k *Keeper) Want() { k.want.Do(func() { close(k.wanted) }) }

// Get returns what a service of a generation needs: authorities (nil: they are not in a
// Secret), and a certificate to show (nil: none). It does not block.
func (k *Keeper) Get(service proxy.ServiceName, generation uint64) (*x509.CertPool, *tls.Certificate, error) {
	k.Want()
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.services[service]
	switch {
	case h != nil && h.problem != "":
		return nil, nil, errors.New(h.problem)
	case h != nil && h.generation == generation:
		return h.roots, h.pair, nil
	case k.whole && h == nil:
		return nil, nil, errors.New("this node gets no certificates or keys for it: only nodes with workloads of its mesh do, " +
			"its egresses where the mesh routes by them, and ingresses of spec.zones")
	case k.problem != nil:
		return nil, nil, fmt.Errorf("its certificates and keys have not come from the control plane: %w", k.problem)
	}
	return nil, nil, errors.New("its certificates and keys have not come from the control plane yet")
}

// retry spaces attempts to open the stream.
var retry = backoff.Policy{First: 200 * time.Millisecond, Last: 10 * time.Second, Jitter: 0.5}

// Run follows the control plane from the first Want until ctx ends, and returns nil then.
func (k *Keeper) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-k.wanted:
	}
	pause := backoff.Backoff{Policy: retry}
	for ctx.Err() == nil {
		got, err := k.follow(ctx)
		if got {
			pause.Reset()
		}
		if ctx.Err() != nil {
			return nil
		}
		if status.Code(err) == codes.Unimplemented {
			err = errors.New("the control plane is of a version that sends none: upgrade it")
		}
		k.mu.Lock()
		k.problem = err
		k.mu.Unlock()
		delay := pause.Next()
		k.cfg.Logger.Debug("the stream of certificates and keys for external services ended", "retryIn", delay, "error", err)
		backoff.Sleep(ctx, delay)
	}
	return nil
}

// follow one stream; got: a whole state came.
func (k *Keeper) follow(ctx context.Context) (got bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := k.cfg.Client.External(ctx, &identityv1.ExternalRequest{})
	if err != nil {
		return false, err
	}
	next := map[proxy.ServiceName]*held{}
	for {
		r, err := stream.Recv()
		if err != nil {
			return got, err
		}
		if r.GetService() != nil {
			name, h := receive(r.GetService())
			next[name] = h
			continue
		}
		k.use(next)
		got, next = true, map[proxy.ServiceName]*held{}
	}
}

// receive checks what the control plane sent of a service.
func receive(c *identityv1.ExternalCredentials) (proxy.ServiceName, *held) {
	s := stored{
		Namespace: c.GetNamespace(), Name: c.GetName(), Generation: c.GetGeneration(), Problem: c.GetProblem(),
		Roots: string(c.GetRoots()), Certificate: string(c.GetCertificate()), Key: string(c.GetKey()),
	}
	h, err := s.parse()
	if err != nil {
		s.Roots, s.Certificate, s.Key, s.Problem = "", "", "", err.Error()
		h = &held{generation: s.Generation, problem: s.Problem, stored: s}
	}
	return s.service(), h
}

// use a whole state, and keep it on disk.
func (k *Keeper) use(next map[proxy.ServiceName]*held) {
	k.mu.Lock()
	for name, h := range next {
		if was := k.services[name]; h.problem != "" && (was == nil || was.problem != h.problem) {
			k.cfg.Logger.Warn("connections to an external service are refused", "service", name.String(), "error", h.problem)
		}
	}
	k.services, k.whole, k.problem = next, true, nil
	k.mu.Unlock()
	k.cfg.Saved(path(k.cfg.Dir), save(k.cfg.Dir, next))
}
