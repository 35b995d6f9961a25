package redact

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxima-mesh/proxima/internal/feed/history"
	objects "github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

// pods are stored as JSON.
type pods struct{ Objects }

// Decode implements Objects.
func (pods) Decode(_ context.Context, _ string, value []byte, _ store.Revision) (objects.Object, error) {
	p := &corev1.Pod{}
	return p, json.Unmarshal(value, p)
}

// Encode implements Objects.
func (pods) Encode(_ context.Context, _ string, obj objects.Object) ([]byte, error) {
	return json.Marshal(obj)
}

// TestShapes: whatever a value is, it is not in the object after that, nor in what repeats it, and the object can be stored.
func TestShapes(t *testing.T) {
	const secret = "s3cret-s3cret"
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Labels: map[string]string{"who": secret}, Annotations: map[string]string{"a.b/c": secret, "other": "kept"}, Finalizers: []string{secret, "kept"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:finalizers":{"v:\"` + secret + `\"":{}}}}`)}},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "c", Image: "kept", Command: []string{"run", secret}, Env: []corev1.EnvVar{{Name: "T", Value: secret}, {Name: "U", Value: "kept"}},
				Ports:         []corev1.ContainerPort{{ContainerPort: 4711}},
				LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: secret, Port: intstr.FromInt32(4711)}}},
				Resources:     corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("4711m")}},
			}},
			HostNetwork: true,
		},
		Status: corev1.PodStatus{StartTime: &metav1.Time{}},
	}
	for field, tc := range map[string]struct {
		gone string
		want string // a regular expression that the object matches
	}{
		"metadata.labels.who":                       {secret, `"who":"sha256:[0-9a-f]{64}"`},
		"metadata.labels":                           {secret, `"who":"sha256:[0-9a-f]{64}"`},
		`metadata.annotations["a.b/c"]`:             {secret, `"a.b/c":"sha256:[0-9a-f]{64}","other":"kept"`},
		"metadata.finalizers":                       {secret, `"finalizers":\["sha256:[0-9a-f]{64}","sha256:[0-9a-f]{64}"\]`},
		"metadata.finalizers[0]":                    {secret, `"finalizers":\["sha256:[0-9a-f]{64}","kept"\]`},
		"spec.containers[c].command[1]":             {secret, `"command":\["run","sha256:[0-9a-f]{64}"\]`},
		"spec.containers[c].env[T].value":           {secret, `"T","value":"sha256:[0-9a-f]{64}"},{"name":"U","value":"kept"`},
		"spec.containers[0].env":                    {secret, `"env":\[{"name":"sha256:`},
		"spec.containers[c].livenessProbe":          {`"port":4711`, `"path":"sha256:[0-9a-f]{64}"`},
		"spec.containers[c].ports[0].containerPort": {`"containerPort":4711`, `"image":"kept"`},
		"spec.containers[c].resources":              {"4711m", `"image":"kept"`},
		"spec.hostNetwork":                          {"hostNetwork", `"image":"kept"`},
		"spec":                                      {secret, `"image":"sha256:`},
	} {
		t.Run(field, func(t *testing.T) {
			own := pod.DeepCopy()
			for name := range map[string]bool{"labels": true, "annotations": true, "finalizers": true} {
				if !strings.HasPrefix(field, "metadata."+name) {
					switch name {
					case "labels":
						own.Labels = nil
					case "annotations":
						own.Annotations = nil
					default:
						own.Finalizers = nil
					}
				}
			}
			if strings.HasPrefix(field, "metadata") {
				own.Spec = corev1.PodSpec{}
			} else if field != "spec" && tc.gone == secret {
				c := &own.Spec.Containers[0]
				if !strings.Contains(field, "command") {
					c.Command = nil
				}
				if !strings.Contains(field, "env") {
					c.Env = nil
				}
				c.LivenessProbe = nil
			}
			if own.Annotations == nil {
				own.Annotations = map[string]string{}
			}
			value, err := json.Marshal(own)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(value, []byte(tc.gone)) {
				t.Fatalf("%q is not in %s", tc.gone, value)
			}
			own.Annotations[history.LastApplied] = string(value)
			if value, err = json.Marshal(own); err != nil {
				t.Fatal(err)
			}
			path, err := history.ParsePath(field)
			if err != nil {
				t.Fatal(err)
			}
			if there, err := present(own, path); err != nil || !there {
				t.Errorf("present: %t, %v", there, err)
			}
			next, n, err := apply(t.Context(), pods{}, "", value, 1, []replacement{{id: "r", path: path, key: []byte("k")}})
			if err != nil || n["r"] != 1 {
				t.Fatalf("%v, %v", n, err)
			}
			if bytes.Contains(next, []byte(tc.gone)) || bytes.Contains(next, []byte("fieldsV1")) || !regexp.MustCompile(tc.want).Match(next) || !bytes.Contains(next, []byte(`"manager":"m"`)) {
				t.Errorf("it is %s", next)
			}
		})
	}
}

// TestLastApplied: a value that only the annotation of kubectl has is redacted, too; and a path without a value changes nothing.
func TestLastApplied(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{history.LastApplied: `{"spec":{"nodeName":"n"},"stringData":{"t":"n"}}`}}}
	for field, want := range map[string]bool{"spec.nodeName": true, "data.t": true, "data": true, "data.u": false, "spec.hostname": false,
		fmt.Sprintf("metadata.annotations[%q]", history.LastApplied): true} {
		path, err := history.ParsePath(field)
		if err != nil {
			t.Fatal(err)
		}
		if there, err := present(pod, path); err != nil || there != want {
			t.Errorf("%s is present: %t, %v", field, there, err)
		}
		value, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		next, _, err := apply(t.Context(), pods{}, "", value, 1, []replacement{{id: "r", path: path, key: []byte("k")}})
		if err != nil || (next != nil) != want || bytes.Contains(next, []byte("nodeName")) {
			t.Errorf("%s: %s, %v", field, next, err)
		}
	}
}

func TestHash(t *testing.T) {
	a, b := hash([]byte("k"), "x"), hash([]byte("l"), "x")
	if a == b || a != hash([]byte("k"), "x") || a == hash([]byte("k"), "y") {
		t.Error("hashes are not those of key and value")
	}
}
