package workload

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/wallclock"
)

const (
	// clockCheck bounds how late a renewal is because the machine slept: timers stand
	// still meanwhile. There are hours for it.
	clockCheck = 5 * time.Minute
	// jitter of the renewal: the share of two thirds by which it is earlier or later.
	jitter = 0.1
)

var (
	// whileValid and whileNone bound the pause after a request that failed.
	whileValid = backoff.Policy{First: 10 * time.Second, Last: 5 * time.Minute, Jitter: 0.5}
	whileNone  = backoff.Policy{First: 200 * time.Millisecond, Last: 20 * time.Second, Jitter: 0.5}
)

// never is later than every certificate.
const never = 100 * 365 * 24 * time.Hour

// RenewAt is when a certificate is replaced: at two thirds of its life, ± 10 % by its
// serial number, so that it stays the same over a restart.
func RenewAt(c *x509.Certificate) time.Time {
	sum := sha256.Sum256(append([]byte("renew:"), c.SerialNumber.Bytes()...))
	at := float64(binary.BigEndian.Uint64(sum[:8])) / (1 << 64) // 0 to 1
	part := 2.0 / 3 * (1 - jitter + 2*jitter*at)
	life := c.NotAfter.Sub(c.NotBefore)
	return c.NotBefore.Add(time.Duration(part * float64(life)))
}

// keep one certificate fresh until ctx ends or the entry is removed.
func (m *Manager) keep(ctx context.Context, e *entry) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.life, cancel)()
	failures := 0
	var retryAt, replaceAt time.Time
	for ctx.Err() == nil {
		m.mu.Lock()
		due, foreign, valid := m.dueLocked(e)
		m.mu.Unlock()
		switch {
		case !foreign:
			replaceAt = time.Time{}
		case valid && replaceAt.IsZero():
			replaceAt = m.config.Now().Add(m.spread())
		}
		if foreign && valid && replaceAt.Before(due) {
			due = replaceAt
		}
		if failures > 0 && retryAt.After(due) {
			due = retryAt
		}
		if !m.waitUntil(ctx, e, due) {
			failures = 0 // what is trusted has changed, or ctx ended
			continue
		}
		err := m.renew(ctx, e)
		if err == nil {
			failures, replaceAt = 0, time.Time{}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		failures++
		pause := whileNone
		if valid {
			pause = whileValid
		}
		delay := pause.After(failures)
		retryAt = m.config.Now().Add(delay)
		m.config.Logger.Warn("certificate not renewed", "subject", e.subject.String(), "id", e.id.String(), "retryIn", delay, "error", err)
	}
}

func (m *Manager) spread() time.Duration {
	if m.config.Spread <= 0 {
		return 0
	}
	return rand.N(m.config.Spread)
}

// dueLocked is when an entry is to be renewed. foreign: its certificate is of an
// authority that does not issue any more. valid: there is one, and it holds.
func (m *Manager) dueLocked(e *entry) (due time.Time, foreign, valid bool) {
	now := m.config.Now()
	b := m.bundleLocked(e.id)
	if b == nil || b.Issuer == "" {
		return now.Add(never), false, false // there is no authority, or none is known yet
	}
	if e.svid == nil || !now.Before(e.svid.NotAfter()) {
		return now, false, false
	}
	return RenewAt(e.svid.Leaf()), e.issuer != b.Issuer, true
}

// bundleLocked of the mesh of an ID; nil: the mesh is not trusted.
func (m *Manager) bundleLocked(id mesh.ID) *bundle {
	name, ok := m.trust.MeshOf(id.Domain())
	if !ok {
		return nil
	}
	return m.bundles[name]
}

// waitUntil waits by the wall clock. False: ctx ended, or the entry was woken.
func (m *Manager) waitUntil(ctx context.Context, e *entry, at time.Time) bool {
	return wallclock.Wait(ctx, at, clockCheck, m.config.Now, e.wake) == wallclock.Reached
}

// renew gets a certificate for a new key, keeps it, and then uses it.
func (m *Manager) renew(ctx context.Context, e *entry) error {
	err := m.request(ctx, e)
	m.mu.Lock()
	e.problem = err
	if err != nil && ctx.Err() == nil {
		m.failures++
	}
	m.mu.Unlock()
	if err == nil {
		m.wantAck()
	}
	return err
}

func (m *Manager) request(ctx context.Context, e *entry) error {
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, issueTimeout)
	defer cancel()
	key, err := authority.NewKey()
	if err != nil {
		return err
	}
	csr, err := authority.NewCSR(e.id, key)
	if err != nil {
		return err
	}
	answer, err := m.config.Client.Issue(ctx, requestOf(e.subject, csr))
	if err != nil {
		return fmt.Errorf("request certificate: %w", err)
	}
	svid, err := m.check(e, answer, key)
	if err != nil {
		return fmt.Errorf("certificate from the control plane: %w", err)
	}
	m.applying.Lock() // the issuer must not change between the check and the use
	defer m.applying.Unlock()
	if err := m.current(e, answer.GetIssuer()); err != nil {
		return err
	}
	if err := saveCertificate(m.config.Dir, e.subject, svid, answer.GetIssuer()); err != nil {
		return fmt.Errorf("keep certificate: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err() // removed meanwhile; Remove deletes the file
	}
	e.set(svid, answer.GetIssuer())
	return nil
}

func requestOf(s Subject, csr []byte) *identityv1.IssueRequest {
	r := &identityv1.IssueRequest{Request: csr}
	switch {
	case s.Gateway != 0:
		role := identityv1.Gateway_INGRESS
		if s.Gateway == mesh.EgressID {
			role = identityv1.Gateway_EGRESS
		}
		r.Subject = &identityv1.IssueRequest_Gateway{Gateway: &identityv1.Gateway{Mesh: s.Mesh, Role: role}}
	case s.Name == "":
		r.Subject = &identityv1.IssueRequest_Node{Node: &identityv1.Node{Mesh: s.Mesh}}
	default:
		r.Subject = &identityv1.IssueRequest_Workload{Workload: &identityv1.Workload{Namespace: s.Namespace, Name: s.Name}}
	}
	return r
}

// maxChain bounds an answer: a leaf and the authorities between it and the root.
const maxChain = 10

// check that an answer is a certificate of this identity and key that others verify.
func (m *Manager) check(e *entry, answer *identityv1.IssueResponse, key crypto.Signer) (*mesh.SVID, error) {
	if n := len(answer.GetChain()); n == 0 || n > maxChain {
		return nil, fmt.Errorf("a chain of %d certificates", n)
	}
	var chain []*x509.Certificate
	for _, der := range answer.GetChain() {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		chain = append(chain, c)
	}
	svid, err := mesh.NewSVID(answer.GetMesh(), chain, key)
	if err != nil {
		return nil, err
	}
	if svid.ID != e.id {
		return nil, fmt.Errorf("it is of %s", svid.ID)
	}
	trust, _ := m.Trust()
	if name, _ := trust.MeshOf(svid.ID.Domain()); name != answer.GetMesh() {
		return nil, fmt.Errorf("the answer names mesh %q, but the trust domain is that of %q", answer.GetMesh(), name)
	}
	// This machine's clock may be behind that of the authority.
	now := m.config.Now()
	if begin := svid.Leaf().NotBefore; now.Before(begin) {
		now = begin
	}
	_, err = trust.Verify(chain, now)
	return svid, err
}

// errIssuer: the answer crossed a change of authority. The next one will be right.
var errIssuer = errors.New("it is of an authority that does not issue now: the change is under way")

// current makes sure that a certificate is of the authority that issues, as far as this
// agent has received it. Otherwise it could hold a certificate of an authority after it has
// acknowledged that it has none.
func (m *Manager) current(e *entry, issuer string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.bundleLocked(e.id); b == nil || b.Issuer != issuer {
		return errIssuer
	}
	return nil
}
