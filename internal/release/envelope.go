package release

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	_ "crypto/sha256" // links SHA-256, which signatures need
	_ "crypto/sha512" // links SHA-384
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"github.com/proxima-mesh/proxima/internal/certpem"
)

// payloadType of a statement in an envelope
// (https://github.com/in-toto/attestation/blob/main/spec/v1/envelope.md).
const payloadType = "application/vnd.in-toto+json"

// envelope is a DSSE envelope (https://github.com/secure-systems-lab/dsse/blob/master/envelope.md).
type envelope struct {
	PayloadType string      `json:"payloadType"`
	Payload     []byte      `json:"payload"`
	Signatures  []signature `json:"signatures"`
}

type signature struct {
	// KeyID is a hint, and not signed.
	KeyID string `json:"keyid,omitempty"`
	Sig   []byte `json:"sig"`
}

// preAuthentication is what is signed
// (https://github.com/secure-systems-lab/dsse/blob/master/protocol.md#signature-definition).
func preAuthentication(typ string, payload []byte) []byte {
	return append(fmt.Appendf(nil, "DSSEv1 %d %s %d ", len(typ), typ, len(payload)), payload...)
}

// Key signs statements.
type Key struct {
	signer crypto.Signer
	hash   crypto.Hash
	id     string
}

// ParseKey reads a PEM private key, Ed25519, or ECDSA on P-256 or P-384, without a password.
func ParseKey(data []byte) (*Key, error) {
	signer, err := certpem.ParseForeignKey(data)
	if err != nil {
		return nil, err
	}
	hash, err := hashOf(signer.Public())
	if err != nil {
		return nil, err
	}
	id, err := KeyID(signer.Public())
	return &Key{signer: signer, hash: hash, id: id}, err
}

// Public key, with which others verify; nil of a nil Key.
func (k *Key) Public() crypto.PublicKey {
	if k == nil {
		return nil
	}
	return k.signer.Public()
}

// Sign returns an envelope with a statement: JSON on one line. The same key and statement
// give the same bytes, as ECDSA is that of RFC 6979.
func (k *Key) Sign(statement []byte) ([]byte, error) {
	message := preAuthentication(payloadType, statement)
	if k.hash != 0 {
		h := k.hash.New()
		h.Write(message)
		message = h.Sum(nil)
	}
	sig, err := k.signer.Sign(nil, message, k.hash)
	if err != nil {
		return nil, err
	}
	out, err := json.Marshal(envelope{PayloadType: payloadType, Payload: statement, Signatures: []signature{{KeyID: k.id, Sig: sig}}})
	return append(out, '\n'), err
}

// ParsePublicKey reads a PEM public key ("PUBLIC KEY", RFC 7468) for the verification of
// envelopes.
func ParsePublicKey(data []byte) (crypto.PublicKey, error) {
	block, rest := pem.Decode(data)
	if block == nil || slices.ContainsFunc(rest, func(b byte) bool { return b > ' ' }) {
		return nil, errors.New("not one PEM block with a public key")
	}
	if block.Type != "PUBLIC KEY" {
		return nil, fmt.Errorf("a PEM block %.40q is no public key: \"openssl pkey -in KEY -pubout\" writes that of a private key", block.Type)
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, errors.New("damaged public key")
	}
	_, err = hashOf(key)
	return key, err
}

// KeyID is the SHA-256 of a public key (SubjectPublicKeyInfo, RFC 5280), in hexadecimal
// digits.
func KeyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", err
	}
	h := crypto.SHA256.New()
	h.Write(der)
	return hex.EncodeToString(h.Sum(nil)), nil
}

// hashOf the message that a key signs; 0: the message itself.
func hashOf(key crypto.PublicKey) (crypto.Hash, error) {
	switch k := key.(type) {
	case ed25519.PublicKey:
		return 0, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return crypto.SHA256, nil
		case elliptic.P384():
			return crypto.SHA384, nil
		}
	}
	return 0, errors.New("neither an Ed25519 key nor an ECDSA key on P-256 or P-384")
}

// parseEnvelope returns an envelope with at least one signature and a statement's type. It
// verifies nothing.
func parseEnvelope(data []byte) (*envelope, error) {
	if len(data) > base64.StdEncoding.EncodedLen(maxStatement) {
		return nil, fmt.Errorf("%d bytes are too many for an envelope", len(data))
	}
	var e envelope
	if err := decodeOne(data, &e); err != nil {
		return nil, fmt.Errorf("not an envelope in JSON: %w", err)
	}
	switch {
	case e.PayloadType != payloadType:
		return nil, fmt.Errorf("payloadType %.80q: only %s is known", e.PayloadType, payloadType)
	case len(e.Signatures) == 0:
		return nil, errors.New("it has no signature")
	}
	return &e, nil
}

// errOtherKey is a signature that the key did not make.
var errOtherKey = errors.New("no signature of it is of this key")

// verify that a signature is of a key.
func (e *envelope) verify(key crypto.PublicKey) error {
	hash, err := hashOf(key)
	if err != nil {
		return err
	}
	message := preAuthentication(e.PayloadType, e.Payload)
	if hash != 0 {
		h := hash.New()
		h.Write(message)
		message = h.Sum(nil)
	}
	for _, s := range e.Signatures {
		switch k := key.(type) {
		case ed25519.PublicKey:
			if ed25519.Verify(k, message, s.Sig) {
				return nil
			}
		case *ecdsa.PublicKey:
			if ecdsa.VerifyASN1(k, message, s.Sig) {
				return nil
			}
		}
	}
	return errOtherKey
}
