package authorities

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// Published is what agents are to know of a mesh.
type Published struct {
	State  rotation.State
	Domain mesh.Domain
	// Life of certificates of workloads; 0: the default.
	Life time.Duration
}

// Config configures Authorities. All fields but CSRs, Logger and Now are required.
type Config struct {
	// Zone is the site of this control plane.
	Zone string
	// Client reads Meshes and GlobalSecrets.
	Client  resource.Client
	Records Records
	// Intermediates issues those of a built-in authority to this zone: Local, or the link
	// to global.
	Intermediates func(mesh string, a rotation.Authority) authority.IntermediateIssuer
	// Global is the state of a mesh at global, which this zone follows; nil: this control
	// plane makes the roots itself, and follows nobody. backend is the one that is enabled
	// here. ok is false if global has no authorities for the mesh. Errors: it is not known.
	Global func(ctx context.Context, mesh, backend string) (s rotation.State, ok bool, err error)
	// Files names the material of a provided authority.
	Files func(cert, key, roots string) FileSource
	// CSRs is the API of external signers; nil: there are none.
	CSRs authority.CSRs
	// Publish gets the stored state of a mesh, again whenever something changed.
	// Unpublish: it was deleted.
	Publish   func(Published) error
	Unpublish func(mesh string)
	Logger    *slog.Logger     // nil: silence
	Now       func() time.Time // nil: time.Now
}

// Authorities has the signers of all meshes. Safe for concurrent use.
type Authorities struct {
	config  Config
	secrets *secrets
	kicks   chan struct{}
	synced  chan struct{}

	mu      sync.Mutex
	meshes  map[string]*v1alpha1.Mesh
	listed  map[*resource.Descriptor]bool
	running map[string]*running
	changed chan struct{} // closed after each reconciliation
}

// Root is the authority by which a built-in backend of a mesh issues now, for zones. Errors
// say why there is none, and are permanent only as long as the Mesh stays as it is.
func (a *Authorities) Root(meshName, backend string) (rotation.Authority, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.running[meshName]
	if r == nil || r.state == nil {
		return rotation.Authority{}, fmt.Errorf("mesh %s has no authority yet", meshName)
	}
	if t := r.issuer(); t.Type == v1alpha1.BackendBuiltin && t.Backend == backend && t.ID != rotation.None {
		return t, nil
	}
	return rotation.Authority{}, fmt.Errorf("mesh %s does not issue by backend %s yet", meshName, backend)
}

// States of all meshes that have authorities, by name of the mesh, and a channel that is
// closed when they may have changed. The map is the caller's.
func (a *Authorities) States() (map[string]rotation.State, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[string]rotation.State{}
	for name, r := range a.running {
		if r.state != nil {
			out[name] = *r.state
		}
	}
	return out, a.changed
}

// State of one mesh; ok is false if it has no authorities.
func (a *Authorities) State(meshName string) (s rotation.State, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.running[meshName]; r != nil && r.state != nil {
		return *r.state, true
	}
	return rotation.State{}, false
}

// Trusted is an authority that is trusted in a mesh, by its ID.
func (a *Authorities) Trusted(meshName, id string) (rotation.Authority, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.running[meshName]; r != nil && r.state != nil && id != rotation.None {
		for _, t := range r.state.Trusted {
			if t.ID == id {
				return t, true
			}
		}
	}
	return rotation.Authority{}, false
}

// running is the authorities of one mesh.
type running struct {
	wanted *wanted
	// state as it is stored; nil: there is none yet.
	state    *rotation.State
	backends map[string]*backend    // provided and external, by name
	builtin  map[string]*zoneSigner // by authority's ID
	problem  error                  // of reading the state
	// published last; nil: nothing. Only reconcile uses it.
	published *Published
}

// zoneSigner is the built-in authority of this zone below one root.
type zoneSigner struct {
	*authority.ZoneSigner
	stop func()
}

// New makes the authorities. Run starts them.
func New(c Config) *Authorities {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Authorities{
		config: c, secrets: newSecrets(), kicks: make(chan struct{}, 1), synced: make(chan struct{}),
		meshes: map[string]*v1alpha1.Mesh{}, listed: map[*resource.Descriptor]bool{}, running: map[string]*running{},
		changed: make(chan struct{}),
	}
}

// Local issues intermediates by roots whose keys are in the records, as a standalone
// control plane does.
func Local(r Records, zone string, now func() time.Time) func(string, rotation.Authority) authority.IntermediateIssuer {
	return func(_ string, a rotation.Authority) authority.IntermediateIssuer { return localRoot{r, zone, a, now} }
}

type localRoot struct {
	records   Records
	zone      string
	authority rotation.Authority
	now       func() time.Time
}

// IssueIntermediate implements authority.IntermediateIssuer. The key is in memory only
// meanwhile.
func (l localRoot) IssueIntermediate(ctx context.Context, meshName string, csr []byte) (*authority.Intermediate, error) {
	root, err := loadRoot(ctx, l.records, meshName, l.authority.Backend, l.authority.ID)
	if err != nil {
		return nil, err
	}
	return root.ForZone(l.zone, l.now).IssueIntermediate(ctx, meshName, csr)
}

// checkEvery is how often everything is compared, whatever was reported.
const checkEvery = time.Minute

// Run follows Meshes, secrets and records until ctx ends, and returns nil then.
func (a *Authorities) Run(ctx context.Context) error {
	var following sync.WaitGroup
	defer following.Wait()
	for _, k := range []*resource.Descriptor{kind.Mesh, kind.GlobalSecret} {
		following.Go(func() { a.follow(ctx, k) })
	}
	following.Go(func() {
		if err := a.config.Records.Watch(ctx, a.Kick); err != nil {
			a.config.Logger.Error("records of authorities are not watched; they are compared every minute", "error", err)
		}
	})
	defer a.stopAll()
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.kicks:
		case <-ticker.C:
		}
		a.reconcile(ctx)
	}
}

// Kick makes Run compare everything soon. It does not block.
func (a *Authorities) Kick() {
	select {
	case a.kicks <- struct{}{}:
	default:
	}
}

// Synced is closed when all Meshes and secrets are known and their authorities were
// opened.
func (a *Authorities) Synced() <-chan struct{} { return a.synced }

// follow keeps the objects of a kind.
func (a *Authorities) follow(ctx context.Context, k *resource.Descriptor) {
	// It returns when ctx ends.
	_ = reflector.Run(ctx, reflector.Config{
		Client: a.config.Client, Kind: k, Backoff: backoff.Policy{First: 200 * time.Millisecond, Last: 5 * time.Second},
		Clock: clock.RealClock{}, Logger: a.config.Logger, Level: slog.LevelDebug,
	}, func(e reflector.Event) error {
		switch k {
		case kind.Mesh:
			a.meshEvent(e)
		case kind.GlobalSecret:
			a.secretEvent(e)
		}
		if e.Type == reflector.Replace {
			a.mu.Lock()
			a.listed[k] = true
			a.mu.Unlock()
		}
		a.Kick()
		return nil
	})
}

func (a *Authorities) meshEvent(e reflector.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch e.Type {
	case reflector.Replace:
		clear(a.meshes)
		fallthrough
	case reflector.Set:
		for _, obj := range e.Objects {
			a.meshes[obj.GetName()] = obj.(*v1alpha1.Mesh)
		}
	case reflector.Delete:
		delete(a.meshes, e.Object().GetName())
	}
}

func (a *Authorities) secretEvent(e reflector.Event) {
	var all []*v1alpha1.GlobalSecret
	for _, obj := range e.Objects {
		all = append(all, obj.(*v1alpha1.GlobalSecret))
	}
	switch e.Type {
	case reflector.Replace:
		a.secrets.replace(all)
	case reflector.Set:
		a.secrets.set(all...)
	case reflector.Delete:
		a.secrets.remove(e.Object().GetName())
	}
}

// reconcile opens and closes authorities so that they are those of the Meshes and of the
// stored states, and publishes the states.
func (a *Authorities) reconcile(ctx context.Context) {
	a.mu.Lock()
	complete := len(a.listed) == 2
	all := slices.Collect(maps.Values(a.meshes))
	a.mu.Unlock()
	if !complete {
		return
	}
	want := wantedOf(all)
	for name, w := range want {
		a.reconcileMesh(ctx, name, w)
	}
	a.mu.Lock()
	var gone []*running
	for name, r := range a.running {
		if want[name] == nil {
			gone = append(gone, r)
			delete(a.running, name)
			a.config.Unpublish(name)
		}
	}
	close(a.changed)
	a.changed = make(chan struct{})
	a.mu.Unlock()
	for _, r := range gone {
		r.stop()
	}
	select {
	case <-a.synced:
	default:
		close(a.synced)
	}
}

func (a *Authorities) reconcileMesh(ctx context.Context, name string, w *wanted) {
	state, ok, err := loadState(ctx, a.config.Records, name)
	if err != nil {
		if ctx.Err() == nil {
			a.config.Logger.Error("the authorities of a mesh cannot be read", "mesh", name, "error", err)
		}
	}
	a.mu.Lock()
	old := a.running[name]
	a.mu.Unlock()
	next := &running{wanted: w, backends: map[string]*backend{}, builtin: map[string]*zoneSigner{}, problem: err}
	switch {
	case err == nil && ok:
		next.state = &state
	case err != nil && old != nil:
		next.state = old.state // what was read before stays in use
	}
	if old == nil {
		old = &running{}
	}
	if w.problem == nil {
		a.openBackends(ctx, old, next)
		a.openBuiltin(ctx, name, old, next)
	}
	a.mu.Lock()
	a.running[name] = next
	a.mu.Unlock()
	old.stopAllBut(next)
	a.publish(name, old, next)
}

// publish the state, if it is another than before.
func (a *Authorities) publish(name string, old, next *running) {
	if next.wanted.problem != nil || next.state == nil {
		a.config.Unpublish(name)
		return
	}
	p := Published{State: *next.state, Domain: next.wanted.domain, Life: next.wanted.life(next.issuer().Backend)}
	if old.published != nil && reflect.DeepEqual(*old.published, p) {
		next.published = old.published
		return
	}
	if err := a.config.Publish(p); err != nil {
		a.config.Logger.Error("the roots of a mesh are not given to agents", "mesh", name, "error", err)
		return
	}
	next.published = &p
}

// issuer of the state; the zero value is None.
func (r *running) issuer() rotation.Authority {
	for _, t := range r.state.Trusted {
		if t.ID == r.state.Issuer {
			return t
		}
	}
	return rotation.Authority{}
}

// trusted IDs of the state.
func (r *running) trusted() []string {
	if r.state == nil {
		return nil
	}
	var out []string
	for _, t := range r.state.Trusted {
		if t.ID != rotation.None {
			out = append(out, t.ID)
		}
	}
	return out
}

// openBackends opens those that the Mesh has. One that it has no more is kept while an
// authority of it is trusted.
func (a *Authorities) openBackends(ctx context.Context, old, next *running) {
	if t := next.wanted.mesh.Spec.MTLS; t != nil {
		for i := range t.Backends {
			b := &t.Backends[i]
			if typeOf(b) == v1alpha1.BackendBuiltin {
				continue
			}
			was := old.backends[b.Name]
			// An external one opens from secrets that may have changed; it runs nothing.
			if was == nil || was.config != configOf(next.wanted.domain, b) || typeOf(b) == v1alpha1.BackendExternal {
				was = a.newBackend(ctx, next.wanted.domain, b)
			}
			next.backends[b.Name] = was
		}
	}
	if next.state == nil {
		return
	}
	for name, b := range old.backends {
		for _, id := range next.trusted() {
			if _, ok := b.signer(id); ok && next.backends[name] == nil {
				next.backends[name] = b
			}
		}
	}
	if next.state.Phase == rotation.Stable {
		for _, b := range next.backends {
			b.keep(next.trusted())
		}
	}
}

// openBuiltin opens the zone's signers below the roots that are trusted.
func (a *Authorities) openBuiltin(ctx context.Context, name string, old, next *running) {
	if next.state == nil {
		return
	}
	for _, t := range next.state.Trusted {
		if t.ID == rotation.None || t.Type != v1alpha1.BackendBuiltin {
			continue
		}
		z := old.builtin[t.ID]
		if z == nil {
			var err error
			if z, err = a.newZoneSigner(ctx, name, next.wanted.domain, t); err != nil {
				a.config.Logger.Error("the authority of a mesh cannot be opened", "mesh", name, "authority", t.ID, "error", err)
				continue
			}
		}
		next.builtin[t.ID] = z
	}
}

func (a *Authorities) newZoneSigner(ctx context.Context, name string, domain mesh.Domain, t rotation.Authority) (*zoneSigner, error) {
	signer, err := authority.NewZoneSigner(ctx, authority.ZoneConfig{
		Mesh: name, Domain: domain, Zone: a.config.Zone, Issuer: a.config.Intermediates(name, t),
		Keeper: a.config.Records.Simple(intermediateName(name, t.ID, a.config.Zone)), Renewed: a.Kick, Logger: a.config.Logger, Now: a.config.Now,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = signer.Run(ctx) // it ends with ctx alone
	}()
	return &zoneSigner{signer, func() { cancel(); <-done }}, nil
}

// stopAllBut what another one goes on with.
func (r *running) stopAllBut(next *running) {
	for name, b := range r.backends {
		if next.backends[name] != b {
			b.stop()
		}
	}
	for id, z := range r.builtin {
		if next.builtin[id] != z {
			z.stop()
		}
	}
}

func (r *running) stop() { r.stopAllBut(&running{}) }

func (a *Authorities) stopAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.running {
		r.stop()
	}
	clear(a.running)
}

// Issuer is the authority that issues now in a mesh.
type Issuer struct {
	Domain mesh.Domain
	ID     string
	Signer authority.Signer
	// Life of certificates; 0: the default.
	Life time.Duration
}

// Issuer of a mesh; ok is false if there is no such mesh, or it has no mTLS. A signer that
// cannot sign is one that says why.
func (a *Authorities) Issuer(meshName string) (i Issuer, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.running[meshName]
	if r == nil || r.state == nil || r.wanted.problem != nil || r.state.Issuer == rotation.None {
		return Issuer{}, false
	}
	issuer := r.issuer()
	signer, err := r.signer(issuer)
	if err != nil {
		signer = unable{err}
	}
	return Issuer{Domain: r.wanted.domain, ID: issuer.ID, Signer: signer, Life: r.wanted.life(issuer.Backend)}, true
}

// signer of an authority that is trusted in the mesh, or about to be.
func (r *running) signer(t rotation.Authority) (authority.Signer, error) {
	if t.Type == v1alpha1.BackendBuiltin {
		if z := r.builtin[t.ID]; z != nil {
			return z, nil
		}
		return nil, fmt.Errorf("%w: authority %s of backend %s is not open", authority.ErrCannotSign, t.ID, t.Backend)
	}
	for _, b := range r.backends {
		if s, ok := b.signer(t.ID); ok {
			return s, nil
		}
	}
	why := errors.New("it is not in the Mesh any more, or has another certificate")
	if b := r.backends[t.Backend]; b != nil && b.trouble() != nil {
		why = b.trouble()
	}
	return nil, fmt.Errorf("%w: backend %s has no key of authority %s: %w", authority.ErrCannotSign, t.Backend, t.ID, why)
}

// unable stands for an authority without a usable key.
type unable struct{ err error }

// Sign implements authority.Signer.
func (u unable) Sign(context.Context, authority.Request) ([]*x509.Certificate, error) {
	return nil, u.err
}

// Roots implements authority.Signer.
func (u unable) Roots() []*x509.Certificate { return nil }
