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

// registerReviews registers the types that report a client's identity and
// permissions.
func registerReviews(scheme *runtime.Scheme) {
	scheme.AddKnownTypes(authenticationv1.SchemeGroupVersion, authenticationReviews()...)
	scheme.AddKnownTypes(authorizationv1.SchemeGroupVersion, authorizationReviews()...)
	metav1.AddToGroupVersion(scheme, authenticationv1.SchemeGroupVersion)
	metav1.AddToGroupVersion(scheme, authorizationv1.SchemeGroupVersion)
}

func registerReviewsInternal(scheme *runtime.Scheme) {
	internal := func(group string) schema.GroupVersion {
		return schema.GroupVersion{Group: group, Version: runtime.APIVersionInternal}
	}
	scheme.AddKnownTypes(internal(authenticationv1.GroupName), authenticationReviews()...)
	scheme.AddKnownTypes(internal(authorizationv1.GroupName), authorizationReviews()...)
}

func authenticationReviews() []runtime.Object {
	return []runtime.Object{&authenticationv1.SelfSubjectReview{}, &authenticationv1.TokenReview{}}
}

func authorizationReviews() []runtime.Object {
	return []runtime.Object{
		&authorizationv1.SelfSubjectAccessReview{}, &authorizationv1.SelfSubjectRulesReview{}, &authorizationv1.SubjectAccessReview{}, &authorizationv1.LocalSubjectAccessReview{},
	}
}

// review answers a request that "creates" it. Nothing is stored.
type review struct {
	newFunc  func() runtime.Object
	singular string
	// namespaced: the review is about one namespace, under its URL.
	namespaced bool
	answer     func(ctx context.Context, who user.Info, question runtime.Object) error
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

// NamespaceScoped implements rest.Scoper.
func (r review) NamespaceScoped() bool { return r.namespaced }

// GetSingularName implements rest.SingularNameProvider.
func (r review) GetSingularName() string { return r.singular }

// Create answers the question in obj.
func (r review) Create(
	ctx context.Context, obj runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions,
) (runtime.Object, error) {
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
			question.(*authenticationv1.SelfSubjectReview).Status.UserInfo = userInfo(who)
			return nil
		},
	}
}

func userInfo(who user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups()}
	for key, values := range who.GetExtra() {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[key] = values
	}
	return info
}

func selfSubjectAccessReview(authz authorizer.Authorizer) review {
	return review{
		newFunc:  func() runtime.Object { return &authorizationv1.SelfSubjectAccessReview{} },
		singular: "selfsubjectaccessreview",
		answer: func(ctx context.Context, who user.Info, question runtime.Object) error {
			sar := question.(*authorizationv1.SelfSubjectAccessReview)
			errs := checkAccessReview(&sar.ObjectMeta, sar.Spec.ResourceAttributes, sar.Spec.NonResourceAttributes)
			if len(errs) > 0 {
				return invalidReview(authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"), errs)
			}
			sar.Status = decide(ctx, authz, who, sar.Spec.ResourceAttributes, sar.Spec.NonResourceAttributes)
			return nil
		},
	}
}

// selfSubjectRulesReview lists what the user may do in a namespace (kubectl auth can-i --list).
// The answer has the status alone, as that of Kubernetes.
func selfSubjectRulesReview(rules authorizer.RuleResolver) review {
	return review{
		newFunc:  func() runtime.Object { return &authorizationv1.SelfSubjectRulesReview{} },
		singular: "selfsubjectrulesreview",
		answer: func(ctx context.Context, who user.Info, question runtime.Object) error {
			r := question.(*authorizationv1.SelfSubjectRulesReview)
			if r.Spec.Namespace == "" {
				return apierrors.NewBadRequest("no namespace on request")
			}
			resources, paths, incomplete, err := rules.RulesFor(ctx, who, r.Spec.Namespace)
			*r = authorizationv1.SelfSubjectRulesReview{Status: authorizationv1.SubjectRulesReviewStatus{
				ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{}, Incomplete: incomplete,
			}}
			if err != nil {
				r.Status.EvaluationError = err.Error()
			}
			for _, rule := range resources {
				r.Status.ResourceRules = append(r.Status.ResourceRules, authorizationv1.ResourceRule{
					Verbs: rule.GetVerbs(), APIGroups: rule.GetAPIGroups(), Resources: rule.GetResources(), ResourceNames: rule.GetResourceNames(),
				})
			}
			for _, rule := range paths {
				r.Status.NonResourceRules = append(r.Status.NonResourceRules, authorizationv1.NonResourceRule{
					Verbs: rule.GetVerbs(), NonResourceURLs: rule.GetNonResourceURLs(),
				})
			}
			return nil
		},
	}
}
