package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/problem"
)

func TestExplainAPI(t *testing.T) {
	services := schema.GroupResource{Resource: "services"}
	kindless := apierrors.NewGenericServerResponse(404, "get", services, "", "", 0, true)
	for name, tc := range map[string]struct {
		err        error
		text, hint string
	}{
		"refused":      {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "nothing listens at https://here", "proxima up"},
		"no way":       {&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}, "can't reach https://here", "check the server address"},
		"late":         {context.DeadlineExceeded, "https://here did not answer in time", "is it reachable from here"},
		"no TLS":       {http.ErrSchemeMismatch, "does not speak TLS", "check the server"},
		"stranger":     {x509.UnknownAuthorityError{}, "is not the one that the kubeconfig trusts", "old one"},
		"wrong name":   {x509.HostnameError{Host: "x", Certificate: &x509.Certificate{}}, "does not hold", "check the server's name"},
		"unauthorized": {apierrors.NewUnauthorized("no"), "refused the credentials", "wrong, expired or revoked"},
		"no object":    {apierrors.NewNotFound(services, "a"), `services "a" not found`, "proxima get services -A"},
		"no namespace": {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "a"), `namespaces "a" not found`, "applying a Namespace named a"},
		"no such kind": {kindless, "https://here does not serve this kind", "proxima doctor"},
		"trouble":      {apierrors.NewServiceUnavailable("disk full"), "disk full", "proxima status"},
		"known": {&problem.Error{
			Code: problem.APIUnauthorized,
			Err:  apierrors.NewUnauthorized("no"),
			Hint: "as it was"}, "no", "as it was",
		},
		"anything": {errors.New("odd"), "odd", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := explainAPI(&rest.Config{Host: "https://here"}, fmt.Errorf("get: %w", tc.err))
			if !strings.Contains(got.Error(), tc.text) {
				t.Errorf("got %q, want %q in it", got, tc.text)
			}
			if hint := problem.HintOf(got, ""); !strings.Contains(hint, tc.hint) || (tc.hint == "") != (hint == "") {
				t.Errorf("got hint %q, want %q in it", hint, tc.hint)
			}
			if !errors.Is(got, tc.err) {
				t.Error("the cause is lost")
			}
		})
	}
	if explainAPI(nil, nil) != nil {
		t.Error("no error became one")
	}
}

func TestExplainConflict(t *testing.T) {
	conflict := func(causes ...metav1.StatusCause) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Reason: metav1.StatusReasonConflict, Code: 409, Message: "Apply failed", Details: &metav1.StatusDetails{Causes: causes},
		}}
	}
	cause := func(message, field string) metav1.StatusCause {
		return metav1.StatusCause{Type: metav1.CauseTypeFieldManagerConflict, Message: message, Field: field}
	}
	got := explainApply(conflict(
		cause(`conflict with "kubectl-\"edit\"" using v1 at 2001-02-03T04:05:06Z`, ".spec.a"), cause(`conflict with "b" with subresource "status"`, ".spec.b"),
		cause(`conflict with "b"`, ".spec.c"), cause("odd", ".spec.d"),
	))
	want := "it sets fields to other values than their owners did:\n    \"b\" set .spec.b, .spec.c\n    \"kubectl-\\\"edit\\\"\" set .spec.a\n    odd set .spec.d"
	if got.Error() != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
}
