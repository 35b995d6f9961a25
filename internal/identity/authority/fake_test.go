package authority_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

func domain(t testing.TB, name string) mesh.Domain {
	t.Helper()
	d, err := mesh.ParseDomain(name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func workload(t testing.TB, d, namespace, account string) mesh.ID {
	t.Helper()
	id, err := mesh.Workload(domain(t, d), namespace, account)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// request of an identity, with a new key.
func request(t testing.TB, id mesh.ID) (authority.Request, crypto.Signer) {
	t.Helper()
	key, err := authority.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := authority.NewCSR(id, key)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority.Request{ID: id, CSR: csr}, key
}

// verify a chain by roots at a time.
func verify(t testing.TB, s authority.Signer, chain []*x509.Certificate, at time.Time) (mesh.Peer, error) {
	t.Helper()
	trust, err := mesh.NewTrust(mesh.Bundle{Mesh: "shop", Domain: domain(t, "shop.mesh"), Roots: s.Roots()})
	if err != nil {
		t.Fatal(err)
	}
	return trust.Verify(chain, at)
}

// keeper keeps a record in memory, or fails.
type keeper struct {
	mu     sync.Mutex
	record []byte
	fail   error
}

func (k *keeper) Load(context.Context) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.record, k.fail
}

func (k *keeper) Save(_ context.Context, record []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail == nil {
		k.record = record
	}
	return k.fail
}

// link to global that can be cut.
type link struct {
	mu    sync.Mutex
	to    authority.IntermediateIssuer
	cut   bool
	calls int
}

func (l *link) IssueIntermediate(ctx context.Context, meshName string, csr []byte) (*authority.Intermediate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if l.cut {
		return nil, errors.New("global is away")
	}
	return l.to.IssueIntermediate(ctx, meshName, csr)
}

func (l *link) set(cut bool, to authority.IntermediateIssuer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if to != nil {
		l.to = to
	}
}

func (l *link) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}
