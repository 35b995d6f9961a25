package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
)

// TestGone is what status and doctor say of machines that are gone.
func TestGone(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	suspect := &admin.Status{Suspects: []admin.SuspectNode{{Node: "b-1", Zone: "zone-b", Since: now.Add(-7 * time.Second), Witnesses: []string{"b-2", "a-1"}}}}
	held := &admin.Status{}
	held.Leases.Held, held.Leases.Reason = true, "4 of 12 leases ran out together"
	held.Leases.Expiries = []admin.HeldExpiry{
		{Object: "node b-1", Zone: "zone-b", Reason: "no agent of another machine has been able to probe it", Until: now.Add(30 * time.Second)},
		{Object: "dataplane shop/web", Reason: "service shop/web has no other endpoint"},
	}
	unreachable := &admin.Status{Unreachable: []string{"a-1", "c-1"}}
	for _, tc := range []struct {
		name   string
		status *admin.Status
		want   []string
		fix    string
	}{
		{"nothing", &admin.Status{}, nil, ""},
		{"suspect", suspect, []string{
			"node b-1 has been suspect for 7s: its stream stalled and it does not answer b-2, a-1; its endpoints are used last until it comes back or its lease runs out",
		}, "switch the machine on"},
		{"held", held, []string{
			"leases: 4 of 12 leases ran out together",
			"node b-1 in zone zone-b has not renewed its lease and is not marked not ready for 30s at most: no agent of another machine has been able to probe it",
			"dataplane shop/web has not renewed its lease and is not marked not ready until it renews its lease: service shop/web has no other endpoint",
		}, "switch the machine on"},
		{"unreachable", unreachable, []string{
			"probes of other agents do not reach node a-1, c-1: should a machine of these die, that is noticed by its lease only",
		}, "open UDP port 10256"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := examiner{Config{ProbePort: 10256}}.machines(tc.status, now)
			if (f.Problem == "") != (tc.want == nil) || !strings.HasPrefix(f.Fix, tc.fix) || f.Problem != strings.Join(tc.want, "; ") {
				t.Errorf("doctor finds %+v", f)
			}
		})
	}
}
