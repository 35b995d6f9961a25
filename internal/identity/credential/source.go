package credential

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/federation/secrets"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// Material is what the TLS of one service needs, in PEM. Immutable.
type Material struct {
	// Roots of the server's certificate; empty: they are not in a Secret.
	Roots []byte
	// Certificate that is shown, and its Key; empty: none is.
	Certificate, Key []byte
}

// SourceConfig of a Source. Client and System are required.
type SourceConfig struct {
	// Client reads Secrets, GlobalSecrets and Meshes.
	Client resource.Client
	// System is the namespace of control planes, whose Secrets no node gets.
	System string
	Clock  clock.Clock  // nil: the real one
	Logger *slog.Logger // nil: silence
}

// Source reads the values of Secrets. Safe for concurrent use.
type Source struct {
	cfg SourceConfig

	mu      sync.Mutex
	changed chan struct{} // closed by the next change
	// wanted are the secrets that were asked for, cached what was found.
	wanted map[resource.Key]struct{}
	cached map[resource.Key]cached
	// withheld have the private key of an authority: by Mesh.
	withheld map[string][]resource.Key
	listed   map[*resource.Descriptor]bool
}

type cached struct {
	of       *meshv1alpha1.ExternalService
	material *Material
	err      error
}

// NewSource makes a source. It finds nothing before Run has read what there is.
func NewSource(c SourceConfig) *Source {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Source{
		cfg: c, changed: make(chan struct{}), wanted: map[resource.Key]struct{}{}, cached: map[resource.Key]cached{},
		withheld: map[string][]resource.Key{}, listed: map[*resource.Descriptor]bool{},
	}
}

// followed are the kinds that results follow from.
func followed() []*resource.Descriptor {
	return []*resource.Descriptor{kind.Secret, kind.GlobalSecret, kind.Mesh}
}

// Run follows Secrets until ctx ends, and returns nil then. Call it once.
func (s *Source) Run(ctx context.Context) error {
	events := make(chan reflector.Event)
	var following sync.WaitGroup
	following.Go(func() {
		defer close(events)
		reflector.RunAll(ctx, reflector.Config{
			Client: s.cfg.Client, Backoff: backoff.Policy{First: 200 * time.Millisecond, Last: 10 * time.Second, Jitter: 0.2},
			Clock: s.cfg.Clock, Logger: s.cfg.Logger, Level: slog.LevelDebug,
		}, followed(), events)
	})
	for e := range events {
		s.follow(e)
	}
	following.Wait()
	return nil
}

func (s *Source) follow(e reflector.Event) {
	if e.Type != reflector.Replace && e.Type != reflector.Set && e.Type != reflector.Delete {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	concerned := e.Type == reflector.Replace
	if concerned {
		s.listed[e.Kind] = true
		if e.Kind == kind.Mesh {
			clear(s.withheld)
		}
	}
	for _, obj := range e.Objects {
		if m, ok := obj.(*meshv1alpha1.Mesh); ok {
			before := s.withheld[m.Name]
			delete(s.withheld, m.Name)
			if e.Type != reflector.Delete {
				s.withheld[m.Name] = authorityKeys(m)
			}
			concerned = concerned || !slices.Equal(before, s.withheld[m.Name])
			continue
		}
		_, wanted := s.wanted[resource.KeyOf(obj)]
		concerned = concerned || wanted
	}
	if concerned {
		clear(s.cached)
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// authorityKeys are the secrets with keys by which certificates of a mesh are signed.
func authorityKeys(m *meshv1alpha1.Mesh) []resource.Key {
	var out []resource.Key
	for _, r := range secrets.References(m) {
		if r.Role == secrets.AuthorityKey {
			out = append(out, r.Secret)
		}
	}
	return out
}

// Changed is closed when results may be others than now.
func (s *Source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// ErrNotRead: the source has not read what there is. It will: see Changed.
var ErrNotRead = errors.New("the control plane has not read its Secrets yet")

// Of an ExternalService, whose TLS refers to Secrets. The error names the field, for users;
// it never has a value of a Secret in it.
func (s *Source) Of(ctx context.Context, e *meshv1alpha1.ExternalService) (*Material, error) {
	key := resource.KeyOf(e)
	s.mu.Lock()
	if len(s.listed) < len(followed()) {
		s.mu.Unlock()
		return nil, ErrNotRead
	}
	if c, ok := s.cached[key]; ok && c.of.UID == e.UID && c.of.Generation == e.Generation {
		s.mu.Unlock()
		return c.material, c.err
	}
	for _, r := range secrets.References(e) {
		s.wanted[r.Secret] = struct{}{}
	}
	changed := s.changed
	s.mu.Unlock()

	m, err := s.read(ctx, e)
	s.mu.Lock()
	defer s.mu.Unlock()
	if changed == s.changed && ctx.Err() == nil { // else it may be of before the change
		s.cached[key] = cached{e, m, err}
	}
	return m, err
}

// Check reports why what a service needs cannot be used, as Of.
func (s *Source) Check(ctx context.Context, e *meshv1alpha1.ExternalService) error {
	_, err := s.Of(ctx, e)
	return err
}

func (s *Source) read(ctx context.Context, e *meshv1alpha1.ExternalService) (m *Material, err error) {
	t := e.Spec.TLS
	m = &Material{}
	if t.CACertificates != nil && t.CACertificates.SecretRef != nil {
		const field = "spec.tls.caCertificates"
		if m.Roots, err = s.value(ctx, e, t.CACertificates, field); err != nil {
			return nil, err
		}
		if _, err := certpem.ParseCertificates(m.Roots); err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
	}
	if t.ClientCertificate == nil {
		return m, nil
	}
	if m.Certificate, err = s.value(ctx, e, t.ClientCertificate, "spec.tls.clientCertificate"); err != nil {
		return nil, err
	}
	if m.Key, err = s.value(ctx, e, t.ClientKey, "spec.tls.clientKey"); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(m.Certificate, m.Key)
	if err != nil {
		return nil, fmt.Errorf("spec.tls.clientCertificate and clientKey: %w", err)
	}
	if end := pair.Leaf.NotAfter; s.cfg.Clock.Now().After(end) {
		return nil, fmt.Errorf("spec.tls.clientCertificate: it ended at %s", end.UTC().Format(time.RFC3339))
	}
	return m, nil
}

// maxValue keeps the three values of a service below what a message may have (4 MiB).
const maxValue = 512 << 10

func (s *Source) value(ctx context.Context, e *meshv1alpha1.ExternalService, d *meshv1alpha1.DataSource, field string) ([]byte, error) {
	if d == nil {
		return nil, fmt.Errorf("%s: missing", field)
	}
	if d.SecretRef == nil {
		return d.Inline, nil
	}
	fail := func(format string, args ...any) ([]byte, error) {
		return nil, fmt.Errorf("%s.secretRef: %w", field, fmt.Errorf(format, args...))
	}
	of, key := kind.Secret, resource.Key{Namespace: e.Namespace, Name: d.SecretRef.Name}
	if d.SecretRef.Kind == meshv1alpha1.KindGlobalSecret {
		of, key.Namespace = kind.GlobalSecret, ""
	}
	what := of.GVK.Kind + " " + d.SecretRef.Name
	switch {
	case key.Namespace == s.cfg.System && key.Namespace != "":
		return fail("%s is in the namespace of control planes, whose Secrets no node gets", what)
	case s.isWithheld(key):
		return fail("%s has the private key of an authority, which no node gets", what)
	}
	obj, err := s.cfg.Client.Get(ctx, of, key)
	if apierrors.IsNotFound(err) {
		return fail("there is no %s", what)
	}
	if err != nil {
		return fail("%s cannot be read: %w", what, err)
	}
	name := cmp.Or(d.SecretRef.Key, meshv1alpha1.DefaultSecretKey)
	value, ok := dataOf(obj)[name]
	switch {
	case !ok || len(bytes.TrimSpace(value)) == 0:
		return fail("%s has no value %q", what, name)
	case len(value) > maxValue:
		return fail("value %q of %s has %d bytes, at most %d are possible", name, what, len(value), maxValue)
	}
	return value, nil
}

func (s *Source) isWithheld(key resource.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, keys := range s.withheld {
		if slices.Contains(keys, key) {
			return true
		}
	}
	return false
}

func dataOf(obj resource.Object) map[string][]byte {
	switch o := obj.(type) {
	case *corev1.Secret:
		return o.Data
	case *meshv1alpha1.GlobalSecret:
		return o.Data
	}
	return nil
}
