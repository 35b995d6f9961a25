package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/audit"
	"github.com/proxima-mesh/proxima/internal/diag/finding"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/tracing"
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

// planeState is about the store of a control plane, its audit logs, and machines
// that are gone, or may be; none for an API that is not Proxima's, or that does not
// let this user read its status.
func (x examiner) planeState(ctx context.Context) []Finding {
	status, err := x.ControlPlane.Status(ctx)
	if err != nil {
		return nil
	}
	if status.Preset != "" {
		return slices.Concat([]Finding{clusterState(status)}, traces(checkTraces, "traces of the control plane", status.Traces), x.proxies(ctx, status.Version.Version), sidecars(status.Proxies))
	}
	f := Finding{ID: checkStore, Check: "store of the control plane", Note: status.Store.Name + ", can be written"}
	if status.Store.Problem != "" {
		f.fail(problem.StoreUnwritable, status.Store.Problem, finding.FixDisk+"; reads go on, and writes are refused until then")
	}
	if damage := finding.Damage(status.Store); len(damage) > 0 {
		f.fail(problem.StoreDamaged, textOf(damage), damage[0].Fix)
	}
	out := []Finding{f, auditState(status.Audit)}
	out = append(out, traces(checkTraces, "traces of the control plane", status.Traces)...)
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

// traces is whether traces of changes can be sent; none where they are off.
func traces(id, check string, status *tracing.Status) []Finding {
	if status == nil {
		return nil
	}
	f := Finding{ID: id, Check: check, Note: fmt.Sprintf("%d spans sent to %s, %d lost", status.Sent, status.Endpoint, status.Dropped)}
	if problems := finding.Traces(status); len(problems) > 0 {
		f.fail(problem.TracesLost, textOf(problems), tracing.Hint)
	}
	return []Finding{f}
}

// feedState is whether the change feed is written everywhere.
func feedState(status *admin.FeedStatus) Finding {
	f := Finding{
		ID: checkFeed, Check: "change feed of the control plane",
		Note: fmt.Sprintf("is written, and begins at %s", status.Begins.UTC().Format(time.RFC3339)),
	}
	if problems := finding.Feed(status, time.Now()); len(problems) > 0 {
		f.fail(problem.FeedUnwritable, textOf(problems), "free space on the disk, or give the feed another with --feed-root; what is past a gap is lost")
	}
	return f
}

// auditState is whether the control plane can write its audit logs.
func auditState(logs audit.States) Finding {
	f := Finding{ID: checkAudit, Check: "audit logs of the control plane", Note: "can be written"}
	if problems := finding.Audit(logs, time.Now()); len(problems) > 0 {
		f.fail(problem.AuditUnwritable, textOf(problems),
			finding.FixDisk+"; the log then goes on by itself, and says what was lost")
	}
	return f
}
