package identity

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// States of a certificate, by the machine's clock.
const (
	CertificateValid       = "valid"
	CertificateExpired     = "expired"
	CertificateNotYetValid = "not yet valid"
	CertificateMissing     = "missing"
)

// CertificateStatus describes the client certificate of a joined machine.
type CertificateStatus struct {
	// State is one of the constants.
	State string `json:"state"`
	// User that it stands for, and the token that it descends from.
	User    string `json:"user,omitempty"`
	TokenID string `json:"tokenID,omitempty"`
	// Everywhere: it registers workloads in every namespace.
	Everywhere bool      `json:"everyNamespace,omitempty"`
	NotBefore  time.Time `json:"notBefore,omitzero"`
	NotAfter   time.Time `json:"notAfter,omitzero"`
	// RenewalError is why the last attempt to renew it failed; empty: it did not.
	RenewalError string `json:"renewalError,omitempty"`
	// FailingSince is the first of the attempts that failed since the last success.
	FailingSince time.Time `json:"failingSince,omitzero"`
	// Problem as text, and the command that fixes it; empty: there is none.
	Problem string `json:"problem,omitempty"`
	Fix     string `json:"fix,omitempty"`
}

// Status of the certificate now.
func (r *Renewer) Status() CertificateStatus {
	c, now := r.Credentials(), r.cfg.Now()
	r.mu.Lock()
	failure, failing, missing := r.failure, r.failing, r.missing
	r.mu.Unlock()
	s := CertificateStatus{State: CertificateMissing}
	if c != nil {
		s = CertificateStatus{
			State: CertificateValid, User: c.Subject.User, TokenID: c.Subject.TokenID, Everywhere: c.Subject.Bounds.Everywhere(),
			NotBefore: c.NotBefore, NotAfter: c.NotAfter,
		}
	}
	if failure != nil {
		// Several attempts of one renewal are joined by line ends.
		s.RenewalError, s.FailingSince = strings.ReplaceAll(failure.Error(), "\n", "; "), failing
	}
	switch {
	case c == nil:
		s.Problem = fmt.Sprintf("there is no certificate: %v", missing)
	case now.After(c.NotAfter):
		s.State = CertificateExpired
		s.Problem = fmt.Sprintf("the certificate of %s ran out on %s, %s ago", s.User, s.NotAfter.Format(time.RFC3339), age(now.Sub(c.NotAfter)))
	case now.Before(c.NotBefore):
		s.State = CertificateNotYetValid
		s.Problem = fmt.Sprintf("the certificate of %s begins on %s: this machine's clock (%s) is behind", s.User,
			s.NotBefore.Format(time.RFC3339), now.Format(time.RFC3339))
		s.Fix = "set the clock, best by NTP; the certificate is used all the same"
		return s
	case errors.Is(failure, ErrRefused):
		s.Problem = fmt.Sprintf("the control plane refuses the certificate of %s", s.User)
	default:
		return s
	}
	if failure != nil {
		s.Problem += ": " + s.RenewalError
	}
	s.Fix = r.fix(failure)
	return s
}

// fix is what ends a problem with the certificate.
func (r *Renewer) fix(failure error) string {
	c, kind, name := r.Credentials(), Node, "NAME"
	if c != nil {
		if k, n, ok := c.Subject.kindAndName(); ok {
			kind, name = k, n
		}
	}
	if kind == Zone {
		return r.fixOfZone(failure, name)
	}
	if r.cfg.Exchange != nil {
		return "the agent gets it by itself at the API server of the cluster: the error says what is in the way"
	}
	if r.cfg.Authorities != nil {
		return "the agent joins by itself, with the token of its service account, when the control plane answers at " + r.cfg.Server +
			" with a certificate of one of the authorities in the file of --server-ca-file: the error says what is in the way"
	}
	create := fmt.Sprintf(
		"on the control plane's machine: proxima token create --kind %s --name %s; put it into the file that --token-file names, "+
			"which is read again within minutes (start again with that flag if there is none)",
		kind,
		name,
	)
	if errors.Is(failure, ErrRefused) || c == nil {
		return create
	}
	return "the agent renews it by itself when the control plane at " + r.cfg.Server +
		" answers: is that reachable from here? if it still refuses then, " + create
}

// fixOfZone is what ends a problem of the certificate that the control plane of a zone has
// from global, which withdraws it when the zone is deleted.
func (r *Renewer) fixOfZone(failure error, name string) string {
	create := fmt.Sprintf("if the zone was deleted, \"proxima zone create %s\" at global makes it again; else \"proxima token create --kind zone "+
		"--name %s\" there makes a token; put the token into the file that --token-file names, which is read again within minutes", name, name)
	if errors.Is(failure, ErrRefused) {
		return create
	}
	return "it is renewed when global at " + r.cfg.Server + " answers: is that reachable from here? if it refuses then, " + create
}

// age in a unit that suits it.
func age(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d/(24*time.Hour)))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", int(d/time.Hour))
	}
	return d.Round(time.Second).String()
}
