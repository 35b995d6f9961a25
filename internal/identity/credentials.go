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
	"path/filepath"
	"strings"
	"time"
)

// credentialsFile holds key, certificate and authority in one file, so that a
// crash while it is replaced cannot leave a key beside another's certificate.
const credentialsFile = "credentials.json"

var (
	// ErrNotJoined: the directory holds no credentials.
	ErrNotJoined = errors.New("this machine has not joined yet")
	// ErrCertificateExpired: the certificate ran out while nobody renewed it.
	ErrCertificateExpired = errors.New("the certificate ran out")
)

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
}

type storedCredentials struct {
	Server      string `json:"server"`
	GRPCAddress string `json:"grpcAddress,omitempty"`
	Certificate string `json:"certificate"`
	CA          string `json:"ca"`
	Key         string `json:"key"`
}

// LoadCredentials reads what Enroll and Renewer left in a directory. Errors:
// ErrNotJoined, ErrCertificateExpired, or what is wrong with the file.
func LoadCredentials(dir string) (*Credentials, error) {
	path := filepath.Join(dir, credentialsFile)
	data, err := readSecret(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load credentials %s: %w: give it a token once (proxima token create --kind node --name NAME)", path, ErrNotJoined)
	}
	if err != nil {
		return nil, fmt.Errorf("load credentials: %w", err)
	}
	var s storedCredentials
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("load credentials %s: damaged (%w): remove it and join again with a token", path, err)
	}
	c, err := newCredentials(s)
	if errors.Is(err, ErrCertificateExpired) {
		return nil, fmt.Errorf("load credentials %s: %w: join again with a token", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("load credentials %s: %w: remove it and join again with a token", path, err)
	}
	return c, nil
}

// newCredentials checks that key, certificate and authority belong together.
func newCredentials(s storedCredentials) (*Credentials, error) {
	key, err := parseKey([]byte(s.Key))
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	chain, err := parseCerts([]byte(s.Certificate))
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	authorities, err := parseCerts([]byte(s.CA))
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	leaf := chain[0]
	if !samePublicKey(leaf.PublicKey, key.Public()) {
		return nil, errors.New("the key does not belong to the certificate")
	}
	pool := x509.NewCertPool()
	for _, c := range authorities {
		pool.AddCert(c)
	}
	if now := time.Now(); now.After(leaf.NotAfter) {
		return nil, fmt.Errorf("%w on %s", ErrCertificateExpired, leaf.NotAfter.Format(time.RFC3339))
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return nil, fmt.Errorf("the certificate is not of this authority: %w", err)
	}
	return &Credentials{
		Server: s.Server, GRPCAddress: s.GRPCAddress, Subject: SubjectOf(leaf),
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
		stored: s, leaf: leaf, trusted: pool,
		certs: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf},
	}, nil
}

// answered turns the answer to a request into credentials, and keeps them.
func answered(server, dir string, key crypto.Signer, a CertificateAnswer) (*Credentials, error) {
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	s := storedCredentials{Server: server, GRPCAddress: a.GRPCAddress, Certificate: a.Certificate, CA: a.CA, Key: string(keyPEM)}
	c, err := newCredentials(s)
	if err != nil {
		return nil, fmt.Errorf("the server's answer is of no use: %w", err)
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

// verifyChain is the check that crypto/tls would do. The host is given, because
// a connection's state does not hold it where it is an IP address.
func verifyChain(cs tls.ConnectionState, roots *x509.CertPool, host string) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("the server showed no certificate")
	}
	if host == "" {
		return errors.New("no server name to verify")
	}
	name, _, _ := strings.Cut(host, "%") // the zone of a link-local address is ours alone
	opts := x509.VerifyOptions{Roots: roots, DNSName: name, Intermediates: x509.NewCertPool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, c := range cs.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	_, err := cs.PeerCertificates[0].Verify(opts)
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
