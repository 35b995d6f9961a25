package app

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// viewFile keeps the last state of the view.
func (a *agent) viewFile() string { return filepath.Join(a.dir(), "view") }

// join finds the credentials to start with. Stored ones are used whether or not they
// have expired, and without any the agent still serves from the state on disk: a
// machine that was away carries traffic before it is authenticated again. It fails
// only if there is no state to serve from, or if token or credentials are for
// another node.
func (a *agent) join(ctx context.Context) error {
	log := a.log.With("component", "identity")
	a.renewer = identity.NewRenewer(identity.RenewerConfig{
		Dir: a.dir(), Server: a.cfg.Server, Others: a.cfg.others(), Accept: a.acceptSubject, Token: a.token, NewToken: a.cfg.NewToken, Logger: log,
		Authorities: a.cfg.authorities(), Exchange: a.cfg.exchange(),
	})
	stored := a.renewer.Problem()
	joined, err := a.renewer.Join(ctx)
	switch {
	case err == nil && joined.Elsewhere:
		return a.forgetState()
	case err == nil:
		return nil
	}
	var other *identity.OtherCredentialsError
	var wrong *identity.SubjectError
	if errors.As(err, &wrong) {
		return &problem.Error{
			Code: problem.CredentialsMismatch,
			Err:  err,
			Hint: "give the token of this node, or run the agent as that node with --node-name",
		}
	}
	_, missing := os.Stat(a.viewFile())
	if a.cfg.inCluster() { // until it has joined, it follows the cluster's API
		log.Warn("this node has not joined the control plane yet, and tries again", "error", err)
		if errors.As(stored, &other) {
			return a.forgetState()
		}
		return nil
	}
	if missing != nil || errors.As(stored, &other) {
		return &problem.Error{
			Code: problem.CredentialsMissing,
			Err:  err,
			Hint: "join with --token-file; make a token with \"proxima token create --kind node --name " + a.cfg.Name + "\"",
		}
	}
	log.Warn("this machine has no credentials, and serves by the state on disk until it has joined again",
		"credentials", stored, "error", err)
	return nil
}

// acceptSubject refuses credentials that are not this node's.
func (a *agent) acceptSubject(s identity.Subject) error {
	name, ok := identity.NodeName(s.User, s.Groups)
	switch {
	case !ok:
		return fmt.Errorf("the credentials are for %s, which is not a node", s.User)
	case name != a.cfg.Name:
		return fmt.Errorf("the credentials are for node %s, and this is node %s", name, a.cfg.Name)
	}
	return nil
}

// token is the configured one; "": there is none. A file that is gone is no error:
// it may be deleted once the node has joined.
func (a *agent) token() (string, error) {
	if a.cfg.TokenFile == "" {
		return a.cfg.Token, nil
	}
	data, err := os.ReadFile(a.cfg.TokenFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// authorities reads the file of ServerCAFile; nil: there is none.
func (c *NodeConfig) authorities() func() (*x509.CertPool, error) {
	if c.ServerCAFile == "" {
		return nil
	}
	return func() (*x509.CertPool, error) {
		data, err := os.ReadFile(c.ServerCAFile)
		if err != nil {
			return nil, fmt.Errorf("--server-ca-file: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("--server-ca-file: %s has no certificate in PEM form", c.ServerCAFile)
		}
		return pool, nil
	}
}

// forgetState drops the state of another control plane.
func (a *agent) forgetState() error {
	if err := os.Remove(a.viewFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the state of another control plane: %w", err)
	}
	return a.ranges.Forget()
}

// planeLink is how the view is reached.
func (a *agent) planeLink() *planeLink {
	l := &planeLink{renewer: a.renewer, server: a.cfg.Server, serves: "node views"}
	if len(a.cfg.OtherServers) > 0 {
		servers := a.cfg.servers()
		l.others = func(joined string) []string { return withPort(servers, joined) }
	}
	return l
}

// servers are the APIs of all instances that are configured, the first one first.
func (c *NodeConfig) servers() []string { return append([]string{c.Server}, c.OtherServers...) }

// others returns the further ones; nil: there are none.
func (c *NodeConfig) others() func() []string {
	if len(c.OtherServers) == 0 {
		return nil
	}
	return func() []string { return c.OtherServers }
}

// withPort are the gRPC addresses of instances: joined, which is known from the certificate,
// and the hosts of the others' APIs with its port.
func withPort(servers []string, joined string) []string {
	out := []string{joined}
	_, port, _ := net.SplitHostPort(joined)
	for _, api := range servers {
		if host, _, err := net.SplitHostPort(api); err == nil {
			if at := net.JoinHostPort(host, port); !slices.Contains(out, at) {
				out = append(out, at)
			}
		}
	}
	return out
}

// viewAddress is where this node's view is served.
func (a *agent) viewAddress() (string, error) { return a.planeLink().address() }

// connect makes the connection that carries the view and the reports of demand.
func (a *agent) connect() (*grpc.ClientConn, error) { return a.planeLink().connect() }

// apiTransport carries all requests of an agent to the API over one connection, as each costs
// the control plane memory. It shows the newest certificate: after a renewal, or a refusal, new
// requests get a new connection, and those in progress end on the old one. A refusal starts a
// renewal.
type apiTransport struct {
	// newest are the credentials to show, suspect reports that they were refused.
	newest  func() *identity.Credentials
	suspect func()
	// open makes a transport.
	open func() *http.Transport

	mu   sync.Mutex
	used *identity.Credentials
	now  *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *apiTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	now := t.current()
	resp, err := now.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		t.leave(now)
		t.suspect()
	}
	return resp, err
}

// current is the transport for a new request.
func (t *apiTransport) current() *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	if newest := t.newest(); t.now == nil || t.used != newest {
		t.replaceLocked()
		t.used = newest
	}
	return t.now
}

// leave a transport whose connection was refused.
func (t *apiTransport) leave(refused *http.Transport) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == refused {
		t.replaceLocked()
	}
}

func (t *apiTransport) replaceLocked() {
	if t.now != nil {
		t.now.CloseIdleConnections()
	}
	t.now = t.open()
}
