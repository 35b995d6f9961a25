package authorities

import (
	"cmp"
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

// LeaderConfig configures a Leader. All fields but Acknowledge, Logger and Now are
// required.
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
	// Unenforced are those for whom the isolation of a mesh does not hold. Nil: the control
	// plane has no workloads of its own.
	Unenforced func(mesh *v1alpha1.Mesh) Unenforced
	// Acknowledge, in a zone, tells global that the zone has done what a generation of
	// global's state asks of it (0: what the present one asks is not done), and what is
	// wrong. It is called again and again, and must not block.
	Acknowledge func(mesh string, generation uint64, problem string)
	Logger      *slog.Logger
	Now         func() time.Time
}

// Unenforced are those for whom the isolation of a mesh does not hold, each with the reason;
// sorted.
type Unenforced struct {
	// Apart: there are other meshes. Without any there is nobody to keep out.
	Apart bool
	// Isolation are workloads and nodes whose connections cannot be told from those of another
	// mesh; Passthrough, of a mesh without it, those that reach what the mesh does not know.
	Isolation, Passthrough []string
}

// Leader makes roots, takes the steps of rotations, and writes the status of Meshes. In a
// zone the roots are those of global, and its steps wait for global's. Only the leader of a
// control plane runs one.
type Leader struct {
	config   LeaderConfig
	own      *Authorities
	drivers  map[string]*rotation.Driver
	progress map[string]progress
	leading  map[string]leading
	// peers that the present pass has read, by mesh.
	peers map[string][]rotation.Peer
}

// leading is the state of a mesh at global, as this zone knows it.
type leading struct {
	state rotation.State
	// ok: global has authorities for the mesh.
	ok  bool
	err error
	// apart: the zone signs by files of its own, of which global knows nothing.
	apart bool
	// done is the generation of it that this zone has done; 0: it has not done the present
	// one.
	done uint64
}

// progress of one mesh.
type progress struct {
	rotation.Progress
	// problem is why the mesh has not what it asks for; nil: it has, or is on the way.
	problem error
	// unable is why the authority that issues cannot sign; nil: it can, or none issues.
	unable error
	// elsewhere are the problems that peers have reported, sorted.
	elsewhere []string
}

// NewLeader makes the leader of one term.
func NewLeader(c LeaderConfig) *Leader {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Leader{
		config: c, own: c.Authorities,
		drivers: map[string]*rotation.Driver{}, progress: map[string]progress{}, leading: map[string]leading{}, peers: map[string][]rotation.Peer{},
	}
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
	clear(l.peers)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r := all[name]
		p := progress{problem: r.wanted.problem}
		if p.problem == nil {
			p.unable = r.ensureIssuer(ctx)
			p.Progress, p.problem = l.leadMesh(ctx, name, r, p.unable == nil)
			p.elsewhere = problemsOf(l.readPeers(name))
		}
		if ctx.Err() != nil {
			return
		}
		l.logTrouble(name, p)
		l.progress[name] = p
		l.acknowledge(name, p)
		if err := l.writeStatus(ctx, r, p); err != nil && ctx.Err() == nil {
			l.config.Logger.Warn("status of a mesh not written; it is tried again", "mesh", name, "error", err)
		}
	}
	l.forget(ctx, all)
}

// readPeers of a mesh, once in a pass: at global that reads the records of all zones.
func (l *Leader) readPeers(name string) []rotation.Peer {
	peers, ok := l.peers[name]
	if !ok {
		peers = l.config.Peers(name)
		l.peers[name] = peers
	}
	return peers
}

// problemsOf peers, sorted.
func problemsOf(peers []rotation.Peer) []string {
	var out []string
	for _, p := range peers {
		if p.Problem != "" {
			out = append(out, p.Name+": "+p.Problem)
		}
	}
	slices.Sort(out)
	return out
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
			Peers:   func() []rotation.Peer { return l.readPeers(name) },
			CanSign: func(ctx context.Context, t rotation.Authority) error { return l.own.CanSign(ctx, name, t) },
			// Every instance publishes what it reads from the record, this one too.
			Publish: func(rotation.State) { l.own.Kick() },
			Gate:    func(s rotation.State) error { return l.gate(name, s) },
			Logger:  l.config.Logger, Now: l.config.Now,
		})
		l.drivers[name] = d
	}
	return d
}

// ask global for its state of a mesh.
func (l *Leader) ask(ctx context.Context, name string, r *running) {
	var g leading
	if l.own.config.Global != nil {
		g.state, g.ok, g.err = l.own.config.Global(ctx, name, r.wanted.enabled)
		b := r.wanted.backend(r.wanted.enabled)
		g.apart = b != nil && b.Provided != nil && b.Provided.Files != nil
	}
	l.leading[name] = g
}

// gate implements rotation.DriverConfig.Gate. It runs within lead.
func (l *Leader) gate(name string, s rotation.State) error {
	if err := l.leading[name].err; err != nil && !l.leading[name].apart {
		return fmt.Errorf("global does not answer: %w", err)
	}
	if g := l.leadingState(name); g != nil {
		return rotation.Gate(*g, s)
	}
	return nil
}

// follows notes that the zone has done what global asks, if it has: state is settled.
func (l *Leader) follows(name string, state rotation.State) {
	if g := l.leading[name]; g.ok && (g.apart || rotation.Follows(g.state, state)) {
		g.done = g.state.Generation
		l.leading[name] = g
	}
}

// acknowledge to global what this zone has done, and what is wrong here.
func (l *Leader) acknowledge(name string, p progress) {
	g := l.leading[name]
	if !g.ok || l.config.Acknowledge == nil {
		return
	}
	problem := ""
	if err := cmp.Or(p.problem, p.unable, p.Blocked); err != nil {
		problem = err.Error()
	}
	l.config.Acknowledge(name, g.done, problem)
}

func (l *Leader) leadMesh(ctx context.Context, name string, r *running, canSign bool) (rotation.Progress, error) {
	d := l.driver(name)
	l.ask(ctx, name, r)
	want, candidateErr := l.candidate(ctx, name, r)
	if r.state == nil && r.problem == nil {
		if candidateErr != nil {
			return rotation.Progress{}, candidateErr
		}
		return rotation.Progress{}, l.begin(ctx, d, r, want)
	}
	state, p, err := d.Reconcile(ctx)
	if errors.Is(err, rotation.ErrConflict) {
		delete(l.drivers, name) // another instance was the leader meanwhile
	}
	if err != nil {
		return p, err
	}
	if p.Settled {
		l.follows(name, state)
	}
	if candidateErr != nil {
		return p, candidateErr
	}
	move := rotation.Next(state, want.ID)
	leading := l.leadingState(name)
	if leading != nil {
		move, want = rotation.NextFollowing(*leading, state, canSign)
	}
	switch move {
	case rotation.Begin:
		_, err = d.Start(ctx, want)
	case rotation.Return:
		_, err = d.Abort(ctx)
	case rotation.TakeOver:
		_, err = d.Adopt(ctx, *leading)
	case rotation.Stay:
		if state.Phase == rotation.Stable {
			l.removeRoots(ctx, name, state)
		}
	}
	return p, err
}

// begin makes the first state of a mesh, from which it changes to the authority that it is
// to have.
func (l *Leader) begin(ctx context.Context, d *rotation.Driver, r *running, want rotation.Authority) error {
	if g := l.leadingState(r.wanted.mesh.Name); g != nil && len(g.Trusted) > 1 {
		_, err := d.Adopt(ctx, *g)
		return err
	}
	if want.ID == rotation.None {
		return nil
	}
	first := want
	if r.wanted.mesh.Generation > 1 {
		// Its workloads have sent plain text until now: mTLS comes by overlap.
		first = rotation.Authority{ID: rotation.None}
	}
	if _, err := d.Ensure(ctx, first); err != nil || first.ID == want.ID {
		return err
	}
	_, err := d.Start(ctx, want)
	return err
}

// leadingState of a mesh; nil: this control plane follows none.
func (l *Leader) leadingState(name string) *rotation.State {
	if g := l.leading[name]; g.ok && !g.apart {
		return &g.state
	}
	return nil
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
	if l.own.config.Global != nil {
		return l.rootOfGlobal(name, r, b.Name)
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

// rootOfGlobal is the authority that the mesh has at global, or changes to. While that is
// not known the one stays that is trusted.
func (l *Leader) rootOfGlobal(name string, r *running, backend string) (rotation.Authority, error) {
	g := l.leading[name]
	if g.ok {
		if t := g.state.Target(); t.ID != rotation.None && t.Type == v1alpha1.BackendBuiltin {
			return t, nil
		}
		g.err = fmt.Errorf("mesh %s has no built-in authority there yet", name)
	}
	if r.state != nil {
		for _, t := range slices.Backward(r.state.Trusted) {
			if t.Backend == backend && t.Type == v1alpha1.BackendBuiltin {
				return t, nil
			}
		}
	}
	time.AfterFunc(askAgain, l.own.Kick)
	return rotation.Authority{}, fmt.Errorf("the root of global: %w", cmp.Or(g.err, errNoAuthority))
}

// errNoAuthority: global has seen the Mesh later than this zone, or not at all.
var errNoAuthority = errors.New("the mesh has no authority there yet")

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
	for _, prefix := range []string{rotations, roots, intermediates, zones} {
		l.remove(ctx, prefix, gone)
	}
	for name := range l.drivers {
		if all[name] == nil {
			delete(l.drivers, name)
			delete(l.progress, name)
			delete(l.leading, name)
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
