package extension

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/kubernetes/inject"
)

// InjectionPath takes AdmissionReviews of Pods that are created, to POST.
const InjectionPath = "/proxima/v1/injection"

// Injection answers with what is to be added to Pods. It never refuses one: a Pod that cannot have a
// sidecar is created without, and the user gets the reason as a warning. Everybody may ask. Safe for
// concurrent use.
type Injection struct {
	patch func(ctx context.Context, pod *corev1.Pod) (inject.Result, error)
	log   *slog.Logger
}

// NewInjection answers by a function, which gets Pods with their namespace.
func NewInjection(patch func(context.Context, *corev1.Pod) (inject.Result, error), log *slog.Logger) *Injection {
	return &Injection{patch: patch, log: log}
}

// ServeHTTP implements http.Handler.
func (i *Injection) ServeHTTP(w http.ResponseWriter, r *http.Request) { serveReview(w, r, i.Review) }

// Review answers an AdmissionReview in JSON. An error means that it is none.
func (i *Injection) Review(ctx context.Context, body []byte) (*admissionv1.AdmissionReview, error) {
	review, err := parseReview(body)
	if err != nil {
		return nil, err
	}
	answer := &admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: i.decide(ctx, review.Request)}
	answer.Response.UID = review.Request.UID
	return answer, nil
}

func (i *Injection) decide(ctx context.Context, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	out := &admissionv1.AdmissionResponse{Allowed: true}
	if req.Kind.Group != "" || req.Kind.Kind != "Pod" || req.SubResource != "" || req.Operation != admissionv1.Create {
		return out
	}
	pod := &corev1.Pod{}
	err := json.Unmarshal(req.Object.Raw, pod)
	var result inject.Result
	if err == nil {
		pod.Namespace = req.Namespace // of a Pod that is created by a controller it is not in the object
		result, err = i.patch(ctx, pod)
	}
	var patch []byte
	if err == nil && len(result.Patch) > 0 {
		patch, err = json.Marshal(result.Patch)
	}
	name := pod.Name
	if name == "" {
		name = pod.GenerateName + "*"
	}
	switch {
	case err != nil:
		out.Warnings = []string{fmt.Sprintf("no sidecar is added: %v", err)}
		i.log.Warn("a pod is created without a sidecar", "namespace", req.Namespace, "pod", name, "error", err)
	case patch != nil:
		kind := admissionv1.PatchTypeJSONPatch
		out.Patch, out.PatchType = patch, &kind
		i.log.Info("a sidecar is added", "namespace", req.Namespace, "pod", name)
		fallthrough
	default:
		out.Warnings = result.Warnings
	}
	return out
}
