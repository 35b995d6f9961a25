package app

import (
	"context"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// TestMeshExports: a mesh is exported to those that annotations of its Services name, and to no
// other; "*" is all meshes that there are.
func TestMeshExports(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client := resourcetest.New(kind.All()...)
	mesh := func(name string) resource.Object {
		return &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	namespace := func(name, mesh string) resource.Object {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{meshv1alpha1.LabelMesh: mesh}}}
	}
	service := func(namespace, name, to string) resource.Object {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		if to != "" {
			s.Annotations = map[string]string{meshv1alpha1.AnnotationToMeshes: to}
		}
		return s
	}
	client.Seed(mesh("default"), mesh("blue"), mesh("red"), namespace("b", "blue"), service("default", "closed", ""))
	tables := catalog.New(catalog.Config{Client: client, Descriptors: kind.All()})
	got := make(chan map[string][]string)
	e := &meshExports{tables: tables, export: func(m map[string][]string) {
		select {
		case got <- m:
		case <-ctx.Done():
		}
	}}
	done := make(chan error, 2)
	go func() { done <- tables.Run(ctx) }()
	go func() { done <- e.follow(ctx) }()
	for _, step := range []struct {
		change resource.Object
		want   map[string][]string
	}{
		{service("default", "open", "blue, default"), map[string][]string{"default": {"blue"}}},
		{service("b", "back", "*"), map[string][]string{"default": {"blue"}, "blue": {"default", "red"}}},
		{mesh("green"), map[string][]string{"default": {"blue"}, "blue": {"default", "green", "red"}}},
		{namespace("b", "red"), map[string][]string{"default": {"blue"}, "red": {"blue", "default", "green"}}},
		{service("b", "back", ""), map[string][]string{"default": {"blue"}}},
		{service("default", "open", ""), map[string][]string{}},
	} {
		client.Seed(step.change)
		for {
			select {
			case is := <-got: // changes may come one by one
				if !reflect.DeepEqual(is, step.want) {
					t.Logf("%v, want %v", is, step.want)
					continue
				}
			case err := <-done:
				t.Fatal(err)
			case <-t.Context().Done():
				t.Fatalf("never %v", step.want)
			}
			break
		}
	}
	cancel()
	<-done
	<-done
}
