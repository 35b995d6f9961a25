package authorities

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
)

// backend is a provided or external backend of a mesh, with one configuration.
type backend struct {
	name   string
	config string // another one is another backend
	// stop what runs for it, and wait.
	stop func()

	mu       sync.Mutex
	provided *authority.Provided
	external *authority.External
	problem  error
}

// FileSource is the material of a provided authority in files; Run watches them.
type FileSource interface {
	authority.Source
	Run(ctx context.Context) error
}

// configOf a backend, to notice changes.
func configOf(domain mesh.Domain, b *v1alpha1.MeshCertificateBackend) string {
	data, err := json.Marshal([]any{domain.Name(), b.Type, b.Provided, b.External})
	if err != nil {
		return err.Error() // no such type: the fields are plain
	}
	return string(data)
}

// newBackend opens a backend. It goes on trying in the background where the material
// cannot be used yet, and runs until stop is called.
func (a *Authorities) newBackend(ctx context.Context, domain mesh.Domain, b *v1alpha1.MeshCertificateBackend) *backend {
	out := &backend{name: b.Name, config: configOf(domain, b), stop: func() {}}
	if typeOf(b) == v1alpha1.BackendExternal {
		out.external, out.problem = a.newExternal(domain, b.External)
		return out
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	out.stop = func() { cancel(); running.Wait() }
	var source authority.Source = secretSource{a.secrets, *b.Provided}
	if f := b.Provided.Files; f != nil {
		files := a.config.Files(f.Certificate, f.Key, f.Roots)
		source = files
		running.Go(func() {
			if err := files.Run(ctx); err != nil {
				a.config.Logger.Error("the files of an authority are not watched; changes need a restart", "backend", b.Name, "error", err)
			}
		})
	}
	out.open(ctx, a, domain, source)
	running.Go(func() { out.run(ctx, a, domain, source) })
	return out
}

// open loads the material once.
func (b *backend) open(ctx context.Context, a *Authorities, domain mesh.Domain, source authority.Source) *authority.Provided {
	p, err := authority.NewProvided(ctx, authority.ProvidedConfig{
		Domain: domain, Source: source, OnRoots: a.Kick, Logger: a.config.Logger, Now: a.config.Now,
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.provided, b.problem = p, err
	return p
}

// retryMaterial bounds how long files that report no changes are not looked at.
const retryMaterial = 30 * time.Second

// run loads the material until it can be used, and then follows it.
func (b *backend) run(ctx context.Context, a *Authorities, domain mesh.Domain, source authority.Source) {
	for {
		b.mu.Lock()
		p := b.provided
		b.mu.Unlock()
		if p != nil {
			// It ends with ctx alone.
			_ = p.Run(ctx)
			return
		}
		changed := source.Changed()
		if p = b.open(ctx, a, domain, source); p != nil {
			a.Kick()
			continue
		}
		timer := time.NewTimer(retryMaterial)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (a *Authorities) newExternal(domain mesh.Domain, e *v1alpha1.MeshExternalAuthority) (*authority.External, error) {
	if a.config.CSRs == nil {
		return nil, fmt.Errorf("%w: no API of CertificateSigningRequests is configured: "+
			"start the control plane with --signer-kubeconfig", authority.ErrCannotSign)
	}
	roots, err := a.secrets.value("roots", e.Roots)
	if err != nil {
		return nil, err
	}
	certs, err := certpem.ParseCertificates(roots)
	if err != nil {
		return nil, fmt.Errorf("roots: %w", err)
	}
	return authority.NewExternal(authority.ExternalConfig{
		Domain: domain, SignerName: e.SignerName, API: a.config.CSRs, Roots: certs, Approve: e.Approve, Now: a.config.Now,
	})
}

// signer of an authority of this backend; ok is false if it is not one.
func (b *backend) signer(id string) (authority.Signer, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.provided != nil:
		return b.provided.Authority(id)
	case b.external != nil && authority.IDOf(b.external.Roots()) == id:
		return b.external, true
	}
	return nil, false
}

// newest authority of this backend.
func (b *backend) newest(kind string) (rotation.Authority, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var signer authority.Signer
	switch {
	case b.provided != nil:
		signer, _ = b.provided.Authority(b.provided.ID())
	case b.external != nil:
		signer = b.external
	default:
		return rotation.Authority{}, fmt.Errorf("backend %s: %w", b.name, b.problem)
	}
	roots := signer.Roots()
	return rotation.Authority{
		ID: authority.IDOf(roots), Backend: b.name, Type: kind, Roots: certpem.EncodeCertificates(roots...),
	}, nil
}

// trouble is why the newest material is not used; nil: it is.
func (b *backend) trouble() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.provided != nil {
		return b.provided.Problem()
	}
	return b.problem
}

// keep forgets material of authorities that are not trusted any more.
func (b *backend) keep(ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.provided != nil {
		b.provided.Keep(ids...)
	}
}
