package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/version"
)

// kubeconfigPath finds the configuration to use: --kubeconfig or
// PROXIMA_KUBECONFIG, then KUBECONFIG, then the data directory's.
// ~/.kube/config is never looked at: it is somebody else's cluster.
func (s *settings) kubeconfigPath() (string, error) {
	if s.kubeconfig != "" {
		return s.kubeconfig, nil
	}
	if path := os.Getenv("KUBECONFIG"); path != "" {
		return path, nil
	}
	path := filepath.Join(s.dataDir, "kubeconfig")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return "", &hintError{
		err:  fmt.Errorf("no kubeconfig: none was given and there is none at %s", path),
		hint: "start a control plane with \"proxima up\", or name its kubeconfig with --kubeconfig",
	}
}

// restConfig says how to reach the API, and the namespace to use by default.
func (s *settings) restConfig() (*rest.Config, string, error) {
	path, err := s.kubeconfigPath()
	if err != nil {
		return nil, "", err
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(path)}, &clientcmd.ConfigOverrides{})
	cfg, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	cfg.UserAgent = "proxima/" + version.Get().Version
	cfg.Timeout = 30 * time.Second
	cfg.QPS, cfg.Burst = -1, 0 // one person's commands need no brake
	return cfg, namespace, nil
}

// explainAPI adds a hint to the failures that everybody meets.
func explainAPI(cfg *rest.Config, err error) error {
	if err == nil {
		return nil
	}
	var netErr *net.OpError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return &hintError{err: fmt.Errorf("nothing listens at %s: %w", cfg.Host, err), hint: "is the control plane running? start it with \"proxima up\""}
	case errors.As(err, &netErr):
		return &hintError{err: fmt.Errorf("can't reach %s: %w", cfg.Host, err), hint: "check the server address in the kubeconfig and the way to it"}
	case apierrors.IsUnauthorized(err):
		return &hintError{err: fmt.Errorf("%s refused the credentials: %w", cfg.Host, err), hint: "the token is wrong, expired or revoked; make one with \"proxima token create\" on the control plane's machine"}
	}
	return err
}
