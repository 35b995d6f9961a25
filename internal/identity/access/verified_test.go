package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity/catest"
)

// TestVerified: a certificate is verified once a minute, and not for a moment longer than it is valid; a foreign one never passes, and
// neither does a copy of one that has.
func TestVerified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, other := catest.New(t, "ca", nil, nil), catest.New(t, "other", nil, nil)
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		issue := func(by *catest.CA, life time.Duration) *x509.Certificate {
			c, err := by.Sign(&x509.Certificate{
				NotBefore: time.Now(), NotAfter: time.Now().Add(life), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			}, key.Public())
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		trusting := func(of *catest.CA) x509.VerifyOptions {
			roots := x509.NewCertPool()
			roots.AddCert(of.Cert)
			return x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		}
		var v verified
		long, short, foreign := issue(ca, time.Hour), issue(ca, 30*time.Second), issue(other, time.Hour)
		for _, c := range []*x509.Certificate{long, short} {
			if err := v.check(c, trusting(ca)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if v.check(foreign, trusting(ca)) == nil {
				t.Error("a foreign certificate passes")
			}
		}
		// Other roots show whether it is verified again.
		if err := v.check(long, trusting(other)); err != nil {
			t.Errorf("it is verified again at once: %v", err)
		}
		copied := *long
		if v.check(&copied, trusting(other)) == nil {
			t.Error("a copy is taken for the certificate of a connection")
		}
		time.Sleep(31 * time.Second)
		if v.check(short, trusting(ca)) == nil {
			t.Error("a certificate passes after its end")
		}
		time.Sleep(30 * time.Second)
		if v.check(long, trusting(other)) == nil {
			t.Error("it is not verified again after a minute")
		}
		if err := v.check(long, trusting(ca)); err != nil {
			t.Error(err)
		}
	})
}
