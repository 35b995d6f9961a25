package pulsar

import (
	"context"
	"hash/maphash"
	"slices"
	"sort"

	"github.com/proxima-mesh/proxima/internal/feed/pulsar/wire"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/resource"
)

func nameIn(namespace string) resource.Key { return resource.Key{Namespace: namespace} }

// maxPermits bounds what a client may have asked for.
const maxPermits = 1 << 20

// join adds a consumer, and answers it.
func (u *subscription) join(q *wire.Subscribe, m *consumer) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n := len(u.consumers); n > 0 {
		switch {
		case q.GetType() != u.sharing:
			return refuse(wire.ServerError_CONSUMER_BUSY, "the subscription has consumers of type %s", u.sharing)
		case q.GetDurable() != (u.cursor != nil):
			return refuse(wire.ServerError_CONSUMER_BUSY, "the subscription has consumers that are durable, or not, other than this one")
		case u.sharing == wire.Subscribe_EXCLUSIVE:
			return refuse(wire.ServerError_CONSUMER_BUSY, "the subscription is exclusive, and has a consumer")
		case q.GetReadCompacted() != u.compacted:
			return refuse(wire.ServerError_CONSUMER_BUSY, "the subscription has consumers that read compacted, or not, other than this one")
		}
	}
	u.sharing, u.sought = q.GetType(), false
	active := u.active()
	i := len(u.consumers)
	if u.sharing == wire.Subscribe_FAILOVER { // the first is active: the lowest number is the highest priority
		i = sort.Search(i, func(i int) bool { return u.consumers[i].priority > m.priority })
	}
	u.consumers = slices.Insert(u.consumers, i, m)
	m.conn.mu.Lock()
	m.conn.consumers[m.id] = m
	m.conn.mu.Unlock()
	m.joined()
	if u.sharing == wire.Subscribe_FAILOVER {
		if i == 0 {
			if active != nil {
				u.requeue(u.takeFrom(active))
			}
			u.activate()
		} else {
			m.tellActive(false)
		}
	}
	u.signal()
	return nil
}

// active is the consumer that has all messages.
func (u *subscription) active() *consumer {
	if len(u.consumers) == 0 {
		return nil
	}
	return u.consumers[0]
}

// activate tells the consumers of a failover subscription which of them is active.
func (u *subscription) activate() {
	for i, m := range u.consumers {
		m.tellActive(i == 0)
	}
}

func (m *consumer) tellActive(is bool) {
	m.conn.tell(&wire.Command{Type: ptr(int32(typeActiveConsumerChange)), ActiveConsumerChange: &wire.ActiveConsumerChange{Consumer: &m.id, Active: &is}})
}

func (m *consumer) available() bool {
	return m.permits > 0 && m.unacked < maxUnacked && m.conn.room()
}

// dispatch gives items of the queue to consumers, as far as they take them.
func (u *subscription) dispatch(ctx context.Context) error {
	blocked := map[string]bool{} // keys whose order would break
	kept := u.queue[:0]
	for i, it := range u.queue {
		m := u.pick(it, blocked)
		if m == nil {
			if u.sharing == wire.Subscribe_KEY_SHARED {
				kept = append(kept, it)
				continue
			}
			kept = append(kept, u.queue[i:]...)
			break
		}
		if err := u.deliver(ctx, it, m); err != nil {
			u.queue = append(kept, u.queue[i:]...)
			return err
		}
	}
	clear(u.queue[len(kept):])
	u.queue = kept
	return nil
}

// pick the consumer of an item; nil: none takes it now.
func (u *subscription) pick(it *item, blocked map[string]bool) *consumer {
	if len(u.consumers) == 0 {
		return nil
	}
	switch u.sharing {
	case wire.Subscribe_SHARED:
		for range u.consumers {
			u.next = (u.next + 1) % len(u.consumers)
			if m := u.consumers[u.next]; m.available() {
				return m
			}
		}
		return nil
	case wire.Subscribe_KEY_SHARED:
		m := u.ownerOf(it.name)
		if blocked[it.name] || !m.available() {
			blocked[it.name] = true
			return nil
		}
		return m
	default:
		if m := u.active(); m.available() {
			return m
		}
		return nil
	}
}

// ownerOf a key: who has messages of it, else the one that rendezvous hashing yields, so that few keys move when consumers come and go.
func (u *subscription) ownerOf(key string) *consumer {
	if o := u.owners[key]; o != nil {
		return o.to
	}
	var best *consumer
	var most uint64
	for _, m := range u.consumers {
		var h maphash.Hash
		h.SetSeed(u.s.seed)
		h.WriteString(m.name)
		h.WriteByte(0)
		h.WriteString(key)
		if sum := h.Sum64(); best == nil || sum > most {
			best, most = m, sum
		}
	}
	return best
}

// deliver an item, or leave out what there is nothing to deliver of. Errors: those of the store.
func (u *subscription) deliver(ctx context.Context, it *item, m *consumer) error {
	there, err := u.s.load(ctx, it)
	if err != nil {
		return err
	}
	var frame []byte
	if there {
		if frame, err = u.s.frame(ctx, u.topic, it, m.id); err != nil {
			u.s.log.Warn("a change is left out", "subscription", u.key, "error", err)
		}
	}
	it.entry = nil // it is read again if it must be
	if frame == nil {
		u.settle(it)
		return nil
	}
	m.permits--
	m.unacked++
	u.pending[it.at] = &delivered{it, m}
	if u.sharing == wire.Subscribe_KEY_SHARED {
		o := u.owners[it.name]
		if o == nil {
			o = &owner{to: m}
			u.owners[it.name] = o
		}
		o.count++
	}
	m.conn.push(frame)
	u.s.meters.delivered.Inc()
	return nil
}

// settle an item: it is acknowledged.
func (u *subscription) settle(it *item) {
	if u.cursor != nil {
		_ = u.cursor.Ack(it.after, it.at) // if it is lost, the consumers are disconnected
	}
}

// take an item from the consumer that has it.
func (u *subscription) take(d *delivered) *item {
	delete(u.pending, d.at)
	d.to.unacked--
	if o := u.owners[d.name]; o != nil {
		if o.count--; o.count == 0 {
			delete(u.owners, d.name)
		}
	}
	return d.item
}

// takeFrom a consumer all that it did not acknowledge.
func (u *subscription) takeFrom(m *consumer) []*item {
	var out []*item
	for _, d := range u.pending {
		if d.to == m {
			out = append(out, u.take(d))
		}
	}
	return out
}

// flow lets a consumer have more messages.
func (u *subscription) flow(m *consumer, permits uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	m.permits = min(m.permits+int64(permits), maxPermits)
	if !m.flowed && u.sharing == wire.Subscribe_FAILOVER {
		m.tellActive(m == u.active()) // pulsar-client-go loses what comes right after the answer to SUBSCRIBE
	}
	m.flowed = true
	u.signal()
}

// ack acknowledges messages, by each of their IDs or up to the last of them.
func (u *subscription) ack(q *wire.Ack) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	defer u.signal()
	if u.over {
		return nil
	}
	var ids []seglog.Position
	for _, id := range q.GetIds() {
		at, err := u.s.positionOf(id)
		if err != nil {
			return err
		}
		ids = append(ids, min(at, u.read))
	}
	if len(ids) == 0 {
		return nil
	}
	if q.GetType() != 0 {
		if u.sharing == wire.Subscribe_SHARED || u.sharing == wire.Subscribe_KEY_SHARED {
			return refuse(wire.ServerError_NOT_ALLOWED_ERROR, "consumers that share messages acknowledge each of them")
		}
		return u.ackThrough(slices.Max(ids))
	}
	for _, at := range ids {
		if d := u.pending[at]; d != nil {
			u.settle(u.take(d))
			u.s.meters.acknowledged.Inc()
			continue
		}
		i := sort.Search(len(u.queue), func(i int) bool { return u.queue[i].at >= at })
		switch {
		case i < len(u.queue) && u.queue[i].at == at: // it was to be delivered again
			u.settle(u.queue[i])
			u.queue = slices.Delete(u.queue, i, i+1)
		case u.cursor != nil: // it was delivered before a restart
			if err := u.cursor.Ack(at-1, at); err != nil {
				return err
			}
		}
	}
	if u.cursor != nil {
		return u.cursor.Err()
	}
	return nil
}

func (u *subscription) ackThrough(at seglog.Position) error {
	for _, d := range u.pending {
		if d.at <= at {
			u.take(d)
			u.s.meters.acknowledged.Inc()
		}
	}
	u.queue = slices.DeleteFunc(u.queue, func(it *item) bool { return it.at <= at })
	if u.cursor != nil {
		return u.cursor.AckThrough(at)
	}
	return nil
}

// redeliver messages of a consumer that shares them; all of a consumer that has them alone, or that names none. As in Pulsar, deliveries
// are counted where messages are shared, and only those that a consumer has asked to repeat.
func (u *subscription) redeliver(m *consumer, ids []*wire.MessageId) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sharing == wire.Subscribe_EXCLUSIVE || u.sharing == wire.Subscribe_FAILOVER {
		u.requeue(u.takeFrom(m))
		return
	}
	var again []*item
	if len(ids) == 0 {
		again = u.takeFrom(m)
	}
	for _, id := range ids {
		if at, err := u.s.positionOf(id); err == nil {
			if d := u.pending[at]; d != nil && d.to == m {
				again = append(again, u.take(d))
			}
		}
	}
	for _, it := range again {
		it.redeliveries++
	}
	u.requeue(again)
}
