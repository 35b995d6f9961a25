package pulsar

import (
	"context"
	"errors"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/cursor"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar/claim"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar/wire"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
)

// subscription reads a topic for its consumers, which are on any connections. It is there while it has consumers, or waits for a
// reader that has sought. Who joins, leaves and seeks has its turn (Server.turn).
type subscription struct {
	s         *Server
	key       string
	topic     topic
	prefix    string // of the keys in the store
	sharing   wire.Subscribe_Type
	compacted bool
	// cursor is nil if it is not durable. Claim is of its topic then, if there may be several instances.
	cursor *cursor.Cursor
	claim  *claim.Claim
	wake   chan struct{}
	cancel context.CancelFunc
	ended  chan struct{} // closed when its goroutine has ended

	mu        sync.Mutex
	consumers []*consumer // in the order in which messages are given to them
	next      int         // of consumers that share messages
	reader    *seglog.Reader
	begun     seglog.Position // where it began
	read      seglog.Position // up to which items were made
	snapshot  []*item         // that are to be read before the feed
	queue     []*item         // that wait for a consumer, ascending
	pending   map[seglog.Position]*delivered
	owners    map[string]*owner // of the keys of pending messages, if key_shared
	newest    seglog.Position   // of all items that were made, or seen by scan
	scan      *seglog.Reader    // looks for the newest message, ahead of reader; nil: not yet
	sought    bool              // it waits for its reader
	over      bool              // nothing is acknowledged any more
}

// consumer of a subscription. Guarded by the subscription's mu but for what does not change.
type consumer struct {
	id       uint64
	name     string
	priority int32
	conn     *conn
	sub      *subscription
	joined   func() // answers the client
	permits  int64
	flowed   bool // it has asked for messages
	unacked  int
}

// delivered is an item that a consumer has and did not acknowledge.
type delivered struct {
	*item
	to *consumer
}

// owner of a key is the consumer that has unacknowledged messages of it: later ones are only for it.
type owner struct {
	to    *consumer
	count int
}

func (s *Server) subscriptionKey(t topic, name string) string { return t.String() + "/" + name }

// join adds a consumer to the subscription that it asks for, which is made or opened if it must be.
func (s *Server) join(ctx context.Context, t topic, q *wire.Subscribe, m *consumer) error {
	key := s.subscriptionKey(t, q.GetSubscription())
	turn := s.turn(key)
	turn.Lock()
	defer turn.Unlock()
	s.mu.Lock()
	u, full := s.subs[key], s.consumers >= s.cfg.MaxConsumers
	if !full {
		s.consumers++
	}
	s.mu.Unlock()
	if full {
		return refuse(wire.ServerError_TOO_MANY_REQUESTS, "%d consumers are connected, as many as there may be", s.cfg.MaxConsumers)
	}
	err := func() (err error) {
		if u != nil && q.GetDurable() && u.abandoned() {
			u.close()
			u = nil
		}
		if u == nil {
			if u, err = s.open(ctx, key, t, q); err != nil {
				return err
			}
		}
		m.sub = u
		return u.join(q, m)
	}()
	if err != nil {
		s.mu.Lock()
		s.consumers--
		s.mu.Unlock()
	}
	return err
}

// open a subscription that is not open.
func (s *Server) open(ctx context.Context, key string, t topic, q *wire.Subscribe) (*subscription, error) {
	u := &subscription{
		s: s, key: key, topic: t, prefix: s.cfg.Objects.Prefix(t.kind, nameIn(t.namespace)), sharing: q.GetType(), compacted: q.GetReadCompacted(),
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	at, err := s.initial(ctx, q)
	if err != nil {
		return nil, err
	}
	if q.GetDurable() {
		if at, err = u.openCursor(ctx, q, at); err != nil {
			return nil, errors.Join(err, u.closeCursor())
		}
	}
	if err := u.reset(ctx, at); err != nil {
		return nil, errors.Join(err, u.closeCursor())
	}
	s.mu.Lock()
	running, cancel := context.WithCancel(s.ctx)
	u.cancel = cancel
	s.subs[key] = u
	s.running.Go(func() { u.run(running) })
	s.mu.Unlock()
	return u, nil
}

// initial is where a subscription begins that there is not yet.
func (s *Server) initial(ctx context.Context, q *wire.Subscribe) (seglog.Position, error) {
	first := s.cfg.Feed.First()
	if q.GetReadCompacted() {
		first = 0
	}
	switch start := q.GetStart(); {
	case q.GetStartRollbackSeconds() > 0:
		return s.since(time.Now().Add(-time.Duration(min(q.GetStartRollbackSeconds(), 1<<31)) * time.Second))
	case start != nil && earliest(start), start == nil && q.GetInitial() == wire.Subscribe_EARLIEST:
		return first, nil
	case start != nil && !latest(start):
		at, err := s.positionOf(start) // clients leave out the message itself if they do not want it
		return max(at-1, first), err
	}
	now, err := s.cfg.Store.Revision(ctx)
	return seglog.Position(now), err
}

// takeClaim claims the topic, and returns the fence of what is written then.
func (u *subscription) takeClaim(ctx context.Context) ([]store.Condition, error) {
	claims := u.s.cfg.Claims
	if claims == nil {
		return nil, nil
	}
	var err error
	if u.claim, err = claims.Take(ctx, u.topic.String()); err != nil {
		return nil, refuse(wire.ServerError_SERVICE_NOT_READY, "%v: look the topic up again", err)
	}
	return []store.Condition{u.claim.Fence()}, nil
}

// openCursor returns the position that the cursor is at. What it has taken is left with closeCursor.
func (u *subscription) openCursor(ctx context.Context, q *wire.Subscribe, at seglog.Position) (seglog.Position, error) {
	fence, err := u.takeClaim(ctx)
	if err != nil {
		return 0, err
	}
	name := "pulsar/" + u.key
	if _, err := u.s.cfg.Cursors.Get(ctx, name); errors.Is(err, cursor.ErrNotFound) {
		properties := map[string]string{}
		for _, p := range q.GetProperties() {
			properties[p.GetKey()] = p.GetValue()
		}
		if _, err := u.s.cfg.Cursors.Create(ctx, name, cursorType(u.sharing), at, properties); err != nil && !errors.Is(err, cursor.ErrExists) {
			return 0, refuse(wire.ServerError_NOT_ALLOWED_ERROR, "subscription %q: %v", q.GetSubscription(), err)
		}
	}
	c, err := u.s.cfg.Cursors.OpenExpired(ctx, name, fence...)
	if errors.Is(err, cursor.ErrInUse) {
		return 0, refuse(wire.ServerError_CONSUMER_BUSY, "subscription %q: %v", q.GetSubscription(), err)
	}
	if err != nil {
		return 0, err
	}
	u.cursor = c
	state := c.State()
	if err := u.s.cfg.Cursors.Expired(&state); err != nil && !u.compacted {
		u.s.log.Warn("a subscription is older than the change feed: it gets the objects that there are, then changes", "subscription", u.key, "mark", state.Mark, "error", err)
	}
	return state.Mark, nil
}

// closeCursor writes what is acknowledged, and frees the cursor; then another instance may have the topic.
func (u *subscription) closeCursor() error {
	if u.claim != nil {
		defer u.claim.Release()
	}
	if u.cursor == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return u.cursor.Close(ctx)
}

// reset sets where a subscription reads from. What the feed does not have any more, and what is asked for without the changes in
// between, is the state of the store. It is called with mu, or before others have the subscription.
func (u *subscription) reset(ctx context.Context, at seglog.Position) error {
	u.queue, u.snapshot, u.pending, u.owners = nil, nil, map[seglog.Position]*delivered{}, map[string]*owner{}
	u.begun, u.read, u.newest, u.scan = at, at, 0, nil
	for _, m := range u.consumers {
		m.unacked = 0
	}
	if at < u.s.cfg.Feed.First() || u.compacted && at == 0 {
		return u.list(ctx, at)
	}
	u.reader = u.s.cfg.Feed.Log.Read(at)
	return nil
}

// list makes items of the objects that were changed last after a position, and reads the feed from there.
func (u *subscription) list(ctx context.Context, after seglog.Position) error {
	page, err := u.s.cfg.Store.List(ctx, store.ListOptions{Prefix: u.prefix, KeysOnly: true})
	if err != nil {
		return err
	}
	u.snapshot = nil
	for i := range page.Records {
		rec := &page.Records[i]
		if at := seglog.Position(rec.Modified); at > after {
			if it := u.item(rec.Key, at); it != nil {
				it.snapshot = true
				u.snapshot = append(u.snapshot, it)
			}
		}
	}
	slices.SortFunc(u.snapshot, func(a, b *item) int { return int(a.at - b.at) })
	if n := len(u.snapshot); n > 0 {
		u.newest = max(u.newest, u.snapshot[n-1].at)
	}
	u.reader = u.s.cfg.Feed.Log.Read(seglog.Position(page.Revision))
	return nil
}

// item of a change; nil: it is not one of the topic.
func (u *subscription) item(key string, at seglog.Position) *item {
	kind, name, ok := u.s.cfg.Objects.ObjectOf(key)
	if !ok || kind.GVK != u.topic.kind.GVK || name.Namespace != u.topic.namespace {
		return nil
	}
	return &item{at: at, key: key, name: name.Name}
}

// run reads and dispatches until ctx ends or the cursor is lost.
func (u *subscription) run(ctx context.Context) {
	defer close(u.ended)
	var lost, elsewhere <-chan struct{}
	if u.cursor != nil {
		lost = u.cursor.Lost()
	}
	if u.claim != nil {
		elsewhere = u.claim.Lost()
	}
	for {
		changed := u.s.cfg.Feed.Log.Changed()
		again, err := u.step(ctx)
		if err != nil && ctx.Err() == nil {
			u.s.log.Warn("a subscription cannot read the change feed; its consumers are disconnected and try again", "subscription", u.key, "error", err)
			u.s.running.Go(func() { u.s.drop(u) })
			<-ctx.Done()
		}
		if again {
			continue
		}
		select {
		case <-changed:
		case <-u.wake:
		case <-lost:
			u.s.running.Go(func() { u.s.drop(u) })
			<-ctx.Done()
		case <-elsewhere:
			u.s.log.Info("a subscription ends here, as another instance may serve its topic; its consumers are disconnected", "subscription", u.key)
			u.s.running.Go(func() { u.s.drop(u) })
			<-ctx.Done()
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func (u *subscription) signal() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// step dispatches what waits and reads what comes next; again: there may be more.
func (u *subscription) step(ctx context.Context) (again bool, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.claim != nil && !u.claim.Valid() {
		return false, nil
	}
	if err := u.dispatch(ctx); err != nil {
		return false, err
	}
	if len(u.consumers) == 0 || len(u.queue) >= readAhead || len(u.queue)+len(u.pending) >= maxUnacked {
		return false, nil
	}
	if n := min(len(u.snapshot), readAhead); n > 0 {
		for _, it := range u.snapshot[:n] {
			u.add(it)
		}
		u.snapshot = u.snapshot[n:]
		return true, nil
	}
	entries, err := u.reader.Poll()
	var expired *seglog.ExpiredError
	var damaged *seglog.DamagedError
	switch {
	case errors.As(err, &expired):
		u.s.log.Warn("a subscription is behind the change feed: it gets the objects that there are, then changes", "subscription", u.key, "error", err)
		return true, u.list(ctx, u.read)
	case errors.As(err, &damaged):
		u.s.log.Error("a subscription leaves out changes that cannot be read", "subscription", u.key, "error", err)
		return true, nil
	case err != nil:
		return false, err
	}
	for _, e := range entries {
		if it := u.item(e.Key, e.Position); it != nil {
			it.entry = e
			u.add(it)
		}
	}
	if len(entries) == 0 {
		u.advance()
	}
	return len(entries) > 0, nil
}

// add an item to the queue, unless it is acknowledged.
func (u *subscription) add(it *item) {
	it.after, u.read, u.newest = u.read, it.at, max(u.newest, it.at)
	if u.cursor != nil && u.cursor.Acked(it.at) {
		_ = u.cursor.Ack(it.after, it.at)
		return
	}
	u.queue = append(u.queue, it)
}

// advance acknowledges changes of other topics, if there are many.
func (u *subscription) advance() {
	at := u.reader.At()
	if u.cursor == nil || len(u.queue)+len(u.pending) > 0 || at-u.read < advanceBy {
		return
	}
	_ = u.cursor.Ack(u.read, at)
	u.read = at
}

// last is the ID of the newest message, 0: there is none, and up to where all is acknowledged.
func (u *subscription) last(ctx context.Context) (newest, mark seglog.Position, err error) {
	if _, err := u.s.caughtUp(ctx); err != nil {
		return 0, 0, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.scan == nil || u.scan.At() < u.reader.At() {
		u.scan = u.s.cfg.Feed.Log.Read(u.reader.At())
	}
	for {
		entries, err := u.scan.Poll()
		var expired *seglog.ExpiredError
		if errors.As(err, &expired) {
			u.scan = u.s.cfg.Feed.Log.Read(expired.First)
			continue
		}
		if err != nil {
			return 0, 0, err
		}
		for _, e := range entries {
			if u.item(e.Key, e.Position) != nil {
				u.newest = e.Position
			}
		}
		if len(entries) == 0 {
			break
		}
	}
	if u.newest == 0 { // nothing is new since it began: the newest object has the last message, unless that was a deletion
		page, err := u.s.cfg.Store.List(ctx, store.ListOptions{Prefix: u.prefix, KeysOnly: true})
		if err != nil {
			return 0, 0, err
		}
		for i := range page.Records {
			newest = max(newest, seglog.Position(page.Records[i].Modified))
		}
		return newest, u.mark(), nil
	}
	return u.newest, u.mark(), nil
}

func (u *subscription) mark() seglog.Position {
	if u.cursor != nil {
		return u.cursor.State().Mark
	}
	mark := u.read
	for at := range u.pending {
		mark = min(mark, u.pending[at].after)
	}
	if len(u.queue) > 0 {
		mark = min(mark, u.queue[0].after)
	}
	return mark
}

// requeue items, which are delivered again.
func (u *subscription) requeue(items []*item) {
	u.queue = append(u.queue, items...)
	sort.Slice(u.queue, func(i, j int) bool { return u.queue[i].at < u.queue[j].at })
	u.signal()
}

// leave removes a consumer, whose connection does not have it any more.
func (s *Server) leave(m *consumer) {
	u := m.sub
	turn := s.turn(u.key)
	turn.Lock()
	defer turn.Unlock()
	u.mu.Lock()
	i := slices.Index(u.consumers, m)
	if i < 0 {
		u.mu.Unlock()
		return
	}
	active := u.active()
	u.consumers = slices.Delete(u.consumers, i, i+1)
	u.requeue(u.takeFrom(m))
	empty := len(u.consumers) == 0 && !u.sought
	if u.sharing == wire.Subscribe_FAILOVER && active == m && !empty {
		u.activate()
	}
	u.mu.Unlock()
	s.mu.Lock()
	s.consumers--
	s.mu.Unlock()
	if empty {
		u.close()
	}
}

// close a subscription: what is acknowledged is written.
func (u *subscription) close() {
	s := u.s
	s.mu.Lock()
	if s.subs[u.key] == u {
		delete(s.subs, u.key)
	}
	s.mu.Unlock()
	u.cancel()
	<-u.ended
	if err := u.closeCursor(); err != nil {
		s.log.Warn("what a subscription acknowledged last is not written: it is delivered again", "subscription", u.key, "error", err)
	}
}

// detach all consumers: they are told that they are closed, and subscribe again. It is called in the subscription's turn.
func (u *subscription) detach() {
	u.mu.Lock()
	all := u.consumers
	u.consumers = nil
	u.mu.Unlock()
	u.s.mu.Lock()
	u.s.consumers -= len(all)
	u.s.mu.Unlock()
	for _, m := range all {
		if m.conn.forget(m) {
			m.conn.tell(&wire.Command{Type: ptr(int32(typeCloseConsumer)), CloseConsumer: &wire.OfConsumer{Consumer: &m.id, Request: ptr(^uint64(0))}})
		}
	}
}

// drop a subscription that cannot go on.
func (s *Server) drop(u *subscription) {
	turn := s.turn(u.key)
	turn.Lock()
	defer turn.Unlock()
	u.detach()
	u.close()
}

// unsubscribe removes the subscription of a consumer, which must be the only one.
func (s *Server) unsubscribe(ctx context.Context, m *consumer) error {
	u := m.sub
	turn := s.turn(u.key)
	turn.Lock()
	defer turn.Unlock()
	u.mu.Lock()
	others := len(u.consumers) - 1
	u.mu.Unlock()
	if others > 0 {
		return refuse(wire.ServerError_METADATA_ERROR, "the subscription has %d other consumers", others)
	}
	m.conn.forget(m)
	u.mu.Lock()
	u.consumers = nil
	u.mu.Unlock()
	s.mu.Lock()
	s.consumers--
	s.mu.Unlock()
	u.close()
	if u.cursor == nil {
		return nil
	}
	if err := s.cfg.Cursors.Delete(ctx, "pulsar/"+u.key); err != nil && !errors.Is(err, cursor.ErrNotFound) {
		return err
	}
	return nil
}

// seek sets a subscription to a position, 0: the beginning, and disconnects its consumers, which subscribe again. told is called when they
// are told: clients that hear of the seek first have what they did not read yet from before it.
func (s *Server) seek(ctx context.Context, m *consumer, to seglog.Position, told func()) error {
	u := m.sub
	turn := s.turn(u.key)
	turn.Lock()
	defer turn.Unlock()
	if to == 0 && !u.compacted {
		to = s.cfg.Feed.First()
	}
	if u.cursor != nil {
		u.mu.Lock()
		u.over = true // what its consumers acknowledge from now on is from before
		u.mu.Unlock()
		if err := u.cursor.Seek(ctx, to); err != nil {
			u.mu.Lock()
			u.over = false
			u.mu.Unlock()
			return err
		}
		u.detach()
		u.close()
		told()
		return nil
	}
	u.mu.Lock()
	err := u.reset(ctx, to)
	u.sought = err == nil
	u.mu.Unlock()
	if err != nil {
		return err
	}
	u.detach()
	told()
	s.running.Go(func() { u.expire() })
	return nil
}

// abandoned reports whether it only waits for a reader that is not durable.
func (u *subscription) abandoned() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.cursor == nil && len(u.consumers) == 0
}

// expire closes a subscription whose reader does not come back after its seek.
func (u *subscription) expire() {
	select {
	case <-time.After(soughtFor):
	case <-u.ended:
		return
	}
	turn := u.s.turn(u.key)
	turn.Lock()
	defer turn.Unlock()
	u.mu.Lock()
	waits := u.sought && len(u.consumers) == 0
	u.mu.Unlock()
	if waits {
		u.close()
	}
}
