package apiserver_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// late is a store of which one instance's commits can be held up: just before the
// first one of a key, before is called, once.
type late struct {
	store.Store
	mu     sync.Mutex
	key    string
	before func()
}

func (l *late) holdUp(key string, before func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.key, l.before = key, before
}

func (l *late) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	l.mu.Lock()
	var before func()
	for _, op := range txn.Ops {
		if l.before != nil && op.Key == l.key {
			before, l.before = l.before, nil
		}
	}
	l.mu.Unlock()
	if before != nil {
		before()
	}
	return l.Store.Commit(ctx, txn)
}

// instances are two servers that share a store; the commits of the first can be
// held up.
func instances(t *testing.T) (held *late, first, second *server) {
	t.Helper()
	s := memory.New(memory.Options{})
	held = &late{Store: s}
	var err error
	if first, err = start(held); err != nil {
		t.Fatal(err)
	}
	if second, err = start(s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, srv := range []*server{first, second} {
			if err := srv.stop(); err != nil {
				t.Error(err)
			}
		}
		s.Close()
	})
	return held, first, second
}

// meshes of a server, by REST.
func (s *server) meshes(t *testing.T) rest.Interface { return s.rest(t, descriptor(t, "Mesh"), "") }

func (s *server) createMesh(t *testing.T, name string) error {
	t.Helper()
	m := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return s.meshes(t).Post().Resource("meshes").Body(m).Do(t.Context()).Error()
}

func (s *server) deleteMesh(t *testing.T, name string) error {
	t.Helper()
	return s.meshes(t).Delete().Resource("meshes").Name(name).Do(t.Context()).Error()
}

func inMesh(name, mesh string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{meshv1alpha1.LabelMesh: mesh}}}
}

// TestInstances lets another instance be faster between the check of a write and
// its commit.
func TestInstances(t *testing.T) {
	held, first, second := instances(t)
	one, two := first.clientset(t, ""), second.clientset(t, "")
	t.Run("a namespace begins to end while an object is created in it", func(t *testing.T) {
		createNamespace(t, one, inMesh("ending", ""))
		held.holdUp("/registry/configmaps/ending/late", func() {
			if err := two.CoreV1().Namespaces().Delete(context.Background(), "ending", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}
		_, err := one.CoreV1().ConfigMaps("ending").Create(t.Context(), cm, metav1.CreateOptions{})
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			t.Errorf("create: %v", err)
		}
		if _, err := two.CoreV1().ConfigMaps("ending").Get(t.Context(), "late", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("get: %v", err)
		}
	})
	t.Run("the same with a Service, which has companions of its own", func(t *testing.T) {
		createNamespace(t, one, inMesh("ending-too", ""))
		held.holdUp("/registry/services/ending-too/late", func() {
			if err := two.CoreV1().Namespaces().Delete(context.Background(), "ending-too", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		_, err := one.CoreV1().Services("ending-too").Create(t.Context(), service("late"), metav1.CreateOptions{})
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			t.Errorf("create: %v", err)
		}
	})
	t.Run("a namespace that only changes blocks no creation", func(t *testing.T) {
		ns := createNamespace(t, one, inMesh("busy", ""))
		held.holdUp("/registry/configmaps/busy/a", func() {
			ns.Labels["more"] = "labels"
			if _, err := two.CoreV1().Namespaces().Update(context.Background(), ns, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		})
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		if _, err := one.CoreV1().ConfigMaps("busy").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("a mesh goes while a namespace is put into it", func(t *testing.T) {
		if err := first.createMesh(t, "fleeting"); err != nil {
			t.Fatal(err)
		}
		held.holdUp("/registry/namespaces/mover", func() {
			if err := second.deleteMesh(t, "fleeting"); err != nil {
				t.Error(err)
			}
		})
		_, err := one.CoreV1().Namespaces().Create(t.Context(), inMesh("mover", "fleeting"), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) {
			t.Errorf("create: %v", err)
		}
	})
	t.Run("a namespace is put into a mesh while that goes", func(t *testing.T) {
		if err := first.createMesh(t, "wanted"); err != nil {
			t.Fatal(err)
		}
		held.holdUp("/registry/mesh.proxima.dev/meshes/wanted", func() {
			if _, err := two.CoreV1().Namespaces().Create(context.Background(), inMesh("newcomer", "wanted"), metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		})
		if err := first.deleteMesh(t, "wanted"); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "newcomer") {
			t.Errorf("delete: %v", err)
		}
	})
}

func createNamespace(t *testing.T, cs *kubernetes.Clientset, ns *corev1.Namespace) *corev1.Namespace {
	t.Helper()
	if ns.Labels[meshv1alpha1.LabelMesh] == "" {
		ns.Labels = nil
	}
	out, err := cs.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestMeshOfNamespaces(t *testing.T) {
	cs := shared.clientset(t, "")
	namespaces := cs.CoreV1().Namespaces()
	const path = "metadata.labels[mesh.proxima.dev/mesh]"
	refused := func(what string, err error) {
		t.Helper()
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), path+": Not found: \"blue\"") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := namespaces.Create(t.Context(), inMesh("in-blue", "blue"), metav1.CreateOptions{})
	refused("create in a mesh that is not there", err)
	ns := createNamespace(t, cs, inMesh("in-blue", "default"))
	ns.Labels[meshv1alpha1.LabelMesh] = "blue"
	_, err = namespaces.Update(t.Context(), ns, metav1.UpdateOptions{})
	refused("update into it", err)
	if out, err := namespaces.UpdateStatus(t.Context(), ns, metav1.UpdateOptions{}); err != nil ||
		out.Labels[meshv1alpha1.LabelMesh] != "default" {
		t.Errorf("by its status: %v %v", err, out.Labels)
	}
	if err := shared.createMesh(t, "blue"); err != nil {
		t.Fatal(err)
	}
	if ns, err = namespaces.Get(t.Context(), "in-blue", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	ns.Labels[meshv1alpha1.LabelMesh] = "blue"
	if ns, err = namespaces.Update(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := shared.deleteMesh(t, "blue"); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "in-blue") {
		t.Errorf("delete of a mesh with a namespace: %v", err)
	}
	err = shared.meshes(t).Delete().Resource("meshes").Param("labelSelector", "!none").Do(t.Context()).Error()
	if err == nil {
		t.Error("a collection with the default mesh was deleted")
	}
	if err := shared.deleteMesh(t, "default"); !apierrors.IsForbidden(err) {
		t.Errorf("delete of the default mesh: %v", err)
	}
	delete(ns.Labels, meshv1alpha1.LabelMesh)
	if _, err := namespaces.Update(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := shared.deleteMesh(t, "blue"); err != nil {
		t.Errorf("delete of a mesh without members: %v", err)
	}
}

// TestMeshOfMembers: what names its mesh names one that exists, and keeps it.
func TestMeshOfMembers(t *testing.T) {
	members := map[string]func(name, mesh string) resource.Object{
		"Dataplane": func(name, mesh string) resource.Object {
			return &meshv1alpha1.Dataplane{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: meshv1alpha1.DataplaneSpec{Mesh: mesh, Addresses: []string{"10.1.2.3"}}}
		},
		"ExternalService": func(name, mesh string) resource.Object {
			return &meshv1alpha1.ExternalService{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: meshv1alpha1.ExternalServiceSpec{Mesh: mesh, Hosts: []string{"a.example.com"},
					Ports: []meshv1alpha1.ExternalServicePort{{Port: 443}}}}
		},
	}
	for name, object := range members {
		t.Run(name, func(t *testing.T) {
			d := descriptor(t, name)
			client := shared.rest(t, d, "")
			create := func(name, mesh string) (resource.Object, error) {
				out := d.New()
				err := client.Post().Namespace("default").Resource(d.Resource).Body(object(name, mesh)).Do(t.Context()).Into(out)
				return out, err
			}
			update := func(obj resource.Object, mesh string) error {
				next := object(obj.GetName(), mesh)
				return client.Put().Namespace("default").Resource(d.Resource).Name(obj.GetName()).Body(next).Do(t.Context()).Error()
			}
			mesh := "green-" + strings.ToLower(name)
			missing := "spec.mesh: Not found: \"" + mesh + "\""
			if _, err := create("early", mesh); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), missing) {
				t.Errorf("in a mesh that is not there: %v", err)
			}
			for _, known := range []string{"", "default"} {
				if _, err := create("plain"+known, known); err != nil {
					t.Errorf("in mesh %q: %v", known, err)
				}
			}
			obj, err := create("mover", "")
			if err != nil {
				t.Fatal(err)
			}
			if err := update(obj, mesh); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), missing) {
				t.Errorf("into a mesh that is not there: %v", err)
			}
			if err := shared.createMesh(t, mesh); err != nil {
				t.Fatal(err)
			}
			if err := update(obj, mesh); err != nil {
				t.Fatal(err)
			}
			if err := update(obj, mesh); err != nil {
				t.Errorf("again: %v", err)
			}
			if err := shared.deleteMesh(t, mesh); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "default/mover") {
				t.Errorf("delete of a mesh that is named: %v", err)
			}
			if err := update(obj, ""); err != nil {
				t.Fatal(err)
			}
			if err := shared.deleteMesh(t, mesh); err != nil {
				t.Errorf("delete of a mesh without references: %v", err)
			}
		})
	}
}
