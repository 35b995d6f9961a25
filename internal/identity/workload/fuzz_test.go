package workload

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"math/big"
	"net/url"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

// stored is a file as saveCertificate writes it.
func stored(t testing.TB, s Subject) []byte {
	t.Helper()
	domain, err := mesh.ParseDomain("shop.mesh")
	if err != nil {
		t.Fatal(err)
	}
	id, err := mesh.Workload(domain, "web", "front")
	if err != nil {
		t.Fatal(err)
	}
	key, err := authority.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{id.URL()}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := certpem.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(storedCertificate{
		Version: diskVersion, Namespace: s.Namespace, Name: s.Name, ID: id, Mesh: "shop", Issuer: "a",
		Chain: string(certpem.EncodeCertificates(leaf)), Key: string(keyPEM),
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestDecodeCertificate(t *testing.T) {
	s := Subject{Namespace: "web", Name: "front-1"}
	data := stored(t, s)
	svid, issuer, err := decodeCertificate(data, s)
	if err != nil || issuer != "a" || svid.ID.ServiceAccount() != "front" {
		t.Errorf("%+v %q %v", svid, issuer, err)
	}
	if _, _, err := decodeCertificate(data, Subject{Namespace: "web", Name: "front-2"}); err == nil {
		t.Error("another workload's certificate")
	}
	// The key of one file with the certificate of another.
	var one, two storedCertificate
	if err := json.Unmarshal(data, &one); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(stored(t, s), &two); err != nil {
		t.Fatal(err)
	}
	one.Key = two.Key
	mixed, _ := json.Marshal(one)
	if _, _, err := decodeCertificate(mixed, s); err == nil {
		t.Error("a key of another certificate")
	}
}

// TestRenewAt: 0.6 to 0.734 of the life, and always the same for one certificate.
func TestRenewAt(t *testing.T) {
	low, high := 1.0, 0.0
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 2000 {
		c := &x509.Certificate{NotBefore: begin, NotAfter: begin.Add(24 * time.Hour), SerialNumber: big.NewInt(int64(i))}
		at := RenewAt(c)
		if !RenewAt(c).Equal(at) {
			t.Fatal("another time for the same certificate")
		}
		part := float64(at.Sub(begin)) / float64(24*time.Hour)
		low, high = min(low, part), max(high, part)
	}
	if low < 0.6 || low > 0.605 || high > 0.7334 || high < 0.728 {
		t.Errorf("%.4f to %.4f", low, high)
	}
}

func FuzzDecodeCertificate(f *testing.F) {
	s := Subject{Namespace: "web", Name: "front-1"}
	f.Add(stored(f, s))
	f.Add([]byte(`{"version":1,"namespace":"web","name":"front-1"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if svid, _, err := decodeCertificate(data, s); err == nil && svid.ID.IsZero() {
			t.Fatal("a certificate without identity")
		}
	})
}

func FuzzDecodeTrust(f *testing.F) {
	f.Add([]byte(`{"version":1,"bundles":[{"mesh":"shop","trustDomain":"shop.mesh","generation":1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		bundles, _, err := decodeTrust(data)
		if err != nil {
			return
		}
		if trust, err := trustOf(bundles); err == nil && len(trust.Meshes()) != len(bundles) {
			t.Fatal("meshes are lost")
		}
	})
}
