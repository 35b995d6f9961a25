package access

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func leaseOf(holder string, renewed time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: LeaseNamespace, Name: "n1"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: renewed},
		},
	}
}

// The clock of the machine that holds the name is a day behind all the time. It is
// never used.
func TestHolders(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	past := start.Add(-24 * time.Hour)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	type write struct {
		at       int // seconds
		from, to string
		renewed  time.Time // of the state before
		refused  bool
	}
	for name, writes := range map[string][]write{
		"renewal": {{at: 0, from: "n1/a", to: "n1/a", renewed: past}, {at: 10, from: "n1/a", to: "n1/a", renewed: past}},
		"a second machine": {{at: 0, from: "n1/a", to: "n1/a", renewed: past},
			{at: 5, from: "n1/a", to: "n1/b", renewed: past, refused: true}},
		"unknown lease is fresh": {{at: 0, from: "n1/a", to: "n1/b", renewed: past, refused: true},
			{at: 39, from: "n1/a", to: "n1/b", renewed: past, refused: true}},
		"ran out": {{at: 0, from: "n1/a", to: "n1/b", renewed: past, refused: true},
			{at: 40, from: "n1/a", to: "n1/b", renewed: past}},
		"renewed meanwhile elsewhere": {{at: 0, from: "n1/a", to: "n1/b", renewed: past, refused: true},
			{at: 40, from: "n1/a", to: "n1/b", renewed: past.Add(time.Second), refused: true}},
		"released":          {{at: 0, from: "", to: "n1/b", renewed: past}},
		"of an older agent": {{at: 0, from: "n1", to: "n1/b", renewed: past}},
		"the loser comes back": {{at: 0, from: "n1/a", to: "n1/b", renewed: past, refused: true},
			{at: 40, from: "n1/a", to: "n1/b", renewed: past}, {at: 41, from: "n1/b", to: "n1/a", renewed: past, refused: true}},
		"release of one's own": {{at: 0, from: "n1/a", to: "", renewed: past}},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewHolders()
			for i, w := range writes {
				next := leaseOf(w.to, past)
				err := h.judge(next, leaseOf(w.from, w.renewed), at(w.at))
				if (err != nil) != w.refused {
					t.Errorf("write %d: %v, want refused=%t", i, err, w.refused)
				}
				if w.refused && err != nil && !strings.Contains(err.Error(), "in use by machine "+MachineOf(w.from)) {
					t.Errorf("write %d: the reason names no machine: %v", i, err)
				}
			}
		})
	}
}

func TestHoldersLookAtLeasesOfNodesOnly(t *testing.T) {
	lease := schema.GroupKind{Group: coordinationGroup, Kind: "Lease"}
	h := NewHolders()
	election, next := leaseOf("n1/a", time.Now()), leaseOf("n1/b", time.Now())
	election.Namespace, next.Namespace = "default", "default"
	if err := h.AllowWrite(lease, next, election); err != nil {
		t.Errorf("the lease of another holder: %v", err)
	}
	if err := h.AllowWrite(lease, leaseOf("n1/b", time.Now()), leaseOf("n1/a", time.Now())); err == nil {
		t.Error("a second machine was let in")
	}
	if a := <-h.Attempts; a.Node != "n1" || a.Machine != "b" || a.Holder != "a" {
		t.Errorf("attempt %+v", a)
	}
	if err := h.AllowWrite(lease, nil, leaseOf("n1/a", time.Now())); err != nil {
		t.Errorf("a deletion: %v", err)
	}
	if err := h.AllowWrite(lease, leaseOf("n1/b", time.Now()), nil); err != nil {
		t.Errorf("after the deletion: %v", err)
	}
}
