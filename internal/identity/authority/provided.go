package authority

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

// Material is what an operator provides for an authority, as PEM.
type Material struct {
	// Certificate that signs, followed by those between it and the root.
	Certificate []byte
	// Key of the first certificate.
	Key []byte
	// Roots that verify it. Empty: the last certificate is the root.
	Roots []byte
}

// Source reads the material of an authority: a GlobalSecret, or files.
type Source interface {
	// Load reads what is there now.
	Load(ctx context.Context) (Material, error)
	// Changed is a channel that is closed, or gets a value, when there may be a new
	// version to load. It is called before each Load, so that no change is missed.
	Changed() <-chan struct{}
}

// Provided signs with a key and certificate of the operator's. Material that cannot be
// used leaves the last that could in place. Material with other roots is another
// authority, with an ID of its own: the one before it signs on, until Keep forgets it, so
// that peers learn of the new roots first. Safe for concurrent use.
type Provided struct {
	domain  mesh.Domain
	source  Source
	log     *slog.Logger
	now     func() time.Time
	onRoots func()
	current atomic.Pointer[providedAuthority]

	mu      sync.Mutex
	problem error
	// known has the newest material of each authority, by ID.
	known map[string]*providedAuthority
}

type providedAuthority struct {
	id       string // of the roots
	material Material
	chain    []*x509.Certificate // without the root
	roots    []*x509.Certificate
	key      crypto.Signer
}

// ProvidedConfig configures a Provided. Domain and Source are required.
type ProvidedConfig struct {
	Domain mesh.Domain
	Source Source
	// OnRoots is called by Run after the roots changed. A change of roots has to be
	// rotated in by overlap. Nil: nothing.
	OnRoots func()
	Logger  *slog.Logger     // nil: silence
	Now     func() time.Time // nil: time.Now
}

// NewProvided loads the material. Material that cannot be used is an error.
func NewProvided(ctx context.Context, c ProvidedConfig) (*Provided, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.OnRoots == nil {
		c.OnRoots = func() {}
	}
	p := &Provided{
		domain: c.Domain, source: c.Source, log: c.Logger, now: c.Now, onRoots: c.OnRoots, known: map[string]*providedAuthority{},
	}
	if _, err := p.reload(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// ID of the authority that the newest usable material is of.
func (p *Provided) ID() string { return p.current.Load().id }

// Authority is the signer of an ID: of the newest material, or of earlier material with
// other roots. ok is false if it is unknown or forgotten. A reload of material with the
// same roots is used by signers that were returned before.
func (p *Provided) Authority(id string) (s Signer, ok bool) {
	if _, ok := p.find(id); !ok {
		return nil, false
	}
	return providedSigner{p, id}, true
}

func (p *Provided) find(id string) (*providedAuthority, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := p.known[id]
	return a, ok
}

// Keep forgets all authorities but the newest and those of these IDs.
func (p *Provided) Keep(ids ...string) {
	newest := p.ID()
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.known {
		if id != newest && !slices.Contains(ids, id) {
			delete(p.known, id)
		}
	}
}

// providedSigner is one authority of a Provided.
type providedSigner struct {
	provided *Provided
	id       string
}

// Sign implements Signer.
func (s providedSigner) Sign(_ context.Context, r Request) ([]*x509.Certificate, error) {
	a, ok := s.provided.find(s.id)
	if !ok {
		return nil, fmt.Errorf("sign certificate of %s: %w: the key of authority %s is no longer provided", r.ID, ErrCannotSign, s.id)
	}
	return s.provided.signBy(a, r)
}

// Roots implements Signer.
func (s providedSigner) Roots() []*x509.Certificate {
	if a, ok := s.provided.find(s.id); ok {
		return a.roots
	}
	return nil
}

// Sign implements Signer, with the newest material.
func (p *Provided) Sign(_ context.Context, r Request) ([]*x509.Certificate, error) {
	return p.signBy(p.current.Load(), r)
}

func (p *Provided) signBy(a *providedAuthority, r Request) ([]*x509.Certificate, error) {
	if r.ID.Domain() != p.domain {
		return nil, fmt.Errorf("sign certificate of %s: the authority is of trust domain %s", r.ID, p.domain)
	}
	chain, err := a.sign(r, p.now())
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s by the provided authority: %w", r.ID, err)
	}
	return chain, nil
}

func (a *providedAuthority) sign(r Request, now time.Time) ([]*x509.Certificate, error) {
	issuer := a.roots[0]
	if len(a.chain) > 0 {
		issuer = a.chain[0]
	}
	leaf, err := signLeaf(r, issuer, a.key, now)
	if err != nil {
		return nil, err
	}
	return append([]*x509.Certificate{leaf}, a.chain...), nil
}

// Roots implements Signer.
func (p *Provided) Roots() []*x509.Certificate { return p.current.Load().roots }

// Problem is why the newest material is not used; nil: it is.
func (p *Provided) Problem() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problem
}

// Run reloads the material whenever it changes, until ctx ends, and returns nil then.
func (p *Provided) Run(ctx context.Context) error {
	pause := backoff.Backoff{Policy: backoff.Policy{First: time.Second, Last: time.Minute, Jitter: 0.5}}
	for {
		changed := p.source.Changed()
		rootsChanged, err := p.reload(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if rootsChanged {
			p.onRoots()
		}
		var retry <-chan time.Time
		if err != nil {
			// A file may be half written, and a medium may be away for a moment.
			delay := pause.Next()
			p.log.Error("the provided authority cannot be loaded; the last one signs on", "domain", p.domain, "retryIn", delay, "error", err)
			retry = time.After(delay)
		} else {
			pause.Reset()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-retry:
		}
	}
}

func (p *Provided) reload(ctx context.Context) (rootsChanged bool, err error) {
	material, err := p.source.Load(ctx)
	var a *providedAuthority
	if err == nil {
		if old := p.current.Load(); old != nil && old.material.equal(material) {
			p.setProblem(nil)
			return false, nil
		}
		a, err = newProvidedAuthority(material, p.domain, p.now())
	}
	if err != nil {
		err = fmt.Errorf("provided authority of trust domain %s: %w", p.domain, err)
		p.setProblem(err)
		return false, err
	}
	p.mu.Lock()
	old := p.current.Swap(a)
	p.known[a.id] = a
	p.problem = nil
	p.mu.Unlock()
	if old != nil {
		p.log.Info("provided authority reloaded", "domain", p.domain, "root", ID(a.roots[0]))
	}
	return old != nil && !bytes.Equal(certpem.EncodeCertificates(old.roots...), certpem.EncodeCertificates(a.roots...)), nil
}

func (p *Provided) setProblem(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problem = err
}

func (m Material) equal(o Material) bool {
	return bytes.Equal(m.Certificate, o.Certificate) && bytes.Equal(m.Key, o.Key) && bytes.Equal(m.Roots, o.Roots)
}

// newProvidedAuthority checks material to the end: by a leaf that it signs.
func newProvidedAuthority(m Material, domain mesh.Domain, now time.Time) (*providedAuthority, error) {
	certs, key, err := parsePair(m.Certificate, m.Key)
	if err != nil {
		return nil, err
	}
	a := &providedAuthority{material: m, key: key}
	var roots []*x509.Certificate
	if len(bytes.TrimSpace(m.Roots)) > 0 {
		if roots, err = certpem.ParseCertificates(m.Roots); err != nil {
			return nil, fmt.Errorf("roots: %w", err)
		}
	}
	for _, c := range certs {
		if isRoot(c) {
			if len(roots) == 0 {
				roots = append(roots, c)
			}
			continue
		}
		a.chain = append(a.chain, c)
	}
	if len(roots) == 0 {
		return nil, errors.New("there is no root: append it to the certificate, or provide it as roots")
	}
	// sign uses the first root where the certificate itself is one.
	if isRoot(certs[0]) {
		if !rootFirst(roots, certs[0]) {
			return nil, errors.New("the certificate signs itself, and is not among the roots")
		}
		a.chain = nil
	}
	a.roots, a.id = roots, IDOf(roots)
	probed := &Provided{domain: domain, now: func() time.Time { return now }}
	probed.current.Store(a)
	return a, probe(context.Background(), probed, domain, now)
}

// rootFirst puts the certificate first in roots; false: it is not among them.
func rootFirst(roots []*x509.Certificate, c *x509.Certificate) bool {
	for i, r := range roots {
		if r.Equal(c) {
			roots[0], roots[i] = roots[i], roots[0]
			return true
		}
	}
	return false
}
