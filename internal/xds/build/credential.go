package build

import (
	"bytes"
	"net/netip"
	"strings"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Secrets of a service outside every mesh, by its name: the certificate of the client with its key, and the authorities that
// the server is verified by.
const (
	certificatePrefix = "certificate|"
	authoritiesPrefix = "authorities|"
)

// Credentials are what the TLS of a service outside every mesh needs out of Secrets, in PEM. Immutable. What is empty is not in
// a Secret.
type Credentials struct {
	// Generation of the ExternalService that they are of.
	Generation       uint64
	Authorities      []byte
	Certificate, Key []byte
}

func (c *Credentials) equal(other *Credentials) bool {
	return c.Generation == other.Generation && bytes.Equal(c.Authorities, other.Authorities) && bytes.Equal(c.Certificate, other.Certificate) && bytes.Equal(c.Key, other.Key)
}

// SetCredentials takes over what is in Secrets for the ExternalServices whose TLS refers to some, by their names. Those that are
// left out cannot be connected to by proxies. The argument is the builder's afterwards.
//
// Clusters name secrets, and do not change with their values.
func (b *Builder) SetCredentials(all map[catalog.Key]*Credentials) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed := map[catalog.Key]struct{}{}
	for key, c := range all {
		if was := b.credentials[key]; was == nil || !was.equal(c) {
			changed[key] = struct{}{}
		}
	}
	for key := range b.credentials {
		if all[key] == nil {
			changed[key] = struct{}{}
		}
	}
	b.credentials = all
	if b.snapshot == nil || len(changed) == 0 {
		return
	}
	addresses := map[netip.Addr]struct{}{}
	for key := range changed {
		for a := range b.addresses[key] {
			addresses[a] = struct{}{}
		}
	}
	b.refresh(changed, addresses, false)
}

// parseCredential reads the name of a secret of a service outside every mesh.
func parseCredential(name string) (service catalog.Key, ok bool) {
	for _, prefix := range []string{certificatePrefix, authoritiesPrefix} {
		if rest, is := strings.CutPrefix(name, prefix); is {
			service.Namespace, service.Name, ok = strings.Cut(rest, "/")
			return service, ok
		}
	}
	return service, false
}

// makeCredential makes a secret for proxies of a class that connect to the service by themselves, and for no others.
func (b *Builder) makeCredential(c *class, name string, key catalog.Key) *made {
	of := b.credentials[key]
	s, ok := b.service(key)
	if of == nil || !ok || !s.Scope.Allows(c.Mesh) || c.Variant == GRPC || !b.connects(key) {
		return nil
	}
	secret := &tlsv3.Secret{Name: name}
	switch {
	case strings.HasPrefix(name, authoritiesPrefix) && len(of.Authorities) > 0:
		secret.Type = &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(of.Authorities)}}
	case strings.HasPrefix(name, certificatePrefix) && len(of.Certificate) > 0:
		secret.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(of.Certificate), PrivateKey: inline(of.Key)}}
	default:
		return nil
	}
	return unlisted(secret)
}

// connects reports whether proxies of this site connect to a service outside every mesh by themselves, if they can.
func (b *Builder) connects(key catalog.Key) bool {
	r, err := b.sites.Remote(proxy.ServiceName(key))
	return err == nil && r != nil && r.External != nil && !r.EgressOnly
}
