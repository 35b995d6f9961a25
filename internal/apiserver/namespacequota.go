package apiserver

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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
// stays. Creations at the same moment do not exceed it, also at several instances on one store.
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

const (
	// quotaPrefix holds a key for each quota of a namespace, which every write writes that takes
	// some of it, on condition that nobody has written it since the write has counted. The
	// value names the object, for people who read a backup.
	quotaPrefix = "/proxima/quotas/"
	// quotaTTL is how long the key stays after the last such write: far longer than one takes.
	quotaTTL = time.Hour
)

// usage is what a write has counted of a quota of a namespace.
type usage struct {
	key    string
	at     store.Revision // of the key, before it counted
	object string
}

// begin a count.
func (u *usage) begin(ctx context.Context, s store.Store, quota, namespace, name string) error {
	u.key, u.object = quotaPrefix+quota+"/"+namespace, namespace+"/"+name
	rec, ok, _, err := s.Get(ctx, u.key, 0)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("read %s: %w", u.key, err))
	}
	if ok {
		u.at = rec.Modified
	}
	return nil
}

// take adds to the companions of the write that the count is right when it is committed, and
// that it is not for others.
func (u *usage) take(set *kvstorage.Companions) {
	if u != nil {
		set.PutFor(u.key, []byte(u.object), quotaTTL, kvstorage.IfAt(u.at))
	}
}

// turns order the writes of one instance that take of the quotas of a namespace: one that has been
// overtaken by others is alone in its next attempts. Overtaken by other instances it tries again.
type turns [64]sync.RWMutex

// begin an attempt in the namespace of ctx, the first or a later one. It blocks until others that
// must be alone have ended; done must be called. t may be nil.
func (t *turns) begin(ctx context.Context, again bool) (done func()) {
	namespace := request.NamespaceValue(ctx)
	if t == nil || namespace == "" {
		return func() {}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(namespace)) // it never fails (hash.Hash)
	m := &t[h.Sum32()%uint32(len(t))]
	if again {
		m.Lock()
		return m.Unlock
	}
	m.RLock()
	return m.RUnlock
}

// admit a creation. It counts keys of the store, which knows those of all instances. The result
// goes with the creation; nil: there is no quota.
func (q *objectQuota) admit(ctx context.Context, name string) (*usage, error) {
	namespace := request.NamespaceValue(ctx)
	if q == nil || namespace == "" {
		return nil, nil
	}
	const anyName = "x"
	key, err := q.stored.KeyFor(namespace, anyName)
	if err != nil {
		return nil, nil //nolint:nilerr // validation names the mistake
	}
	u := &usage{}
	if err := u.begin(ctx, q.store, q.name, namespace, name); err != nil {
		return nil, err
	}
	used, err := q.store.Count(ctx, strings.TrimSuffix(key, anyName))
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("count %s in namespace %s: %w", q.of, namespace, err))
	}
	if used < q.limit {
		return u, nil
	}
	return nil, quotaExceeded(q.of, name, namespace, q.name, 1, used, q.limit)
}

// admitPorts of a write of a Service, as admit does.
func (s *services) admitPorts(ctx context.Context, svc *corev1.Service, plan ipam.Plan, taken int) (*usage, error) {
	limit, ok := s.quota[NodePortQuota]
	more := int64(taken - len(plan.ReleasePorts))
	if !ok || more <= 0 {
		return nil, nil
	}
	u := &usage{}
	if err := u.begin(ctx, s.store, NodePortQuota, svc.Namespace, svc.Name); err != nil {
		return nil, err
	}
	page, err := s.store.List(ctx, store.ListOptions{Prefix: nodePortPrefix})
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("list claims of node ports: %w", err))
	}
	var used int64
	for _, rec := range page.Records {
		if namespace, _, _ := strings.Cut(string(rec.Value), "/"); namespace == svc.Namespace {
			used++
		}
	}
	if used+more <= limit {
		return u, nil
	}
	return nil, quotaExceeded(corev1.Resource("services"), svc.Name, svc.Namespace, NodePortQuota, more, used, limit)
}

// quotaExceeded has the text of Kubernetes' quota admission, and the flag.
func quotaExceeded(of schema.GroupResource, name, namespace, quota string, requested, used, limit int64) error {
	return apierrors.NewForbidden(of, name, fmt.Errorf(
		"exceeded quota: namespace %s, requested: %s=%d, used: %s=%d, limited: %s=%d; delete some, or raise --namespace-quota of the control plane",
		namespace, quota, requested, quota, used, quota, limit))
}
