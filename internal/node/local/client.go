package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"
)

// Client asks the agent of a data directory. The zero value is of no use; set
// DataDir.
type Client struct {
	DataDir string
	// System: also try the socket of root's agent, if the data directory has none.
	System bool
}

// answerTimeout covers a kernel with many rules to read.
const answerTimeout = 30 * time.Second

// maxRefusal bounds how much of an error's text is read.
const maxRefusal = 4 << 10

// Dial connects to the agent. It returns a NoAgentError, a DeniedError or a
// HungError if it can't.
func (c *Client) Dial(ctx context.Context) (net.Conn, error) {
	paths := Sockets(c.DataDir)
	if c.System && paths[0] != SystemSocket {
		paths = append(paths, SystemSocket)
	}
	ctx, cancel := context.WithTimeout(ctx, AliveTimeout)
	defer cancel()
	var errs []error
	for _, path := range paths {
		if err := checkSocket(path); err != nil {
			errs = append(errs, err)
			continue
		}
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		switch {
		case err == nil:
			return conn, nil
		case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
			return nil, &DeniedError{Socket: path}
		case errors.Is(err, syscall.EAGAIN), ctx.Err() != nil:
			return nil, &HungError{Socket: path}
		}
		errs = append(errs, err)
	}
	return nil, &NoAgentError{DataDir: c.DataDir, Err: errors.Join(errs...)}
}

// checkSocket returns an error if there is no socket that can be trusted. That it
// cannot be looked at is left to connect.
func checkSocket(path string) error {
	if _, err := os.Lstat(path); err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	}
	return checkShared(path)
}

// Alive returns nil if the agent answers, else one of the errors of Dial, within
// 1.5 s.
func (c *Client) Alive(ctx context.Context) error {
	conn, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	socket := conn.RemoteAddr().String()
	ctx, cancel := context.WithTimeout(ctx, AliveTimeout)
	defer cancel()
	resp, err := get(ctx, conn, AlivePath, nil)
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return &HungError{Socket: socket}
		}
		return fmt.Errorf("ask the agent at %s: %w", socket, err)
	}
	return resp.Body.Close()
}

// Ask the agent, and decode its answer into a value. It returns an error of Alive
// within 1.5 s if the agent does not answer at all; an answer itself may take up
// to 30 s.
func (c *Client) Ask(ctx context.Context, path string, query url.Values, into any) error {
	if err := c.Alive(ctx); err != nil {
		return err
	}
	conn, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	socket := conn.RemoteAddr().String()
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	resp, err := get(ctx, conn, path, query)
	if err != nil {
		return fmt.Errorf("ask the agent at %s: %w", socket, err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("the agent at %s does not know %s: it is another version than this program", socket, path)
	case resp.StatusCode != http.StatusOK:
		why, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // the status is what counts
		return fmt.Errorf("agent: %s", strings.TrimSpace(string(why)))
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("answer of the agent at %s: %w", socket, err)
	}
	return nil
}

// Attest makes this process, and all that it starts, a workload for the SPIFFE Workload
// API, and all processes of a cgroup, unless its path is empty. ready is called once they are;
// toldApart: the node tells the cgroup's connections from those of others at its address. From
// then on Attest blocks until ctx ends, or the agent does. Errors: those of Dial, and the
// agent's refusal.
func (c *Client) Attest(ctx context.Context, namespace, name, cgroup string, ready func(toldApart bool)) error {
	conn, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	query := url.Values{"namespace": {namespace}, "name": {name}}
	if cgroup != "" {
		query.Set("cgroup", cgroup)
	}
	resp, err := get(ctx, conn, AttestPath, query)
	if err != nil {
		return fmt.Errorf("attest workload %s/%s: %w", namespace, name, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // the status is what counts
		return fmt.Errorf("attest workload %s/%s: agent: %s", namespace, name, strings.TrimSpace(string(why)))
	}
	ready(resp.Header.Get(ToldApartHeader) != "")
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// AwaitPlaced returns when the connections from a cgroup are kept to the mesh of its workload,
// or need not be; see PlacedPath. It blocks until then, or until ctx ends. Errors: those of
// Dial, and the agent's refusal.
func (c *Client) AwaitPlaced(ctx context.Context, cgroup string) error {
	conn, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	resp, err := get(ctx, conn, PlacedPath, url.Values{"cgroup": {cgroup}})
	if err != nil {
		return fmt.Errorf("await the rules for cgroup %s: %w", cgroup, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("await the rules for cgroup %s: agent: %s", cgroup, resp.Status)
	}
	return nil
}

// get sends one request over a connection, which is closed with the body.
func get(ctx context.Context, conn net.Conn, path string, query url.Values) (*http.Response, error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
	u := &url.URL{Scheme: "http", Host: "agent", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return transport.RoundTrip(req)
}

// Transport carries requests to the agent's API for workloads, whatever their
// host is.
func (c *Client) Transport() *http.Transport {
	return &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return c.Dial(ctx) },
		IdleConnTimeout: 30 * time.Second,
	}
}
