package apiserver_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/proxima-mesh/proxima/internal/controller/garbage"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// family is a server of its own with the collector, and ConfigMaps that own each
// other.
type family struct {
	*testing.T
	cs *kubernetes.Clientset
}

// collecting runs a server with the collector.
func collecting(t *testing.T) family {
	t.Helper()
	s := memory.New(memory.Options{})
	srv, err := start(s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	owners := garbage.NewOwners(garbage.OwnersConfig{Client: srv.Client("system:test:garbage"), Kinds: kind.All(),
		Settle: 50 * time.Millisecond})
	done := make(chan error, 1)
	go func() { done <- owners.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := srv.stop(); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return family{t, srv.clientset(t, "")}
}

func refTo(o *corev1.ConfigMap, block bool) metav1.OwnerReference {
	ref := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: o.Name, UID: o.UID}
	if block {
		ref.BlockOwnerDeletion = &block
	}
	return ref
}

func (f family) create(name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	f.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}
	out, err := f.cs.CoreV1().ConfigMaps("default").Create(f.Context(), cm, metav1.CreateOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return out
}

func (f family) delete(name string, policy metav1.DeletionPropagation) {
	f.Helper()
	if err := f.cs.CoreV1().ConfigMaps("default").Delete(f.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		f.Fatal(err)
	}
}

func (f family) get(name string) (*corev1.ConfigMap, bool) {
	f.Helper()
	cm, err := f.cs.CoreV1().ConfigMaps("default").Get(f.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		f.Fatal(err)
	}
	return cm, err == nil
}

func (f family) gone(names ...string) {
	f.Helper()
	for _, name := range names {
		eventually(f.T, name+" is gone", func() bool { _, there := f.get(name); return !there })
	}
}

func (f family) edit(name string, change func(*corev1.ConfigMap)) {
	f.Helper()
	cm, _ := f.get(name)
	change(cm)
	if _, err := f.cs.CoreV1().ConfigMaps("default").Update(f.Context(), cm, metav1.UpdateOptions{}); err != nil {
		f.Fatal(err)
	}
}

func TestOwnerGarbageCollection(t *testing.T) {
	f := collecting(t)
	t.Run("background: a chain goes, link by link", func(t *testing.T) {
		f := family{t, f.cs}
		a := f.create("chain-a")
		b := f.create("chain-b", refTo(a, false))
		f.create("chain-c", refTo(b, true))
		f.delete("chain-a", metav1.DeletePropagationBackground)
		f.gone("chain-a", "chain-b", "chain-c")
	})
	t.Run("two owners: it stays until both are gone", func(t *testing.T) {
		f := family{t, f.cs}
		a, b := f.create("two-a"), f.create("two-b")
		f.create("two-c", refTo(a, false), refTo(b, false))
		f.delete("two-a", metav1.DeletePropagationBackground)
		eventually(t, "the reference to the owner that is gone is taken out", func() bool {
			c, there := f.get("two-c")
			return there && len(c.OwnerReferences) == 1 && c.OwnerReferences[0].UID == b.UID
		})
		f.delete("two-b", metav1.DeletePropagationBackground)
		f.gone("two-c")
	})
	t.Run("orphan: dependents stay, without an owner", func(t *testing.T) {
		f := family{t, f.cs}
		a := f.create("orphan-a")
		f.create("orphan-b", refTo(a, true))
		f.delete("orphan-a", metav1.DeletePropagationOrphan)
		f.gone("orphan-a")
		if b, there := f.get("orphan-b"); !there || len(b.OwnerReferences) != 0 || b.DeletionTimestamp != nil {
			t.Errorf("the dependent: there %v, %+v", there, b.ObjectMeta)
		}
	})
	t.Run("foreground: an owner waits for those that block it", func(t *testing.T) {
		f := family{t, f.cs}
		a := f.create("front-a")
		f.create("front-b", refTo(a, true))
		f.create("front-c", refTo(a, false))
		hold := func(cm *corev1.ConfigMap) { cm.Finalizers = []string{"example.com/hold"} }
		f.edit("front-b", hold)
		f.edit("front-c", hold)
		f.delete("front-a", metav1.DeletePropagationForeground)
		eventually(t, "the dependents are being deleted", func() bool {
			b, _ := f.get("front-b")
			c, _ := f.get("front-c")
			return b.DeletionTimestamp != nil && c.DeletionTimestamp != nil
		})
		// One that does not block its owner, and was deleted later, is gone first.
		f.create("front-free")
		f.delete("front-free", metav1.DeletePropagationForeground)
		f.gone("front-free")
		if a, there := f.get("front-a"); !there || a.DeletionTimestamp == nil {
			t.Error("the owner did not wait")
		}
		free := func(cm *corev1.ConfigMap) { cm.Finalizers = nil }
		f.edit("front-b", free)
		f.gone("front-b", "front-a") // c does not block
		f.edit("front-c", free)
		f.gone("front-c")
	})
	t.Run("foreground through two generations", func(t *testing.T) {
		f := family{t, f.cs}
		a := f.create("deep-a")
		b := f.create("deep-b", refTo(a, true))
		f.create("deep-c", refTo(b, true))
		f.delete("deep-a", metav1.DeletePropagationForeground)
		f.gone("deep-a", "deep-b", "deep-c")
	})
	t.Run("foreground in a circle does not wait for ever", func(t *testing.T) {
		f := family{t, f.cs}
		a := f.create("circle-a")
		b := f.create("circle-b", refTo(a, true))
		f.edit("circle-a", func(cm *corev1.ConfigMap) { cm.OwnerReferences = []metav1.OwnerReference{refTo(b, true)} })
		f.delete("circle-a", metav1.DeletePropagationForeground)
		f.gone("circle-a", "circle-b")
	})
	t.Run("an owner that never was", func(t *testing.T) {
		f := family{t, f.cs}
		f.create("never-b",
			metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "never-a", UID: "11111111-2222-3333-4444-555555555555"})
		f.gone("never-b")
	})
	t.Run("an owner of the same name but another uid", func(t *testing.T) {
		f := family{t, f.cs}
		a := f.create("again-a")
		ref := refTo(a, false)
		ref.UID = "11111111-2222-3333-4444-666666666666"
		f.create("again-b", ref)
		f.gone("again-b")
	})
	t.Run("an owner of a kind that is not served counts as there", func(t *testing.T) {
		f := family{t, f.cs}
		f.create("foreign",
			metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d", UID: "11111111-2222-3333-4444-777777777777"})
		a := f.create("fence-a")
		f.create("fence-b", refTo(a, false))
		f.delete("fence-a", metav1.DeletePropagationBackground)
		f.gone("fence-b") // by now the other one was processed too
		if _, there := f.get("foreign"); !there {
			t.Error("it was collected")
		}
	})
	t.Run("an owner in another namespace is ignored and reported", func(t *testing.T) {
		f := family{t, f.cs}
		other, err := f.cs.CoreV1().ConfigMaps("kube-system").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "abroad"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b := f.create("at-home", refTo(other, false))
		f.gone("at-home")
		eventually(t, "there is an event", func() bool {
			events, err := f.cs.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=OwnerRefInvalidNamespace"})
			return err == nil && len(events.Items) == 1 && events.Items[0].InvolvedObject.UID == b.UID &&
				strings.Contains(events.Items[0].Message, `does not exist in namespace "default"`)
		})
		if _, err := f.cs.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "abroad", metav1.GetOptions{}); err != nil {
			t.Errorf("the owner: %v", err)
		}
	})
	t.Run("a cluster-scoped owner", func(t *testing.T) {
		f := family{t, f.cs}
		node, err := f.cs.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f.create("of-node", metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "owner", UID: node.UID})
		if err := f.cs.CoreV1().Nodes().Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.gone("of-node")
	})
}
