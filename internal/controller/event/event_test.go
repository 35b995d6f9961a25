package event

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWarning(t *testing.T) {
	at := time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		about     corev1.ObjectReference
		namespace string
	}{
		"of a namespace": {About(corev1.SchemeGroupVersion.WithKind("Service"), &metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u", ResourceVersion: "7"}), "shop"},
		"of the cluster": {About(corev1.SchemeGroupVersion.WithKind("Node"), &metav1.ObjectMeta{Name: "web", UID: "u", ResourceVersion: "7"}), "default"},
	} {
		t.Run(name, func(t *testing.T) {
			about := corev1.ObjectReference{
				APIVersion:      "v1",
				Kind:            c.about.Kind,
				Namespace:       c.about.Namespace,
				Name:            "web",
				UID:             "u",
				ResourceVersion: "7",
			}
			want := &corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, GenerateName: "web-"}, InvolvedObject: about,
				Type: "Warning", Reason: "Odd", Message: "it is odd", Count: 1,
				Source: corev1.EventSource{Component: "checker"}, ReportingController: "checker",
				FirstTimestamp: metav1.NewTime(at), LastTimestamp: metav1.NewTime(at),
			}
			if diff := cmp.Diff(want, Warning(c.about, "checker", at, "Odd", "it is odd")); diff != "" {
				t.Error(diff)
			}
		})
	}
}
