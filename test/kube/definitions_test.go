package kube_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind/kindtest"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/tools/crds/crd"
)

// TestDefinitions: the real API server takes the definitions, explains every field, keeps
// our objects as they are, and refuses what Validate refuses.
func TestDefinitions(t *testing.T) {
	b := newBench(t)
	b.define()
	client, err := dynamic.NewForConfig(b.Admin(t))
	if err != nil {
		t.Fatal(err)
	}
	b.kubectl("", "create", "namespace", "shop")
	t.Run("explain", b.explain)
	t.Run("valid", func(t *testing.T) { roundTrips(t, client) })
	t.Run("mistakes", func(t *testing.T) { mistakes(t, client) })
	t.Run("table", func(t *testing.T) {
		out := b.kubectl("", "get", "proxima", "--all-namespaces", "-o", "wide")
		for _, word := range []string{"zonecosts.mesh.proxima.dev/default", "virtualip.mesh.proxima.dev/web-shop-svc-80-a", "HOSTS", "power work"} {
			if !strings.Contains(out, word) {
				t.Errorf("no %s in\n%s", word, out)
			}
		}
	})
}

// define applies the definitions and waits until they are served.
func (b *bench) define() {
	b.t.Helper()
	all, err := crd.All()
	if err != nil {
		b.t.Fatal(err)
	}
	var stream strings.Builder
	for _, d := range all {
		text, err := yaml.Marshal(d)
		if err != nil {
			b.t.Fatal(err)
		}
		stream.WriteString("---\n" + string(text))
	}
	b.kubectl(stream.String(), "apply", "--server-side", "-f", "-")
	b.kubectl(stream.String(), "wait", "--for=condition=Established", "--timeout=60s", "-f", "-")
}

// fieldsOf lists the paths of all fields of a kind.
func fieldsOf(path string, s *crd.Schema) []string {
	out := []string{path}
	for s.Items != nil {
		s = s.Items
	}
	for name, p := range s.Properties {
		if name == "apiVersion" || name == "kind" || name == "metadata" {
			continue // the server's own
		}
		out = append(out, fieldsOf(path+"."+name, p)...)
	}
	slices.Sort(out)
	return out
}

// explain asks kubectl for each field of each kind.
func (b *bench) explain(t *testing.T) {
	all, err := crd.All()
	if err != nil {
		t.Fatal(err)
	}
	type question struct{ version, field string }
	var questions []question
	for _, d := range all {
		v := d.Spec.Versions[0]
		for _, f := range fieldsOf(d.Spec.Names.Plural, v.Schema.OpenAPIV3Schema) {
			questions = append(questions, question{d.Spec.Group + "/" + v.Name, f})
		}
	}
	kubectl := testkit.Kubectl(t)
	for _, err := range each(questions, func(q question) error {
		out, err := b.run("", kubectl, "explain", "--api-version="+q.version, q.field)
		if err != nil {
			return err
		}
		_, text, ok := strings.Cut(out, "DESCRIPTION:")
		if text = strings.TrimSpace(text); !ok || text == "" || strings.HasPrefix(text, "<empty>") {
			return fmt.Errorf("%s has no description:\n%s", q.field, out)
		}
		return nil
	}) {
		t.Error(err)
	}
	t.Logf("%d fields are explained", len(questions))
}

// interfaceOf is the client of a kind, in its example's namespace.
func interfaceOf(client dynamic.Interface, d *resource.Descriptor, obj *unstructured.Unstructured) dynamic.ResourceInterface {
	r := client.Resource(d.GVK.GroupVersion().WithResource(d.Resource))
	if d.Namespaced {
		return r.Namespace(obj.GetNamespace())
	}
	return r
}

func decode(t *testing.T, d *resource.Descriptor, text string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var content map[string]any
	if err := yaml.Unmarshal(data, &content); err != nil {
		t.Fatal(err)
	}
	obj.Object = content
	obj.SetGroupVersionKind(d.GVK)
	return obj
}

// roundTrips creates the example of each kind, and changes its status where it has one.
func roundTrips(t *testing.T, client dynamic.Interface) {
	examples := kindtest.Valid()
	for _, d := range crd.Descriptors() {
		t.Run(d.GVK.Kind, func(t *testing.T) {
			sent := decode(t, d, examples[d.GVK.Kind])
			api := interfaceOf(client, d, sent)
			stored, err := api.Create(context.Background(), sent, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
			if err != nil {
				t.Fatal(err)
			}
			lost(t, "", sent.Object, stored.Object)
			if !d.Status {
				return
			}
			conditions := []any{map[string]any{
				"type": "Ready", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z",
			}}
			if err := unstructured.SetNestedSlice(stored.Object, conditions, "status", "conditions"); err != nil {
				t.Fatal(err)
			}
			if d.GVK.Kind == "IPAddressPool" { // it has no conditions
				stored.Object["status"] = map[string]any{"assigned": int64(3)}
			}
			changed, err := api.UpdateStatus(context.Background(), stored, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
			if err != nil {
				t.Fatal(err)
			}
			lost(t, "", stored.Object["status"], changed.Object["status"])
			typed(t, d, changed)
		})
	}
}

// typed reads an object as our clients do, with no field that they do not know.
func typed(t *testing.T, d *resource.Descriptor, obj *unstructured.Unstructured) {
	t.Helper()
	into := d.New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(obj.Object, into, true); err != nil {
		t.Error(err)
	}
}

// lost reports what of one value is not in the other.
func lost(t *testing.T, path string, sent, stored any) {
	t.Helper()
	switch s := sent.(type) {
	case map[string]any:
		other, _ := stored.(map[string]any)
		for k, v := range s {
			lost(t, path+"."+k, v, other[k])
		}
	case []any:
		other, _ := stored.([]any)
		if len(other) != len(s) {
			t.Errorf("%s: sent %v, stored %v", path, sent, stored)
			return
		}
		for i, v := range s {
			lost(t, fmt.Sprintf("%s[%d]", path, i), v, other[i])
		}
	default:
		if fmt.Sprint(sent) != fmt.Sprint(stored) {
			t.Errorf("%s: sent %v, stored %v", path, sent, stored)
		}
	}
}

// mistakes that Validate refuses are refused here, or a gap that is listed.
func mistakes(t *testing.T, client dynamic.Interface) {
	examples := kindtest.Valid()
	refused, accepted := 0, 0
	for _, m := range kindtest.Mistakes() {
		i := slices.IndexFunc(crd.Descriptors(), func(d *resource.Descriptor) bool { return d.GVK.Kind == m.Kind })
		if i < 0 {
			continue // a kind of Kubernetes
		}
		d := crd.Descriptors()[i]
		text, err := kindtest.Overlay(examples[m.Kind], m.With)
		if err != nil {
			t.Fatal(err)
		}
		obj := decode(t, d, text)
		if d.Namespaced && obj.GetNamespace() == "" || !d.Namespaced && obj.GetNamespace() != "" {
			continue // the path has the namespace
		}
		if !strings.Contains(m.Want, "metadata.name") {
			obj.SetName(obj.GetName() + "x")
		}
		_, err = interfaceOf(client, d, obj).Create(context.Background(), obj, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case err != nil:
			refused++
		case !gap(m):
			t.Errorf("%s %s: accepted; Validate says %s", m.Kind, m.With, m.Want)
		default:
			accepted++
		}
	}
	t.Logf("%d mistakes are refused by the API server, %d are gaps that are listed", refused, accepted)
}

var index = regexp.MustCompile(`\[[^]]*\]`)

// gap reports a mistake that crd.Beyond lists.
func gap(m kindtest.Mistake) bool {
	path, _, _ := strings.Cut(m.Want, ": ")
	path = index.ReplaceAllString(path, "")
	return slices.ContainsFunc(crd.Beyond(), func(g crd.Gap) bool {
		return g.Kind == m.Kind && (path == g.Field || strings.HasPrefix(path, g.Field+"."))
	})
}
