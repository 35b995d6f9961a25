package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store/outage"
)

// leaseTTL is how long the claims of an instance that died stay, in seconds. A
// change of etcd's leader extends it.
const leaseTTL = 10

// claimTimeout is how long a process that starts waits for its predecessor's
// lease to run out.
const claimTimeout = (leaseTTL + 5) * time.Second

// holder is the content of meta/owner and meta/expiry.
type holder struct {
	ID    uint64    `json:"id"`
	Host  string    `json:"host,omitempty"`
	PID   int       `json:"pid,omitempty"`
	Since time.Time `json:"since"`
}

// decodeHolder returns what it can; text from elsewhere is the holder 0.
func decodeHolder(data []byte) (h holder) {
	_ = json.Unmarshal(data, &h)
	return h
}

func (h holder) String() string {
	return fmt.Sprintf("process %d on %s, since %s", h.PID, h.Host, h.Since.UTC().Format(time.RFC3339))
}

// claim is what this instance holds under its lease: the state as a whole, if it
// was opened exclusively, and the task of deleting expired keys.
type claim struct {
	store *Store
	self  holder

	mu       sync.Mutex
	lease    clientv3.LeaseID // 0: none
	alive    context.CancelFunc
	lapsed   chan struct{} // closed when the lease is not kept alive any more
	ownerMod int64         // 0: the state is not exclusive
	expiry   bool
}

func newClaim(s *Store) *claim {
	host, _ := os.Hostname() // for messages only
	return &claim{store: s, self: holder{ID: s.writer, Host: host, PID: os.Getpid(), Since: time.Now()}}
}

// mod is etcd's revision of meta/owner that commits compare.
func (c *claim) mod() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ownerMod
}

// ensureLease grants a lease if there is none. The caller holds the lock.
func (c *claim) ensureLease(ctx context.Context) error {
	if c.lease != 0 {
		select {
		case <-c.lapsed:
			c.alive()
			c.lease, c.expiry = 0, false
		default:
			return nil
		}
	}
	bound, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	granted, err := c.store.client.Grant(bound, leaseTTL)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(c.store.running)
	answers, err := c.store.client.KeepAlive(running, granted.ID)
	if err != nil {
		stop()
		return err
	}
	lapsed := make(chan struct{})
	c.store.others.Go(func() {
		defer close(lapsed)
		for range answers { //nolint:revive // until the lease has ended
		}
	})
	c.lease, c.alive, c.lapsed = granted.ID, stop, lapsed
	return nil
}

// take puts this instance into a key that is absent, or that it has already. It
// returns the holder that is in the way, if any.
func (c *claim) take(ctx context.Context, key string) (mod int64, other *holder, err error) {
	if err := c.ensureLease(ctx); err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	key = c.store.target.prefix + key
	value, err := json.Marshal(c.self)
	if err != nil {
		return 0, nil, err
	}
	put := clientv3.OpPut(key, string(value), clientv3.WithLease(c.lease))
	resp, err := c.store.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(put).Else(clientv3.OpGet(key)).Commit()
	if err == nil && !resp.Succeeded {
		kvs := resp.Responses[0].GetResponseRange().GetKvs()
		if len(kvs) != 1 {
			return 0, nil, fmt.Errorf("read the holder of %s: no answer", key)
		}
		if held := decodeHolder(kvs[0].Value); held.ID != c.self.ID {
			return 0, &held, nil
		}
		// Ours, under a lease that may have lapsed.
		resp, err = c.store.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", kvs[0].ModRevision)).Then(put).Commit()
		if err == nil && !resp.Succeeded {
			err = errChanging
		}
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		c.alive()
		c.lease, c.expiry = 0, false
		err = errChanging
	}
	if err != nil {
		return 0, nil, err
	}
	return resp.Header.GetRevision(), nil, nil
}

// errChanging is worth another try.
var errChanging = rpctypes.Error(rpctypes.ErrGRPCTimeout)

// takeFirst takes the state exclusively, when it is opened.
func (c *claim) takeFirst(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for begin := time.Now(); ; {
		mod, other, err := c.take(ctx, ownerKey)
		switch {
		case err != nil && (!unavailable(err) || time.Since(begin) > claimTimeout):
			return err
		case err == nil && other == nil:
			c.ownerMod = mod
			c.store.others.Go(func() { c.keep(c.store.running) })
			return nil
		case time.Since(begin) > claimTimeout:
			return &InUseError{Holder: other.String()}
		}
		if !backoff.Sleep(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// awaitOwner waits until no instance has the state exclusively.
func (s *Store) awaitOwner(ctx context.Context) error {
	for begin := time.Now(); ; {
		m, _, err := s.readMeta(ctx)
		switch {
		case err != nil && (!unavailable(err) || time.Since(begin) > claimTimeout):
			return err
		case err == nil && m.ownerMod == 0:
			return nil
		case time.Since(begin) > claimTimeout:
			return &InUseError{Holder: m.owner.String()}
		}
		if !backoff.Sleep(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// keep takes the state again whenever the lease is lost, until ctx ends.
func (c *claim) keep(ctx context.Context) {
	for ctx.Err() == nil {
		c.mu.Lock()
		lapsed := c.lapsed
		c.mu.Unlock()
		select {
		case <-lapsed:
		case <-ctx.Done():
			return
		}
		for try := 0; ctx.Err() == nil && c.takeAgain(ctx) != nil; try++ {
			backoff.Sleep(ctx, outage.Retry.After(try+1))
		}
	}
}

// takeAgain takes the state after the lease was lost. If another instance has it
// the store ends.
func (c *claim) takeAgain(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	mod, other, err := c.take(ctx, ownerKey)
	if err != nil {
		return err
	}
	if other != nil {
		err := &InUseError{Holder: other.String()}
		c.store.end(err)
		return err
	}
	c.ownerMod = mod
	return nil
}

// lost is called when a commit found another meta/owner than it compared. It
// returns nil if the commit may be tried again.
func (c *claim) lost(m meta) error {
	if m.ownerMod != 0 && m.owner.ID != c.self.ID {
		err := &InUseError{Holder: m.owner.String()}
		c.store.end(err)
		return err
	}
	c.mu.Lock()
	current := c.ownerMod
	c.mu.Unlock()
	if m.ownerMod != 0 && m.ownerMod == current {
		return nil // it was taken again while the commit was under way
	}
	return c.takeAgain(c.store.running)
}

// expires reports whether this instance deletes expired keys, and takes that task
// if no instance has it.
func (c *claim) expires(ctx context.Context) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.ensureLease(ctx); err != nil || c.expiry {
		return c.expiry, err
	}
	_, other, err := c.take(ctx, expiryKey)
	c.expiry = err == nil && other == nil
	return c.expiry, err
}

// releaseTimeout bounds the revocation of the lease on Close.
const releaseTimeout = 2 * time.Second

// release gives everything back at once.
func (c *claim) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lease == 0 {
		return
	}
	c.alive()
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	_, _ = c.store.client.Revoke(ctx, c.lease) // it runs out by itself
	c.lease = 0
}
