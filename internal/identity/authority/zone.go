package authority

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/wallclock"
)

// Intermediate is the answer to the request of a zone's authority.
type Intermediate struct {
	// Chain of the intermediate, without the root.
	Chain []*x509.Certificate
	// Roots that verify it.
	Roots []*x509.Certificate
}

// IntermediateIssuer gets intermediates from the control plane that has the root. The
// zone is that of the link's credential.
type IntermediateIssuer interface {
	IssueIntermediate(ctx context.Context, meshName string, csr []byte) (*Intermediate, error)
}

// Keeper keeps one sealed record durably. Load returns nil, nil if there is none. A
// Save that returns nil survives a power failure.
type Keeper interface {
	Load(ctx context.Context) ([]byte, error)
	Save(ctx context.Context, record []byte) error
}

// ZoneConfig configures a ZoneSigner. All fields but Renewed, Logger and Now are required.
type ZoneConfig struct {
	Mesh   string
	Domain mesh.Domain
	Zone   string
	Issuer IntermediateIssuer
	Keeper Keeper
	// Renewed is called after another intermediate is in use; it must not block. nil: nobody.
	Renewed func()
	Logger  *slog.Logger     // nil: silence
	Now     func() time.Time // nil: time.Now
}

// ZoneSigner is the built-in authority of a mesh in one zone: it signs leaves with an
// intermediate of its own, which it renews at two thirds of its life. While global is
// away it signs on, until the intermediate ends. Safe for concurrent use.
type ZoneSigner struct {
	config  ZoneConfig
	current atomic.Pointer[zoneAuthority]
	replace chan struct{}
	renewal chan struct{} // has a value while a renewal is under way
}

// zoneAuthority is a key with its intermediate. Immutable.
type zoneAuthority struct {
	chain []*x509.Certificate
	roots []*x509.Certificate
	key   crypto.Signer
}

const (
	retryFirst = time.Second
	retryLast  = 5 * time.Minute
	// clockCheck bounds how late a renewal is after a machine slept: timers stand still
	// meanwhile. There are 30 days for it.
	clockCheck = 10 * time.Minute
	// issueTimeout bounds one request for an intermediate.
	issueTimeout = 30 * time.Second
)

// NewZoneSigner loads the intermediate that an earlier one stored. A damaged or expired
// record is not an error: Run gets another intermediate. It reads only the Keeper.
func NewZoneSigner(ctx context.Context, c ZoneConfig) (*ZoneSigner, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Renewed == nil {
		c.Renewed = func() {}
	}
	z := &ZoneSigner{config: c, replace: make(chan struct{}, 1), renewal: make(chan struct{}, 1)}
	data, err := c.Keeper.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("load the intermediate of mesh %s: %w", c.Mesh, err)
	}
	if data == nil {
		return z, nil
	}
	a, err := loadZoneAuthority(data, c.Domain)
	if err == nil {
		err = a.check(c, c.Now())
	}
	if err != nil {
		c.Logger.Warn("the stored intermediate cannot be used; another one is requested", "mesh", c.Mesh, "error", err)
		return z, nil
	}
	z.current.Store(a)
	return z, nil
}

// Sign implements Signer. Error: ErrCannotSign before the first intermediate, and after
// the last one ran out.
func (z *ZoneSigner) Sign(_ context.Context, r Request) ([]*x509.Certificate, error) {
	fail := func(err error) ([]*x509.Certificate, error) {
		return nil, fmt.Errorf("sign certificate of %s in zone %s: %w", r.ID, z.config.Zone, err)
	}
	a := z.current.Load()
	if a == nil {
		return fail(fmt.Errorf("%w: no intermediate has been issued to this zone yet", ErrCannotSign))
	}
	if r.ID.Domain() != z.config.Domain {
		return fail(fmt.Errorf("the authority is of trust domain %s", z.config.Domain))
	}
	if zone := r.ID.Zone(); zone != "" && zone != z.config.Zone {
		return fail(errors.New("nodes and gateways get certificates in their own zone only"))
	}
	leaf, err := signLeaf(r, a.chain[0], a.key, z.config.Now())
	if err != nil {
		return fail(err)
	}
	return append([]*x509.Certificate{leaf}, a.chain...), nil
}

// Roots implements Signer: of the current intermediate; none before the first.
func (z *ZoneSigner) Roots() []*x509.Certificate {
	if a := z.current.Load(); a != nil {
		return a.roots
	}
	return nil
}

// Ensure gets an intermediate now if there is none that holds, so that the first one need
// not be waited for. Run renews it. It blocks for 30 s at most, and as long before that as a
// renewal is under way.
func (z *ZoneSigner) Ensure(ctx context.Context) error {
	none := func() bool { return !z.config.Now().Before(z.NotAfter()) }
	if !none() {
		return nil
	}
	return z.renewIf(ctx, none)
}

// NotAfter is when the intermediate runs out; zero: there is none.
func (z *ZoneSigner) NotAfter() time.Time {
	if a := z.current.Load(); a != nil {
		return a.chain[0].NotAfter
	}
	return time.Time{}
}

// Replace makes Run get another intermediate now, as after a change of the root. It
// does not block.
func (z *ZoneSigner) Replace() {
	select {
	case z.replace <- struct{}{}:
	default:
	}
}

// Run keeps the intermediate fresh until ctx ends, and returns nil then.
func (z *ZoneSigner) Run(ctx context.Context) error {
	pause := backoff.Backoff{Policy: backoff.Policy{First: retryFirst, Last: retryLast, Jitter: 0.5}}
	for {
		why := wallclock.Wait(ctx, z.due(), clockCheck, z.config.Now, z.replace)
		if why == wallclock.Ended {
			return nil
		}
		due := func() bool { return why == wallclock.Woken || !z.config.Now().Before(z.due()) }
		err := z.renewIf(ctx, due)
		for err != nil && ctx.Err() == nil {
			delay := pause.Next()
			z.config.Logger.Warn("no intermediate from global; the zone signs on with the one that it has",
				"mesh", z.config.Mesh, "runsOut", z.NotAfter(), "retryIn", delay, "error", err)
			if !backoff.Sleep(ctx, delay) {
				return nil
			}
			err = z.renewIf(ctx, due)
		}
		pause.Reset()
	}
}

// due is when the intermediate is to be renewed; zero: there is none, so at once.
func (z *ZoneSigner) due() time.Time {
	a := z.current.Load()
	if a == nil {
		return time.Time{}
	}
	c := a.chain[0]
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

// renewIf renews if it is due once no other renewal is under way.
func (z *ZoneSigner) renewIf(ctx context.Context, due func() bool) error {
	select {
	case z.renewal <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-z.renewal }()
	if !due() {
		return nil
	}
	return z.renew(ctx)
}

// renew gets an intermediate for a new key, keeps it, and signs with it from then on.
func (z *ZoneSigner) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, issueTimeout)
	defer cancel()
	key, err := NewKey()
	if err != nil {
		return err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	answer, err := z.config.Issuer.IssueIntermediate(ctx, z.config.Mesh, csr)
	if err != nil {
		return err
	}
	a := &zoneAuthority{chain: answer.Chain, roots: answer.Roots, key: key}
	if err := a.check(z.config, z.config.Now()); err != nil {
		return fmt.Errorf("intermediate of zone %s: %w", z.config.Zone, err)
	}
	record, err := a.record(z.config)
	if err != nil {
		return err
	}
	if err := z.config.Keeper.Save(ctx, record); err != nil {
		return fmt.Errorf("keep the intermediate: %w", err)
	}
	z.current.Store(a)
	z.config.Logger.Info("intermediate issued", "mesh", z.config.Mesh, "authority", ID(a.chain[0]),
		"root", ID(a.roots[0]), "runsOut", a.chain[0].NotAfter)
	z.config.Renewed()
	return nil
}

// check requires an intermediate of this zone and domain that signs verifiable leaves.
func (a *zoneAuthority) check(c ZoneConfig, now time.Time) error {
	if len(a.chain) == 0 || len(a.roots) == 0 {
		return errors.New("chain or roots are missing")
	}
	cert := a.chain[0]
	switch {
	case !certpem.SamePublicKey(cert.PublicKey, a.key.Public()):
		return errors.New("the key does not belong to the certificate")
	case !cert.IsCA || !cert.MaxPathLenZero:
		return errors.New("the certificate is not an authority's that signs leaves alone")
	case !slices.Contains(cert.Subject.OrganizationalUnit, mesh.ZoneUnit(c.Zone)):
		return fmt.Errorf("the certificate is not one of zone %s", c.Zone)
	}
	if err := checkConstraints(cert, c.Domain); err != nil {
		return err
	}
	probed := &ZoneSigner{config: c}
	probed.config.Now = func() time.Time { return now }
	probed.current.Store(a)
	return probe(context.Background(), probed, c.Domain, now)
}
