package certpem_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/certpem"
)

func newKey(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newCertificate(t testing.TB, key crypto.Signer) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestParseKey(t *testing.T) {
	good := newKey(t, elliptic.P256())
	pkcs8, err := certpem.EncodeKey(good)
	if err != nil {
		t.Fatal(err)
	}
	weak, err := certpem.EncodeKey(newKey(t, elliptic.P224()))
	if err != nil {
		t.Fatal(err)
	}
	sec1, err := certpem.EncodeECKey(good)
	if err != nil {
		t.Fatal(err)
	}
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	old := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(long)})
	for _, tc := range []struct {
		name         string
		data         []byte
		own, foreign string // parts of the errors; empty: it is read
	}{
		{"PKCS #8", pkcs8, "", ""},
		{"SEC 1", sec1, "", ""},
		{"an older form", old, `not one PEM block of type "PRIVATE KEY"`, ""},
		{"a weak key", weak, "", "too weak"},
		{"two keys", append(append([]byte{}, pkcs8...), pkcs8...), "not one PEM block", "not one PEM block"},
		{"a certificate", certpem.EncodeCertificates(newCertificate(t, good)), "not one PEM block of type", "is no private key"},
		{"damaged", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), "damaged", "damaged"},
		{"empty", nil, "not one PEM block", "not one PEM block"},
	} {
		for _, form := range []struct {
			parse func([]byte) (crypto.Signer, error)
			want  string
		}{{certpem.ParseKey, tc.own}, {certpem.ParseForeignKey, tc.foreign}} {
			key, err := form.parse(tc.data)
			switch {
			case form.want == "" && (err != nil || key == nil):
				t.Errorf("%s: %v", tc.name, err)
			case form.want != "" && (err == nil || !strings.Contains(err.Error(), form.want)):
				t.Errorf("%s: %v, want %q", tc.name, err, form.want)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	key := newKey(f, elliptic.P256())
	c := newCertificate(f, key)
	f.Add(certpem.EncodeCertificates(c, c))
	data, err := certpem.EncodeKey(key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		if certs, err := certpem.ParseCertificates(data); err == nil {
			again, err := certpem.ParseCertificates(certpem.EncodeCertificates(certs...))
			if err != nil || len(again) != len(certs) {
				t.Fatal(err)
			}
		}
		if key, err := certpem.ParseForeignKey(data); err == nil {
			if _, err := certpem.EncodeKey(key); err != nil {
				t.Fatal(err)
			}
		}
	})
}
