package etcd_test

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/proxima-mesh/proxima/internal/store/etcd"
)

// TestTLS: server and client show certificates, and an error names what is
// missing.
func TestTLS(t *testing.T) {
	certificate := func() transport.TLSInfo {
		info, err := transport.SelfCert(zap.NewNop(), t.TempDir(), []string{"127.0.0.1:0"}, 1, x509.ExtKeyUsageClientAuth)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	ours, theirs := certificate(), certificate()
	m := startMember(t, func(c *embed.Config) {
		c.ListenClientUrls[0].Scheme = "https"
		c.ClientTLSInfo = transport.TLSInfo{CertFile: ours.CertFile, KeyFile: ours.KeyFile, TrustedCAFile: ours.CertFile, ClientCertAuth: true}
	})
	at := func(values url.Values) string { return "etcd://" + m.endpoint() + "?" + values.Encode() }
	good := url.Values{"cacert": {ours.CertFile}, "cert": {ours.CertFile}, "key": {ours.KeyFile}}
	commit(t, open(t, at(good), etcd.Options{}), put("a", "1"))
	for name, c := range map[string]struct {
		values url.Values
		hint   string
	}{
		"no client certificate": {url.Values{"cacert": {ours.CertFile}}, ""}, // the system may say no more than that the connection broke
		"another authority":     {url.Values{"cacert": {theirs.CertFile}, "cert": {ours.CertFile}, "key": {ours.KeyFile}}, "cacert=FILE"},
	} {
		_, err := etcd.Open(background(t), at(c.values), etcd.Options{Timeout: 100 * time.Millisecond})
		if err == nil || !strings.Contains(err.Error(), c.hint) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
