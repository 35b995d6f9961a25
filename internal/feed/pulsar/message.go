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

// frame of an item for a consumer.
func (s *Server) frame(ctx context.Context, t topic, it *item, consumer uint64) ([]byte, error) {
	e := it.entry
	value, operation := e.Value, "put"
	if e.Kind == seglog.Delete {
		value, operation = e.PrevValue, "delete"
	}
	var obj resource.Object
	if value != nil || e.Kind == seglog.Put {
		var err error
		if obj, err = s.cfg.Objects.Decode(ctx, e.Key, value, store.Revision(e.Position)); err != nil {
			return nil, fmt.Errorf("the object at position %d cannot be read: %w", e.Position, err)
		}
	}
	properties := [][2]string{
		{"position", strconv.FormatInt(int64(e.Position), 10)}, {"kind", t.kind.GVK.Kind}, {"namespace", t.namespace}, {"name", it.name},
		{"operation", operation}, {"resourceVersion", strconv.FormatInt(int64(e.Position), 10)},
	}
	at := e.Time
	if obj != nil {
		properties = append(properties, [2]string{"uid", string(obj.GetUID())})
		if at.IsZero() {
			at = obj.GetCreationTimestamp().Time
		}
	}
	properties = append(properties, [2]string{"actor", e.Actor})
	if it.snapshot {
		properties = append(properties, [2]string{"snapshot", "true"})
	}
	meta := &wire.Metadata{
		ProducerName: ptr("proxima"), SequenceId: ptr(uint64(e.Position)), PublishTime: ptr(millis(at)), EventTime: ptr(millis(at)), PartitionKey: &it.name,
	}
	for _, p := range properties {
		if p[1] != "" {
			meta.Properties = append(meta.Properties, &wire.KeyValue{Key: &p[0], Value: &p[1]})
		}
	}
	var payload []byte
	if e.Kind == seglog.Delete {
		meta.NullValue = ptr(true)
	} else {
		var err error
		if payload, err = encode(obj); err != nil {
			return nil, err
		}
	}
	cmd := &wire.Command{Type: ptr(int32(typeMessage)), Message: &wire.Message{Consumer: &consumer, Id: s.idOf(it.at)}}
	if it.redeliveries > 0 {
		cmd.Message.Redeliveries = &it.redeliveries
	}
	return messageFrame(cmd, meta, payload)
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
