package apiserver

import (
	"context"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// tokenReview authenticates a token on behalf of another server. Tokens are valid
// for this API alone, so no other audience is ever confirmed: status.audiences stays
// empty, which means exactly that.
func tokenReview(authn authenticator.Request) review {
	return review{
		newFunc:  func() runtime.Object { return &authenticationv1.TokenReview{} },
		singular: "tokenreview",
		answer: func(ctx context.Context, _ user.Info, question runtime.Object) error {
			r := question.(*authenticationv1.TokenReview)
			if r.Spec.Token == "" {
				return apierrors.NewBadRequest("token is required for TokenReview in authentication")
			}
			// Only the authenticator can validate a token, and its input is a request.
			shown := (&http.Request{Header: http.Header{"Authorization": {"Bearer " + r.Spec.Token}}}).WithContext(ctx)
			answer, ok, err := authn.AuthenticateRequest(shown)
			r.Status = authenticationv1.TokenReviewStatus{}
			switch {
			case err != nil:
				r.Status.Error = err.Error()
			case ok && !isAnonymous(answer.User):
				r.Status.Authenticated, r.Status.User = true, userInfo(answer.User)
			}
			return nil
		},
	}
}

// subjectAccessReview reports what another user may do.
func subjectAccessReview(authz authorizer.Authorizer) review {
	return review{
		newFunc:  func() runtime.Object { return &authorizationv1.SubjectAccessReview{} },
		singular: "subjectaccessreview",
		answer: func(ctx context.Context, _ user.Info, question runtime.Object) error {
			r := question.(*authorizationv1.SubjectAccessReview)
			errs := append(checkAccessReview(&r.ObjectMeta, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes), checkSubject(&r.Spec)...)
			if len(errs) > 0 {
				return invalidReview(authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"), errs)
			}
			r.Status = decide(ctx, authz, subject(&r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
			return nil
		},
	}
}

// localSubjectAccessReview is the same for one namespace, for those who may ask
// about no other.
func localSubjectAccessReview(authz authorizer.Authorizer) review {
	return review{
		newFunc:    func() runtime.Object { return &authorizationv1.LocalSubjectAccessReview{} },
		singular:   "localsubjectaccessreview",
		namespaced: true,
		answer: func(ctx context.Context, _ user.Info, question runtime.Object) error {
			r := question.(*authorizationv1.LocalSubjectAccessReview)
			if namespace := request.NamespaceValue(ctx); r.Namespace != "" && r.Namespace != namespace {
				return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
			}
			if errs := checkLocalReview(ctx, r); len(errs) > 0 {
				return invalidReview(authorizationv1.SchemeGroupVersion.WithKind("LocalSubjectAccessReview"), errs)
			}
			r.Status = decide(ctx, authz, subject(&r.Spec), r.Spec.ResourceAttributes, nil)
			return nil
		},
	}
}

func checkLocalReview(ctx context.Context, r *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
	meta := r.ObjectMeta
	meta.Namespace = ""
	spec := field.NewPath("spec")
	errs := append(checkAccessReview(&meta, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes), checkSubject(&r.Spec)...)
	if a := r.Spec.ResourceAttributes; a != nil && a.Namespace != request.NamespaceValue(ctx) {
		errs = append(errs, field.Invalid(spec.Child("resourceAttributes", "namespace"), a.Namespace, "must match metadata.namespace"))
	}
	if r.Spec.NonResourceAttributes != nil {
		errs = append(errs,
			field.Invalid(spec.Child("nonResourceAttributes"), r.Spec.NonResourceAttributes, "disallowed on this kind of request"))
	}
	return errs
}

func checkSubject(spec *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	if spec.User == "" && len(spec.Groups) == 0 {
		return field.ErrorList{field.Invalid(field.NewPath("spec", "user"), spec.User, "at least one of user or group must be specified")}
	}
	return nil
}

// checkAccessReview: a review has no name and exactly one subject.
func checkAccessReview(
	meta *metav1.ObjectMeta, r *authorizationv1.ResourceAttributes, n *authorizationv1.NonResourceAttributes,
) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	switch {
	case r != nil && n != nil:
		errs = append(errs, field.Invalid(spec.Child("nonResourceAttributes"), n, "cannot be specified in combination with resourceAttributes"))
	case r == nil && n == nil:
		errs = append(errs,
			field.Invalid(spec.Child("resourceAttributes"), r, "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	if meta.Name != "" || meta.Namespace != "" || len(meta.Labels) > 0 || len(meta.Annotations) > 0 {
		errs = append(errs, field.Invalid(field.NewPath("metadata"), meta.Name, "must be empty"))
	}
	return errs
}

func invalidReview(kind schema.GroupVersionKind, errs field.ErrorList) error {
	return apierrors.NewInvalid(kind.GroupKind(), "", errs)
}

func subject(spec *authorizationv1.SubjectAccessReviewSpec) user.Info {
	who := &user.DefaultInfo{Name: spec.User, UID: spec.UID, Groups: spec.Groups}
	for key, values := range spec.Extra {
		if who.Extra == nil {
			who.Extra = map[string][]string{}
		}
		who.Extra[key] = values
	}
	return who
}

// decide calls the authorizer; exactly one of r and n is set.
func decide(ctx context.Context, authz authorizer.Authorizer, who user.Info,
	r *authorizationv1.ResourceAttributes, n *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	attrs := authorizer.AttributesRecord{User: who}
	if r != nil {
		attrs.Verb, attrs.Namespace, attrs.APIGroup, attrs.APIVersion = r.Verb, r.Namespace, r.Group, r.Version
		attrs.Resource, attrs.Subresource, attrs.Name, attrs.ResourceRequest = r.Resource, r.Subresource, r.Name, true
	} else {
		attrs.Verb, attrs.Path = n.Verb, n.Path
	}
	decision, reason, err := authz.Authorize(ctx, attrs)
	status := authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow,
		Denied:  decision == authorizer.DecisionDeny,
		Reason:  reason,
	}
	if err != nil {
		status.EvaluationError = err.Error()
	}
	return status
}
