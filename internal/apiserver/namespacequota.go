package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

// NodePortQuota is the name of the quota of node ports, among them those of health checks.
const NodePortQuota = "services.nodeports"

// Quota is how many objects of a kind a namespace may have, each namespace alike. The keys
// are names of Kubernetes' ResourceQuota: count/RESOURCE[.GROUP] of a namespaced kind,
// RESOURCE alone for kinds of the core group, and NodePortQuota. As there, what is there already
// stays. Creations that commit at the same time may exceed it by as many.
type Quota map[string]int64

// ParseQuota reads NAME=LIMIT. Its errors name the entry, and the names there are.
func ParseQuota(entries []string, kinds []*resource.Descriptor) (Quota, error) {
	known := map[string]string{NodePortQuota: NodePortQuota} // by all names, the one of a Quota
	for _, k := range kinds {
		if !k.Namespaced || k.GVK.Kind == "Event" { // Events go by themselves, and have a rate
			continue
		}
		name := quotaName(k.GroupResource())
		known[name] = name
		if k.GVK.Group == corev1.GroupName {
			known[k.Resource] = name
		}
	}
	var out Quota
	for _, entry := range entries {
		name, value, _ := strings.Cut(entry, "=")
		limit, err := strconv.ParseInt(value, 10, 64)
		if err != nil || limit < 0 {
			return nil, fmt.Errorf("%q: write NAME=LIMIT, as in services=1000", entry)
		}
		of, ok := known[name]
		if !ok {
			return nil, fmt.Errorf("%q: there is no quota %q; there are %s", entry, name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if out == nil {
			out = Quota{}
		}
		out[of] = limit
	}
	return out, nil
}

func quotaName(of schema.GroupResource) string { return "count/" + of.String() }

// objectQuota is that of one kind.
type objectQuota struct {
	name   string
	limit  int64
	of     schema.GroupResource
	store  store.Store
	stored *kvstorage.Resource
}

// quotaOf a kind; nil: it has no limit.
func (s *Server) quotaOf(k *served, options *kvstorage.RESTOptions) (*objectQuota, error) {
	of := k.kind.GroupResource()
	limit, ok := s.cfg.Quota[quotaName(of)]
	if !ok {
		return nil, nil
	}
	stored, err := options.Resource(of)
	return &objectQuota{name: quotaName(of), limit: limit, of: of, store: s.cfg.Store, stored: stored}, err
}

// admit a creation. It counts keys of the store, which knows those of all instances.
func (q *objectQuota) admit(ctx context.Context, name string) error {
	namespace := request.NamespaceValue(ctx)
	if q == nil || namespace == "" {
		return nil
	}
	const anyName = "x"
	key, err := q.stored.KeyFor(namespace, anyName)
	if err != nil {
		return nil // validation names the mistake
	}
	used, err := q.store.Count(ctx, strings.TrimSuffix(key, anyName))
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("count %s in namespace %s: %w", q.of, namespace, err))
	}
	if used < q.limit {
		return nil
	}
	return quotaExceeded(q.of, name, namespace, q.name, 1, used, q.limit)
}

// admitPorts of a write of a Service.
func (s *services) admitPorts(ctx context.Context, svc *corev1.Service, plan ipam.Plan, taken int) error {
	limit, ok := s.quota[NodePortQuota]
	more := int64(taken - len(plan.ReleasePorts))
	if !ok || more <= 0 {
		return nil
	}
	page, err := s.store.List(ctx, store.ListOptions{Prefix: nodePortPrefix})
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("list claims of node ports: %w", err))
	}
	var used int64
	for _, rec := range page.Records {
		if namespace, _, _ := strings.Cut(string(rec.Value), "/"); namespace == svc.Namespace {
			used++
		}
	}
	if used+more <= limit {
		return nil
	}
	return quotaExceeded(corev1.Resource("services"), svc.Name, svc.Namespace, NodePortQuota, more, used, limit)
}

// quotaExceeded has the text of Kubernetes' quota admission, and the flag.
func quotaExceeded(of schema.GroupResource, name, namespace, quota string, requested, used, limit int64) error {
	return apierrors.NewForbidden(of, name, fmt.Errorf(
		"exceeded quota: namespace %s, requested: %s=%d, used: %s=%d, limited: %s=%d; delete some, or raise --namespace-quota of the control plane",
		namespace, quota, requested, quota, used, quota, limit))
}
