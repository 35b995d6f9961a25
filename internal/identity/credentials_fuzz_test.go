package identity

import (
	"crypto"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

// validJoin is a valid answer to joining, with the key that it is for.
func validJoin(f *testing.F) (storedCredentials, CertificateAnswer) {
	f.Helper()
	a, err := Open(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	subject, err := SubjectFor(Node, "n1")
	if err != nil {
		f.Fatal(err)
	}
	pair, err := a.IssueClient(subject, time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	answer := CertificateAnswer{Certificate: string(pair.Cert), CA: string(a.PEM()), GRPCAddress: ":6444"}
	return storedCredentials{
		Server: "192.0.2.1:6443", GRPCAddress: answer.GRPCAddress, Certificate: answer.Certificate, CA: answer.CA, Key: string(pair.Key),
	}, answer
}

// FuzzCredentials reads credentials.json: what is accepted belongs together.
func FuzzCredentials(f *testing.F) {
	stored, _ := validJoin(f)
	for _, change := range []func(*storedCredentials){
		func(*storedCredentials) {},
		func(s *storedCredentials) { s.Key = "" },
		func(s *storedCredentials) { s.CA = s.Certificate },
		func(s *storedCredentials) { s.Certificate = strings.Repeat(s.Certificate, 3) },
	} {
		changed := stored
		change(&changed)
		data, err := json.Marshal(changed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"certificate":1}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseCredentials(data)
		if err != nil {
			return
		}
		if c.leaf == nil || c.certs.PrivateKey == nil || len(c.pins) == 0 || c.NotAfter.IsZero() {
			t.Errorf("incomplete credentials: %+v", c)
		}
	})
}

// FuzzJoinAnswer reads what a server answers to joining, whatever its status.
func FuzzJoinAnswer(f *testing.F) {
	stored, answer := validJoin(f)
	own, err := newCredentials(stored)
	if err != nil {
		f.Fatal(err)
	}
	good, err := json.Marshal(answer)
	if err != nil {
		f.Fatal(err)
	}
	key, dir := own.certs.PrivateKey.(crypto.Signer), f.TempDir()
	f.Add(http.StatusOK, good)
	f.Add(http.StatusOK, []byte(`{"certificate":"x","ca":"y"}`))
	f.Add(http.StatusForbidden, []byte(`{"message":"no"}`))
	f.Add(http.StatusBadGateway, []byte(`<html>`))
	f.Fuzz(func(t *testing.T, code int, body []byte) {
		if err := refusal(code, body); err == nil || err.Error() == "" {
			t.Errorf("%d %q: no error", code, body)
		}
		var a CertificateAnswer
		if json.Unmarshal(body, &a) != nil {
			return
		}
		_ = atHost(a.GRPCAddress, "192.0.2.1")
		c, err := answered("192.0.2.1:6443", dir, key, a, nil)
		if err == nil && c.Subject.User == "" {
			t.Errorf("joined without a name: %+v", c)
		}
	})
}
