package extension

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/proxima-mesh/proxima/internal/certpem"
)

// Times of the authority. See DESIGN.md.
const (
	// Life of an authority. A new one is made after two thirds.
	Life = 90 * 24 * time.Hour
	// Settle is how long after the API server was given a certificate it is used: each of
	// several API servers follows what it was given by a watch.
	Settle = 5 * time.Minute
	// Retire is how long an authority stays trusted after another one signs, for a replica that
	// does not hear of it.
	Retire = 24 * time.Hour
	// leafLife of the certificate of a replica, which keeps its key in memory.
	leafLife = 7 * 24 * time.Hour
	// backdate allows for clocks that are behind.
	backdate = 5 * time.Minute
	// maxAuthorities at a time: one that signs, one before and one after.
	maxAuthorities = 3
)

// Authority signs the certificates of replicas.
type Authority struct {
	// Cert and Key in PEM.
	Cert []byte `json:"cert"`
	Key  []byte `json:"key"`
	// Published is when the API server had been given the certificate; zero: not yet.
	Published time.Time `json:"published,omitzero"`

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Authorities are trusted, the oldest first. The functions are pure but for the keys that they
// make, so that every replica that has read the same record comes to the same conclusion.
type Authorities []Authority

// Parse reads the record of authorities, and checks it.
func Parse(data []byte) (Authorities, error) {
	var all Authorities
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("the record of authorities is no JSON: %w", err)
	}
	if len(all) > maxAuthorities {
		return nil, fmt.Errorf("the record has %d authorities, more than %d", len(all), maxAuthorities)
	}
	for i := range all {
		if err := all[i].parse(); err != nil {
			return nil, fmt.Errorf("authority %d of the record: %w", i, err)
		}
	}
	return all, nil
}

func (a *Authority) parse() error {
	certs, err := certpem.ParseCertificates(a.Cert)
	if err != nil {
		return err
	}
	key, err := certpem.ParseKey(a.Key)
	if err != nil {
		return err
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok || len(certs) != 1 || !certs[0].IsCA || !certpem.SamePublicKey(certs[0].PublicKey, private.Public()) {
		return errors.New("one certificate of an authority and its ECDSA key are needed")
	}
	a.cert, a.key = certs[0], private
	return nil
}

// Encode is the record that Parse reads.
func (all Authorities) Encode() ([]byte, error) { return json.Marshal(all) }

// Bundle has the certificates of all, in PEM.
func (all Authorities) Bundle() []byte {
	var b bytes.Buffer
	for i := range all {
		b.Write(all[i].Cert)
	}
	return b.Bytes()
}

// signer is the index of the newest authority that every API server trusts, and when another one
// will sign; zero: none is to come.
func (all Authorities) signer(now time.Time) (i int, due time.Time) {
	for i = len(all) - 1; i > 0; i-- {
		p := all[i].Published
		if p.IsZero() {
			continue
		}
		if at := p.Add(Settle); at.After(now) {
			due = at
			continue
		}
		return i, due
	}
	return 0, due
}

// renewal is when another authority is to be made.
func (a *Authority) renewal() time.Time {
	return a.cert.NotAfter.Add(-a.cert.NotAfter.Sub(a.cert.NotBefore) / 3)
}

// Next is what the record should be: without authorities that are no longer needed, and with a
// new one where it is time, or where one is asked for. It is asked for again later while a change
// is under way. due is when to ask again at the latest.
func (all Authorities) Next(now time.Time, rotate bool) (next Authorities, due time.Time, err error) {
	next = all
	at := 0
	if len(all) > 0 {
		at, due = all.signer(now)
	}
	if at > 0 {
		if gone := all[at].Published.Add(Settle + Retire); gone.After(now) {
			due = earlier(due, gone)
		} else {
			next = next[at:]
		}
	}
	last := len(next) - 1
	waiting := last > 0 && next[last].Published.Add(Settle).After(now) || last > 0 && next[last].Published.IsZero()
	switch {
	case last < 0, !waiting && len(next) < maxAuthorities && (rotate || !next[last].renewal().After(now)):
		fresh, err := newAuthority(now)
		if err != nil {
			return nil, due, err
		}
		next = append(next[:len(next):len(next)], fresh)
	default:
		due = earlier(due, next[last].renewal())
	}
	return next, due, nil
}

// earlier of two times; zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func newAuthority(now time.Time) (Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Authority{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Proxima extension CA " + now.UTC().Format(time.DateTime)},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(Life), KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return Authority{}, err
	}
	keyPEM, err := certpem.EncodeKey(key)
	if err != nil {
		return Authority{}, err
	}
	a := Authority{Cert: certpem.EncodeDER(der), Key: keyPEM}
	return a, a.parse()
}

// serial is random and positive (RFC 5280 section 4.1.2.2).
func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails (crypto/rand)
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b[:])
}

// Leaf makes a server certificate by the authority that signs now, and says when another one is
// needed: where another authority signs, or after two thirds of its life.
func (all Authorities) Leaf(name string, now time.Time) (leaf *tls.Certificate, due time.Time, err error) {
	if len(all) == 0 {
		return nil, due, errors.New("there is no authority")
	}
	at, due := all.signer(now)
	by := &all[at]
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, due, err
	}
	end := earlier(now.Add(leafLife), by.cert.NotAfter)
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: now.Add(-backdate), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, key.Public(), by.key)
	if err != nil {
		return nil, due, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, earlier(due, now.Add(end.Sub(now)*2/3)), nil
}
