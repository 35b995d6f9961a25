package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// TestRequireNode: only a node's own, verified certificate speaks for it.
func TestRequireNode(t *testing.T) {
	with := func(user, group string, verified bool) context.Context {
		cert := &x509.Certificate{Subject: pkix.Name{CommonName: user, Organization: []string{group}}}
		state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
		if verified {
			state.VerifiedChains = [][]*x509.Certificate{{cert}}
		}
		return peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}})
	}
	for name, tc := range map[string]struct {
		ctx  context.Context
		want codes.Code
	}{
		"itself":                 {with("system:node:n", "system:nodes", true), codes.OK},
		"another node":           {with("system:node:m", "system:nodes", true), codes.PermissionDenied},
		"a node by name alone":   {with("system:node:n", "proxima:zones", true), codes.PermissionDenied},
		"an administrator":       {with("proxima:admin:n", "system:masters", true), codes.PermissionDenied},
		"a zone":                 {with("proxima:zone:n", "proxima:zones", true), codes.PermissionDenied},
		"certificate unverified": {with("system:node:n", "system:nodes", false), codes.Unauthenticated},
		"no certificate":         {peer.NewContext(t.Context(), &peer.Peer{}), codes.Unauthenticated},
		"no peer":                {t.Context(), codes.Unauthenticated},
	} {
		if err := RequireNode(tc.ctx, "n", "report the demand"); status.Code(err) != tc.want {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}
