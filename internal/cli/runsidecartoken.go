package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// tokenTimeout bounds what is asked of the control plane before a sidecar with a token starts.
const tokenTimeout = 5 * time.Second

// accountOfToken is the service account whose certificate the sidecar gets: that of the token of kind
// workload. It is kept in dir, for starts while no control plane answers.
func accountOfToken(ctx context.Context, way registerWay, dp *v1alpha1.Dataplane, dir string) (string, error) {
	kept := filepath.Join(dir, "account")
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	review := authenticationv1.SelfSubjectReview{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"}}
	err := callJSON(ctx, way.cfg, http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", review, &review)
	if err != nil {
		if text, readErr := os.ReadFile(kept); readErr == nil {
			return string(text), nil
		}
		return "", &problem.Error{
			Code: problem.APIUnreachable, Op: "start", Object: "the sidecar", Err: explainAPI(way.cfg, err),
			Hint: "the first start needs the control plane; later ones do without",
		}
	}
	namespace, account, ok := identity.WorkloadName(review.Status.UserInfo.Username, review.Status.UserInfo.Groups)
	refuse := func(err error, hint string) (string, error) {
		return "", &problem.Error{Code: problem.SidecarUnavailable, Op: "start", Object: "the sidecar", Err: err, Hint: hint}
	}
	switch {
	case !ok:
		return refuse(fmt.Errorf("the token is of %s, which is no workload: it gets no certificate of one", review.Status.UserInfo.Username),
			"make one with: proxima token create --kind workload --name "+dp.Namespace+"/SERVICEACCOUNT; or run an agent as root on this machine")
	case namespace != dp.Namespace:
		return refuse(fmt.Errorf("the token is for namespace %s, and the workload is in %s", namespace, dp.Namespace),
			"leave out --namespace, or use a token of that namespace")
	}
	return account, atomicfile.Write(kept, []byte(account), 0o600)
}

// authorityOfToken is a file with the authority that the token has the pin of, as the control plane shows
// it. It is kept for starts while none answers.
func authorityOfToken(ctx context.Context, c runCredential, dir string) (string, error) {
	path := filepath.Join(dir, "server-ca.pem")
	text, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token, err := identity.ParseToken(strings.TrimSpace(string(text)))
	if err != nil {
		return "", usagef("--token-file %s: %w", c.tokenFile, err)
	}
	servers, err := parseServers(c.servers)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	var failed []error
	for _, server := range servers {
		data, err := identity.PinnedAuthority(ctx, server, token.Pin)
		if err == nil {
			return path, atomicfile.Write(path, data, 0o644)
		}
		failed = append(failed, fmt.Errorf("%s: %w", server, err))
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return "", &problem.Error{
		Code: problem.APIUnreachable, Op: "start", Object: "the sidecar", Err: errors.Join(failed...),
		Hint: "the first start needs the control plane; later ones do without",
	}
}
