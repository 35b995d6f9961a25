package app

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/console"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestConsoleFiles: anybody gets the files of the console, with their headers, and nobody where they are not wanted.
func TestConsoleFiles(t *testing.T) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	t.Cleanup(client.CloseIdleConnections)
	for _, without := range []bool{false, true} {
		cfg := planeConfig(t, RoleStandalone)
		cfg.NoConsole = without
		api, stop := serveAPI(t, cfg)
		resp, err := client.Get(api + "/console/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case without && resp.StatusCode != http.StatusNotFound:
			t.Errorf("--console=false: %d", resp.StatusCode)
		case !without && (resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "console.js")):
			t.Errorf("without credentials: %d %s", resp.StatusCode, body)
		case !without && (resp.Header.Get("Content-Security-Policy") != console.Policy || resp.Header.Get("Cross-Origin-Opener-Policy") != "same-origin"):
			t.Errorf("headers: %v", resp.Header)
		}
		stop()
	}
}

// TestConsoleCertificate: those who ask for a name of --tls-cert-file get that certificate, all others the one of our authority.
func TestConsoleCertificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"console.example"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cfg := planeConfig(t, RoleStandalone)
	cfg.TLSCertFile, cfg.TLSKeyFile = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	for path, block := range map[string]*pem.Block{cfg.TLSCertFile: {Type: "CERTIFICATE", Bytes: der}, cfg.TLSKeyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	api, stop := serveAPI(t, cfg)
	defer stop()
	for name, want := range map[string]bool{"console.example": true, "localhost": false, "": false} {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(api, "https://"), &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Equal(conn.ConnectionState().PeerCertificates[0].Raw, der); got != want {
			t.Errorf("%q gets the certificate of its name: %v", name, got)
		}
		conn.Close()
	}
}

// serveAPI runs a control plane until stop, and returns the address of its API.
func serveAPI(t *testing.T, cfg ControlPlaneConfig) (api string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan Serving, 1), make(chan error, 1)
	go func() { done <- RunControlPlane(ctx, cfg, func(s Serving) { ready <- s }) }()
	select {
	case s := <-ready:
		api = s.API
	case err := <-done:
		t.Fatal(err)
	case <-time.After(testkit.Timeout):
		t.Fatal("the control plane does not become ready")
	}
	return api, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
