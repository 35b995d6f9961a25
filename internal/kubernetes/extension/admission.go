package extension

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/proxima-mesh/proxima/internal/payload"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// AdmissionPath takes AdmissionReviews of admission.k8s.io/v1, to POST.
const AdmissionPath = "/proxima/v1/admission"

// maxReview in bytes: an object and the one before, each of which an API server limits to 3 MiB
// (k8s.io/apiserver, MaxRequestBodyBytes), and what a review has besides.
const maxReview = 7 << 20

// reviewLimits bound what a review becomes in memory: as those of a write outside Kubernetes.
var reviewLimits = payload.Limits{Depth: 64, Values: 400_000, Members: 20_000}

// Admission answers whether objects of our kinds are valid, by the rules of their descriptors.
// Everybody may ask: an answer depends on the question alone. Safe for concurrent use.
type Admission struct {
	kinds map[schema.GroupVersionKind]*resource.Descriptor
	log   *slog.Logger
}

// NewAdmission answers about the given kinds.
func NewAdmission(kinds []*resource.Descriptor, log *slog.Logger) *Admission {
	a := &Admission{kinds: map[schema.GroupVersionKind]*resource.Descriptor{}, log: log}
	for _, d := range kinds {
		a.kinds[d.GVK] = d
	}
	return a
}

// ServeHTTP implements http.Handler.
func (a *Admission) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "only POST is answered here", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))
	if err != nil {
		http.Error(w, "read the review: "+err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	answer, err := a.Review(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client may be gone
}

// Review answers an AdmissionReview in JSON. An error means that it is none.
func (a *Admission) Review(body []byte) (*admissionv1.AdmissionReview, error) {
	if _, err := payload.JSON(body, reviewLimits); err != nil {
		return nil, fmt.Errorf("the review is too large: %w", err)
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, fmt.Errorf("the body is no AdmissionReview: %w", err)
	}
	if review.Request == nil || review.GroupVersionKind() != admissionv1.SchemeGroupVersion.WithKind("AdmissionReview") {
		return nil, errors.New("the body is no request of an AdmissionReview of admission.k8s.io/v1")
	}
	answer := &admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: a.decide(review.Request)}
	answer.Response.UID = review.Request.UID
	return answer, nil
}

func (a *Admission) decide(req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	d := a.kinds[schema.GroupVersionKind(req.Kind)]
	writes := req.Operation == admissionv1.Create || req.Operation == admissionv1.Update
	if d == nil || !writes || req.SubResource != "" && req.SubResource != "status" {
		return &admissionv1.AdmissionResponse{Allowed: true} // nothing of ours
	}
	obj, err := decode(d, req.Object.Raw)
	if err != nil {
		return refused(apierrors.NewBadRequest(err.Error()))
	}
	var old resource.Object
	if req.Operation == admissionv1.Update {
		if old, err = decode(d, req.OldObject.Raw); err != nil {
			return refused(apierrors.NewBadRequest("the object before: " + err.Error()))
		}
	}
	errs := check(d, req.SubResource, obj, old)
	if len(errs) > 0 {
		a.log.Info("object refused", "kind", req.Kind.Kind, "namespace", req.Namespace, "name", req.Name, "user", req.UserInfo.Username,
			"mistakes", len(errs))
		return refused(apierrors.NewInvalid(d.GVK.GroupKind(), obj.GetName(), payload.Few(errs)))
	}
	out := &admissionv1.AdmissionResponse{Allowed: true}
	if d.Warnings != nil && req.SubResource == "" {
		out.Warnings = d.Warnings(obj, old)
	}
	return out
}

// check an object by its descriptor. A status that is part of an object is left alone, as the
// API server resets it.
func check(d *resource.Descriptor, sub string, obj, old resource.Object) field.ErrorList {
	switch {
	case sub == "status" && d.ValidateStatus != nil:
		return d.ValidateStatus(obj, old)
	case sub == "" && d.Validate != nil:
		return d.Validate(obj, old)
	}
	return nil
}

// decode an object, and fill in what the schema does not.
func decode(d *resource.Descriptor, raw []byte) (resource.Object, error) {
	obj := d.New()
	if err := json.Unmarshal(raw, obj); err != nil {
		return nil, fmt.Errorf("the object is no %s: %w", d.GVK.Kind, err)
	}
	if d.Default != nil {
		d.Default(obj)
	}
	return obj, nil
}

func refused(err *apierrors.StatusError) *admissionv1.AdmissionResponse {
	status := err.ErrStatus
	status.TypeMeta = metav1.TypeMeta{}
	return &admissionv1.AdmissionResponse{Result: &status}
}
