package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// exchangeTimeout bounds one request for a certificate.
const exchangeTimeout = 30 * time.Second

// maxAnswer bounds what is read of a server's answer, in bytes.
const maxAnswer = 1 << 20

var (
	// ErrPin: the server is not the one that the token belongs to.
	ErrPin = errors.New("the server's authority is not the one this token belongs to")
	// ErrRefused: the server does not take the token or the certificate.
	ErrRefused = errors.New("the server refused")
)

// Enroll joins a control plane by a node or zone token: it makes a key, checks
// the server by the pin in the token before the token is sent, gets a
// certificate and keeps everything in dir. server is HOST:PORT. It blocks for one
// request, at most 30 seconds, and replaces what dir held. Errors: ErrPin,
// ErrRefused, or what went wrong.
func Enroll(ctx context.Context, server, token, dir string) (*Credentials, error) {
	t, err := ParseToken(token)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", server, err)
	}
	return (&joiner{server: server, dir: dir, now: time.Now}).join(ctx, t)
}

// joiner exchanges tokens and certificates for certificates.
type joiner struct {
	server, dir string
	// others are further addresses of the same control plane; nil: there are none.
	others func() []string
	// accept judges who the token stands for, before anything is kept; nil: all.
	accept func(Subject) error
	now    func() time.Time
	dial   func(ctx context.Context, network, address string) (net.Conn, error) // nil: the usual one
}

// join exchanges a token for a certificate.
func (j *joiner) join(ctx context.Context, t Token) (*Credentials, error) {
	address, _, err := serverAddress(j.server)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	key, request, err := newRequest()
	if err != nil {
		return nil, fmt.Errorf("join %s: make a key: %w", address, err)
	}
	answer, err := j.anywhere(ctx, t.Reveal(), request, func(host string) *tls.Config { return t.serverConfig(host, j.now) })
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", address, err)
	}
	c, err := answered(address, j.dir, key, answer, j.accept)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", address, err)
	}
	return c, nil
}

// PinnedTLS is for connections to a host (name or IP address) of a control plane
// of which only the pin of its authority is known, as from a token. The caller
// owns it, and must not use it for another host.
func PinnedTLS(pin Pin, host string) *tls.Config { return pinnedTLS(pin, host, time.Now) }

func pinnedTLS(pin Pin, host string, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: host,
		Time:       now,
		// The usual verification needs an authority, and there is only its pin yet.
		InsecureSkipVerify: true,
		VerifyConnection:   func(cs tls.ConnectionState) error { return verifyPinned(cs, pin, host, now()) },
	}
}

// PinnedAuthority connects to a server (HOST:PORT) of a control plane, and returns the authority (PEM) of
// its certificate, which has that pin. Errors: ErrPin, or that nobody answers.
func PinnedAuthority(ctx context.Context, server string, pin Pin) ([]byte, error) {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return nil, err
	}
	conn, err := (&tls.Dialer{Config: PinnedTLS(pin, host)}).DialContext(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for _, c := range conn.(*tls.Conn).ConnectionState().PeerCertificates {
		if c.IsCA && pinOf(c) == pin {
			return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}), nil
		}
	}
	return nil, ErrPin // not after a handshake that succeeded
}

// verifyPinned accepts a server whose chain leads to the pinned authority and
// whose certificate is for the requested name.
func verifyPinned(cs tls.ConnectionState, pin Pin, host string, now time.Time) error {
	for _, c := range cs.PeerCertificates {
		if c.IsCA && pinOf(c) == pin {
			roots := x509.NewCertPool()
			roots.AddCert(c)
			return verifyChain(cs, roots, host, now)
		}
	}
	return fmt.Errorf("%w: check the address, and that the token was made on that control plane", ErrPin)
}

// connectTimeout of an attempt, where there is another address to try.
const connectTimeout = 3 * time.Second

// anywhere posts a request to the server, and to its other addresses in turn as long as none
// answers. The gRPC address of the answer has a host where that is not the server's.
func (j *joiner) anywhere(ctx context.Context, token string, request []byte, config func(host string) *tls.Config) (CertificateAnswer, error) {
	address, host, err := serverAddress(j.server)
	if err != nil {
		return CertificateAnswer{}, err
	}
	answer, err := j.exchange(ctx, config(host), address, token, request)
	if err == nil || errors.Is(err, ErrRefused) || j.others == nil {
		return answer, err
	}
	failures := []error{err}
	for _, other := range j.others() {
		there, host, err := serverAddress(other)
		if err == nil && there == address {
			continue
		}
		if err == nil {
			answer, err = j.exchange(ctx, config(host), there, token, request)
		}
		if err == nil {
			answer.GRPCAddress = atHost(answer.GRPCAddress, host)
		}
		if err == nil || errors.Is(err, ErrRefused) {
			return answer, err
		}
		failures = append(failures, fmt.Errorf("%s: %w", other, err))
	}
	return CertificateAnswer{}, errors.Join(failures...)
}

// atHost completes a gRPC address that has no host, which means that of the API.
func atHost(address, host string) string {
	if own, port, err := net.SplitHostPort(address); err == nil && own == "" {
		return net.JoinHostPort(host, port)
	}
	return address
}

// exchange posts a request for a certificate. token may be empty.
func (j *joiner) exchange(ctx context.Context, config *tls.Config, address, token string, request []byte) (CertificateAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+CertificatesPath, bytes.NewReader(request))
	if err != nil {
		return CertificateAnswer{}, err
	}
	req.Header.Set("Content-Type", "application/x-pem-file")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	dial := j.dial
	if dial == nil && j.others != nil {
		dial = (&net.Dialer{Timeout: connectTimeout}).DialContext
	}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment, DialContext: dial}
	client := &http.Client{
		Transport: transport,
		// A redirect would lead the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return CertificateAnswer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return CertificateAnswer{}, fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return CertificateAnswer{}, refusal(resp.StatusCode, body)
	}
	var a CertificateAnswer
	if err := json.Unmarshal(body, &a); err != nil {
		return CertificateAnswer{}, fmt.Errorf("read the answer: %w", err)
	}
	a.date, _ = http.ParseTime(resp.Header.Get("Date")) // zero without one
	return a, nil
}

// refusal makes an error of an answer that is not 200.
func refusal(code int, body []byte) error {
	var status struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &status) != nil || status.Message == "" {
		status.Message = http.StatusText(code)
	}
	switch code {
	case http.StatusUnauthorized:
		return fmt.Errorf("%w: %d %s: the token or certificate is wrong, revoked or has run out; make a new token", ErrRefused, code,
			status.Message)
	case http.StatusForbidden:
		return fmt.Errorf("%w: %d %s", ErrRefused, code, status.Message)
	}
	return fmt.Errorf("the server answered %d: %s", code, status.Message)
}
