package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// DefaultRenewExpired is how long after its end a certificate can still be renewed
// by proof of its key, unless a control plane is configured otherwise.
const DefaultRenewExpired = 30 * 24 * time.Hour

// recoveredBy is the creator of a token record that was lost and made again from a
// certificate.
const recoveredBy = "system:proxima:recovered"

// Issue is a certificate that is about to be signed.
type Issue struct {
	// NotAfter of the certificate.
	NotAfter time.Time
	// RenewableUntil is the last moment at which it can be renewed.
	RenewableUntil time.Time
	// Recover makes the record of a token again that the store does not have, so
	// that the token can be revoked. It is for holders of a certificate that has
	// not run out: a record outlives all others.
	Recover bool
}

// RecordIssue notes a certificate in the record of the token that it descends
// from, before it is signed: the record is kept until the certificate can no
// longer be renewed. A subject without a token is not recorded. Errors:
// *TokenError (which is ErrToken) if the token was revoked, or is not known and is
// not to be recovered; others if the store cannot write.
func (ts *Tokens) RecordIssue(ctx context.Context, s Subject, issue Issue) error {
	if s.TokenID == "" {
		return nil
	}
	for {
		r, modified, ok, err := ts.get(ctx, s.TokenID)
		if err == nil && !ok {
			r, err = recovered(s, issue)
		}
		if err == nil && !r.Revoked.IsZero() {
			err = &TokenError{ID: s.TokenID, Reason: Revoked}
		}
		if err != nil {
			return fmt.Errorf("record a certificate of token %s: %w", s.TokenID, err)
		}
		r.CertificateNotAfter = later(r.CertificateNotAfter, issue.NotAfter.UTC())
		r.RenewableUntil = later(r.RenewableUntil, issue.RenewableUntil.UTC())
		err = ts.put(ctx, r, modified, r.keepFor(time.Now()))
		var conflict *store.ConflictError
		if errors.As(err, &conflict) {
			continue // it was revoked or used at the same time, or has just run out
		}
		if err != nil {
			return fmt.Errorf("record a certificate of token %s: %w", s.TokenID, err)
		}
		return nil
	}
}

// recovered is a record without a secret: the token itself stays useless.
func recovered(s Subject, issue Issue) (tokenRecord, error) {
	kind, name, ok := s.kindAndName()
	if !issue.Recover || !ok {
		return tokenRecord{}, &TokenError{ID: s.TokenID, Reason: Unknown}
	}
	now := time.Now().UTC()
	return tokenRecord{TokenInfo: TokenInfo{
		ID: s.TokenID, Kind: kind, Name: name, Created: now, CreatedBy: recoveredBy, Expires: now, Bounds: s.Bounds,
	}}, nil
}

// kindAndName of the token that a subject of a certificate descends from: of a node,
// a zone or a workload.
func (s Subject) kindAndName() (Kind, string, bool) {
	if name, ok := NodeName(s.User, s.Groups); ok {
		return Node, name, true
	}
	if namespace, account, ok := WorkloadName(s.User, s.Groups); ok {
		return Workload, namespace + "/" + account, true
	}
	name, ok := ZoneName(s.User, s.Groups)
	return Zone, name, ok
}

// keepFor is how long the record is needed from now on: until keepDead after
// neither the token nor a certificate that descends from it is valid. 0: forever.
func (r tokenRecord) keepFor(now time.Time) time.Duration {
	if r.Expires.IsZero() && r.Revoked.IsZero() {
		return 0
	}
	end := r.Expires
	if !r.Revoked.IsZero() {
		end = r.Revoked
	}
	end = later(end, r.RenewableUntil)
	return max(end.Add(keepDead).Sub(now), time.Second)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
