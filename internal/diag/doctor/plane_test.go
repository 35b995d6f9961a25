package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/audit"
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
	if f := auditState(audit.States{"audit": {}}); f.Problem != "" || len(AuditProblems(nil)) != 0 {
		t.Errorf("a problem where there is none: %+v", f)
	}
}
