package access

import (
	"crypto/x509"
	"sync"
	"time"
	"weak"
)

const (
	// verifiedFor is how long a chain that was verified is not verified again.
	verifiedFor = time.Minute
	// maxVerified certificates are remembered; each is of a connection.
	maxVerified = 10_000
)

// verified are certificates whose chain was verified lately. A connection has one *x509.Certificate for all of its requests, and TLS has
// proven that the client has its key, so that the pointer is enough to know it by. Roots are never taken out of an
// Authenticator's pool; what can be withdrawn is checked with each request. The zero value is empty, and safe for
// concurrent use.
type verified struct {
	mu    sync.Mutex
	until map[weak.Pointer[x509.Certificate]]time.Time // it keeps no certificate in memory
}

// check verifies a certificate, unless that was done lately and all of its chain is still valid.
func (v *verified) check(leaf *x509.Certificate, opts x509.VerifyOptions) error {
	now := opts.CurrentTime
	if now.IsZero() {
		now = time.Now()
	}
	id := weak.Make(leaf)
	v.mu.Lock()
	until, ok := v.until[id]
	v.mu.Unlock()
	if ok && now.Before(until) && !now.Before(leaf.NotBefore) {
		return nil
	}
	chains, err := leaf.Verify(opts)
	if err != nil {
		return err
	}
	// The last moment at which one of the chains holds.
	var valid time.Time
	for _, chain := range chains {
		ends := chain[0].NotAfter
		for _, c := range chain[1:] {
			if c.NotAfter.Before(ends) {
				ends = c.NotAfter
			}
		}
		if ends.After(valid) {
			valid = ends
		}
	}
	until = now.Add(verifiedFor)
	if valid.Before(until) {
		until = valid
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.until) >= maxVerified || v.until == nil {
		v.until = map[weak.Pointer[x509.Certificate]]time.Time{}
	}
	v.until[id] = until
	return nil
}
