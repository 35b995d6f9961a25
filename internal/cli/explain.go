package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/problem"
)

// explainAPI adds what to do to the failures that people meet. nil stays nil.
func explainAPI(cfg *rest.Config, err error) error {
	if err == nil {
		return nil
	}
	if explained := explainWay(cfg, err); explained != nil {
		return explained
	}
	if _, ok := problem.Of(err); ok {
		return err
	}
	return explainAnswer(cfg, err)
}

// explainWay to the server: nil if the server answered.
func explainWay(cfg *rest.Config, err error) error {
	var netErr *net.OpError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	const otherServer = "another control plane took its place, or the kubeconfig is an old one: use the one in the control plane's data directory"
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return &problem.Error{
			Code: problem.APIUnreachable,
			Err:  fmt.Errorf("nothing listens at %s: %w", cfg.Host, err),
			Hint: "is the control plane running? start it with \"proxima up\"",
		}
	case errors.As(err, &authority):
		return &problem.Error{
			Code: problem.APIUntrusted,
			Err:  fmt.Errorf("the server at %s is not the one that the kubeconfig trusts: %w", cfg.Host, err),
			Hint: otherServer,
		}
	case errors.As(err, &host), errors.As(err, &invalid):
		return &problem.Error{
			Code: problem.APICertificateInvalid,
			Err:  fmt.Errorf("the certificate of %s does not hold: %w", cfg.Host, err),
			Hint: "check the server's name in the kubeconfig and this machine's clock",
		}
	case errors.Is(err, http.ErrSchemeMismatch):
		return &problem.Error{
			Code: problem.APINotTLS,
			Err:  fmt.Errorf("%s does not speak TLS: %w", cfg.Host, err),
			Hint: "check the server in the kubeconfig: is that its address?",
		}
	case os.IsTimeout(err), errors.Is(err, context.DeadlineExceeded):
		return &problem.Error{
			Code: problem.APITimeout,
			Err:  fmt.Errorf("%s did not answer in time: %w", cfg.Host, err),
			Hint: "is it reachable from here? run \"proxima status\" on the control plane's machine",
		}
	case errors.As(err, &netErr):
		return &problem.Error{
			Code: problem.APIUnreachable,
			Err:  fmt.Errorf("can't reach %s: %w", cfg.Host, err),
			Hint: "check the server address in the kubeconfig and the way to it",
		}
	}
	return nil
}

// explainAnswer of the server that is a refusal.
func explainAnswer(cfg *rest.Config, err error) error {
	switch {
	case errors.Is(err, errNotServed):
		return &problem.Error{
			Code: problem.APIOfCluster,
			Err:  fmt.Errorf("%s: %w", cfg.Host, err),
			Hint: "in a Kubernetes cluster run it in a pod of the control plane: " +
				"kubectl --namespace proxima-system exec deployment/proxima -- proxima …; or install with aggregatedAPI.enabled=true. Else use the kubeconfig in the control plane's data directory",
		}
	case apierrors.IsUnauthorized(err):
		return &problem.Error{
			Code: problem.APIUnauthorized,
			Err:  fmt.Errorf("%s refused the credentials: %w", cfg.Host, err),
			Hint: "the token is wrong, expired or revoked; make one with \"proxima token create\" on the control plane's machine",
		}
	case apierrors.IsNotFound(err):
		return explainNotFound(cfg, err)
	case apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err), apierrors.IsServerTimeout(err), apierrors.IsInternalError(err):
		return &problem.Error{
			Code: problem.APIUnavailable,
			Err:  err,
			Hint: "the control plane has trouble: see \"proxima status\" and its log",
		}
	}
	return err
}

func explainNotFound(cfg *rest.Config, err error) error {
	details := detailsOf(err)
	switch {
	case details == nil:
		return err
	case details.Name == "":
		return &problem.Error{
			Code: problem.KindNotServed,
			Err:  fmt.Errorf("%s does not serve this kind: %w", cfg.Host, err),
			Hint: "its version differs from this program's: compare with \"proxima doctor\"",
		}
	case details.Kind == "namespaces":
		return &problem.Error{
			Code: problem.NamespaceNotFound,
			Err:  err,
			Hint: fmt.Sprintf("see \"proxima get namespaces\"; make it by applying a Namespace named %s", details.Name),
		}
	}
	return &problem.Error{
		Code: problem.ObjectNotFound,
		Err:  err,
		Hint: fmt.Sprintf("see \"proxima get %s -A\"; -n chooses the namespace", details.Kind),
	}
}

// detailsOf a refusal; nil: it says no more.
func detailsOf(err error) *metav1.StatusDetails {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return nil
	}
	return status.Status().Details
}

// causesOf a refusal, one line for each.
func causesOf(err error) []string {
	details := detailsOf(err)
	if details == nil {
		return nil
	}
	var lines []string
	for _, c := range details.Causes {
		lines = append(lines, strings.TrimPrefix(c.Field+": ", ": ")+c.Message)
	}
	return lines
}
