package secret

import (
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// Identity is a certificate with its key, and what peers are verified by. Immutable.
type Identity struct {
	// Chain, DER, leaf first, and the key in PKCS #8.
	Chain [][]byte `json:"chain"`
	Key   []byte   `json:"key"`
	// Roots, DER, by trust domain: the own one, and those that it has to do with.
	Roots map[string][][]byte `json:"roots"`
	// Issued is the ID of the authority that issued it, where that is known.
	Issued string `json:"issuer,omitempty"`

	leaf   *x509.Certificate
	signer crypto.Signer
}

// parse checks that everything belongs together.
func (i *Identity) parse() error {
	if len(i.Chain) == 0 {
		return errors.New("identity: there is no certificate")
	}
	leaf, err := x509.ParseCertificate(i.Chain[0])
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	key, err := x509.ParsePKCS8PrivateKey(i.Key)
	if err != nil {
		return errors.New("identity: the key is damaged") // without details of it
	}
	signer, ok := key.(crypto.Signer)
	public, comparable := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !comparable || !public.Equal(signer.Public()) {
		return errors.New("identity: the key does not belong to the certificate")
	}
	i.leaf, i.signer = leaf, signer
	if len(i.Roots[i.Domain()]) == 0 {
		return fmt.Errorf("identity %s: there are no roots of its trust domain", i.ID())
	}
	return nil
}

// ID is the SPIFFE ID; "" if the certificate has none.
func (i *Identity) ID() string {
	if len(i.leaf.URIs) != 1 || i.leaf.URIs[0].Scheme != "spiffe" {
		return ""
	}
	return i.leaf.URIs[0].String()
}

// Domain is the trust domain of the identity.
func (i *Identity) Domain() string {
	domain, _, _ := strings.Cut(strings.TrimPrefix(i.ID(), "spiffe://"), "/")
	return domain
}

// NotAfter is when the certificate runs out.
func (i *Identity) NotAfter() time.Time { return i.leaf.NotAfter }

// Serial number of the certificate, in hexadecimal.
func (i *Identity) Serial() string { return i.leaf.SerialNumber.Text(16) }

// Issuer of the certificate, as text.
func (i *Identity) Issuer() string { return i.leaf.Issuer.String() }

// TLS is the certificate for crypto/tls.
func (i *Identity) TLS() tls.Certificate {
	return tls.Certificate{Certificate: i.Chain, PrivateKey: i.signer, Leaf: i.leaf}
}

// certificatePEM is the chain, keyPEM the key.
func (i *Identity) certificatePEM() []byte { return encodePEM("CERTIFICATE", i.Chain...) }
func (i *Identity) keyPEM() []byte         { return encodePEM("PRIVATE KEY", i.Key) }

func encodePEM(kind string, all ...[]byte) []byte {
	var out []byte
	for _, der := range all {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})...)
	}
	return out
}

// Resources of type Secret: "identity", and "roots|DOMAIN" of each trust domain. The latter
// verify a peer's SPIFFE ID by the roots of its own domain alone: roots of the own domain also
// know the other ones, as servers have clients of meshes that they are exported to; which of them
// may connect is for the listener to say, by SANs.
func (i *Identity) Resources() []wire.Resource {
	domains := slices.Sorted(maps.Keys(i.Roots))
	out := []wire.Resource{resource(wire.IdentitySecret, message(2, slices.Concat(
		message(1, inline(i.certificatePEM())), message(2, inline(i.keyPEM())),
	)))}
	for _, domain := range domains {
		known := []string{domain}
		if domain == i.Domain() {
			known = domains
		}
		out = append(out, resource(wire.RootsPrefix+domain, message(4, i.validator(known))))
	}
	return out
}

// Fields of the SPIFFE validator (SPIFFECertValidatorConfig) and of what it is in.
const (
	validatorName = "envoy.tls.cert_validator.spiffe"
	validatorType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig"
)

// validator is a CertificateValidationContext.
func (i *Identity) validator(domains []string) []byte {
	var config []byte
	for _, domain := range domains {
		trust := slices.Concat(message(1, []byte(domain)), message(2, inline(encodePEM("CERTIFICATE", i.Roots[domain]...))))
		config = append(config, message(1, trust)...)
	}
	packed := slices.Concat(message(1, []byte(validatorType)), message(2, config))
	return message(12, slices.Concat(message(1, []byte(validatorName)), message(2, packed))) // custom_validator_config
}

// resource of a Secret with one more field than its name. Its version is its content's hash.
func resource(name string, field []byte) wire.Resource {
	body := append(message(1, []byte(name)), field...)
	sum := sha256.Sum256(body)
	return wire.NewResource(wire.Secret, name, hex.EncodeToString(sum[:8]), body)
}

// message is a field of bytes.
func message(num protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), value)
}

// inline is a DataSource with its content.
func inline(content []byte) []byte { return message(2, content) }
