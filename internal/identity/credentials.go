package identity

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/certpem"
)

// credentialsFile holds key, certificate and authority in one file, so that a
// crash during its replacement cannot combine a key with another's certificate.
const credentialsFile = "credentials.json"

// ErrNotJoined: the directory holds no credentials.
var ErrNotJoined = errors.New("this machine has not joined yet")

// Credentials are what a joined machine needs to be recognised and to recognise
// the control plane. Immutable.
type Credentials struct {
	// Server (host:port) that issues certificates.
	Server string
	// GRPCAddress (host:port) of views and federation; may be empty.
	GRPCAddress string
	// Subject the certificate was issued for.
	Subject Subject
	// NotBefore and NotAfter bound the certificate's life.
	NotBefore, NotAfter time.Time

	stored  storedCredentials
	leaf    *x509.Certificate
	certs   tls.Certificate
	trusted *x509.CertPool
	pins    []Pin // of trusted
}

// Trusts reports whether a token's pin is that of an authority of these credentials.
func (c *Credentials) Trusts(pin Pin) bool { return slices.Contains(c.pins, pin) }

// AuthoritiesPEM are the certificates of the control plane's authorities.
func (c *Credentials) AuthoritiesPEM() []byte { return []byte(c.stored.CA) }

type storedCredentials struct {
	Server      string `json:"server"`
	GRPCAddress string `json:"grpcAddress,omitempty"`
	Certificate string `json:"certificate"`
	CA          string `json:"ca"`
	Key         string `json:"key"`
}

// LoadCredentials reads what Enroll and Renewer stored in a directory. It ignores the
// clock: the certificate may have expired. Errors: ErrNotJoined, or what is wrong
// with the file.
func LoadCredentials(dir string) (*Credentials, error) {
	path := filepath.Join(dir, credentialsFile)
	data, err := readSecret(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load credentials %s: %w: give it a token once (proxima token create --kind node --name NAME)", path, ErrNotJoined)
	}
	if err != nil {
		return nil, fmt.Errorf("load credentials: %w", err)
	}
	c, err := parseCredentials(data)
	if err != nil {
		return nil, fmt.Errorf("load credentials %s: %w: remove it and join again with a token", path, err)
	}
	return c, nil
}

func parseCredentials(data []byte) (*Credentials, error) {
	var s storedCredentials
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("damaged (%w)", err)
	}
	return newCredentials(s)
}

// RemoveCredentials removes what Enroll and Renewer left in a directory. That
// there is nothing is no error.
func RemoveCredentials(dir string) error {
	if err := os.Remove(filepath.Join(dir, credentialsFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove credentials: %w", err)
	}
	return nil
}

// newCredentials checks that key, certificate and authority belong together.
func newCredentials(s storedCredentials) (*Credentials, error) {
	key, err := certpem.ParseKey([]byte(s.Key))
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	chain, err := certpem.ParseCertificates([]byte(s.Certificate))
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	authorities, err := certpem.ParseCertificates([]byte(s.CA))
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	leaf := chain[0]
	if !certpem.SamePublicKey(leaf.PublicKey, key.Public()) {
		return nil, errors.New("the key does not belong to the certificate")
	}
	pool := x509.NewCertPool()
	var pins []Pin
	for _, c := range authorities {
		pool.AddCert(c)
		pins = append(pins, pinOf(c))
	}
	// At its own end, which no authority lets a certificate outlive: this machine's
	// clock may be wrong, and a certificate that ran out is of use still.
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: pool, CurrentTime: leaf.NotAfter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return nil, fmt.Errorf("the certificate is not of this authority: %w", err)
	}
	return &Credentials{
		Server: s.Server, GRPCAddress: s.GRPCAddress, Subject: SubjectOf(leaf),
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
		stored: s, leaf: leaf, trusted: pool, pins: pins,
		certs: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf},
	}, nil
}

// answered makes credentials of the answer to a request, and stores them unless accept
// (nil: all are accepted) rejects the subject.
func answered(server, dir string, key crypto.Signer, a CertificateAnswer, accept func(Subject) error) (*Credentials, error) {
	keyPEM, err := certpem.EncodeKey(key)
	if err != nil {
		return nil, err
	}
	s := storedCredentials{Server: server, GRPCAddress: a.GRPCAddress, Certificate: a.Certificate, CA: a.CA, Key: string(keyPEM)}
	c, err := newCredentials(s)
	if err != nil {
		return nil, fmt.Errorf("the server's answer is of no use: %w", err)
	}
	if at := a.at(); !at.Before(c.NotAfter) {
		return nil, fmt.Errorf("the server's answer is of no use: its certificate ran out on %s", c.NotAfter.Format(time.RFC3339))
	}
	if accept != nil {
		if err := accept(c.Subject); err != nil {
			return nil, &SubjectError{err}
		}
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := writeFile(filepath.Join(dir, credentialsFile), append(bytes.TrimSpace(data), '\n')); err != nil {
		return nil, fmt.Errorf("keep credentials: %w", err)
	}
	return c, nil
}

// SubjectError: the token is valid, but its subject is not what this machine should
// join as. No further attempt with it can succeed.
type SubjectError struct{ Err error }

func (e *SubjectError) Error() string { return e.Err.Error() }
func (e *SubjectError) Unwrap() error { return e.Err }

// verifyChain is the check that crypto/tls would do. The host is an argument, because
// a connection's state lacks it if it is an IP address.
//
// The time is that of the local clock, unless a certificate of the authority shows
// that the clock is behind: an authority never dates a certificate ahead, so the
// beginning of the server's certificate is in the past. This accepts no more than the
// wrong clock does already: a server certificate that has expired since.
func verifyChain(cs tls.ConnectionState, roots *x509.CertPool, host string, now time.Time) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("the server showed no certificate")
	}
	if host == "" {
		return errors.New("no server name to verify")
	}
	name, _, _ := strings.Cut(host, "%") // the zone of a link-local address is ours alone
	leaf := cs.PeerCertificates[0]
	opts := x509.VerifyOptions{Roots: roots, DNSName: name, Intermediates: x509.NewCertPool(), CurrentTime: later(now, leaf.NotBefore),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, c := range cs.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	_, err := leaf.Verify(opts)
	return err
}

// serverAddress accepts HOST:PORT and https://HOST:PORT.
func serverAddress(server string) (hostPort, host string, err error) {
	address := server
	if strings.Contains(server, "://") {
		u, err := url.Parse(server)
		if err != nil || u.Scheme != "https" || (u.Path != "" && u.Path != "/") {
			return "", "", fmt.Errorf("server %q: want HOST:PORT or https://HOST:PORT", server)
		}
		address = u.Host
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return "", "", fmt.Errorf("server %q: want HOST:PORT or https://HOST:PORT", server)
	}
	return address, host, nil
}
