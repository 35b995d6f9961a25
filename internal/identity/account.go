package identity

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"strings"
	"time"
)

// account is the token of a ServiceAccount of a Kubernetes cluster (a JWT), by which the
// control plane of that cluster lets a node join: it asks the cluster whom it stands for
// (TokenReview). Nothing in it tells which server may have it.
type account struct {
	text        string
	authorities *x509.CertPool
}

// isAccountToken tells such a token from one of ours. It says nothing of its validity.
func isAccountToken(text string) bool {
	return strings.HasPrefix(text, "eyJ") && strings.Count(text, ".") == 2 // a JSON object, as base64
}

// accountToken is a ServiceAccount's token, for servers of these authorities alone. Its ID
// differs from that of every other token, and is no secret.
func accountToken(text string, authorities *x509.CertPool) Token {
	sum := sha256.Sum256([]byte(text))
	return Token{ID: "serviceaccount-" + hex.EncodeToString(sum[:4]), account: &account{text: text, authorities: authorities}}
}

// serverConfig is for the connection to a host that the token is shown to.
func (t Token) serverConfig(host string, now func() time.Time) *tls.Config {
	if t.account == nil {
		return pinnedTLS(t.Pin, host, now)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host, Time: now, RootCAs: t.account.authorities}
}
