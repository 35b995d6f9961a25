package authorities

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// TestIsolated: the status names workloads that cannot be told from those of another mesh.
func TestIsolated(t *testing.T) {
	w := &wanted{mesh: &v1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "retail"}}}
	if got := (&Leader{}).isolated(w); got != nil {
		t.Errorf("without workloads of its own: %+v", got)
	}
	var shared []string
	l := &Leader{config: LeaderConfig{Sharing: func(string) []string { return shared }}}
	if got := l.isolated(w); len(got) != 1 || got[0].Status != metav1.ConditionTrue {
		t.Errorf("apart: %+v", got)
	}
	shared = []string{"shop/web"}
	if got := l.isolated(w); len(got) != 1 || got[0].Status != metav1.ConditionFalse || !strings.Contains(got[0].Message, "shop/web") {
		t.Errorf("at one address: %+v", got)
	}
}
