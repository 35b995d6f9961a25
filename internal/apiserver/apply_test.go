package apiserver_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestApplyEveryKind applies every kind with two managers.
func TestApplyEveryKind(t *testing.T) {
	for i, k := range kind.All() {
		t.Run(k.GVK.Group+"/"+k.GVK.Kind, func(t *testing.T) {
			name := nameFor(k, "applied-"+k.Singular+fmt.Sprint(i), fmt.Sprintf("10.78.0.%d", i+1))
			c := crud{client: shared.rest(t, k, runtime.ContentTypeJSON), kind: k, name: name}
			apply := func(manager, label string, force bool) error {
				obj := object(t, k, name)
				obj.SetLabels(map[string]string{"who": label})
				body, err := json.Marshal(obj)
				if err != nil {
					t.Fatal(err)
				}
				return c.request(c.client.Patch(types.ApplyPatchType)).Name(name).
					Param("fieldManager", manager).Param("force", fmt.Sprint(force)).Body(body).Do(t.Context()).Error()
			}
			if err := apply("first", "a", false); err != nil {
				t.Fatalf("first apply: %v", err)
			}
			before := c.get(t).GetResourceVersion()
			if err := apply("first", "a", false); err != nil {
				t.Fatalf("same apply: %v", err)
			}
			if after := c.get(t).GetResourceVersion(); after != before {
				t.Errorf("an apply without a change wrote")
			}
			err := apply("second", "b", false)
			if err == nil || !strings.Contains(err.Error(), `conflict with "first"`) {
				t.Fatalf("second manager: %v, want a conflict", err)
			}
			if err := apply("second", "b", true); err != nil {
				t.Fatalf("forced apply: %v", err)
			}
			got := c.get(t)
			var managers []string
			for _, f := range got.GetManagedFields() {
				if f.Operation != metav1.ManagedFieldsOperationApply || f.APIVersion != k.GVK.GroupVersion().String() || f.FieldsV1 == nil {
					t.Errorf("managed fields entry %+v", f)
				}
				managers = append(managers, f.Manager)
			}
			slices.Sort(managers)
			if got.GetLabels()["who"] != "b" || !slices.Contains(managers, "second") {
				t.Errorf("labels %v, managers %v", got.GetLabels(), managers)
			}
			if !strings.Contains(string(fieldsOf(got.GetManagedFields(), "second")), `"f:who":{}`) {
				t.Errorf("the second manager does not own what it forced: %v", got.GetManagedFields())
			}
		})
	}
}

func fieldsOf(entries []metav1.ManagedFieldsEntry, manager string) []byte {
	for _, e := range entries {
		if e.Manager == manager {
			return e.FieldsV1.GetRawBytes()
		}
	}
	return nil
}

// TestOpenAPI checks that tools find the schema of every kind.
func TestOpenAPI(t *testing.T) {
	code, v2 := shared.do(t, "GET", "/openapi/v2", "admin", http.Header{"Accept": {"application/json"}}, "")
	if code != 200 {
		t.Fatalf("openapi v2: %d", code)
	}
	for _, k := range kind.All() {
		path := "apis/" + k.GVK.GroupVersion().String()
		if k.GVK.Group == "" {
			path = "api/v1"
		}
		code, v3 := shared.do(t, "GET", "/openapi/v3/"+path, "admin", http.Header{"Accept": {"application/json"}}, "")
		if code != 200 {
			t.Errorf("openapi v3 of %s: %d", path, code)
			continue
		}
		for version, text := range map[string]string{"v2": v2, "v3": v3} {
			var doc struct {
				Definitions map[string]model
				Components  struct{ Schemas map[string]model }
			}
			if err := json.Unmarshal([]byte(text), &doc); err != nil {
				t.Fatal(err)
			}
			if len(doc.Definitions) == 0 {
				doc.Definitions = doc.Components.Schemas
			}
			found := 0
			for name, s := range doc.Definitions {
				for _, gvk := range s.GVK {
					if gvk.Version == "__internal" {
						t.Errorf("openapi %s: internal version of %s is shown", version, name)
					}
					if gvk == (metav1.GroupVersionKind{Group: k.GVK.Group, Version: k.GVK.Version, Kind: k.GVK.Kind}) {
						found++
					}
				}
			}
			if found != 1 {
				t.Errorf("openapi %s: %d schemas of %s", version, found, k.GVK)
			}
		}
	}
}

type model struct {
	GVK []metav1.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
}

func TestDiscoveryAndVersion(t *testing.T) {
	cs := shared.clientset(t, "")
	info, err := cs.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if info.Major != "1" || info.Minor != "37" || info.GitVersion != "v1.37.2+proxima.0.1.0" {
		t.Errorf("version %+v", info)
	}
	_, lists, err := cs.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]metav1.APIResource{}
	for _, list := range lists {
		for _, r := range list.APIResources {
			served[list.GroupVersion+"/"+r.Name] = r
		}
	}
	for _, k := range kind.All() {
		at := k.GVK.GroupVersion().String() + "/" + k.Resource
		r, ok := served[at]
		if !ok || r.Namespaced != k.Namespaced || r.SingularName != k.Singular || !slices.Equal(r.ShortNames, k.ShortNames) {
			t.Errorf("%s is discovered as %+v", at, r)
		}
		if _, ok := served[at+"/status"]; ok != k.Status {
			t.Errorf("%s/status: %v, want %v", at, ok, k.Status)
		}
	}
	for _, extra := range []string{"v1/namespaces/finalize", "authorization.k8s.io/v1/selfsubjectaccessreviews",
		"authentication.k8s.io/v1/selfsubjectreviews"} {
		if _, ok := served[extra]; !ok {
			t.Errorf("%s is not discovered", extra)
		}
	}
}
