package apiserver_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// Whatever deletes a Node leaves the record in the same transaction, and a mark for
// deletion alone leaves none.
func TestNodeDeletionIsRecorded(t *testing.T) {
	const prefix = "/proxima/test/deleted/"
	st := memory.New(memory.Options{})
	t.Cleanup(func() { st.Close() })
	s, err := start(st, func(c *apiserver.Config) {
		c.NodeDeletion = func(n *corev1.Node, who user.Info) (string, []byte, error) {
			by := ""
			if who != nil {
				by = who.GetName()
			}
			return prefix + n.Name, []byte(by), nil
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	nodes := s.clientset(t, "application/json").CoreV1().Nodes()
	inProcess := s.Client("test")
	make := func(name string, finalizers ...string) {
		t.Helper()
		if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Finalizers: finalizers, Labels: map[string]string{"set": name[:1]},
		}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// recorded checks whether the record came with the deletion: no revision has one
	// without the other.
	recorded := func(name string, want bool) {
		t.Helper()
		rec, ok, _, err := st.Get(t.Context(), prefix+name, 0)
		if err != nil || ok != want {
			t.Errorf("%s: record %t %v, want %t", name, ok, err, want)
			return
		}
		if !ok {
			return
		}
		key := "/registry/nodes/" + name
		if page, err := st.List(t.Context(), store.ListOptions{}); err == nil {
			for _, r := range page.Records {
				if r.Key == key {
					t.Errorf("%s: the node is still stored", name)
				}
			}
		}
		if next, err := st.Revision(t.Context()); err != nil || next < rec.Modified {
			t.Errorf("%s: revision %d %v", name, next, err)
		}
	}

	make("a1")
	if err := nodes.Delete(t.Context(), "a1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	recorded("a1", true)

	make("a2")
	if err := nodes.Delete(t.Context(), "a2", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	recorded("a2", false)

	make("b1")
	make("b2")
	if err := nodes.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "set=b"}); err != nil {
		t.Fatal(err)
	}
	recorded("b1", true)
	recorded("b2", true)

	make("c1", "example.com/wait")
	if err := nodes.Delete(t.Context(), "c1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	recorded("c1", false)
	node, err := nodes.Get(t.Context(), "c1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Finalizers = nil
	if _, err := nodes.Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	recorded("c1", true)

	make("d1")
	if err := inProcess.Delete(t.Context(), kind.Node, resource.Key{Name: "d1"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	recorded("d1", true)
}

// A watch ends when the guard of its request ends it.
func TestGuardEndsWatches(t *testing.T) {
	st := memory.New(memory.Options{})
	t.Cleanup(func() { st.Close() })
	var mu sync.Mutex
	var ends []context.CancelFunc
	s, err := start(st, func(c *apiserver.Config) {
		c.Guard = func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithCancel(r.Context())
				defer cancel()
				mu.Lock()
				ends = append(ends, cancel)
				mu.Unlock()
				next.ServeHTTP(w, r.WithContext(ctx))
			})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	w, err := s.clientset(t, "application/json").CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	mu.Lock()
	for _, end := range ends {
		end()
	}
	mu.Unlock()
	select {
	case _, open := <-w.ResultChan():
		if open {
			t.Error("an event instead of the end")
		}
	case <-time.After(time.Minute):
		t.Error("the watch goes on")
	}
}

// TestMistakesOnce: a refused update names each mistake once.
func TestMistakesOnce(t *testing.T) {
	nodes := shared.clientset(t, "application/json").CoreV1().Nodes()
	node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mistaken"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Labels = map[string]string{"bad label": "x", "good": "bad value"}
	for what, update := range map[string]func(context.Context, *corev1.Node, metav1.UpdateOptions) (*corev1.Node, error){
		"node": nodes.Update, "status": nodes.UpdateStatus,
	} {
		_, err := update(t.Context(), node, metav1.UpdateOptions{})
		var status apierrors.APIStatus
		if !apierrors.IsInvalid(err) || !errors.As(err, &status) {
			t.Fatalf("%s: %v", what, err)
		}
		causes := status.Status().Details.Causes
		if len(causes) != 2 || causes[0].Field != "metadata.labels" || causes[0] == causes[1] {
			t.Errorf("%s: %d causes, want one for each label: %v", what, len(causes), causes)
		}
	}
}
