package app

import "sync"

// changes is a channel that the next change closes. It is to be made with a channel.
type changes struct {
	mu      sync.Mutex
	changed chan struct{}
}

// wait returns the channel of the next change.
func (c *changes) wait() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// note a change.
func (c *changes) note() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
}
