package app

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kubernetes/extension"
)

// agentJoinRole is the ClusterRole of the chart that lets agents ask for certificates at the aggregated API.
const agentJoinRole = "proxima-agent-join"

// exchange is how certificates come by the API server of the cluster; nil: they do not.
func (c *NodeConfig) exchange() func(context.Context, []byte) (identity.CertificateAnswer, error) {
	if !c.ByAggregatedAPI || c.Cluster == nil {
		return nil
	}
	return func(ctx context.Context, request []byte) (answer identity.CertificateAnswer, err error) {
		cfg := rest.CopyConfig(c.Cluster.REST)
		cfg.QPS, cfg.ContentType, cfg.AcceptContentTypes = -1, runtime.ContentTypeJSON, runtime.ContentTypeJSON
		cfg.GroupVersion, cfg.NegotiatedSerializer = &schema.GroupVersion{}, scheme.Codecs.WithoutConversion() // of errors
		// Of an API server that accepts connections and does not answer.
		cfg.Timeout = 20 * time.Second
		client, err := rest.UnversionedRESTClientFor(cfg)
		if err != nil {
			return answer, err
		}
		result := client.Post().AbsPath(extension.GroupPath(identity.CertificatesPath)).SetHeader("Content-Type", "application/x-pem-file").
			Body(request).Do(ctx)
		if err := result.Error(); err != nil { // with the words of the API server, unlike that of Raw
			return answer, refusedByAPI(err)
		}
		text, err := result.Raw()
		if err != nil {
			return answer, err
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			return answer, fmt.Errorf("read the answer: %w", err)
		}
		return answer, nil
	}
}

// refusedByAPI says what helps against a refusal.
func refusedByAPI(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: %w: bind the ClusterRole %s to the ServiceAccount of the agent's pod (the chart does so with aggregatedAPI.enabled)",
			identity.ErrRefused, err, agentJoinRole)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: the API server does not take the token of the agent's ServiceAccount: %w", identity.ErrRefused, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the cluster has no aggregated API %s: enable aggregatedAPI of the chart: %w", extension.GroupVersion, err)
	}
	return err
}
