package external

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// TestVerification: what a service's TLS accepts, and what it refuses.
func TestVerification(t *testing.T) {
	ca, other := catest.New(t, "root", nil, nil), catest.New(t, "other", nil, nil)
	key, err := authority.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	serve := func(t *testing.T, notAfter time.Time) netip.AddrPort {
		leaf, err := ca.Sign(&x509.Certificate{
			DNSNames: []string{"pay.example"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: notAfter,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}, key.Public())
		if err != nil {
			t.Fatal(err)
		}
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { defer c.Close(); _ = c.(*tls.Conn).Handshake() }()
			}
		}()
		return l.Addr().(*net.TCPAddr).AddrPort()
	}
	good, expired := serve(t, time.Now().Add(time.Hour)), serve(t, time.Now().Add(-time.Hour))
	named := sites.ExternalTLS{ServerName: "pay.example", Roots: catest.PEM(ca)}
	with := func(edit func(*sites.ExternalTLS)) *sites.ExternalTLS {
		c := named
		edit(&c)
		return &c
	}
	for what, tc := range map[string]struct {
		tls  *sites.ExternalTLS
		at   netip.AddrPort
		fail string
	}{
		"as it should be":             {&named, good, ""},
		"expired":                     {&named, expired, "expired"},
		"another authority":           {with(func(c *sites.ExternalTLS) { c.Roots = catest.PEM(other) }), good, "unknown authority"},
		"another name":                {with(func(c *sites.ExternalTLS) { c.ServerName = "x.example" }), good, "x.example"},
		"any name":                    {with(func(c *sites.ExternalTLS) { c.ServerName, c.SkipName = "x.example", true }), good, ""},
		"any name, expired":           {with(func(c *sites.ExternalTLS) { c.SkipName = true }), expired, "expired"},
		"any authority":               {with(func(c *sites.ExternalTLS) { c.SkipAuthority, c.Roots = true, nil }), good, ""},
		"any authority, another name": {with(func(c *sites.ExternalTLS) { c.SkipAuthority, c.ServerName = true, "x.example" }), good, "x.example"},
		"a listed name":               {with(func(c *sites.ExternalTLS) { c.Names = []sites.NameMatch{{Value: "a"}, {Value: "pay.", Prefix: true}} }), good, ""},
		"no listed name":              {with(func(c *sites.ExternalTLS) { c.Names = []sites.NameMatch{{Value: "pay."}} }), good, "none of the names"},
		"secrets":                     {with(func(c *sites.ExternalTLS) { c.Secrets = true }), good, "Secrets"},
		"no PEM":                      {with(func(c *sites.ExternalTLS) { c.Roots = []byte("x") }), good, "PEM"},
		"too old a version":           {with(func(c *sites.ExternalTLS) { c.MaxVersion = tls.VersionTLS11 }), good, "version"},
	} {
		s := Of(proxy.ServiceName{}, &sites.External{Places: []sites.Place{{Host: tc.at.Addr().String()}}, TLS: tc.tls}, tc.at.Port())
		up, err := New(Config{}).Connect(t.Context(), s)
		if up != nil {
			up.Finish(false)
		}
		if (err == nil) != (tc.fail == "") || err != nil && !strings.Contains(err.Error(), tc.fail) {
			t.Errorf("%s: %v, want %q", what, err, tc.fail)
		}
	}
}

// TestOrder: near places first, then by weight.
func TestOrder(t *testing.T) {
	s := Of(proxy.ServiceName{}, &sites.External{Places: []sites.Place{{Host: "a", Weight: 3}, {Host: "b"}, {Host: "c", Port: 7, Near: true}}}, 443)
	first := map[string]int{}
	const n = 4000
	for range n {
		got := order(s.Targets)
		if len(got) != 3 || got[0].Host != "c" || got[0].Port != 7 || got[1].Port != 443 {
			t.Fatalf("%+v", got)
		}
		first[got[1].Host]++
	}
	if share := float64(first["a"]) / n; share < 0.7 || share > 0.8 {
		t.Errorf("first %s: want three quarters at the place of weight 3", strconv.FormatFloat(share, 'f', 2, 64))
	}
}
