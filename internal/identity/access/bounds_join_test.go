package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/identity"
)

// The bounds of a token are in the certificate that it buys, and in those that
// the certificate is renewed to: the token is not there any more by then.
func TestBoundsSurviveRenewal(t *testing.T) {
	s := startServer(t)
	code, body := s.call(t, "POST", TokensPath, s.token(t, identity.Admin, "ada"), nil,
		`{"kind":"node","name":"n1","ttlSeconds":60,"namespaces":["a"],"labels":{"app":["api","web"]},"addresses":["10.0.3.0/24"]}`)
	var made TokenAnswer
	if err := json.Unmarshal([]byte(body), &made); err != nil || code != http.StatusCreated {
		t.Fatalf("%d %s %v", code, body, err)
	}
	check := func(what string, b identity.Bounds) {
		t.Helper()
		if strings.Join(b.Namespaces, " ") != "a" || strings.Join(b.LabelTexts(), " ") != "app=api app=web" || len(b.Addresses) != 1 {
			t.Errorf("%s has bounds %+v", what, b)
		}
	}
	dir := t.TempDir()
	c, err := identity.Enroll(t.Context(), s.address, made.Token, dir)
	if err != nil {
		t.Fatal(err)
	}
	check("the first certificate", c.Subject.Bounds)
	r := s.renewer(t, dir)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	code, body = s.call(t, "POST", identity.CertificatesPath, "", r.TLSConfig("127.0.0.1"), string(request))
	var answer identity.CertificateAnswer
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK {
		t.Fatalf("renewal: %d %s %v", code, body, err)
	}
	block, _ := pem.Decode([]byte(answer.Certificate))
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	check("the renewed certificate", identity.SubjectOf(cert).Bounds)
}

func TestTokenRequestsWithBadBounds(t *testing.T) {
	s := startServer(t)
	admin := s.token(t, identity.Admin, "ada")
	for _, body := range []string{
		`{"kind":"admin","name":"x","namespaces":["a"]}`,
		`{"kind":"workload","name":"a/b","namespaces":["a"]}`,
		`{"kind":"workload","name":"b"}`,
		`{"kind":"node","name":"x","namespaces":["a/b"]}`,
		`{"kind":"node","name":"x","addresses":["10.0.0.1"]}`,
	} {
		if code, answer := s.call(t, "POST", TokensPath, admin, nil, body); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", body, code, answer)
		}
	}
}
