package authorities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
)

// checkTimeout bounds the check of one authority: an external signer may take a minute,
// which is too long to wait for in a write of a Mesh.
const checkTimeout = 20 * time.Second

// errUnknownMesh: Run has not seen it yet.
var errUnknownMesh = errors.New("the mesh is not known yet: try again")

// CanSign reports whether an authority of a mesh signs certificates now: it has one
// signed, and throws it away. Error: why not. It may block for 20 s.
func (a *Authorities) CanSign(ctx context.Context, meshName string, t rotation.Authority) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	a.mu.Lock()
	r := a.running[meshName]
	a.mu.Unlock()
	if r == nil {
		return errUnknownMesh
	}
	signer, err := r.signer(t)
	if t.Type == v1alpha1.BackendBuiltin {
		signer, err = a.builtin(ctx, r, meshName, t)
	}
	if err != nil {
		return err
	}
	return authority.Probe(ctx, signer, r.wanted.domain, a.config.Now())
}

// builtin is the zone's signer below a root, with an intermediate. A root that is not
// trusted yet has one for this call only.
func (a *Authorities) builtin(ctx context.Context, r *running, meshName string, t rotation.Authority) (*authority.ZoneSigner, error) {
	if z := r.builtin[t.ID]; z != nil {
		return z.ZoneSigner, z.Ensure(ctx)
	}
	z, err := authority.NewZoneSigner(ctx, authority.ZoneConfig{
		Mesh: meshName, Domain: r.wanted.domain, Zone: a.config.Zone, Issuer: a.config.Intermediates(meshName, t),
		Keeper: forgetful{}, Now: a.config.Now,
	})
	if err != nil {
		return nil, err
	}
	return z, z.Ensure(ctx)
}

// ensureIssuer returns why the authority that issues cannot sign here; nil if it can, or if
// none issues. An intermediate that a built-in one needs is requested now if there is none:
// agents ask for certificates as soon as they have the roots.
func (r *running) ensureIssuer(ctx context.Context) error {
	if r.state == nil || r.state.Issuer == rotation.None {
		return nil
	}
	signer, err := r.signer(r.issuer())
	if z, ok := signer.(*zoneSigner); ok {
		err = z.Ensure(ctx)
	}
	return err
}

// forgetful keeps nothing.
type forgetful struct{}

// Load implements authority.Keeper.
func (forgetful) Load(context.Context) ([]byte, error) { return nil, nil }

// Save implements authority.Keeper.
func (forgetful) Save(context.Context, []byte) error { return nil }

// CheckUpdate refuses a change of a Mesh's enabled backend, or of its configuration, to
// one that cannot sign now. A Mesh whose mTLS is not affected is not looked at. It may
// block for 20 s.
func (a *Authorities) CheckUpdate(ctx context.Context, m, old *v1alpha1.Mesh) error {
	next, before := wantedOf([]*v1alpha1.Mesh{m})[m.Name], wantedOf([]*v1alpha1.Mesh{old})[m.Name]
	if next.problem != nil || next.enabled == "" {
		return nil // validation has the say, or nothing has to sign
	}
	b, was := next.backend(next.enabled), before.backend(before.enabled)
	if b == nil || typeOf(b) == v1alpha1.BackendBuiltin {
		return nil // its key is made when it is needed
	}
	if was != nil && was.Name == b.Name && configOf(before.domain, was) == configOf(next.domain, b) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	opened := a.newBackend(ctx, next.domain, b)
	defer opened.stop()
	t, err := opened.newest(typeOf(b))
	if err == nil {
		signer, _ := opened.signer(t.ID)
		err = authority.Probe(ctx, signer, next.domain, a.config.Now())
	}
	if err != nil {
		return fmt.Errorf("backend %s cannot sign now: %w", b.Name, err)
	}
	return nil
}
