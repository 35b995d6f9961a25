package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/audit"
	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// TestAuditLogCannotBeWritten: the finding says which, since when, and what is lost.
func TestAuditLogCannotBeWritten(t *testing.T) {
	since := time.Now().Add(-5 * time.Minute)
	logs := audit.States{"audit": {Problem: "no space left on device", Since: &since, Lost: 7}, "refused": audit.Status{}}
	const want = "audit log audit.log cannot be written for 5m: no space left on device: requests go on, 7 records are lost"
	if f := auditState(logs); !strings.Contains(f.Problem, want) || f.Fix == "" || f.Code != problem.AuditUnwritable {
		t.Errorf("finding %+v, want %q", f, want)
	}
	if f := auditState(audit.States{"audit": {}}); f.Problem != "" {
		t.Errorf("a problem where there is none: %+v", f)
	}
}

// TestFeedProblems: the finding says what is wrong with the change feed, and where.
func TestFeedProblems(t *testing.T) {
	since := time.Now().Add(-5 * time.Minute)
	for name, tc := range map[string]struct {
		status admin.FeedStatus
		want   string
	}{
		"not written": {admin.FeedStatus{Status: feed.Status{Problem: "no space left on device", Since: &since}}, "the change feed is not written for 5m: no space left on device"},
		"a root":      {admin.FeedStatus{Status: feed.Status{Roots: []seglog.RootInfo{{Dir: "/a"}, {Dir: "/b", Problem: "read-only file system"}}}}, "root /b of the change feed takes no segments: read-only file system"},
		"a redaction": {admin.FeedStatus{RedactionProblems: []string{"/a/feed-1.seg.left: it is not sealed"}}, "a redacted value may still be in the change feed: /a/feed-1.seg.left: it is not sealed"},
		"a sink":      {admin.FeedStatus{SinkProblems: map[string]string{"cmdb": "it answers 503"}}, "sink cmdb of the change feed does not deliver, and is tried again: it answers 503"},
		"a gap":       {admin.FeedStatus{Gap: true, Status: feed.Status{First: 41}}, "the change feed has a gap before 0001-01-01T00:00:00Z, position 41"},
	} {
		if f := feedState(&tc.status); !strings.Contains(f.Problem, tc.want) || f.Fix == "" || f.Code != problem.FeedUnwritable {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if f := feedState(&admin.FeedStatus{}); f.Problem != "" {
		t.Errorf("%+v", f)
	}
}
