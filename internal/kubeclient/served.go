package kubeclient

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Served returns those of kinds that the API server serves at present, in their order. It asks once for
// each group version, and blocks meanwhile. Every authenticated user may ask.
func (c *Client) Served(ctx context.Context, kinds []*resource.Descriptor) ([]*resource.Descriptor, error) {
	known := map[schema.GroupVersion]map[string]bool{}
	var out []*resource.Descriptor
	for _, d := range kinds {
		gv := d.GVK.GroupVersion()
		if known[gv] == nil {
			names, err := c.resources(ctx, gv)
			if err != nil {
				return nil, fmt.Errorf("which kinds of %s are served: %w", gv, err)
			}
			known[gv] = names
		}
		if known[gv][d.Resource] {
			out = append(out, d)
		}
	}
	return out, nil
}

// resources of a group version; none if it is not served.
func (c *Client) resources(ctx context.Context, gv schema.GroupVersion) (map[string]bool, error) {
	out := map[string]bool{}
	client := c.rests[gv]
	if client == nil {
		return nil, fmt.Errorf("the client was made for no kind of %s", gv)
	}
	path := "/apis/" + gv.String()
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	var list metav1.APIResourceList
	err := client.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Into(&list)
	if apierrors.IsNotFound(err) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for _, r := range list.APIResources {
		out[r.Name] = true
	}
	return out, nil
}
