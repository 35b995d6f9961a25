package extension

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/kind/kindtest"
)

func newTestAdmission() *Admission {
	return NewAdmission(kind.All(), nil, slog.New(slog.DiscardHandler))
}

// review of an object in YAML, and of the one before; empty: there is none.
func review(t *testing.T, kindName, sub, text, before string) []byte {
	t.Helper()
	for _, d := range kind.All() {
		if d.GVK.Kind != kindName {
			continue
		}
		req := &admissionv1.AdmissionRequest{
			UID: "u-1", Kind: metav1.GroupVersionKind(d.GVK), SubResource: sub, Operation: admissionv1.Create, Name: "x",
			Object: runtime.RawExtension{Raw: asJSON(t, text)},
		}
		if before != "" {
			req.Operation, req.OldObject.Raw = admissionv1.Update, stored(t, before)
			req.Object.Raw = stored(t, text)
		}
		body, err := json.Marshal(admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: req,
		})
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	t.Fatalf("there is no kind %s", kindName)
	return nil
}

// ours says whether a kind is one of those that are CustomResourceDefinitions.
func ours(name string) bool {
	return slices.ContainsFunc(kind.All(), func(d *resource.Descriptor) bool {
		return d.GVK.Kind == name && (strings.HasSuffix(d.GVK.Group, "mesh.proxima.dev") || d.GVK.Group == "multicluster.x-k8s.io")
	})
}

// stored is an object as the API server sends one that it has.
func stored(t *testing.T, text string) []byte {
	t.Helper()
	with, err := kindtest.Overlay(text, `{metadata: {resourceVersion: "7", uid: u-7}}`)
	if err != nil {
		t.Fatal(err)
	}
	return asJSON(t, with)
}

func asJSON(t *testing.T, text string) []byte {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestMistakes: every mistake that is refused outside Kubernetes is refused here, in the same
// words; every valid object is taken.
func TestMistakes(t *testing.T) {
	a := newTestAdmission()
	examples := kindtest.Valid()
	for name, text := range examples {
		if !ours(name) {
			continue
		}
		answer, err := a.Review(t.Context(), review(t, name, "", text, ""))
		if err != nil || !answer.Response.Allowed || answer.Response.UID != "u-1" {
			t.Errorf("%s: %+v, %v", name, answer, err)
		}
	}
	for _, m := range kindtest.Mistakes() {
		if !ours(m.Kind) {
			continue
		}
		text, err := kindtest.Overlay(examples[m.Kind], m.With)
		if err != nil {
			t.Fatal(err)
		}
		sub := ""
		if strings.HasPrefix(m.With, "{status:") {
			sub = "status"
		}
		before := ""
		if sub != "" {
			before = examples[m.Kind]
		}
		answer, err := a.Review(t.Context(), review(t, m.Kind, sub, text, before))
		if err != nil {
			t.Errorf("%s %s: %v", m.Kind, m.With, err)
			continue
		}
		field, _, _ := strings.Cut(m.Want, ": ")
		switch r := answer.Response; {
		case r.Allowed && sub == "":
			t.Errorf("%s %s: allowed; want %s", m.Kind, m.With, m.Want)
		case !r.Allowed && (r.Result.Reason != metav1.StatusReasonInvalid || !strings.Contains(r.Result.Message, field)):
			t.Errorf("%s %s: %s", m.Kind, m.With, r.Result.Message)
		}
	}
}

// TestUpdate: what may not change is refused; what is of no kind of ours is not ours to refuse.
func TestUpdate(t *testing.T) {
	a := newTestAdmission()
	valid := kindtest.Valid()["ZoneCosts"]
	answer, err := a.Review(t.Context(), review(t, "ZoneCosts", "", valid, valid))
	if err != nil || !answer.Response.Allowed {
		t.Errorf("no change: %+v, %v", answer, err)
	}
	doubled, err := kindtest.Overlay(valid, `{spec: {pairs: [{from: a, to: b, cost: 1}, {from: a, to: b, cost: 2}]}}`)
	if err != nil {
		t.Fatal(err)
	}
	answer, err = a.Review(t.Context(), review(t, "ZoneCosts", "", doubled, valid))
	if err != nil || answer.Response.Allowed || answer.Response.Result.Code != http.StatusUnprocessableEntity {
		t.Errorf("a pair twice: %+v, %v", answer.Response, err)
	}
	foreign := strings.Replace(string(review(t, "ZoneCosts", "", doubled, valid)), `"kind":{"group":"mesh.proxima.dev"`, `"kind":{"group":"example.com"`, 1)
	if answer, err := a.Review(t.Context(), []byte(foreign)); err != nil || !answer.Response.Allowed {
		t.Errorf("a kind of others: %+v, %v", answer, err)
	}
}

func TestNoReview(t *testing.T) {
	a := newTestAdmission()
	for body, want := range map[string]int{
		"":   http.StatusBadRequest,
		"{}": http.StatusBadRequest,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`:                   http.StatusBadRequest,
		`{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{}}`: http.StatusBadRequest,
		strings.Repeat("[", 100):         http.StatusBadRequest,
		strings.Repeat(" ", maxReview+1): http.StatusRequestEntityTooLarge,
	} {
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest(http.MethodPost, AdmissionPath, strings.NewReader(body)))
		if w.Code != want {
			t.Errorf("%.80s: %d %s", body, w.Code, w.Body)
		}
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, AdmissionPath, nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", w.Code)
	}
}

func FuzzReview(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE",` +
		`"kind":{"group":"mesh.proxima.dev","version":"v1alpha1","kind":"ZoneCosts"},"object":{"spec":{"pairs":[{"from":"a"}]}}}}`))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"operation":"UPDATE","kind":` +
		`{"group":"mesh.proxima.dev","version":"v1alpha1","kind":"ZoneShift"},"object":{},"oldObject":null}}`))
	a := newTestAdmission()
	f.Fuzz(func(t *testing.T, body []byte) {
		answer, err := a.Review(t.Context(), body)
		if err == nil && !answer.Response.Allowed && answer.Response.Result == nil {
			t.Error("refused without a reason")
		}
	})
}
