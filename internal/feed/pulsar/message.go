package pulsar

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar/wire"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

// ledgerOf the history of a store: the same at all instances, and another after a restore. It is above 0, and far below what clients
// write for the latest message.
func ledgerOf(epoch string) uint64 {
	h := fnv.New32a()
	h.Write([]byte(epoch))
	return uint64(h.Sum32()&math.MaxInt32) + 1
}

// earliest reports whether an ID stands for the first message that there is, latest for the end.
func earliest(id *wire.MessageId) bool { return int64(id.GetEntry()) < 0 }
func latest(id *wire.MessageId) bool {
	return id.GetLedger() == math.MaxInt64 && id.GetEntry() == math.MaxInt64
}

func (s *Server) idOf(at seglog.Position) *wire.MessageId {
	return &wire.MessageId{Ledger: &s.ledger, Entry: ptr(uint64(at))}
}

// positionOf a message ID of this history.
func (s *Server) positionOf(id *wire.MessageId) (seglog.Position, error) {
	if id.GetLedger() != s.ledger || int64(id.GetEntry()) < 0 {
		return 0, refuse(wire.ServerError_METADATA_ERROR,
			"message ID %d:%d is of another history of the store, as before a restore: begin at the earliest or the latest message", id.GetLedger(), id.GetEntry())
	}
	return seglog.Position(id.GetEntry()), nil
}

// item is a change that a subscription is to deliver.
type item struct {
	// after and at: what is acknowledged with it.
	after, at seglog.Position
	key       string // in the store
	name      string // of the object
	// entry of the feed; nil: it is to be read.
	entry        *seglog.Entry
	redeliveries uint32
	// snapshot: it is not a change of the feed but the state of an object.
	snapshot bool
}

// load the entry of an item again; false: there is nothing to deliver, as a newer change follows.
func (s *Server) load(ctx context.Context, it *item) (bool, error) {
	if it.entry != nil {
		return true, nil
	}
	if !it.snapshot {
		if entries, err := s.cfg.Feed.Log.Read(it.at - 1).Poll(); err == nil && len(entries) > 0 && entries[0].Position == it.at {
			it.entry = entries[0]
			return true, nil
		}
	}
	rec, ok, _, err := s.cfg.Store.Get(ctx, it.key, 0)
	if err != nil || !ok || seglog.Position(rec.Modified) != it.at {
		return false, err
	}
	it.entry = &seglog.Entry{Position: it.at, Kind: seglog.Put, Key: rec.Key, Value: rec.Value, Created: seglog.Position(rec.Created)}
	return true, nil
}

// Message is a change of an object as readers get it, whoever serves them.
type Message struct {
	// Payload is the object as JSON; none: it was deleted.
	Payload []byte
	// Properties have values, and are in the order of their importance.
	Properties [][2]string
	// Time of the commit; zero: it is not known.
	Time time.Time
}

// MessageOf makes the message of an entry, of which kind and name are the object's. snapshot says that it is not a change of the feed but the state
// of the object. Values of Secrets are left out. Errors: the object cannot be decoded.
func MessageOf(ctx context.Context, objects Objects, e *seglog.Entry, kind *resource.Descriptor, name resource.Key, snapshot bool) (*Message, error) {
	value, operation := e.Value, "put"
	if e.Kind == seglog.Delete {
		value, operation = e.PrevValue, "delete"
	}
	var obj resource.Object
	if value != nil || e.Kind == seglog.Put {
		var err error
		if obj, err = objects.Decode(ctx, e.Key, value, store.Revision(e.Position)); err != nil {
			return nil, fmt.Errorf("the object at position %d cannot be read: %w", e.Position, err)
		}
	}
	m := &Message{Time: e.Time}
	property := func(name, value string) {
		if value != "" {
			m.Properties = append(m.Properties, [2]string{name, value})
		}
	}
	position := strconv.FormatInt(int64(e.Position), 10)
	property("position", position)
	property("kind", kind.GVK.Kind)
	property("namespace", name.Namespace)
	property("name", name.Name)
	property("operation", operation)
	property("resourceVersion", position)
	if obj != nil {
		property("uid", string(obj.GetUID()))
		if m.Time.IsZero() {
			m.Time = obj.GetCreationTimestamp().Time
		}
	}
	property("actor", e.Actor)
	if snapshot {
		property("snapshot", "true")
	}
	if e.Kind != seglog.Delete {
		var err error
		if m.Payload, err = encode(obj); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// frame of an item for a consumer.
func (s *Server) frame(ctx context.Context, t topic, it *item, consumer uint64) ([]byte, error) {
	e := it.entry
	m, err := MessageOf(ctx, s.cfg.Objects, e, t.kind, resource.Key{Namespace: t.namespace, Name: it.name}, it.snapshot)
	if err != nil {
		return nil, err
	}
	meta := &wire.Metadata{
		ProducerName: ptr("proxima"), SequenceId: ptr(uint64(e.Position)), PublishTime: ptr(millis(m.Time)), EventTime: ptr(millis(m.Time)), PartitionKey: &it.name,
	}
	for _, p := range m.Properties {
		meta.Properties = append(meta.Properties, &wire.KeyValue{Key: &p[0], Value: &p[1]})
	}
	if e.Kind == seglog.Delete {
		meta.NullValue = ptr(true)
	}
	cmd := &wire.Command{Type: ptr(int32(typeMessage)), Message: &wire.Message{Consumer: &consumer, Id: s.idOf(it.at)}}
	if it.redeliveries > 0 {
		cmd.Message.Redeliveries = &it.redeliveries
	}
	return messageFrame(cmd, meta, m.Payload)
}

func millis(t time.Time) uint64 { return uint64(max(0, t.UnixMilli())) }

// encode an object as JSON, as the API answers it but without managedFields. It takes the object over: secrets lose their values, also
// those that kubectl keeps in its annotation.
func encode(obj resource.Object) ([]byte, error) {
	obj.SetManagedFields(nil)
	switch o := obj.(type) {
	case *corev1.Secret:
		o.Data, o.StringData = nil, nil
		delete(o.Annotations, corev1.LastAppliedConfigAnnotation)
	case *meshv1alpha1.GlobalSecret:
		o.Data, o.StringData = nil, nil
		delete(o.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	return json.Marshal(obj)
}

func ptr[T any](v T) *T { return &v }
