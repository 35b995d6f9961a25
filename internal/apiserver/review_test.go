package apiserver_test

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestTokenReview(t *testing.T) {
	for _, contentType := range []string{"", runtime.ContentTypeProtobuf} {
		reviews := shared.clientset(t, contentType).AuthenticationV1().TokenReviews()
		ask := func(token string) (*authenticationv1.TokenReview, error) {
			return reviews.Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}},
				metav1.CreateOptions{})
		}
		r, err := ask("reader")
		if err != nil || !r.Status.Authenticated || r.Status.User.Username != "rob" || len(r.Status.User.Groups) == 0 ||
			len(r.Status.Audiences) != 0 {
			t.Errorf("a good token: %v %+v", err, r)
		}
		r, err = ask("rubbish")
		if err != nil || r.Status.Authenticated || r.Status.User.Username != "" || r.Status.Error == "" {
			t.Errorf("a wrong token: %v %+v", err, r)
		}
		if _, err := ask(""); !apierrors.IsBadRequest(err) {
			t.Errorf("no token: %v", err)
		}
	}
	code, _ := shared.do(t, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", "reader",
		map[string][]string{"Content-Type": {"application/json"}},
		`{"spec":{"token":"admin"}}`)
	if code != 403 {
		t.Errorf("a user without the right to review: %d", code)
	}
}

func TestSubjectAccessReviews(t *testing.T) {
	authz := shared.clientset(t, "").AuthorizationV1()
	get := &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "get", Resource: "services"}
	create := &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "create", Resource: "services"}
	for _, tc := range []struct {
		name    string
		spec    authorizationv1.SubjectAccessReviewSpec
		allowed bool
		invalid string // the field; empty: valid
	}{
		{"may", authorizationv1.SubjectAccessReviewSpec{User: "rob", ResourceAttributes: get}, true, ""},
		{"may not", authorizationv1.SubjectAccessReviewSpec{User: "rob", ResourceAttributes: create}, false, ""},
		{"a path", authorizationv1.SubjectAccessReviewSpec{User: "rob",
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}}, true, ""},
		{"anonymous", authorizationv1.SubjectAccessReviewSpec{User: "system:anonymous", ResourceAttributes: get}, false, ""},
		{"no user", authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: get}, false, "spec.user"},
		{"nothing", authorizationv1.SubjectAccessReviewSpec{User: "rob"}, false, "spec.resourceAttributes"},
		{"two things", authorizationv1.SubjectAccessReviewSpec{User: "rob", ResourceAttributes: get,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/"}}, false, "spec.nonResourceAttributes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := authz.SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: tc.spec}, metav1.CreateOptions{})
			checkReview(t, "subject", tc.allowed, tc.invalid, err, func() authorizationv1.SubjectAccessReviewStatus { return r.Status })
			if tc.spec.NonResourceAttributes != nil {
				return
			}
			l, err := authz.LocalSubjectAccessReviews("default").Create(t.Context(), &authorizationv1.LocalSubjectAccessReview{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: tc.spec}, metav1.CreateOptions{})
			checkReview(t, "local", tc.allowed, tc.invalid, err, func() authorizationv1.SubjectAccessReviewStatus { return l.Status })
		})
	}
	for invalid, spec := range map[string]authorizationv1.SubjectAccessReviewSpec{
		"spec.resourceAttributes.namespace": {User: "rob",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "other", Verb: "get", Resource: "services"}},
		"spec.nonResourceAttributes": {User: "rob", NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/"}},
	} {
		_, err := authz.LocalSubjectAccessReviews("default").Create(t.Context(), &authorizationv1.LocalSubjectAccessReview{Spec: spec},
			metav1.CreateOptions{})
		checkReview(t, "local only", false, invalid, err, nil)
	}
	named := &authorizationv1.SubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Name: "x"},
		Spec: authorizationv1.SubjectAccessReviewSpec{User: "rob", ResourceAttributes: get}}
	_, err := authz.SubjectAccessReviews().Create(t.Context(), named, metav1.CreateOptions{})
	checkReview(t, "with a name", false, "metadata", err, nil)
	self := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{}}
	_, err = authz.SelfSubjectAccessReviews().Create(t.Context(), self, metav1.CreateOptions{})
	checkReview(t, "about oneself and nothing", false, "spec.resourceAttributes", err, nil)
}

func checkReview(
	t *testing.T, what string, allowed bool, invalid string, err error, status func() authorizationv1.SubjectAccessReviewStatus,
) {
	t.Helper()
	if invalid != "" {
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), " "+invalid+": ") {
			t.Errorf("%s: %v, want a mistake in %s", what, err, invalid)
		}
		return
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if got := status(); got.Allowed != allowed || !allowed && got.Reason == "" {
		t.Errorf("%s: %+v, want %v", what, got, allowed)
	}
}
