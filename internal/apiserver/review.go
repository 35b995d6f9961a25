package apiserver

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// registerReviews registers the types by which a client asks who it is and what
// it may do.
func registerReviews(scheme *runtime.Scheme) {
	scheme.AddKnownTypes(authenticationv1.SchemeGroupVersion, &authenticationv1.SelfSubjectReview{})
	scheme.AddKnownTypes(authorizationv1.SchemeGroupVersion, &authorizationv1.SelfSubjectAccessReview{})
	metav1.AddToGroupVersion(scheme, authenticationv1.SchemeGroupVersion)
	metav1.AddToGroupVersion(scheme, authorizationv1.SchemeGroupVersion)
}

func registerReviewsInternal(scheme *runtime.Scheme) {
	internal := func(group string) schema.GroupVersion {
		return schema.GroupVersion{Group: group, Version: runtime.APIVersionInternal}
	}
	scheme.AddKnownTypes(internal(authenticationv1.GroupName), &authenticationv1.SelfSubjectReview{})
	scheme.AddKnownTypes(internal(authorizationv1.GroupName), &authorizationv1.SelfSubjectAccessReview{})
}

// review answers a question that is asked by "creating" it. Nothing is stored.
type review struct {
	newFunc  func() runtime.Object
	singular string
	answer   func(ctx context.Context, who user.Info, question runtime.Object) error
}

var (
	_ rest.Creater              = review{}
	_ rest.Scoper               = review{}
	_ rest.SingularNameProvider = review{}
)

// New implements rest.Storage.
func (r review) New() runtime.Object { return r.newFunc() }

// Destroy has nothing to free.
func (r review) Destroy() {}

// NamespaceScoped: reviews are not.
func (r review) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider.
func (r review) GetSingularName() string { return r.singular }

// Create answers the question in obj.
func (r review) Create(ctx context.Context, obj runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	if err := r.answer(ctx, who, obj); err != nil {
		return nil, err
	}
	return obj, nil
}

func selfSubjectReview() review {
	return review{
		newFunc:  func() runtime.Object { return &authenticationv1.SelfSubjectReview{} },
		singular: "selfsubjectreview",
		answer: func(_ context.Context, who user.Info, question runtime.Object) error {
			info := &question.(*authenticationv1.SelfSubjectReview).Status.UserInfo
			*info = authenticationv1.UserInfo{Username: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups()}
			for key, values := range who.GetExtra() {
				if info.Extra == nil {
					info.Extra = map[string]authenticationv1.ExtraValue{}
				}
				info.Extra[key] = values
			}
			return nil
		},
	}
}

func selfSubjectAccessReview(authz authorizer.Authorizer) review {
	return review{
		newFunc:  func() runtime.Object { return &authorizationv1.SelfSubjectAccessReview{} },
		singular: "selfsubjectaccessreview",
		answer: func(ctx context.Context, who user.Info, question runtime.Object) error {
			sar := question.(*authorizationv1.SelfSubjectAccessReview)
			attrs, err := reviewAttributes(who, sar.Spec)
			if err != nil {
				return err
			}
			decision, reason, err := authz.Authorize(ctx, attrs)
			sar.Status = authorizationv1.SubjectAccessReviewStatus{
				Allowed: decision == authorizer.DecisionAllow,
				Denied:  decision == authorizer.DecisionDeny,
				Reason:  reason,
			}
			if err != nil {
				sar.Status.EvaluationError = err.Error()
			}
			return nil
		},
	}
}

func reviewAttributes(who user.Info, spec authorizationv1.SelfSubjectAccessReviewSpec) (authorizer.Attributes, error) {
	switch r, n := spec.ResourceAttributes, spec.NonResourceAttributes; {
	case (r == nil) == (n == nil):
		return nil, apierrors.NewBadRequest("exactly one of spec.resourceAttributes and spec.nonResourceAttributes must be given")
	case r != nil:
		return authorizer.AttributesRecord{
			User: who, Verb: r.Verb, Namespace: r.Namespace, APIGroup: r.Group, APIVersion: r.Version,
			Resource: r.Resource, Subresource: r.Subresource, Name: r.Name, ResourceRequest: true,
		}, nil
	default:
		return authorizer.AttributesRecord{User: who, Verb: n.Verb, Path: n.Path}, nil
	}
}
