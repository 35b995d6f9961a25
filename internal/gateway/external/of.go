package external

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// Of is a port of an external service as a view has it; target is where connections to the
// port go, unless a place says otherwise.
func Of(name proxy.ServiceName, e *sites.External, target uint16) *Service {
	s := &Service{}
	for _, p := range e.Places {
		port := target
		if p.Port != 0 {
			port = p.Port
		}
		s.Targets = append(s.Targets, Target{Host: p.Host, Port: port, Weight: p.Weight, Near: p.Near})
	}
	switch {
	case e.TLS != nil && e.TLS.Secrets:
		s.Secret = &Secret{Service: name, tls: e.TLS}
	case e.TLS != nil:
		s.TLS, s.Unusable = configOf(e.TLS)
	}
	return s
}

// Secret is TLS of which certificates or keys are in Secrets. What cannot be done as asked
// for is not done at all.
type Secret struct {
	Service proxy.ServiceName
	tls     *sites.ExternalTLS
}

// Credentials of a service, out of Secrets. Immutable.
type Credentials struct {
	// Roots of the server's certificate; nil: they are not in a Secret.
	Roots *x509.CertPool
	// Certificate that is shown; nil: none.
	Certificate *tls.Certificate
}

var errNoCredentials = errors.New("certificates or keys of its TLS are in Secrets, which this node does not get")

// config for a connection now: Secrets change.
func (s *Secret) config(get func(service proxy.ServiceName, generation uint64) (*Credentials, error)) (*tls.Config, error) {
	if get == nil {
		return nil, errNoCredentials
	}
	c, err := get(s.Service, s.tls.Generation)
	if err != nil {
		return nil, err
	}
	config, err := configWith(s.tls, c.Roots)
	if err != nil {
		return nil, err
	}
	if c.Certificate != nil {
		if leaf := c.Certificate.Leaf; leaf != nil && time.Now().After(leaf.NotAfter) {
			return nil, fmt.Errorf("the client certificate in the Secret ended at %s", leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		config.Certificates = []tls.Certificate{*c.Certificate}
	}
	return config, nil
}

// configOf is the client's configuration of TLS.
func configOf(t *sites.ExternalTLS) (*tls.Config, error) { return configWith(t, nil) }

// configWith other roots than those of the view, unless they are nil.
func configWith(t *sites.ExternalTLS, roots *x509.CertPool) (*tls.Config, error) {
	config := &tls.Config{ServerName: t.ServerName, MinVersion: t.MinVersion, MaxVersion: t.MaxVersion}
	if config.MinVersion < tls.VersionTLS12 {
		config.MinVersion = tls.VersionTLS12
	}
	if t.Renegotiation {
		config.Renegotiation = tls.RenegotiateFreelyAsClient
	}
	switch {
	case roots != nil:
		config.RootCAs = roots
	case len(t.Roots) > 0:
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
