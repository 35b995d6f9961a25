package etcd

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNumbering(t *testing.T) {
	for _, n := range []numbering{{}, {base: 1 << 40}} {
		for _, c := range []struct {
			etcd  int64
			index int
		}{{1, 0}, {7, 3}, {7, 127}, {7, lastIndex}, {1 << 40, 5}} {
			r := n.revision(c.etcd, c.index)
			if etcd, index := n.split(r); etcd != c.etcd || index != c.index {
				t.Errorf("base %d: %d.%d became %d.%d", n.base, c.etcd, c.index, etcd, index)
			}
			if next := n.revision(c.etcd+1, 0); r >= next || n.end(c.etcd) != next-1 || r > n.end(c.etcd) {
				t.Errorf("base %d: %d does not lie before %d", n.base, r, next)
			}
		}
	}
	if etcd, _ := (numbering{base: 1 << 40}).split(99); etcd >= 0 {
		t.Errorf("a revision from before the base is etcd's %d", etcd)
	}
}

func event(kind mvccpb.Event_EventType, key string, created, modified int64, value, before string) *mvccpb.Event {
	e := &mvccpb.Event{Type: kind, Kv: &mvccpb.KeyValue{
		Key: []byte(key), CreateRevision: created, ModRevision: modified, Value: []byte(value),
	}}
	if before != "" {
		e.PrevKv = &mvccpb.KeyValue{Key: []byte(key), CreateRevision: created, ModRevision: modified - 1, Value: []byte(before)}
	}
	return e
}

// TestDecodeTransaction: the position in the transaction counts, that of keys of
// others too.
func TestDecodeTransaction(t *testing.T) {
	v := &view{layout: newLayout("/p/", 0)}
	created := v.revision(3, 0)
	before := envelope{index: 4, created: created}.encode([]byte("old"))
	events, err := v.decode(transaction{mod: 9, events: []*mvccpb.Event{
		event(mvccpb.Event_PUT, "/p/meta/x", 9, 9, "y", ""),
		event(mvccpb.Event_PUT, "/p/data/0/a", 9, 9, envelope{index: 1}.encode([]byte("new")), ""),
		event(mvccpb.Event_DELETE, "/p/data/0/b", 0, 9, "", before),
		event(mvccpb.Event_PUT, "/p/data/0/c", 3, 9, envelope{index: 3, created: created}.encode([]byte("new")), before),
	}}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	r := func(i int) store.Revision { return v.revision(9, i) }
	old := v.revision(8, 4)
	want := []store.Event{
		{Kind: store.Put, Record: store.Record{Key: "a", Value: []byte("new"), Created: r(1), Modified: r(1)}},
		{
			Kind: store.Delete, Record: store.Record{Key: "b", Created: created, Modified: r(2)},
			Prev: &store.Record{Key: "b", Value: []byte("old"), Created: created, Modified: old},
		},
		{
			Kind: store.Put, Record: store.Record{Key: "c", Value: []byte("new"), Created: created, Modified: r(3)},
			Prev: &store.Record{Key: "c", Value: []byte("old"), Created: created, Modified: old},
		},
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestEventWithoutPast: an event whose state before is compacted ends its
// watcher, as one whose history is gone.
func TestEventWithoutPast(t *testing.T) {
	v := &view{layout: newLayout("/p/", 0)}
	for name, e := range map[string]*mvccpb.Event{
		"put":    event(mvccpb.Event_PUT, "/p/data/0/a", 3, 9, envelope{}.encode(nil), ""),
		"delete": event(mvccpb.Event_DELETE, "/p/data/0/a", 0, 9, "", ""),
	} {
		_, err := v.decode(transaction{mod: 9, events: []*mvccpb.Event{e}}, func(err error) { t.Error(err) })
		if !errors.Is(err, store.ErrCompacted) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDamagedChange: what this package did not write, or not at this position, is
// reported and left out.
func TestDamagedChange(t *testing.T) {
	v := &view{layout: newLayout("/p/", 0)}
	var reported []error
	events, err := v.decode(transaction{mod: 9, events: []*mvccpb.Event{
		event(mvccpb.Event_PUT, "/p/data/0/a", 9, 9, "by hand", ""),
		event(mvccpb.Event_PUT, "/p/data/0/b", 9, 9, envelope{index: 0}.encode(nil), ""),
		event(mvccpb.Event_PUT, "/p/data/0/c", 9, 9, envelope{index: 2}.encode(nil), ""),
	}}, func(err error) { reported = append(reported, err) })
	if err != nil || len(events) != 1 || events[0].Record.Key != "c" {
		t.Errorf("%+v, %v", events, err)
	}
	for _, err := range reported {
		var damaged *DamagedError
		if !errors.As(err, &damaged) {
			t.Errorf("reported: %v", err)
		}
	}
	if len(reported) != 2 {
		t.Errorf("%d changes are reported, want 2", len(reported))
	}
}

func TestEnvelope(t *testing.T) {
	for _, want := range []envelope{
		{},
		{index: 127, created: 1 << 50, expires: time.Unix(1, 2).UTC(), commit: commitID{writer: 1 << 63, number: 77}},
		{created: 5, modified: 1 << 52},
		{expires: time.Unix(-5, 0).UTC()},
	} {
		got, value, err := decodeEnvelope([]byte(want.encode([]byte("value"))))
		if err != nil || string(value) != "value" || got != want {
			t.Errorf("%+v became %+v, %q, %v", want, got, value, err)
		}
	}
	for _, bad := range []string{"", "x", "\x01", "\x02\x00\x00\x00\x00", "\x01\x00\x00\x00\x00short", "{\"kind\":1}"} {
		if _, _, err := decodeEnvelope([]byte(bad)); err == nil {
			t.Errorf("%q is taken for an envelope", bad)
		}
	}
}

// FuzzEnvelope: what is decoded is encoded to the same bytes, or refused.
func FuzzEnvelope(f *testing.F) {
	f.Add([]byte(envelope{index: 3, created: 9, commit: commitID{5, 6}}.encode([]byte("v"))))
	f.Add([]byte("\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, value, err := decodeEnvelope(data)
		if err != nil {
			return
		}
		again, same, err := decodeEnvelope([]byte(e.encode(value)))
		if err != nil || again != e || string(same) != string(value) {
			t.Errorf("%q: %+v became %+v, %v", data, e, again, err)
		}
	})
}

func FuzzMeta(f *testing.F) {
	f.Add("epoch", []byte("0123456789abcdef"), []byte(`{"format":1}`), []byte("77"))
	f.Fuzz(func(t *testing.T, epoch string, _, stateValue, compacted []byte) {
		kv := func(key string, value []byte) *mvccpb.KeyValue {
			return &mvccpb.KeyValue{Key: []byte("/p/" + key), Value: value, ModRevision: 2}
		}
		m, err := decodeMeta("/p/", []*mvccpb.KeyValue{
			kv(epochKey, []byte(epoch)), kv(stateKey, stateValue), kv(compactKey, compacted), kv(ownerKey, compacted),
		})
		if err == nil && (len(m.epoch) < shortestEpoch || m.state.Base&lastIndex != 0 || m.compacted < 0) {
			t.Errorf("%+v is accepted", m)
		}
	})
}
