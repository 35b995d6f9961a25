package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/audit"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// maxClockSkew between this machine and the control plane: leases and certificates
// depend on both clocks.
const maxClockSkew = time.Minute

// server is about the way to the control plane, its answer and its clock.
func (x examiner) server(ctx context.Context) Finding {
	f := Finding{ID: checkControlPlane, Check: "control plane"}
	if x.ControlPlane == nil {
		f.failWith(x.ConfigErr, problem.KubeconfigInvalid, "check the kubeconfig")
		return f
	}
	f.Check += " " + x.ControlPlane.Host()
	before := time.Now()
	info, date, err := x.ControlPlane.Version(ctx)
	if err != nil && context.Cause(ctx) != nil {
		f.fail(problem.APITimeout, "it does not answer",
			"this machine's agent does not either: are they one process (\"proxima up\") that was stopped?")
		return f
	}
	if err != nil {
		f.failWith(err, problem.APIUnreachable, "see the control plane's log")
		return f
	}
	f.Note = info.GitVersion
	if skew := date.Sub(before); !date.IsZero() && (skew > maxClockSkew || skew < -maxClockSkew) {
		f.fail(problem.ClockSkew, fmt.Sprintf("its clock differs from this machine's by %s", skew.Round(time.Second)),
			"set both clocks, best by NTP: leases and certificates depend on them")
	}
	return f
}

// fixDamage is what to do about stored data that is damaged.
const fixDamage = "restore a backup (proxima restore). Agents go on with what they have"

// DamageProblems are the kinds of objects that cannot be read, as stored data is damaged.
func DamageProblems(s admin.StoreStatus) []string {
	var out []string
	for _, resource := range slices.Sorted(maps.Keys(s.Unreadable)) {
		out = append(out, fmt.Sprintf("%s cannot be read, and what depends on them waits: %s", resource, s.Unreadable[resource]))
	}
	return out
}

// planeState is about the store of a control plane, its audit logs, and machines
// that are gone, or may be; none for an API that is not Proxima's, or that does not
// let this user read its status.
func (x examiner) planeState(ctx context.Context) []Finding {
	status, err := x.ControlPlane.Status(ctx)
	if err != nil {
		return nil
	}
	if status.Preset != "" {
		return slices.Concat([]Finding{clusterState(status)}, x.proxies(ctx, status.Version.Version), sidecars(status.Proxies))
	}
	f := Finding{ID: checkStore, Check: "store of the control plane", Note: status.Store.Name + ", can be written"}
	if status.Store.Problem != "" {
		f.fail(problem.StoreUnwritable, status.Store.Problem, FixDisk+"; reads go on, and writes are refused until then")
	}
	if damage := DamageProblems(status.Store); len(damage) > 0 {
		f.fail(problem.StoreDamaged, strings.Join(damage, "; "), fixDamage)
	}
	out := []Finding{f, auditState(status.Audit)}
	if status.Feed != nil {
		out = append(out, feedState(status.Feed))
	}
	if status.Role != "global" { // which has no nodes
		out = append(out, x.machines(status, time.Now()))
	}
	if status.Federation != nil {
		out = append(out, zones(status.Federation))
	}
	if f, ok := registries(status); ok {
		out = append(out, f)
	}
	return append(out, x.proxies(ctx, status.Version.Version)...)
}

// clusterState is whether a control plane that only reads a cluster can.
func clusterState(status *admin.Status) Finding {
	f := Finding{ID: checkStore, Check: "cluster of the control plane", Note: fmt.Sprintf("read, %d services, %d nodes",
		status.Catalog.Objects["services"], status.Catalog.Objects["nodes"])}
	switch {
	case status.Store.Problem != "":
		f.fail(problem.StoreUnreachable, status.Store.Problem, "grant what it names, or check the way to that API; it goes on by itself")
	case !status.Catalog.Synced:
		f.Note = "is still being read"
	}
	return f
}

// AuditProblems are the audit logs that cannot be written, a sentence for each.
func AuditProblems(logs audit.States) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		log := logs[name]
		if log.Problem == "" {
			continue
		}
		since := ""
		if log.Since != nil {
			since = " for " + duration.HumanDuration(time.Since(*log.Since))
		}
		out = append(out, fmt.Sprintf("audit log %s.log cannot be written%s: %s: requests go on, %d records are lost: "+
			"is there free space in the data directory, and is it writable?", name, since, log.Problem, log.Lost))
	}
	return out
}

// FeedProblems are what is wrong with the change feed, a sentence for each.
func FeedProblems(f *admin.FeedStatus) []string {
	if f == nil {
		return nil
	}
	var out []string
	if f.Problem != "" {
		since := ""
		if f.Since != nil {
			since = " for " + duration.HumanDuration(time.Since(*f.Since))
		}
		out = append(out, fmt.Sprintf("the change feed is not written%s: %s: requests go on, and the store keeps its changes for the feed for an hour", since, f.Problem))
	}
	for _, r := range f.Roots {
		if r.Problem != "" {
			out = append(out, fmt.Sprintf("root %s of the change feed takes no segments: %s", r.Dir, r.Problem))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.UnfollowedKinds)) {
		out = append(out, fmt.Sprintf("%s of the cluster are not followed by the change feed now: %s", name, f.UnfollowedKinds[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(f.SinkProblems)) {
		out = append(out, fmt.Sprintf("sink %s of the change feed does not deliver, and is tried again: %s", name, f.SinkProblems[name]))
	}
	for _, problem := range f.RedactionProblems {
		out = append(out, "a redacted value may still be in the change feed: "+problem)
	}
	if f.Gap {
		out = append(out, fmt.Sprintf("the change feed has a gap before %s, position %d: changes before it are not shown",
			f.Begins.UTC().Format(time.RFC3339), f.First))
	}
	return out
}

// feedState is whether the change feed is written everywhere.
func feedState(status *admin.FeedStatus) Finding {
	f := Finding{
		ID: checkFeed, Check: "change feed of the control plane",
		Note: fmt.Sprintf("is written, and begins at %s", status.Begins.UTC().Format(time.RFC3339)),
	}
	if problems := FeedProblems(status); len(problems) > 0 {
		f.fail(problem.FeedUnwritable, strings.Join(problems, "; "), "free space on the disk, or give the feed another with --feed-root; what is past a gap is lost")
	}
	return f
}

// auditState is whether the control plane can write its audit logs.
func auditState(logs audit.States) Finding {
	f := Finding{ID: checkAudit, Check: "audit logs of the control plane", Note: "can be written"}
	if problems := AuditProblems(logs); len(problems) > 0 {
		f.fail(problem.AuditUnwritable, strings.Join(problems, "; "),
			FixDisk+"; the log then goes on by itself, and says what was lost")
	}
	return f
}
