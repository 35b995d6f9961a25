package mirror

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/registry"
)

// ErrAway: there is no connection to the registry, or it is not read yet.
var ErrAway = errors.New("the registry is not connected")

var connectRetry = backoff.Policy{First: 200 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.3}

// Connection of a client to one of the servers of a registry, which is an L. Make it with NewConnection. Its methods
// are safe for concurrent use.
type Connection[L any] struct {
	servers []string
	log     *slog.Logger

	mu     sync.Mutex
	link   *L // nil: not connected
	next   int
	failed bool
}

// NewConnection makes one to servers, HOST:PORT, of which there is at least one.
func NewConnection[L any](servers []string, log *slog.Logger) *Connection[L] {
	return &Connection[L]{servers: servers, log: log}
}

// Run calls attempt again and again until ctx ends, with growing pauses. It connects to a Server, Sets the link, and
// returns when that ends. The first failure in a row is logged.
func (c *Connection[L]) Run(ctx context.Context, attempt func(context.Context) error) {
	backoff.Retry(ctx, connectRetry, attempt, func(err error, _ time.Duration) {
		c.mu.Lock()
		before := c.failed
		c.failed = true
		c.mu.Unlock()
		if !before {
			c.log.Warn("the registry is not connected; it is tried again", "servers", c.servers, "error", err)
		}
	})
}

// Server that is tried next.
func (c *Connection[L]) Server() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	return c.servers[(c.next-1)%len(c.servers)]
}

// Set the link that requests use; nil: there is none any more.
func (c *Connection[L]) Set(l *L) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link = l
	c.failed = c.failed && l == nil
}

// Link that requests use; ErrAway: there is none.
func (c *Connection[L]) Link() (*L, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return nil, ErrAway
	}
	return c.link, nil
}

// Withdraw what a client has published of services. It ends with the first failure.
func Withdraw(ctx context.Context, c Client, services []registry.Service) error {
	for _, s := range services {
		if err := c.Publish(ctx, s, nil); err != nil {
			return err
		}
	}
	return nil
}
