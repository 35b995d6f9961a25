package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/problem"
)

func TestTunnel(t *testing.T) {
	failed := func(ago time.Duration) []admin.TunnelFailure {
		return []admin.TunnelFailure{{Service: "web", At: time.Now().Add(-ago), Count: 3, Reason: "no route", Error: "no ingress answers"}}
	}
	for name, tc := range map[string]struct {
		status *admin.TunnelStatus
		code   problem.Code
		text   string
	}{
		"off":             {nil, "", "off"},
		"nothing to do":   {&admin.TunnelStatus{}, "", "no other zone offers anything"},
		"well":            {&admin.TunnelStatus{Port: 10003}, "", "port 10003"},
		"failed long ago": {&admin.TunnelStatus{Port: 10003, Failures: failed(time.Hour)}, "", "port 10003"},
		"failed":          {&admin.TunnelStatus{Port: 10003, Failures: failed(time.Minute)}, problem.TunnelFails, "one of 3 to this service: no ingress answers"},
	} {
		got := tunnel(tc.status)
		if got.Code != tc.code || !strings.Contains(got.Note+got.Problem, tc.text) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
