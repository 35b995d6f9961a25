package extension

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
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

// Write of an object of our kinds, as a review describes it.
type Write struct {
	User        authenticationv1.UserInfo
	Kind        *resource.Descriptor
	Subresource string
	// Object as it is to be; nil for a deletion. Old as it is; nil for a creation.
	Object, Old resource.Object
	// DryRun: nothing is stored.
	DryRun bool
	// Warn tells the user something beside the answer.
	Warn func(text string)
}

// Admission answers whether objects of our kinds are valid, by the rules of their descriptors, and
// whether they may be written here. Everybody may ask. Safe for concurrent use.
type Admission struct {
	kinds map[schema.GroupVersionKind]*resource.Descriptor
	allow func(context.Context, Write) error
	log   *slog.Logger
}

// NewAdmission answers about the given kinds. allow refuses a write of a valid object by an error,
// which the user gets: as it is if it is an API status, else as Forbidden; nil: none is refused.
func NewAdmission(kinds []*resource.Descriptor, allow func(context.Context, Write) error, log *slog.Logger) *Admission {
	a := &Admission{kinds: map[schema.GroupVersionKind]*resource.Descriptor{}, allow: allow, log: log}
	for _, d := range kinds {
		a.kinds[d.GVK] = d
	}
	return a
}

// ServeHTTP implements http.Handler.
func (a *Admission) ServeHTTP(w http.ResponseWriter, r *http.Request) { serveReview(w, r, a.Review) }

// serveReview answers a review by a function, whose error means that it is none.
func serveReview(w http.ResponseWriter, r *http.Request, review func(context.Context, []byte) (*admissionv1.AdmissionReview, error)) {
	if r.Method != http.MethodPost {
		http.Error(w, "only POST is answered here", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))
	if err != nil {
		http.Error(w, "read the review: "+err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	answer, err := review(r.Context(), body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client may be gone
}

// Review answers an AdmissionReview in JSON. An error means that it is none. It blocks as long as
// allow does.
func (a *Admission) Review(ctx context.Context, body []byte) (*admissionv1.AdmissionReview, error) {
	review, err := parseReview(body)
	if err != nil {
		return nil, err
	}
	answer := &admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: a.decide(ctx, review.Request)}
	answer.Response.UID = review.Request.UID
	return answer, nil
}

// parseReview reads a request, within the limits.
func parseReview(body []byte) (*admissionv1.AdmissionReview, error) {
	if _, err := payload.JSON(body, reviewLimits); err != nil {
		return nil, fmt.Errorf("the review is too large: %w", err)
	}
	review := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(body, review); err != nil {
		return nil, fmt.Errorf("the body is no AdmissionReview: %w", err)
	}
	if review.Request == nil || review.GroupVersionKind() != admissionv1.SchemeGroupVersion.WithKind("AdmissionReview") {
		return nil, errors.New("the body is no request of an AdmissionReview of admission.k8s.io/v1")
	}
	return review, nil
}

func (a *Admission) decide(ctx context.Context, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	out := &admissionv1.AdmissionResponse{Allowed: true}
	d := a.kinds[schema.GroupVersionKind(req.Kind)]
	if d == nil || req.SubResource != "" && req.SubResource != "status" {
		return out // nothing of ours
	}
	w := Write{
		User: req.UserInfo, Kind: d, Subresource: req.SubResource, DryRun: req.DryRun != nil && *req.DryRun,
		Warn: func(text string) { out.Warnings = append(out.Warnings, text) },
	}
	var err error
	switch req.Operation {
	case admissionv1.Create, admissionv1.Update:
		if w.Object, err = decode(d, req.Object.Raw); err != nil {
			return refused(apierrors.NewBadRequest(err.Error()))
		}
	case admissionv1.Delete:
	default:
		return out
	}
	if req.Operation != admissionv1.Create {
		if w.Old, err = decode(d, req.OldObject.Raw); err != nil {
			return refused(apierrors.NewBadRequest("the object before: " + err.Error()))
		}
	}
	if err := a.judge(ctx, w); err != nil {
		a.log.Info("write refused", "kind", req.Kind.Kind, "namespace", req.Namespace, "name", req.Name, "user", req.UserInfo.Username,
			"operation", req.Operation, "reason", err.ErrStatus.Reason)
		answer := refused(err)
		answer.Warnings = out.Warnings
		return answer
	}
	if w.Object != nil && d.Warnings != nil && req.SubResource == "" {
		out.Warnings = append(out.Warnings, d.Warnings(w.Object, w.Old)...)
	}
	return out
}

// judge a write: nil, or why it is refused.
func (a *Admission) judge(ctx context.Context, w Write) *apierrors.StatusError {
	name := ""
	for _, obj := range []resource.Object{w.Old, w.Object} {
		if obj != nil {
			name = obj.GetName()
		}
	}
	if w.Object != nil {
		if errs := check(w.Kind, w.Subresource, w.Object, w.Old); len(errs) > 0 {
			return apierrors.NewInvalid(w.Kind.GVK.GroupKind(), name, payload.Few(errs))
		}
	}
	if a.allow == nil {
		return nil
	}
	err := a.allow(ctx, w)
	var status *apierrors.StatusError
	if err == nil || errors.As(err, &status) {
		return status
	}
	return apierrors.NewForbidden(w.Kind.GroupResource(), name, err)
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
