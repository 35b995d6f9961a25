package claim

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Run renews the lease while this instance has claims, and gives up those that are not used, until ctx ends. Then it gives up all, so that
// other instances take over at once, and returns nil. It must be called once, and end after the topics are not served any more.
func (c *Claims) Run(ctx context.Context) error {
	renew, sweep := time.NewTicker(c.cfg.Duration/5), time.NewTicker(sweepEvery)
	defer renew.Stop()
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			c.close(context.WithoutCancel(ctx))
			return nil
		case <-renew.C:
			c.renew(ctx)
		case <-sweep.C:
			c.sweep(ctx)
		}
	}
}

// renew the lease, and give up claims that nobody uses; the lease, too, if none is left.
func (c *Claims) renew(ctx context.Context) {
	c.turn.Lock()
	defer c.turn.Unlock()
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	c.mu.Lock()
	rev, has := c.rev, time.Now().Before(c.until)
	c.mu.Unlock()
	if !has {
		return
	}
	err := c.write(ctx, rev)
	switch {
	case err == nil:
		c.failing = false
	case conflict(err): // another instance has found that it had run out
		c.log.Warn("the lease of this instance was ended by another one")
		c.end()
		return
	default:
		if !c.failing && ctx.Err() == nil {
			c.log.Warn("the lease of this instance is not renewed; it is tried again", "error", err)
		}
		c.failing = true
		return
	}
	for topic, h := range c.unused() {
		c.drop(ctx, topic, h)
	}
	if c.Count() > 0 {
		return
	}
	c.mu.Lock()
	rev = c.rev
	c.mu.Unlock()
	c.end()
	c.remove(ctx, store.Condition{Key: c.leaseKey(c.run), Modified: rev})
}

// unused claims.
func (c *Claims) unused() map[string]*held {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]*held{}
	for topic, h := range c.held {
		if h.users == 0 && time.Since(h.idle) >= idleFor {
			out[topic] = h
		}
	}
	return out
}

// drop a claim, unless it is used again.
func (c *Claims) drop(ctx context.Context, topic string, h *held) {
	c.mu.Lock()
	if c.held[topic] != h || h.users > 0 {
		c.mu.Unlock()
		return
	}
	delete(c.held, topic)
	close(h.lost)
	c.mu.Unlock()
	c.remove(ctx, store.Condition{Key: h.key, Modified: h.rev})
}

// remove a row if it is at a revision, and others are. What is not removed now is so by sweep.
func (c *Claims) remove(ctx context.Context, row store.Condition, others ...store.Condition) {
	_, err := c.cfg.Store.Commit(ctx, store.Txn{Conditions: append(others, row), Ops: []store.Op{{Kind: store.Delete, Key: row.Key}}})
	if err != nil && !conflict(err) && ctx.Err() == nil {
		c.log.Debug("a claim of a topic is not removed; it is tried again", "key", row.Key, "error", err)
	}
}

// sweep removes what instances have left that are gone, and own claims that are not held any more.
func (c *Claims) sweep(ctx context.Context) {
	c.turn.Lock()
	defer c.turn.Unlock()
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	page, err := c.cfg.Store.List(ctx, store.ListOptions{Prefix: Prefix})
	if err != nil {
		return
	}
	// live are leases; a lease that has run out is removed, and then the claims.
	live := map[string]bool{}
	for _, rec := range page.Records {
		run, ok := strings.CutPrefix(rec.Key, leasePrefix)
		if !ok {
			continue
		}
		wait, err := c.wait(run, rec)
		if live[run] = run == c.run || err != nil || wait > 0; !live[run] {
			c.remove(ctx, store.Condition{Key: rec.Key, Modified: rec.Modified})
		}
	}
	c.mu.Lock()
	for run := range c.seen {
		if !live[run] {
			delete(c.seen, run)
		}
	}
	c.mu.Unlock()
	for _, rec := range page.Records {
		topic, ok := strings.CutPrefix(rec.Key, topicPrefix)
		var now row
		if !ok || json.Unmarshal(rec.Value, &now) != nil {
			continue
		}
		switch name, err := url.PathUnescape(topic); {
		case err != nil:
		case now.Run == c.run && !c.holds(name):
			c.remove(ctx, store.Condition{Key: rec.Key, Modified: rec.Modified})
		case now.Run != c.run && !live[now.Run]:
			c.remove(ctx, store.Condition{Key: rec.Key, Modified: rec.Modified}, store.Condition{Key: c.leaseKey(now.Run)})
		}
	}
}

func (c *Claims) holds(topic string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[topic] != nil
}

// close gives up all claims.
func (c *Claims) close(ctx context.Context) {
	c.turn.Lock()
	defer c.turn.Unlock()
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	c.mu.Lock()
	c.closed = true
	rev, all := c.rev, c.held
	c.mu.Unlock()
	c.end()
	if rev == 0 {
		return
	}
	c.remove(ctx, store.Condition{Key: c.leaseKey(c.run), Modified: rev}) // with it all of them are free
	for _, h := range all {
		c.remove(ctx, store.Condition{Key: h.key, Modified: h.rev})
	}
}
