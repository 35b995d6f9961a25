package cluster

import (
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// TestCandidateWaits: by its own clock alone, and as long as the leader has asked for.
func TestCandidateWaits(t *testing.T) {
	begin := time.Now()
	at := func(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }
	c := candidate{self: Term{Leader: "me", Run: "mine"}, duration: 5 * time.Second}
	check := func(what string, now, want float64) {
		t.Helper()
		got := c.wait(at(now))
		if want < 0 && got < 0 {
			return
		}
		if got != time.Duration(want*float64(time.Second)) {
			t.Errorf("%s: waits %v, want %v s", what, got, want)
		}
	}
	check("nothing is known", 0, -1)
	c.observe(Term{}, 0, lease{}, 0, at(0))
	check("there was no leader", 0, 0)
	other := Term{Number: 3, Leader: "other", Run: "theirs", Began: at(1000)}
	held := lease{Term: 3, Seconds: 5}
	c.observe(other, 7, held, 8, at(1))
	check("it is seen for the first time", 1, 5)
	check("later", 4, 2)
	c.observe(other, 7, held, 8, at(4))
	check("nothing has changed", 4, 2)
	c.observe(other, 7, held, 9, at(5))
	check("it was renewed", 5, 5)
	c.observe(other, 7, held, 8, at(6))
	check("an old state", 6, 4)
	check("it has run out", 10, 0)
	check("long ago", 100, 0)
	c.observe(other, 7, lease{Term: 3, Seconds: 15}, 10, at(10))
	check("it asks for longer", 10, 15)
	c.observe(other, 7, lease{Term: 3, Seconds: 1e9}, 11, at(10))
	check("for ever", 10, 5)
	c.observe(other, 7, lease{Term: 3, Seconds: 5, Released: true}, 12, at(11))
	check("it was released", 11, 0)
	c.observe(Term{Number: 4, Leader: "other", Run: "third"}, 13, lease{Term: 3, Seconds: 5, Released: true}, 12, at(12))
	check("a new term, the record of the lease still to come", 12, 5)
	c.observe(Term{Number: 5, Leader: "me", Run: "mine"}, 14, lease{Term: 5, Seconds: 5}, 15, at(13))
	check("a term of our own that has ended", 13, 0)
	c.observe(Term{}, 0, lease{}, 0, at(14))
	check("somebody has deleted the records", 14, 0)
}

// TestTenure: a leader stops before others may take over, whatever the delays.
func TestTenure(t *testing.T) {
	begin := time.Now()
	ten := newTenure(Term{Number: 2}, 9, 5*time.Second, begin)
	if got := ten.until.Sub(begin); got != 4*time.Second {
		t.Errorf("it may lead for %v", got)
	}
	ten.renewed(begin.Add(3 * time.Second))
	if got := ten.until.Sub(begin); got != 7*time.Second {
		t.Errorf("renewed, it may lead until %v", got)
	}
	for what, txn := range map[string]store.Txn{"renew": ten.renew(), "release": ten.release()} {
		if len(txn.Conditions) != 1 || txn.Conditions[0] != (store.Condition{Key: termKey, Modified: 9}) ||
			len(txn.Ops) != 1 || txn.Ops[0].Key != leaseKey {
			t.Errorf("%s: %+v", what, txn)
		}
	}
}
