package authority_test

import (
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
)

// source of material that tests change.
type source struct {
	mu       sync.Mutex
	material authority.Material
	fail     error
	changed  chan struct{}
}

func (s *source) Load(context.Context) (authority.Material, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.material, s.fail
}

func (s *source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

func (s *source) set(m authority.Material, fail error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.material, s.fail = m, fail
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

func material(t testing.TB, c *catest.CA, roots ...*x509.Certificate) authority.Material {
	t.Helper()
	return authority.Material{Certificate: certpem.EncodeCertificates(c.Cert), Key: c.KeyPEM(t),
		Roots: certpem.EncodeCertificates(roots...)}
}

func TestProvided(t *testing.T) {
	root := catest.New(t, "root", nil, nil)
	middle := catest.New(t, "middle", root, nil)
	other := catest.New(t, "other", nil, nil)
	short := catest.New(t, "short", nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	leafless := catest.New(t, "leaf", root, func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature })
	elsewhere := catest.New(t, "elsewhere", nil, func(c *x509.Certificate) { c.PermittedURIDomains = []string{"other.mesh"} })
	noPath := catest.New(t, "no path", nil, func(c *x509.Certificate) { c.MaxPathLenZero = true })
	belowNoPath := catest.New(t, "below", noPath, nil)
	chain := material(t, middle)
	chain.Certificate = append(chain.Certificate, certpem.EncodeCertificates(root.Cert)...)
	swapped := material(t, root)
	swapped.Key = other.KeyPEM(t)
	for _, tc := range []struct {
		what     string
		material authority.Material
		depth    int // of the chain; 0: refused
	}{
		{"a root", material(t, root), 1},
		{"a root among roots", material(t, root, other.Cert, root.Cert), 1},
		{"an intermediate with its root behind it", chain, 2},
		{"an intermediate with roots", material(t, middle, root.Cert), 2},
		{"an intermediate without root", material(t, middle), 0},
		{"an intermediate with another root", material(t, middle, other.Cert), 0},
		{"a root that is not among the roots", material(t, root, other.Cert), 0},
		{"another key", swapped, 0},
		{"a leaf", material(t, leafless, root.Cert), 0},
		{"run out", material(t, short), 0},
		{"limited to another domain", material(t, elsewhere), 0},
		{"longer than the path length", material(t, belowNoPath, noPath.Cert), 0},
		{"nothing", authority.Material{}, 0},
	} {
		p, err := authority.NewProvided(t.Context(),
			authority.ProvidedConfig{Domain: domain(t, "shop.mesh"), Source: &source{material: tc.material}})
		if (err == nil) != (tc.depth > 0) {
			t.Errorf("%s: %v", tc.what, err)
		}
		if err != nil {
			continue
		}
		r, _ := request(t, workload(t, "shop.mesh", "web", "front"))
		signed, err := p.Sign(t.Context(), r)
		if err != nil || len(signed) != tc.depth {
			t.Errorf("%s: a chain of %d: %v", tc.what, len(signed), err)
			continue
		}
		if _, err := verify(t, p, signed, time.Now()); err != nil {
			t.Errorf("%s: %v", tc.what, err)
		}
		r, _ = request(t, workload(t, "other.mesh", "web", "front"))
		if _, err := p.Sign(t.Context(), r); err == nil {
			t.Errorf("%s: signed for another domain", tc.what)
		}
	}
}

// TestProvidedReload: new material is used when it changes; bad material leaves the old
// one in place until it is repaired.
func TestProvidedReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := catest.New(t, "root", nil, nil)
		first, second, third := catest.New(t, "1", root, nil), catest.New(t, "2", root, nil), catest.New(t, "3", nil, nil)
		src := &source{material: material(t, first, root.Cert)}
		rootsChanged := 0
		p, err := authority.NewProvided(t.Context(), authority.ProvidedConfig{
			Domain: domain(t, "shop.mesh"), Source: src, OnRoots: func() { rootsChanged++ },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = p.Run(ctx) }()
		defer func() { cancel(); <-done }()
		issuer := func() string {
			t.Helper()
			r, _ := request(t, workload(t, "shop.mesh", "web", "front"))
			chain, err := p.Sign(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return chain[0].Issuer.CommonName
		}
		synctest.Wait()
		src.set(material(t, second, root.Cert), nil)
		synctest.Wait()
		if got := issuer(); got != "2" || rootsChanged != 0 || p.Problem() != nil {
			t.Errorf("issuer %s, roots changed %d times, %v", got, rootsChanged, p.Problem())
		}
		for _, bad := range []func(){
			func() { src.set(authority.Material{Certificate: []byte("half wri")}, nil) },
			func() { src.set(authority.Material{}, errors.New("secret deleted")) },
		} {
			bad()
			synctest.Wait()
			if got := issuer(); got != "2" || p.Problem() == nil {
				t.Errorf("with bad material: issuer %s, problem %v", got, p.Problem())
			}
		}
		if !strings.Contains(p.Problem().Error(), "secret deleted") {
			t.Error(p.Problem())
		}
		// Repaired without a notification: it is tried again.
		src.mu.Lock()
		src.material, src.fail = material(t, third), nil
		src.mu.Unlock()
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if got := issuer(); got != "3" || rootsChanged != 1 || p.Problem() != nil {
			t.Errorf("issuer %s, roots changed %d times, %v", got, rootsChanged, p.Problem())
		}
		if !slices.ContainsFunc(p.Roots(), third.Cert.Equal) {
			t.Error("its root is missing")
		}
	})
}
