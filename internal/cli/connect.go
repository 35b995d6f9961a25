package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/version"
)

// kubeconfigFiles finds the configuration to use: --kubeconfig or
// PROXIMA_KUBECONFIG, then KUBECONFIG, then the data directory's.
// ~/.kube/config is never read: it belongs to another cluster.
func (s *settings) kubeconfigFiles() ([]string, error) {
	const elsewhere = "start a control plane with \"proxima up\", or name its kubeconfig with --kubeconfig"
	if s.kubeconfig != "" {
		if _, err := os.Stat(s.kubeconfig); errors.Is(err, os.ErrNotExist) {
			return nil, &problem.Error{
				Code: problem.KubeconfigMissing,
				Err:  fmt.Errorf("there is no kubeconfig %s", s.kubeconfig),
				Hint: "check --kubeconfig and $" + envName("kubeconfig") + "; \"proxima up\" leaves one in its data directory",
			}
		}
		return []string{s.kubeconfig}, nil
	}
	if list, _ := s.io.Env("KUBECONFIG"); list != "" {
		files := slices.DeleteFunc(filepath.SplitList(list), func(file string) bool {
			_, err := os.Stat(file)
			return errors.Is(err, os.ErrNotExist)
		})
		if len(files) == 0 {
			return nil, &problem.Error{
				Code: problem.KubeconfigMissing,
				Err:  fmt.Errorf("$KUBECONFIG is %s, and there is no such file", list),
				Hint: elsewhere,
			}
		}
		return files, nil
	}
	path := filepath.Join(s.dataDir, "kubeconfig")
	switch _, err := os.Stat(path); {
	case err == nil:
		return []string{path}, nil
	case errors.Is(err, os.ErrPermission):
		return nil, &problem.Error{
			Code: problem.KubeconfigUnreadable,
			Err:  fmt.Errorf("kubeconfig: %w", err),
			Hint: "the data directory belongs to another user: run this as that user, or name a kubeconfig with --kubeconfig",
		}
	}
	return nil, &noKubeconfigError{path: path, hint: elsewhere}
}

// noKubeconfigError: none was named, and the data directory has none.
type noKubeconfigError struct{ path, hint string }

func (e *noKubeconfigError) Error() string {
	return "no kubeconfig: none was given and there is none at " + e.path
}

// Code implements problem.Coded.
func (e *noKubeconfigError) Code() problem.Code { return problem.KubeconfigMissing }

// Hint implements problem.Coded.
func (e *noKubeconfigError) Hint() string { return e.hint }

func isNoKubeconfig(err error) bool {
	var none *noKubeconfigError
	return errors.As(err, &none)
}

// restConfig says how to reach the API, and the namespace to use by default.
func (s *settings) restConfig() (*rest.Config, string, error) {
	files, err := s.kubeconfigFiles()
	if err != nil {
		return nil, "", err
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{Precedence: files}, &clientcmd.ConfigOverrides{})
	cfg, err := loader.ClientConfig()
	if err != nil {
		return nil, "", explainKubeconfig(files, err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", explainKubeconfig(files, err)
	}
	cfg.UserAgent = "proxima/" + version.Get().Version
	cfg.Timeout = 30 * time.Second
	cfg.QPS, cfg.Burst = -1, 0 // one person's commands need no brake
	cfg.WarningHandler = rest.NewWarningWriter(s.io.Err, rest.WarningWriterOptions{Deduplicate: true})
	return cfg, namespace, nil
}

func explainKubeconfig(files []string, err error) error {
	named := fmt.Sprintf("kubeconfig %s", filepath.Join(files[0]))
	if len(files) > 1 {
		named = fmt.Sprintf("kubeconfigs %v", files)
	}
	const hint = "name the kubeconfig of a control plane with --kubeconfig; \"proxima up\" leaves one in its data directory"
	switch {
	case clientcmd.IsEmptyConfig(err):
		return &problem.Error{Code: problem.KubeconfigInvalid, Err: fmt.Errorf("%s: it names no cluster", named), Hint: hint}
	case errors.Is(err, os.ErrPermission):
		return &problem.Error{
			Code: problem.KubeconfigUnreadable,
			Err:  fmt.Errorf("%s: %w", named, err),
			Hint: "run this as the user whom the file belongs to",
		}
	}
	return &problem.Error{Code: problem.KubeconfigInvalid, Err: fmt.Errorf("%s can't be used: %w", named, err), Hint: hint}
}

// connection to an API.
type connection struct {
	cfg *rest.Config
	// namespace to use where an object names none.
	namespace string
	clients   map[schema.GroupVersion]*rest.RESTClient
}

// connect prepares to talk to the API; it sends nothing yet. An empty namespace
// is the kubeconfig's.
func (s *settings) connect(namespace string) (*connection, error) {
	cfg, configured, err := s.restConfig()
	if err != nil {
		return nil, err
	}
	return &connection{cfg: cfg, namespace: cmp.Or(namespace, configured), clients: map[schema.GroupVersion]*rest.RESTClient{}}, nil
}

// request to the kind's part of the API, in a namespace if the kind has them;
// an empty one is all. Bodies are read and written as they are.
func (c *connection) request(verb string, d *resource.Descriptor, namespace string) (*rest.Request, error) {
	gv := d.GVK.GroupVersion()
	client := c.clients[gv]
	if client == nil {
		var err error
		if client, err = rawClient(c.cfg, gv); err != nil {
			return nil, err
		}
		c.clients[gv] = client
	}
	return client.Verb(verb).Resource(d.Resource).NamespaceIfScoped(namespace, d.Namespaced && namespace != ""), nil
}

// perform a request and return the answer's body, or the server's reason to
// refuse.
func perform(ctx context.Context, req *rest.Request) ([]byte, error) {
	result := req.Do(ctx)
	if err := result.Error(); err != nil { // Raw would lose the reason
		return nil, err
	}
	return result.Raw()
}

// unhurried is the same connection for requests that take as long as they take.
func (c *connection) unhurried() *connection {
	cfg := rest.CopyConfig(c.cfg)
	cfg.Timeout = 0
	return &connection{cfg: cfg, namespace: c.namespace, clients: map[schema.GroupVersion]*rest.RESTClient{}}
}

func rawClient(cfg *rest.Config, gv schema.GroupVersion) (*rest.RESTClient, error) {
	own := rest.CopyConfig(cfg)
	own.GroupVersion = &gv
	own.APIPath = "/apis"
	if gv.Group == "" {
		own.APIPath = "/api"
	}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientFor(own)
}
