package nodename

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// An attempt shows on the Node at once, repeated ones write nothing more, and the
// condition is cleared when they end, also after a restart.
func TestConflictOnTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.All()...)
		client.Seed(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
		attempts := make(chan Attempt)
		start := func() (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				done <- New(Config{Client: client, Attempts: attempts, Logger: slog.New(slog.DiscardHandler), Clock: clock.RealClock{}}).Run(ctx)
			}()
			return func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}
		get := func(name string) *corev1.Node {
			t.Helper()
			synctest.Wait()
			obj, err := client.Get(t.Context(), kind.Node, resource.Key{Name: name})
			if err != nil {
				t.Fatal(err)
			}
			return obj.(*corev1.Node)
		}
		stop := start()
		attempts <- Attempt{Node: "n1", Machine: "b", Holder: "a"}
		first := get("n1")
		if Of(first) == "" || Of(get("n2")) != "" {
			t.Errorf("conditions %+v", first.Status.Conditions)
		}
		for range 12 {
			time.Sleep(10 * time.Second)
			attempts <- Attempt{Node: "n1", Machine: "b", Holder: "a"}
		}
		if n := get("n1"); n.ResourceVersion != first.ResourceVersion {
			t.Error("repeated attempts write the same again")
		}
		stop()
		stop = start()
		defer func() { stop() }()
		time.Sleep(2 * Quiet)
		if n := get("n1"); Of(n) != "" || len(n.Status.Conditions) != 1 {
			t.Errorf("after the attempts: %+v", n.Status.Conditions)
		}
		attempts <- Attempt{Node: "gone", Machine: "b", Holder: "a"}
	})
}
