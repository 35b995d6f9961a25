package authorities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// LeaderConfig configures a Leader. All fields but Logger and Now are required.
type LeaderConfig struct {
	Authorities *Authorities
	// Client writes the status of Meshes.
	Client resource.Client
	// Peers of a mesh's rotation, and a channel that gets a value when one of them has
	// acknowledged something or went.
	Peers func(mesh string) []rotation.Peer
	Acked <-chan struct{}
	// Members are the workloads of a mesh (NAMESPACE/NAME), for its status; sorted.
	Members func(mesh string) []string
	Logger  *slog.Logger
	Now     func() time.Time
}

// Leader makes roots, takes the steps of rotations, and writes the status of Meshes. Only
// the leader of a control plane that has the roots runs one: standalone or global.
type Leader struct {
	config   LeaderConfig
	own      *Authorities
	drivers  map[string]*rotation.Driver
	progress map[string]progress
}

// progress of one mesh.
type progress struct {
	rotation.Progress
	// problem is why the mesh has not what it asks for; nil: it has, or is on the way.
	problem error
	// unable is why the authority that issues cannot sign; nil: it can, or none issues.
	unable error
}

// NewLeader makes the leader of one term.
func NewLeader(c LeaderConfig) *Leader {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Leader{config: c, own: c.Authorities, drivers: map[string]*rotation.Driver{}, progress: map[string]progress{}}
}

// Run leads until ctx ends, and returns nil then.
func (l *Leader) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-l.own.Synced():
	}
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		l.own.mu.Lock()
		changed := l.own.changed
		l.own.mu.Unlock()
		l.lead(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-l.config.Acked:
		case <-ticker.C:
		}
	}
}

// lead takes what steps are due.
func (l *Leader) lead(ctx context.Context) {
	l.own.mu.Lock()
	all := maps.Clone(l.own.running)
	l.own.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r := all[name]
		p := progress{problem: r.wanted.problem}
		if p.problem == nil {
			p.Progress, p.problem = l.leadMesh(ctx, name, r)
			p.unable = r.ensureIssuer(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		l.logTrouble(name, p)
		l.progress[name] = p
		if err := l.writeStatus(ctx, r, p); err != nil && ctx.Err() == nil {
			l.config.Logger.Warn("status of a mesh not written; it is tried again", "mesh", name, "error", err)
		}
	}
	l.forget(ctx, all)
}

// logTrouble logs what is wrong with a mesh, once.
func (l *Leader) logTrouble(name string, p progress) {
	news := func(was, is error) bool { return is != nil && (was == nil || was.Error() != is.Error()) }
	old := l.progress[name]
	if news(old.problem, p.problem) {
		l.config.Logger.Warn("a mesh has not the authority that it asks for", "mesh", name, "error", p.problem)
	}
	if news(old.unable, p.unable) {
		l.config.Logger.Warn("the authority that issues in a mesh cannot sign", "mesh", name, "error", p.unable)
	}
}

// driver of a mesh.
func (l *Leader) driver(name string) *rotation.Driver {
	d := l.drivers[name]
	if d == nil {
		d = rotation.NewDriver(rotation.DriverConfig{
			Mesh: name, Keeper: l.own.config.Records.Record(rotationName(name)),
			Peers:   func() []rotation.Peer { return l.config.Peers(name) },
			CanSign: func(ctx context.Context, t rotation.Authority) error { return l.own.CanSign(ctx, name, t) },
			// Every instance publishes what it reads from the record, this one too.
			Publish: func(rotation.State) { l.own.Kick() },
			Logger:  l.config.Logger, Now: l.config.Now,
		})
		l.drivers[name] = d
	}
	return d
}

func (l *Leader) leadMesh(ctx context.Context, name string, r *running) (rotation.Progress, error) {
	d := l.driver(name)
	want, candidateErr := l.candidate(ctx, name, r)
	if r.state == nil && r.problem == nil {
		switch {
		case candidateErr != nil:
			return rotation.Progress{}, candidateErr
		case want.ID == rotation.None:
			return rotation.Progress{}, nil
		case r.wanted.mesh.Generation > 1:
			// Its workloads have sent plain text until now: mTLS comes by overlap.
			if _, err := d.Ensure(ctx, rotation.Authority{ID: rotation.None}); err != nil {
				return rotation.Progress{}, err
			}
			_, err := d.Start(ctx, want)
			return rotation.Progress{}, err
		}
		_, err := d.Ensure(ctx, want)
		return rotation.Progress{}, err
	}
	state, p, err := d.Reconcile(ctx)
	if errors.Is(err, rotation.ErrConflict) {
		delete(l.drivers, name) // another instance was the leader meanwhile
	}
	if err != nil {
		return p, err
	}
	if candidateErr != nil {
		return p, candidateErr
	}
	switch next, under := state.Next(); {
	case state.Phase == rotation.Stable && want.ID != state.Issuer:
		_, err = d.Start(ctx, want)
	case state.Phase == rotation.Stable:
		l.removeRoots(ctx, name, state)
	case under && next.ID != want.ID && state.Trusted[0].ID == want.ID:
		_, err = d.Abort(ctx)
	}
	return p, err
}

// candidate is the authority that the mesh is to have. Its key is stored before it is
// returned.
func (l *Leader) candidate(ctx context.Context, name string, r *running) (rotation.Authority, error) {
	w := r.wanted
	b := w.backend(w.enabled)
	switch {
	case b == nil:
		return rotation.Authority{ID: rotation.None}, nil
	case typeOf(b) != v1alpha1.BackendBuiltin:
		opened := r.backends[b.Name]
		if opened == nil {
			return rotation.Authority{}, errUnknownMesh
		}
		return opened.newest(typeOf(b))
	}
	if l.own.config.Root != nil {
		return l.rootOfGlobal(ctx, name, r, b.Name)
	}
	if r.state != nil {
		// The newest first: the name may have been that of another root before.
		for _, t := range slices.Backward(r.state.Trusted) {
			if t.Backend == b.Name && t.Type == v1alpha1.BackendBuiltin {
				return t, nil
			}
		}
	}
	root, err := l.unusedRoot(ctx, name, r, b.Name)
	if err != nil {
		return rotation.Authority{}, err
	}
	return rotation.Authority{
		ID: authority.ID(root.Certificate()), Backend: b.Name, Type: v1alpha1.BackendBuiltin,
		Roots: certpem.EncodeCertificates(root.Certificate()),
	}, nil
}

// askAgain is how soon a zone without an authority asks global again.
const askAgain = 2 * time.Second

// rootOfGlobal is the authority of global. While global does not answer, the one stays that
// is trusted.
func (l *Leader) rootOfGlobal(ctx context.Context, name string, r *running, backend string) (rotation.Authority, error) {
	t, err := l.own.config.Root(ctx, name, backend)
	if err == nil {
		return t, nil
	}
	if r.state != nil {
		for _, t := range slices.Backward(r.state.Trusted) {
			if t.Backend == backend && t.Type == v1alpha1.BackendBuiltin {
				return t, nil
			}
		}
	}
	time.AfterFunc(askAgain, l.own.Kick)
	return rotation.Authority{}, fmt.Errorf("the root of global: %w", err)
}

// unusedRoot is a root that was made before a crash, or a new one.
func (l *Leader) unusedRoot(ctx context.Context, name string, r *running, backend string) (*authority.Root, error) {
	records := l.own.config.Records
	names, err := records.Names(ctx, rootPrefix(name, backend))
	if err != nil {
		return nil, err
	}
	for _, one := range names {
		root, err := loadRoot(ctx, records, name, backend, lastSegment(one))
		if err == nil && root.Domain() == r.wanted.domain {
			return root, nil
		}
		if err != nil {
			l.config.Logger.Error("the key of a root cannot be read; another one is made", "mesh", name, "record", one, "error", err)
		}
	}
	root, err := authority.NewRoot(name, r.wanted.domain, l.config.Now())
	if err != nil {
		return nil, err
	}
	record, err := root.Record()
	if err != nil {
		return nil, err
	}
	if err := records.Simple(rootName(name, backend, authority.ID(root.Certificate()))).Save(ctx, record); err != nil {
		return nil, err
	}
	l.config.Logger.Info("root made", "mesh", name, "backend", backend, "authority", authority.ID(root.Certificate()))
	return root, nil
}

// removeRoots deletes keys of a mesh that are of no authority that is trusted.
func (l *Leader) removeRoots(ctx context.Context, name string, state rotation.State) {
	trusted := func(record string) bool {
		return slices.ContainsFunc(state.Trusted, func(t rotation.Authority) bool {
			return t.ID != rotation.None && slices.Contains(strings.Split(record, "/"), t.ID)
		})
	}
	for _, prefix := range []string{roots + name + "/", intermediates + name + "/"} {
		l.remove(ctx, prefix, func(record string) bool { return !trusted(record) })
	}
}

// forget deletes what is left of meshes that are gone.
func (l *Leader) forget(ctx context.Context, all map[string]*running) {
	gone := func(record string) bool {
		_, rest, _ := strings.Cut(record, "/")
		name, _, _ := strings.Cut(rest, "/")
		if all[name] != nil {
			return false
		}
		// It may be newer than what was read last: a root is lost only once.
		_, err := l.config.Client.Get(ctx, kind.Mesh, resource.Key{Name: name})
		return apierrors.IsNotFound(err)
	}
	for _, prefix := range []string{rotations, roots, intermediates} {
		l.remove(ctx, prefix, gone)
	}
	for name := range l.drivers {
		if all[name] == nil {
			delete(l.drivers, name)
			delete(l.progress, name)
		}
	}
}

func (l *Leader) remove(ctx context.Context, prefix string, which func(record string) bool) {
	records := l.own.config.Records
	names, err := records.Names(ctx, prefix)
	for _, one := range names {
		if err == nil && which(one) {
			err = records.Record(one).Delete(ctx)
		}
	}
	if err != nil && ctx.Err() == nil {
		l.config.Logger.Warn("records of authorities that are not needed stay for now", "prefix", prefix, "error", err)
	}
}
