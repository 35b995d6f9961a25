package external

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/sites"
)

// Of is a port of an external service as a view has it; target is where connections to the
// port go, unless a place says otherwise.
func Of(e *sites.External, target uint16) *Service {
	s := &Service{}
	for _, p := range e.Places {
		port := target
		if p.Port != 0 {
			port = p.Port
		}
		s.Targets = append(s.Targets, Target{Host: p.Host, Port: port, Weight: p.Weight, Near: p.Near})
	}
	if e.TLS != nil {
		s.TLS, s.Unusable = configOf(e.TLS)
	}
	return s
}

// errClientCertificate: what cannot be done as asked for is not done at all.
var errClientCertificate = errors.New("the external service asks for certificates or keys of Secrets, which this version does not read")

// configOf is the client's configuration of TLS.
func configOf(t *sites.ExternalTLS) (*tls.Config, error) {
	if t.Secrets {
		return nil, errClientCertificate
	}
	config := &tls.Config{ServerName: t.ServerName, MinVersion: t.MinVersion, MaxVersion: t.MaxVersion}
	if config.MinVersion < tls.VersionTLS12 {
		config.MinVersion = tls.VersionTLS12
	}
	if t.Renegotiation {
		config.Renegotiation = tls.RenegotiateFreelyAsClient
	}
	if len(t.Roots) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(t.Roots) {
			return nil, errors.New("the external service's authorities are no certificates in PEM")
		}
	}
	if !t.SkipAuthority && !t.SkipName && len(t.Names) == 0 {
		return config, nil // crypto/tls verifies just that
	}
	config.InsecureSkipVerify = true // replaced by the following
	v := verifier{ExternalTLS: t, roots: config.RootCAs}
	config.VerifyConnection = v.verify
	return config, nil
}

// verifier does what crypto/tls would, but for what is not to be verified, or is to be
// by other names.
type verifier struct {
	*sites.ExternalTLS
	roots *x509.CertPool
}

func (v verifier) verify(s tls.ConnectionState) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("the server has no certificate")
	}
	leaf := s.PeerCertificates[0]
	if !v.SkipAuthority {
		options := x509.VerifyOptions{Roots: v.roots, Intermediates: x509.NewCertPool(), CurrentTime: time.Now()}
		for _, c := range s.PeerCertificates[1:] {
			options.Intermediates.AddCert(c)
		}
		if _, err := leaf.Verify(options); err != nil {
			return err
		}
	}
	switch {
	case v.SkipName:
		return nil
	case len(v.Names) == 0:
		return leaf.VerifyHostname(s.ServerName)
	}
	names := slices.Concat(leaf.DNSNames, leaf.EmailAddresses)
	for _, u := range leaf.URIs {
		names = append(names, u.String())
	}
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	for _, want := range v.Names {
		for _, name := range names {
			if name == want.Value || want.Prefix && strings.HasPrefix(name, want.Value) {
				return nil
			}
		}
	}
	return fmt.Errorf("the server's certificate is for %s, none of the names that are allowed", strings.Join(names, ", "))
}
