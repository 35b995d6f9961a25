package etcd

import (
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/expiry"
	"github.com/proxima-mesh/proxima/internal/store/group"
)

// attempt is one transaction of etcd for a group of requests. It compares the
// modification of every key that a condition or an operation names, so its
// verdicts and the positions of its changes hold if it succeeds.
type attempt struct {
	view     *view
	requests []*group.Request
	epochMod int64
	ownerMod int64 // 0: not exclusive
	now      time.Time
	id       commitID

	keys    map[string]entry // as assumed
	order   []string         // of keys
	changes []change
	written map[string]struct{}
	reading []string // keys of conflicts, read for their answers
	verdict []verdict
	bytes   int
}

// change is one operation that takes an index.
type change struct {
	op      store.Op
	created store.Revision // 0: by this change
	value   string         // with its envelope; empty for a deletion
}

// verdict of one request.
type verdict struct {
	conflict *store.Condition
	last     int // index of its last change; -1: it changes nothing
}

// plan builds a transaction from the first requests that fit. rest are those that
// touch a key that it writes, or exceed a limit of etcd. A request that is alone
// always fits.
func (s *Store) plan(requests []*group.Request) (a *attempt, rest []*group.Request) {
	s.commits++
	a = &attempt{
		view: s.view.Load(), epochMod: s.epochMod.Load(), ownerMod: s.claim.mod(), now: s.opts.Clock.Now(),
		id:   commitID{writer: s.writer, number: s.commits},
		keys: make(map[string]entry), written: make(map[string]struct{}),
	}
	for _, r := range requests {
		if !a.add(r, s.index) {
			rest = append(rest, r)
		}
	}
	return a, rest
}

// add takes a request into the transaction, if it fits.
func (a *attempt) add(r *group.Request, index *index) bool {
	var names []string
	bytes := 0
	for _, c := range r.Txn.Conditions {
		names = append(names, c.Key)
	}
	for _, op := range r.Txn.Ops {
		names = append(names, op.Key)
		bytes += len(op.Value)
	}
	more := 0
	for _, name := range names {
		if _, ok := a.written[name]; ok {
			return false
		}
		if _, ok := a.keys[name]; !ok {
			more++
		}
		bytes += 2*(len(a.view.data)+len(name)) + perKeyBytes
	}
	if len(a.requests) > 0 && (len(a.keys)+more > maxKeys || len(a.changes)+len(a.reading)+len(r.Txn.Ops)+1 > maxOps ||
		a.bytes+bytes > maxGroupBytes) {
		return false
	}
	for _, name := range names {
		if _, ok := a.keys[name]; !ok {
			a.keys[name] = index.get(name)
			a.order = append(a.order, name)
		}
	}
	a.bytes += bytes
	a.requests = append(a.requests, r)
	a.verdict = append(a.verdict, a.judge(r))
	return true
}

// perKeyBytes is more than comparison, operation and envelope add to a key.
const perKeyBytes = 96

// judge checks the conditions of a request and, if they hold, adds its changes.
func (a *attempt) judge(r *group.Request) verdict {
	for _, c := range r.Txn.Conditions {
		e := a.keys[c.Key]
		if holds := (e.mod == 0 && c.Modified == 0) || (e.mod != 0 && c.Modified == e.modified); !holds {
			if e.mod != 0 {
				a.reading = append(a.reading, c.Key)
			}
			return verdict{conflict: &c, last: -1}
		}
	}
	v := verdict{last: -1}
	for _, op := range r.Txn.Ops {
		e := a.keys[op.Key]
		if op.Kind == store.Delete && e.mod == 0 {
			continue // it would take no place among etcd's events
		}
		v.last = len(a.changes)
		a.written[op.Key] = struct{}{}
		c := change{op: op, created: e.created}
		if op.Kind == store.Put {
			c.value = envelope{
				index: v.last, created: e.created, expires: expiry.Deadline(a.now, op.TTL), commit: a.id,
			}.encode(op.Value)
		}
		a.changes = append(a.changes, c)
	}
	return v
}

func (a *attempt) compares() []clientv3.Cmp {
	all := make([]clientv3.Cmp, 0, len(a.order)+2)
	for _, name := range a.order {
		all = append(all, clientv3.Compare(clientv3.ModRevision(a.view.key(name)), "=", a.keys[name].mod))
	}
	all = append(all, clientv3.Compare(clientv3.ModRevision(a.view.prefix+epochKey), "=", a.epochMod))
	if a.ownerMod != 0 {
		all = append(all, clientv3.Compare(clientv3.ModRevision(a.view.prefix+ownerKey), "=", a.ownerMod))
	}
	return all
}

// operations has the reads for conflicts first: they answer with the state before
// the changes.
func (a *attempt) operations() []clientv3.Op {
	all := make([]clientv3.Op, 0, len(a.reading)+len(a.changes))
	for _, name := range a.reading {
		all = append(all, clientv3.OpGet(a.view.key(name)))
	}
	for _, c := range a.changes {
		if c.op.Kind == store.Delete {
			all = append(all, clientv3.OpDelete(a.view.key(c.op.Key)))
		} else {
			all = append(all, clientv3.OpPut(a.view.key(c.op.Key), c.value))
		}
	}
	return all
}

// reads is what the answer to a failed comparison brings: all of meta/, and the
// state of each key.
func (a *attempt) reads() []clientv3.Op {
	all := make([]clientv3.Op, 0, len(a.order)+1)
	all = append(all, clientv3.OpGet(a.view.prefix+metaFolder, clientv3.WithPrefix()))
	for _, name := range a.order {
		all = append(all, clientv3.OpGet(a.view.key(name)))
	}
	return all
}

// succeeded leaves the outcome of each request. at is etcd's revision: that of
// the changes, if there are any.
func (a *attempt) succeeded(s *Store, at int64, responses []*pb.ResponseOp) error {
	current := make(map[string]*store.Record, len(a.reading))
	for i, name := range a.reading {
		kvs := responses[i].GetResponseRange().GetKvs()
		if len(kvs) != 1 {
			continue
		}
		record, _, err := a.view.record(name, kvs[0])
		if err != nil {
			return err
		}
		current[name] = &record
	}
	for i, r := range a.requests {
		switch v := a.verdict[i]; {
		case v.conflict != nil:
			r.Err = &store.ConflictError{Condition: *v.conflict, Current: current[v.conflict.Key]}
		case v.last >= 0:
			r.Revision = a.view.revision(at, v.last)
		default:
			r.Revision = a.view.end(at)
		}
	}
	a.learn(s, at)
	return nil
}

// learn puts what the changes left into the index, ahead of the root watch.
func (a *attempt) learn(s *Store, at int64) {
	for i, c := range a.changes {
		e := entry{known: at}
		if c.op.Kind == store.Put {
			e.mod, e.modified, e.created = at, a.view.revision(at, i), c.created
			if e.created == 0 {
				e.created = e.modified
			}
		}
		s.index.learn(c.op.Key, e)
	}
}

// outdated puts what is true at etcd's revision at into the index.
func (a *attempt) outdated(s *Store, at int64, responses []*pb.ResponseOp) error {
	m, err := decodeMeta(a.view.prefix, responses[0].GetResponseRange().GetKvs())
	if err == nil {
		err = s.acceptMeta(m)
	}
	if err == nil && a.ownerMod != 0 && m.ownerMod != a.ownerMod {
		err = s.claim.lost(m)
	}
	if err != nil {
		return err
	}
	for i, name := range a.order {
		e := entry{known: at}
		if kvs := responses[i+1].GetResponseRange().GetKvs(); len(kvs) == 1 {
			e = a.view.entry(name, kvs[0], at)
		}
		s.index.learn(name, e)
	}
	return nil
}

// entry of a key as it was read at etcd's revision at. A value that cannot be
// read may still be replaced or deleted.
func (v *view) entry(name string, kv *mvccpb.KeyValue, at int64) entry {
	record, _, err := v.record(name, kv)
	if err != nil {
		record.Modified = v.end(kv.ModRevision) // no condition has that
		record.Created = record.Modified
	}
	return entry{mod: kv.ModRevision, created: record.Created, modified: record.Modified, known: at}
}
