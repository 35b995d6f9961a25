package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/store"
)

// nodePortPrefix holds a key for every claimed node port; the value names the
// Service. It is outside the keys of API objects.
const nodePortPrefix = "/proxima/nodeports/"

// maxClaimAttempts bounds how often a write of a Service tries again after
// others took what it chose. Every attempt skips what was lost before.
const maxClaimAttempts = 64

// services is the registry of Services. Every write of a Service is one
// transaction with the IPAddress objects and the port claims that come and go
// with it; each of those is conditional, so an address never has two owners. If
// a condition fails, the write starts over with another choice.
type services struct {
	*registry
	addresses *ipam.Addresses
	ports     *ipam.Ports
	store     store.Store
	quota     Quota
	// ipAddresses is how IPAddress objects are stored; prepareIP completes one.
	ipAddresses *kvstorage.Resource
	prepareIP   func(context.Context, *networkingv1.IPAddress) error
}

// claim is what a write has learnt in its attempts so far.
type claim struct {
	lostAddresses []netip.Addr
	lostPorts     []int32
}

type claimKey struct{}

// begin installs the hooks that work out each attempt's companions.
func (s *services) begin() {
	done := func(context.Context, bool) {}
	s.BeginCreate = func(ctx context.Context, obj runtime.Object, _ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		return done, s.allot(ctx, nil, obj.(*corev1.Service))
	}
	s.BeginUpdate = func(ctx context.Context, obj, old runtime.Object, _ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		next, prev := obj.(*corev1.Service), old.(*corev1.Service)
		if len(next.Finalizers) == 0 && !prev.DeletionTimestamp.IsZero() {
			// This update completes a pending deletion.
			return done, s.release(ctx, prev)
		}
		return done, s.allot(ctx, prev, next)
	}
}

// Create makes a Service with its addresses and ports.
func (s *services) Create(
	ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (out runtime.Object, err error) {
	err = s.attempts(ctx, func(ctx context.Context) error {
		out, err = s.registry.Create(ctx, obj.DeepCopyObject(), validate, options)
		return err
	})
	return out, err
}

// Update changes a Service; what it no longer needs becomes free.
func (s *services) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, allowCreate bool, options *metav1.UpdateOptions) (out runtime.Object, created bool, err error) {
	err = s.attempts(ctx, func(ctx context.Context) error {
		out, created, err = s.registry.Update(ctx, name, info, create, update, allowCreate, options)
		return err
	})
	return out, created, err
}

// Delete removes a Service and what it holds.
func (s *services) Delete(
	ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) (out runtime.Object, gone bool, err error) {
	err = s.attempts(ctx, func(ctx context.Context) error {
		out, gone, err = s.registry.Delete(ctx, name, s.releasing(validate), options.DeepCopy())
		return err
	}, kvstorage.OnDelete) // a mark for deletion releases nothing yet
	return out, gone, err
}

// DeleteCollection deletes Services one after the other, each as Delete does.
func (s *services) DeleteCollection(
	ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *metainternalversion.ListOptions,
) (out runtime.Object, err error) {
	err = s.attempts(ctx, func(ctx context.Context) error {
		out, err = s.registry.DeleteCollection(ctx, s.releasing(validate), options, list)
		return err
	}, kvstorage.OnDelete) // a mark for deletion releases nothing yet
	return out, err
}

// releasing makes the check of a deletion, which sees the very state that is
// deleted, set up the release too.
func (s *services) releasing(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		if validate != nil {
			if err := validate(ctx, obj); err != nil {
				return err
			}
		}
		return s.release(ctx, obj.(*corev1.Service))
	}
}

// attempts runs a write until no companion of it meets a conflict. With kinds,
// companions ride only in those.
func (s *services) attempts(ctx context.Context, write func(context.Context) error, kinds ...kvstorage.WriteKind) error {
	c := &claim{}
	ctx = context.WithValue(ctx, claimKey{}, c)
	var err error
	for i := range maxClaimAttempts {
		attempt, _ := kvstorage.WithCompanions(ctx, kinds...)
		if i == 0 {
			attempt = context.WithValue(attempt, firstAttempt{}, true)
		}
		done := s.turns.begin(ctx, i > 0)
		err = write(attempt)
		done()
		var conflict *kvstorage.CompanionConflictError
		if !errors.As(err, &conflict) {
			return err
		}
		c.learn(conflict)
	}
	return err
}

// learn records an address or port that another Service holds. Conflicts on a release are
// ignored: the next attempt reads the current state.
func (c *claim) learn(conflict *kvstorage.CompanionConflictError) {
	if conflict.Current == nil {
		return
	}
	name := conflict.Key[strings.LastIndexByte(conflict.Key, '/')+1:]
	if strings.HasPrefix(conflict.Key, nodePortPrefix) {
		if port, err := strconv.ParseInt(name, 10, 32); err == nil {
			c.lostPorts = append(c.lostPorts, int32(port))
		}
		return
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		c.lostAddresses = append(c.lostAddresses, addr)
	}
}

// allot fills in a Service's addresses and ports and sets up the companions.
func (s *services) allot(ctx context.Context, old, svc *corev1.Service) error {
	set := kvstorage.CompanionsFrom(ctx)
	if set == nil {
		return apierrors.NewInternalError(fmt.Errorf("write of service %s/%s past its registry", svc.Namespace, svc.Name))
	}
	set.Reset()
	if svc.Namespace == "" {
		svc.Namespace = request.NamespaceValue(ctx)
	}
	plan, errs := ipam.NewPlan(old, svc, s.addresses.Families())
	if len(errs) > 0 {
		return invalidService(svc, errs)
	}
	choice, err := ipam.Choose(plan, s.addresses, s.ports)
	if err == nil {
		err = avoid(ctx, choice)
	}
	var mistake *field.Error
	switch {
	case errors.As(err, &mistake):
		return invalidService(svc, field.ErrorList{mistake})
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	used, err := s.admitPorts(ctx, svc, plan, len(choice.Ports()))
	if err != nil {
		return err
	}
	used.take(set)
	choice.Apply(svc)
	for _, addr := range choice.Addresses() {
		ip := ipam.IPAddressFor(addr, svc)
		if err := s.prepareIP(ctx, ip); err != nil {
			return err
		}
		if err := set.PutObject(ctx, s.ipAddresses, ip, kvstorage.IfAbsent()); err != nil {
			return apierrors.NewInternalError(err)
		}
	}
	for _, port := range choice.Ports() {
		set.Put(nodePortKey(port), []byte(ownerOf(svc)), kvstorage.IfAbsent())
	}
	return s.giveBack(ctx, svc, plan)
}

// avoid moves a choice away from what earlier attempts found taken.
func avoid(ctx context.Context, choice *ipam.Choice) error {
	c, _ := ctx.Value(claimKey{}).(*claim)
	if c == nil {
		return nil
	}
	for again := true; again; {
		again = false
		for _, lost := range c.lostAddresses {
			if slices.Contains(choice.Addresses(), lost) {
				if err := choice.Retry(lost); err != nil {
					return err
				}
				again = true
			}
		}
		for _, lost := range c.lostPorts {
			if slices.Contains(choice.Ports(), lost) {
				if err := choice.RetryPort(lost); err != nil {
					return err
				}
				again = true
			}
		}
	}
	return nil
}

// release sets up the return of everything that a Service holds.
func (s *services) release(ctx context.Context, svc *corev1.Service) error {
	set := kvstorage.CompanionsFrom(ctx)
	if set == nil {
		return apierrors.NewInternalError(fmt.Errorf("deletion of service %s/%s past its registry", svc.Namespace, svc.Name))
	}
	set.Reset()
	return s.giveBack(ctx, svc, ipam.NewRelease(svc))
}

// giveBack deletes what a plan releases, but only what this Service owns, and only if
// it is unchanged since it was read.
func (s *services) giveBack(ctx context.Context, svc *corev1.Service, plan ipam.Plan) error {
	set := kvstorage.CompanionsFrom(ctx)
	for _, addr := range plan.ReleaseAddresses {
		key, err := s.ipAddresses.KeyFor("", addr.Unmap().String())
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		rec, ok, _, err := s.store.Get(ctx, key, 0)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("read %s: %w", key, err))
		}
		var ip networkingv1.IPAddress
		if !ok {
			continue
		}
		if err := s.ipAddresses.Decode(ctx, rec, &ip); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("decode %s: %w", key, err))
		}
		if ref := ip.Spec.ParentRef; ref != nil && *ref == *ipam.IPAddressFor(addr, svc).Spec.ParentRef {
			set.Delete(key, kvstorage.IfAt(rec.Modified))
		}
	}
	for _, port := range plan.ReleasePorts {
		rec, ok, _, err := s.store.Get(ctx, nodePortKey(port), 0)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("read claim of port %d: %w", port, err))
		}
		if ok && string(rec.Value) == ownerOf(svc) {
			set.Delete(rec.Key, kvstorage.IfAt(rec.Modified))
		}
	}
	return nil
}

func nodePortKey(port int32) string { return nodePortPrefix + strconv.Itoa(int(port)) }

func ownerOf(svc *corev1.Service) string { return svc.Namespace + "/" + svc.Name }

func invalidService(svc *corev1.Service, errs field.ErrorList) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), svc.Name, errs)
}
