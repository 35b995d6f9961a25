package doctor

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/identity"
)

// ownAddress is one of an interface of this machine, as the host of a URL.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
			return net.JoinHostPort(p.Addr().String(), "6443")
		}
	}
	return "127.0.0.1:6443" // a machine without a network
}

// A credential that registers everywhere is a note, on machines that do not run
// the control plane.
func TestEverywhereIsNoted(t *testing.T) {
	const check = "bounds of the credential"
	for name, tc := range map[string]struct {
		api        string
		everywhere bool
		noted      bool
	}{
		"elsewhere":                {"https://192.0.2.1:6443", true, true},
		"elsewhere, bounded":       {"https://192.0.2.1:6443", false, false},
		"elsewhere, IPv6":          {"https://[2001:db8::1]:6443", true, true},
		"loopback":                 {"https://127.0.0.1:6443", true, false},
		"loopback, IPv6":           {"https://[::1]:6443", true, false},
		"an interface's address":   {"https://" + ownAddress(t), true, false},
		"not an address of a host": {"https://", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			agent := &admin.NodeStatus{API: tc.api, Certificate: &identity.CertificateStatus{
				User: "system:node:n1", NotAfter: time.Now().Add(time.Hour), Everywhere: tc.everywhere,
			}}
			agent.Agent.Node.Name = "n1"
			findings := credentials(t.Context(), agent)
			i := slices.IndexFunc(findings, func(f Finding) bool { return f.Check == check })
			if (i >= 0) != tc.noted {
				t.Fatalf("findings are %+v, want %q: %t", findings, check, tc.noted)
			}
			if i >= 0 && (findings[i].Problem != "" || !strings.Contains(findings[i].Note, "--name n1 --namespaces")) {
				t.Errorf("it says %+v", findings[i])
			}
		})
	}
}
