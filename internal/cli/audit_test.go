package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/audit"
)

// TestAuditLogCannotBeWritten: status and doctor say which, since when, and what is lost.
func TestAuditLogCannotBeWritten(t *testing.T) {
	since := time.Now().Add(-5 * time.Minute)
	logs := audit.States{"audit": {Problem: "no space left on device", Since: &since, Lost: 7}, "refused": audit.Status{}}
	o := overview{ControlPlane: &admin.Status{Audit: logs}}
	o.findProblems()
	const want = "audit log audit.log cannot be written for 5m: no space left on device: requests go on, 7 records are lost"
	if !strings.Contains(strings.Join(o.Problems, "\n"), want) {
		t.Errorf("problems %q, want %q", o.Problems, want)
	}
}
