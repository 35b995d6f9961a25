package identity

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	// retryFirst and retryMax bound the pause after a renewal that failed. There
	// are 8 hours for it, and the server may have many nodes to answer.
	retryFirst = 10 * time.Second
	retryMax   = 5 * time.Minute
	// clockCheck bounds how long a renewal can be late because the machine slept:
	// timers stand still meanwhile.
	clockCheck = time.Minute
)

// Renewer keeps a machine's certificate fresh: a new key and certificate at two
// thirds of the life of the last, on disk before it is used. TLS configurations
// made by it always use the newest.
type Renewer struct {
	dir     string
	log     *slog.Logger
	current atomic.Pointer[Credentials]
	// exchange is the request to the server; tests replace it.
	exchange func(ctx context.Context, request []byte) (CertificateAnswer, error)
}

// NewRenewer starts from what Enroll or an earlier Renewer left in dir; no token
// is needed. It does no I/O but reading that file. Errors are those of
// LoadCredentials.
func NewRenewer(dir string, log *slog.Logger) (*Renewer, error) {
	c, err := LoadCredentials(dir)
	if err != nil {
		return nil, err
	}
	r := &Renewer{dir: dir, log: log}
	r.current.Store(c)
	r.exchange = func(ctx context.Context, request []byte) (CertificateAnswer, error) {
		address, host, err := serverAddress(r.Credentials().Server)
		if err != nil {
			return CertificateAnswer{}, err
		}
		return exchange(ctx, r.TLSConfig(host), address, "", request)
	}
	return r, nil
}

// Credentials in use now.
func (r *Renewer) Credentials() *Credentials { return r.current.Load() }

// TLSConfig for connections to a host (name or IP address) of the control plane:
// it shows the newest certificate and trusts the newest authorities at every
// handshake. The caller owns it, and must not use it for another host: the
// certificate is checked against this one.
func (r *Renewer) TLSConfig(host string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: host,
		// VerifyConnection does the same check, against a pool that changes.
		InsecureSkipVerify: true,
		VerifyConnection:   func(cs tls.ConnectionState) error { return verifyChain(cs, r.Credentials().trusted, host) },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &r.Credentials().certs, nil
		},
	}
}

// Run renews until ctx ends, then returns nil. A renewal that fails is tried
// again and logged; Run never gives up, since the server may come back.
func (r *Renewer) Run(ctx context.Context) error {
	pause := retryFirst
	at := r.renewAt()
	for {
		if !waitUntil(ctx, at) {
			return nil
		}
		err := r.renew(ctx)
		if err == nil {
			pause = retryFirst
			at = r.renewAt()
			// An authority that is about to run out gives certificates that are old at birth.
			if soonest := time.Now().Add(retryMax); at.Before(soonest) {
				at = soonest
			}
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		r.log.Warn("certificate was not renewed; will try again", "error", err,
			"retryIn", pause, "runsOut", r.Credentials().NotAfter)
		// Up to a quarter more, so that nodes do not come back all at once.
		jitter := time.Duration(rand.Int64N(int64(pause/4) + 1))
		at = time.Now().Add(pause + jitter)
		pause = min(2*pause, retryMax)
	}
}

// renewAt is two thirds into the certificate's life.
func (r *Renewer) renewAt() time.Time {
	c := r.Credentials()
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

func (r *Renewer) renew(ctx context.Context) error {
	old := r.Credentials()
	key, request, err := newRequest()
	if err != nil {
		return fmt.Errorf("renew certificate of %s: make a key: %w", old.Subject.User, err)
	}
	answer, err := r.exchange(ctx, request)
	if err != nil {
		return fmt.Errorf("renew certificate of %s: %w", old.Subject.User, err)
	}
	c, err := answered(old.Server, r.dir, key, answer)
	if err != nil {
		return fmt.Errorf("renew certificate of %s: %w", old.Subject.User, err)
	}
	r.current.Store(c)
	r.log.Info("certificate renewed", "user", c.Subject.User, "runsOut", c.NotAfter)
	return nil
}

// waitUntil waits by the wall clock; false: ctx ended first.
func waitUntil(ctx context.Context, at time.Time) bool {
	for {
		// Round drops the monotonic reading, which stands still in sleep.
		left := at.Round(0).Sub(time.Now().Round(0))
		if left <= 0 {
			return ctx.Err() == nil
		}
		timer := time.NewTimer(min(left, clockCheck))
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}
