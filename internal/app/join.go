package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/proxima-mesh/proxima/internal/delta/stream"
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
		Dir: a.dir(), Server: a.cfg.Server, Accept: a.acceptSubject, Token: a.token, NewToken: a.cfg.NewToken, Logger: log,
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
	if _, missing := os.Stat(a.viewFile()); missing != nil || errors.As(stored, &other) {
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

// forgetState drops the state of another control plane.
func (a *agent) forgetState() error {
	if err := os.Remove(a.viewFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the state of another control plane: %w", err)
	}
	return a.ranges.Forget()
}

// viewAddress is where this node's view is served.
func (a *agent) viewAddress() (string, error) {
	c := a.renewer.Credentials()
	if c == nil {
		return "", a.renewer.Problem()
	}
	if c.GRPCAddress == "" {
		return "", fmt.Errorf("control plane %s serves no node views: it runs with --grpc-port 0", c.Server)
	}
	host, port, err := net.SplitHostPort(c.GRPCAddress)
	if err != nil {
		return "", fmt.Errorf("address of the node views: %w", err)
	}
	if host == "" { // the same as the API's
		if host, _, err = net.SplitHostPort(c.Server); err != nil {
			return "", err
		}
	}
	return net.JoinHostPort(host, port), nil
}

// connect makes the connection that carries the view and the reports of demand. It
// dials when it is used. A machine without credentials learns the address when it
// has joined.
func (a *agent) connect() (*grpc.ClientConn, error) {
	options := append(stream.DialOptions(),
		grpc.WithTransportCredentials(viewCredentials{credentials.NewTLS(nil), a}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true,
		}),
	)
	if a.renewer.Credentials() != nil {
		address, err := a.viewAddress()
		if err != nil {
			return nil, err
		}
		return grpc.NewClient("passthrough:///"+address, options...)
	}
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		address, err := a.viewAddress()
		if err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	return grpc.NewClient("passthrough:///"+a.cfg.Server, append(options, grpc.WithContextDialer(dial))...)
}

// viewCredentials check the server against the address that was dialled.
type viewCredentials struct {
	credentials.TransportCredentials
	agent *agent
}

// ClientHandshake implements credentials.TransportCredentials.
func (v viewCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	address, err := v.agent.viewAddress()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(v.agent.renewer.TLSConfig(HostOf(address))).ClientHandshake(ctx, authority, raw)
}

// Clone implements credentials.TransportCredentials.
func (v viewCredentials) Clone() credentials.TransportCredentials { return v }

// reconnecting is a transport that shows the newest certificate: connections that
// were made with an older one are dropped. A refusal starts a renewal.
type reconnecting struct {
	*http.Transport
	renewer *identity.Renewer
	used    atomic.Pointer[identity.Credentials]
}

// RoundTrip implements http.RoundTripper.
func (r *reconnecting) RoundTrip(req *http.Request) (*http.Response, error) {
	if now := r.renewer.Credentials(); r.used.Swap(now) != now {
		r.CloseIdleConnections()
	}
	resp, err := r.Transport.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		r.CloseIdleConnections()
		r.renewer.Suspect()
	}
	return resp, err
}
