package workload

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

// retryTrust spaces attempts to follow the control plane's trust.
var retryTrust = backoff.Policy{First: 200 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.5}

// follow the control plane's trust until ctx ends.
func (m *Manager) follow(ctx context.Context) {
	pause := backoff.Backoff{Policy: retryTrust}
	for ctx.Err() == nil {
		got, err := m.stream(ctx)
		if got {
			pause.Reset()
		}
		if ctx.Err() != nil {
			return
		}
		delay := pause.Next()
		m.config.Logger.Debug("the stream of roots ended", "retryIn", delay, "error", err)
		backoff.Sleep(ctx, delay)
	}
}

// stream once; got: at least one message came.
func (m *Manager) stream(ctx context.Context) (got bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := m.config.Client.Trust(ctx)
	if err != nil {
		return false, err
	}
	// The first message opens the stream at the server.
	if err := s.Send(&identityv1.TrustRequest{}); err != nil {
		return false, err
	}
	received := make(chan error, 1)
	messages := make(chan *identityv1.TrustResponse)
	go func() {
		for {
			r, err := s.Recv()
			if err != nil {
				received <- err
				return
			}
			select {
			case messages <- r:
			case <-ctx.Done():
				received <- ctx.Err()
				return
			}
		}
	}()
	defer func() {
		cancel()
		if err := <-received; err != nil { // returned below already, or a consequence of cancel
			m.config.Logger.Debug("the stream of roots ended", "error", err)
		}
	}()
	var last *identityv1.TrustResponse
	var again <-chan time.Time // nil: last is applied
	pause := backoff.Backoff{Policy: whileNone}
	for {
		select {
		case err := <-received:
			received <- err // for the deferred function
			return got, err
		case last = <-messages:
			got = true
			pause.Reset()
			again = m.applyOrRetry(last, &pause)
		case <-again:
			again = m.applyOrRetry(last, &pause)
		case <-m.ack:
		}
		// Before the first message it is not clear that the generations are this
		// control plane's.
		if got {
			if err := s.Send(&identityv1.TrustRequest{Acknowledgements: m.acknowledgements()}); err != nil {
				return got, err
			}
		}
	}
}

// applyOrRetry applies a message, or says when to try again: the control plane sends it
// once, and the disk may be full only now. nil: it is applied.
func (m *Manager) applyOrRetry(r *identityv1.TrustResponse, pause *backoff.Backoff) <-chan time.Time {
	err := m.apply(r.GetZone(), r.GetBundles())
	if err == nil {
		return nil
	}
	delay := pause.Next()
	m.config.Logger.Error("roots from the control plane are not used; those from before are", "retryIn", delay, "error", err)
	return time.After(delay)
}

// apply what the control plane sent: on disk, then in use. An error leaves everything as
// it was.
func (m *Manager) apply(zone string, received []*identityv1.Bundle) error {
	m.applying.Lock()
	defer m.applying.Unlock()
	next := map[string]*bundle{}
	for _, r := range received {
		b := &bundle{
			Mesh: r.GetMesh(), Domain: r.GetTrustDomain(), ExportedTo: r.GetExportedTo(),
			Generation: r.GetGeneration(), Issuer: r.GetIssuer(), AcceptsPlain: r.GetAcceptsPlain(),
		}
		var roots []byte
		for _, der := range r.GetRoots() {
			c, err := x509.ParseCertificate(der)
			if err != nil {
				return fmt.Errorf("roots of mesh %q: %w", r.GetMesh(), err)
			}
			roots = append(roots, certpem.EncodeCertificates(c)...)
		}
		b.Roots = string(roots)
		if next[b.Mesh] != nil {
			return fmt.Errorf("two bundles of mesh %q", b.Mesh)
		}
		next[b.Mesh] = b
	}
	m.keepUsed(next)
	trust, err := trustOf(next)
	if err != nil {
		return err
	}
	if err := saveTrust(m.config.Dir, zone, next); err != nil {
		return fmt.Errorf("keep roots: %w", err)
	}
	m.use(zone, next, trust)
	return nil
}

// keepUsed keeps meshes that are missing and that subjects of this node are of: a control
// plane that comes back empty must not stop their traffic.
func (m *Manager) keepUsed(next map[string]*bundle) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(next) == 0 {
		for name, b := range m.bundles {
			next[name] = b
		}
		return
	}
	for _, e := range m.entries {
		if b := m.bundleLocked(e.id); b != nil && next[b.Mesh] == nil {
			next[b.Mesh] = b
		}
	}
}

// use other roots. Certificates of meshes that no longer have an authority are dropped.
func (m *Manager) use(zone string, next map[string]*bundle, trust *mesh.Trust) {
	var dropped []Subject
	m.mu.Lock()
	m.bundles, m.trust, m.zone = next, trust, zone
	close(m.changed)
	m.changed = make(chan struct{})
	for s, e := range m.entries {
		if b := m.bundleLocked(e.id); b != nil && b.Issuer == "" && e.svid != nil {
			e.set(nil, "")
			dropped = append(dropped, s)
		}
		e.wakeUp()
	}
	m.mu.Unlock()
	for _, s := range dropped {
		if err := removeCertificate(m.config.Dir, s); err != nil {
			m.config.Logger.Error("a certificate of a mesh without mTLS stays on disk", "subject", s.String(), "error", err)
		}
	}
}

// acknowledgements of all meshes whose certificates are of the authority that issues.
func (m *Manager) acknowledgements() []*identityv1.Acknowledgement {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.config.Now()
	foreign, until := map[string]bool{}, map[string]time.Time{}
	for _, e := range m.entries {
		b := m.bundleLocked(e.id)
		if b == nil || e.svid == nil || !now.Before(e.svid.NotAfter()) {
			continue
		}
		if e.issuer != b.Issuer {
			foreign[b.Mesh] = true
		}
		if end := e.svid.NotAfter(); end.After(until[b.Mesh]) {
			until[b.Mesh] = end
		}
	}
	var out []*identityv1.Acknowledgement
	for name, b := range m.bundles {
		if foreign[name] {
			continue
		}
		a := &identityv1.Acknowledgement{Mesh: name, Generation: b.Generation}
		if end, ok := until[name]; ok {
			a.HoldsUntil = end.Unix()
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *identityv1.Acknowledgement) int { return strings.Compare(a.Mesh, b.Mesh) })
	return out
}
