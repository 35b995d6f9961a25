package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// runCredential is what run registers with where that is not the kubeconfig.
type runCredential struct {
	servers   []string
	tokenFile string
}

func (c *runCredential) add(f *pflag.FlagSet) {
	addServerFlag(f, &c.servers, "; goes with --token-file")
	f.StringVar(&c.tokenFile, "token-file", "", "file with a token of kind workload or node to register with (default: the kubeconfig's user)")
}

// restConfig is the API as the token's user, and the namespace of a workload's
// token; without a token it is that of the kubeconfig. Unless the namespace is
// given, the user is read from the server.
func (c *runCredential) restConfig(ctx context.Context, s *settings, namespace string) (*rest.Config, string, error) {
	if c.tokenFile == "" {
		return s.restConfig() // --server may be there for "proxima node", in a configuration file
	}
	if len(c.servers) == 0 {
		return nil, "", usagef("--token-file needs --server, the HOST:PORT of the control plane's API")
	}
	servers, err := parseServers(c.servers)
	if err != nil {
		return nil, "", err
	}
	cfg, err := tokenConfig(servers, c.tokenFile)
	if err != nil || namespace != "" {
		return cfg, namespace, err
	}
	review := authenticationv1.SelfSubjectReview{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"}}
	err = callJSON(ctx, cfg, http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", review, &review)
	if err != nil {
		return nil, "", &problem.Error{
			Code: problem.APIUnreachable,
			Err:  explainAPI(cfg, err),
			Hint: "with --namespace the command starts while no control plane answers",
		}
	}
	user := review.Status.UserInfo
	namespace, _, _ = identity.WorkloadName(user.Username, user.Groups)
	return cfg, cmp.Or(namespace, metav1.NamespaceDefault), nil
}

// tokenConfig reaches a server, one of the instances of a control plane, that is recognised by
// the pin in the token. The file is read again while requests are made, so a token can be
// replaced in it.
func tokenConfig(servers []string, tokenFile string) (*rest.Config, error) {
	data, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	text := strings.TrimSpace(string(data))
	token, err := identity.ParseToken(text)
	if err != nil {
		return nil, usagef("--token-file %s: %w", tokenFile, err)
	}
	pinned := func(host string) *tls.Config { return identity.PinnedTLS(token.Pin, host) }
	transport := &http.Transport{
		TLSClientConfig: pinned(app.HostOf(servers[0])), ForceAttemptHTTP2: true, Proxy: http.ProxyFromEnvironment,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
	}
	if len(servers) > 1 {
		transport.DialTLSContext = app.DialServers(servers, pinned)
	}
	return &rest.Config{Host: "https://" + servers[0], BearerToken: text, BearerTokenFile: tokenFile, QPS: -1, Transport: transport}, nil
}
