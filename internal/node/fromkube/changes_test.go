package fromkube

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestDiffers(t *testing.T) {
	since := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	before, after := metav1.NewTime(since.Add(-time.Hour)), metav1.NewTime(since.Add(time.Second))
	object := func(name string, change func(*metav1.ObjectMeta)) metav1.PartialObjectMetadata {
		o := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: before}}
		if change != nil {
			change(&o.ObjectMeta)
		}
		return o
	}
	known := map[types.NamespacedName]bool{{Namespace: "default", Name: "a"}: true}
	for _, c := range []struct {
		name  string
		items []metav1.PartialObjectMetadata
		want  bool
	}{
		{"as it was", []metav1.PartialObjectMetadata{object("a", nil)}, false},
		{"more than is followed", []metav1.PartialObjectMetadata{object("a", nil), object("headless", nil)}, false},
		{"one is gone", nil, true},
		{"a new one", []metav1.PartialObjectMetadata{object("a", nil), object("b", func(o *metav1.ObjectMeta) { o.CreationTimestamp = after })}, true},
		{"one is being deleted", []metav1.PartialObjectMetadata{object("a", func(o *metav1.ObjectMeta) { o.DeletionTimestamp = &after })}, true},
		{"written before", []metav1.PartialObjectMetadata{object("a", func(o *metav1.ObjectMeta) {
			o.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &before}, {}}
		})}, false},
		{"written after", []metav1.PartialObjectMetadata{object("a", func(o *metav1.ObjectMeta) {
			o.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &before}, {Time: &after}}
		})}, true},
	} {
		if got := differs(&metav1.PartialObjectMetadataList{Items: c.items}, since, known); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
