package znode

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/proxima-mesh/proxima/internal/store"
)

// MarkEnded remembers for a day that a session has expired, so that its client hears of it at each instance of the control plane, also
// where no Tree runs. It returns when that is durable. A session that has a record already, as its nodes are followed by a
// Tree, keeps it: Tree.End writes that.
func MarkEnded(ctx context.Context, st store.Store, owner string, id int64, proof string) error {
	value, _ := json.Marshal(&Session{Owner: owner, Proof: proof, Ended: true}) // texts and a bool
	_, err := st.Commit(ctx, store.Txn{
		Conditions: []store.Condition{{Key: sessionKey(id)}}, // absent
		Ops:        []store.Op{{Kind: store.Put, Key: sessionKey(id), Value: value, TTL: keepEnded}},
	})
	if errors.As(err, new(*store.ConflictError)) {
		return nil
	}
	return err
}

// HasEnded reports whether a session has expired at any instance of the control plane within the last day.
func HasEnded(ctx context.Context, st store.Store, id int64) (bool, error) {
	rec, ok, _, err := st.Get(ctx, sessionKey(id), 0)
	if err != nil || !ok {
		return false, err
	}
	_, s, err := decodeSession(rec.Key, rec.Value, rec.Modified)
	if err != nil {
		return false, err
	}
	return s.Ended, nil
}
