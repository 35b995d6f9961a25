package garbage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func podOn(name, node string, phase corev1.PodPhase, age time.Duration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		Status:     corev1.PodStatus{Phase: phase},
	}
}

func podNames(t *testing.T, client *resourcetest.Client) []string {
	t.Helper()
	all, _, err := client.List(t.Context(), kind.Pod, resource.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range all {
		names = append(names, o.GetName())
	}
	slices.Sort(names)
	return names
}

func runPods(t *testing.T, client *resourcetest.Client, threshold int) (stop func()) {
	t.Helper()
	p := NewPods(PodsConfig{Client: client, PodKind: kind.Pod, NodeKind: kind.Node, TerminatedThreshold: threshold})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestPodsOfANodeThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.Pod, kind.Node)
		node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
		client.Seed(node("here"), node("gone"), podOn("stays", "here", corev1.PodRunning, 0),
			podOn("lost", "gone", corev1.PodRunning, 0), podOn("unscheduled", "", corev1.PodPending, 0))
		var failed *corev1.Pod
		client.Intercept(func(c resourcetest.Call) error {
			if c.Verb == resourcetest.UpdateStatus {
				failed = c.Object.DeepCopyObject().(*corev1.Pod)
			}
			if c.Verb == resourcetest.Delete && !c.Now {
				return errors.New("with a grace period, though no agent would end it")
			}
			return nil
		})
		stop := runPods(t, client, 0)
		defer stop()
		synctest.Wait()
		if err := client.Delete(t.Context(), kind.Node, resource.Key{Name: "gone"}, resource.Preconditions{Now: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(DefaultQuarantine - time.Second)
		synctest.Wait()
		if got := podNames(t, client); len(got) != 3 {
			t.Errorf("before the quarantine is over: %v", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := podNames(t, client); !slices.Equal(got, []string{"stays", "unscheduled"}) {
			t.Errorf("after it: %v", got)
		}
		if failed == nil || failed.Status.Phase != corev1.PodFailed || failed.Status.Conditions[0].Reason != "DeletionByPodGC" {
			t.Errorf("the condition does not say why: %+v", failed)
		}
	})
}

// TestANodeThatComesBack keeps its pods, also when its event is late.
func TestANodeThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.Pod, kind.Node)
		client.Seed(podOn("a", "flaky", corev1.PodRunning, 0))
		stop := runPods(t, client, 0)
		defer stop()
		time.Sleep(DefaultQuarantine - time.Second)
		client.Seed(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "flaky"}})
		time.Sleep(2 * DefaultQuarantine)
		synctest.Wait()
		if got := podNames(t, client); len(got) != 1 {
			t.Errorf("left: %v", got)
		}
	})
}

func TestEndedPodsAreKeptUpToAThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.Pod, kind.Node)
		for i := range 6 {
			client.Seed(podOn(fmt.Sprintf("done-%d", i), "", corev1.PodSucceeded, time.Duration(i)*time.Hour))
		}
		client.Seed(podOn("old-but-running", "", corev1.PodRunning, 1000*time.Hour))
		stop := runPods(t, client, 2)
		defer stop()
		synctest.Wait()
		if got := podNames(t, client); !slices.Equal(got, []string{"done-0", "done-1", "old-but-running"}) {
			t.Errorf("left: %v", got)
		}
	})
}

// TestFailedDeletionsComeAgain: an error puts a pod off, it does not lose it.
func TestFailedDeletionsComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.Pod, kind.Node)
		client.Seed(podOn("a", "", corev1.PodFailed, time.Hour), podOn("b", "", corev1.PodFailed, 0))
		failures := 3
		client.Intercept(func(c resourcetest.Call) error {
			if c.Verb == resourcetest.Delete && failures > 0 {
				failures--
				return errors.New("injected")
			}
			return nil
		})
		stop := runPods(t, client, 1)
		defer stop()
		time.Sleep(5 * podRetry)
		synctest.Wait()
		if got := podNames(t, client); !slices.Equal(got, []string{"b"}) {
			t.Errorf("left: %v", got)
		}
	})
}
