package supervise

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Admin is the admin interface of an Envoy, on a Unix socket.
type Admin struct{ client *http.Client }

const (
	// adminTimeout of a request; statistics of 10,000 clusters take 2 s.
	adminTimeout = 10 * time.Second
	// maxAdmin bounds an answer, in bytes.
	maxAdmin = 256 << 20
)

// NewAdmin is for the socket at this path.
func NewAdmin(socket string) *Admin {
	return &Admin{&http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			},
			DisableKeepAlives: true, // another Envoy may be at the socket next time
		},
		Timeout: adminTimeout,
	}}
}

// Do asks, and returns status and answer.
func (a *Admin) Do(ctx context.Context, method, path string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("admin interface of Envoy: %w", err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAdmin))
	return resp.StatusCode, body, err
}

// Ready reports whether Envoy serves: it has its first configuration.
func (a *Admin) Ready(ctx context.Context) bool {
	status, _, err := a.Do(ctx, http.MethodGet, "/ready")
	return err == nil && status == http.StatusOK
}

// Drain has the inbound listeners tell clients to go elsewhere ("Connection: close", GOAWAY);
// new connections are served still.
func (a *Admin) Drain(ctx context.Context) error {
	status, body, err := a.Do(ctx, http.MethodPost, "/drain_listeners?inboundonly&graceful&skip_exit")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("drain Envoy: status %d %.200s", status, body)
	}
	return err
}
