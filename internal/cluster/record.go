package cluster

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Keys in the store.
const (
	// Prefix of all that instances tell each other by the store.
	Prefix = "/proxima/instances/"

	termKey  = leaderPrefix + "term"
	leaseKey = leaderPrefix + "lease"

	leaderPrefix = Prefix + "leader/"
	memberPrefix = Prefix + "member/"
	markKey      = Prefix + "mark"
)

// Term is one term of a leader.
type Term struct {
	// Number rises with each term; 0: there was none yet.
	Number uint64 `json:"number"`
	// Leader is the name of the instance.
	Leader string `json:"leader"`
	// Run identifies the process: an instance that starts again is another candidate.
	Run string `json:"run"`
	// Began is the time at the leader when the term began, for people.
	Began time.Time `json:"began"`
}

// lease is the record that the leader renews. Its value differs in each renewal, but what
// counts is that its revision does.
type lease struct {
	Term    uint64 `json:"term"`
	Renewal uint64 `json:"renewal"`
	// Seconds after which the leader may be replaced, if it has not renewed.
	Seconds float64 `json:"seconds"`
	// Released: the leader has stopped working.
	Released bool `json:"released,omitempty"`
}

// decode reads a record. A record that cannot be read is an error, not an absent one: it is
// that of a newer version, or of another program.
func decode(rec store.Record, into any) error {
	if err := json.Unmarshal(rec.Value, into); err != nil {
		return fmt.Errorf("key %s: %w", rec.Key, err)
	}
	return nil
}

// put makes a write of a record.
func put(key string, value any) store.Op {
	data, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", value, err)) // all records are plain data
	}
	return store.Op{Kind: store.Put, Key: key, Value: data}
}
