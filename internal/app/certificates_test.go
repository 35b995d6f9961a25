package app

import (
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/identity"
)

// TestServerCertificateNames: clients reach the server by the names that are configured.
func TestServerCertificateNames(t *testing.T) {
	ca, err := identity.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	listen := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:6443"))
	cfg := ControlPlaneConfig{AdvertiseAddress: "192.0.2.7", TLSNames: []string{"CP.example", "192.0.2.100", "2001:db8::1"}}
	pair, err := serverCertificate(cfg, ca, listen, nil)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(pair.Cert)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cp.example", "192.0.2.100", "[2001:db8::1]", "192.0.2.7", "192.0.2.1", "localhost", "127.0.0.1"} {
		if err := cert.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"cp.example:6443", "*", ""} {
		cfg.TLSNames = []string{bad}
		if _, err := serverCertificate(cfg, ca, listen, nil); err == nil || !strings.Contains(err.Error(), "--tls-san") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
