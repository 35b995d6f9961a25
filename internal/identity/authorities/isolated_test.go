package authorities

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// TestIsolated: the status names those for whom the mesh is not kept apart, and says nothing
// where there is nothing to keep apart.
func TestIsolated(t *testing.T) {
	open := &wanted{mesh: &v1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "retail"}}}
	closed := &wanted{mesh: open.mesh.DeepCopy()}
	closed.mesh.Spec.Networking = &v1alpha1.MeshNetworking{Outbound: &v1alpha1.MeshOutbound{Passthrough: new(false)}}
	if got := (&Leader{}).isolated(closed); got != nil {
		t.Errorf("without workloads of its own: %+v", got)
	}
	many := strings.Split(strings.Repeat("shop/web: a reason ", 12), " s")
	for _, tc := range []struct {
		name string
		mesh *wanted
		un   Unenforced
		want string // TYPE=STATUS, in order
		says string
	}{
		{"alone", open, Unenforced{}, "", ""},
		{"apart", open, Unenforced{Apart: true}, "IsolationEnforced=True", "virtual IPs"},
		{"at one address", open, Unenforced{Apart: true, Isolation: []string{"shop/web: a reason"}}, "IsolationEnforced=False", "not enforced for 1: shop/web: a reason"},
		{"closed", closed, Unenforced{}, "PassthroughEnforced=True", "nothing else"},
		{"closed, not everywhere", closed, Unenforced{Apart: true, Passthrough: many}, "IsolationEnforced=True PassthroughEnforced=False", "and others"},
	} {
		l := &Leader{config: LeaderConfig{Unenforced: func(m *v1alpha1.Mesh) Unenforced {
			if m != tc.mesh.mesh {
				t.Errorf("asked for %s", m.Name)
			}
			return tc.un
		}}}
		var got []string
		says := ""
		for _, c := range l.isolated(tc.mesh) {
			got = append(got, c.Type+"="+string(c.Status))
			says += c.Message
		}
		if strings.Join(got, " ") != tc.want || !strings.Contains(says, tc.says) {
			t.Errorf("%s: %v, %q", tc.name, got, says)
		}
	}
}
