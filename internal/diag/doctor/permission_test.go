package doctor

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/permit"
)

func TestNodePermissions(t *testing.T) {
	refusing := []permit.Refusing{{Address: netip.MustParseAddrPort("10.1.0.2:80"), Protocol: proxy.TCP, Refused: 5}}
	for name, tc := range map[string]struct {
		status *permit.Status
		code   problem.Code
		text   string
	}{
		"an older agent":   {nil, "", "reports none"},
		"nothing to guard": {&permit.Status{Unable: "in mode userspace"}, "", "the node cannot: in mode userspace"},
		"enforced": {&permit.Status{Ports: 2, Admitted: 40, Refused: 7, Refusing: refusing}, "",
			"2 ports are guarded; since the agent started they have refused 7 connections, and admitted 40; most were refused at 10.1.0.2:80, 5"},
		"unable": {&permit.Status{Ports: 2, Unable: "in mode userspace"}, problem.PermissionsFail, "not enforced for 2 ports"},
		"failed": {&permit.Status{Ports: 2, Problem: "write table: no buffer space"}, problem.PermissionsFail, "no buffer space"},
	} {
		got := permitted(tc.status)
		if got.Code != tc.code || !strings.Contains(got.Note+got.Problem, tc.text) || (got.Fix == "") != (tc.code == "") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
