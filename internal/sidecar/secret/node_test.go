package secret

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity/catest"
)

// TestNode: the certificate of an agent is taken from its file, and again when it is renewed.
func TestNode(t *testing.T) {
	ca := catest.New(t, "ca", nil, nil)
	file := filepath.Join(t.TempDir(), "credentials.json")
	write := func(edit func(map[string]string)) *x509.Certificate {
		leaf := catest.New(t, "system:node:i1", ca, func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature })
		text := func(c *x509.Certificate) string {
			return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
		}
		stored := map[string]string{"certificate": text(leaf.Cert), "ca": text(ca.Cert), "key": string(leaf.KeyPEM(t))}
		if edit != nil {
			edit(stored)
		}
		data, err := json.Marshal(stored)
		if err == nil {
			err = os.WriteFile(file, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return leaf.Cert
	}
	first := write(nil)
	got, problems := make(chan *Identity, 1), make(chan error, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Node{File: file}.Run(ctx, nil, func(i *Identity) error { got <- i; return nil }, func(err error) { problems <- err })
	}()
	expect := func(want *x509.Certificate) {
		t.Helper()
		select {
		case i := <-got:
			if !i.leaf.Equal(want) {
				t.Errorf("the certificate is %v", i.leaf.SerialNumber)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("there is no certificate")
		}
	}
	expect(first)
	expect(write(nil))
	for name, edit := range map[string]func(map[string]string){
		"no key":         func(s map[string]string) { s["key"] = "" },
		"no certificate": func(s map[string]string) { s["certificate"] = "" },
		"another's key":  func(s map[string]string) { s["key"] = string(ca.KeyPEM(t)) },
		"damaged":        func(s map[string]string) { s["key"] = "-----BEGIN" },
		"no authorities": func(s map[string]string) { s["ca"] = "" },
	} {
		write(edit)
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseNode(data); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
	cancel()
	<-done
}
