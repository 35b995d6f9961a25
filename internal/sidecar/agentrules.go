package sidecar

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/sidecar/redirect"
)

// Where the agent of the node leads the connections of a Pod to its proxy, the supervisor has no
// right to look at the rules. It connects to a port that nobody listens on: the rules, and nothing
// else, lead that to its own.

// beaconPath answers what only this supervisor knows.
const beaconPath = "/redirected"

// beaconTimeout of a connection to the machine itself.
const beaconTimeout = 2 * time.Second

// beacon asks whether the rules stand.
type beacon struct {
	nonce  string
	client *http.Client
}

func newBeacon() *beacon {
	return &beacon{nonce: rand.Text(), client: &http.Client{Timeout: beaconTimeout, Transport: &http.Transport{DisableKeepAlives: true}}}
}

// wrap a handler of the health port.
func (b *beacon) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != beaconPath {
			next.ServeHTTP(w, r)
			return
		}
		_, _ = io.WriteString(w, b.nonce) // a client that has gone does not matter
	})
}

// errNoRules: connections are not led to the proxy.
var errNoRules = errors.New("the agent of the node does not lead the workload's connections to the proxy yet")

// stands returns errNoRules, wrapped, where the rules are not there.
func (b *beacon) stands(ctx context.Context) error {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(redirect.BeaconPort))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+beaconPath, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return errNoRules
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, int64(len(b.nonce)+1)))
	if err != nil || subtle.ConstantTimeCompare(got, []byte(b.nonce)) != 1 {
		return fmt.Errorf("%w: something else answers at %s", errNoRules, address)
	}
	return nil
}

// install copies this program, so that it can be run in the container of another image. A path
// that is there is replaced.
func install(to string) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	from, err := os.Open(self)
	if err != nil {
		return err
	}
	defer from.Close()
	part, err := os.OpenFile(to+".part", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(part, from)
	if err = errors.Join(err, part.Chmod(0o755), part.Close()); err != nil {
		return err
	}
	return os.Rename(to+".part", to)
}

// drainRunning has the supervisor of a folder drain.
func drainRunning(dir string) error {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "control.sock"))
		},
	}}
	resp, err := client.Post("http://sidecar/drain", "", http.NoBody)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // the status says that it failed
		return fmt.Errorf("drain: %s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return nil
}
