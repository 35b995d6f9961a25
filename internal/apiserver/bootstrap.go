package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Names that Kubernetes gives to what every cluster has.
const (
	defaultServiceCIDR = "kubernetes"
	apiService         = "kubernetes"
	apiPortName        = "https"
	apiPort            = 443
)

// bootstrap makes the objects that clients expect in every cluster, where they
// are missing. Idempotent; several instances may do it at once. What is there and cannot be
// read stays as it is: the other kinds are of use without it.
func (s *Server) bootstrap(ctx context.Context) error {
	var errs []error
	for _, step := range []func(context.Context, *Client) error{s.ensureNamespaces, s.ensureMesh, s.ensureAPI} {
		err := step(ctx, s.Client("system:apiserver"))
		// Registries hide the causes of some errors; if the store is well it is the object.
		if (errors.Is(err, store.ErrDamaged) || apierrors.IsInternalError(err)) && s.cfg.Store.Ready(ctx) == nil {
			s.cfg.Logger.Error("an object that every cluster has cannot be read", "error", err)
			err = nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *Server) ensureNamespaces(ctx context.Context, client *Client) error {
	// The namespace of node leases is made as well, as in Kubernetes; it may go.
	for _, name := range slices.Concat(immortal, []string{corev1.NamespaceNodeLease}, s.cfg.Namespaces) {
		if err := s.ensure(ctx, client, kind.Namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) ensureMesh(ctx context.Context, client *Client) error {
	if s.cfg.MeshElsewhere {
		return nil
	}
	return s.ensure(ctx, client, kind.Mesh, &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: meshv1alpha1.DefaultMesh}})
}

// ensureAPI makes the ranges, and the Service of the API.
func (s *Server) ensureAPI(ctx context.Context, client *Client) error {
	if len(s.cfg.ServiceCIDRs) == 0 || s.services == nil {
		return nil
	}
	if err := s.ensureRanges(ctx, client); err != nil {
		return err
	}
	service, err := s.ensureAPIService(ctx, client)
	if err != nil || s.cfg.Several {
		return err
	}
	return s.ensureAPISlice(ctx, client, service)
}

// ensure creates an object unless it is there or its kind is not served.
func (s *Server) ensure(ctx context.Context, client *Client, kind *resource.Descriptor, obj resource.Object) error {
	if _, err := client.servedOf(kind); err != nil {
		return nil
	}
	_, err := client.Create(ctx, kind, obj)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %s %s: %w", kind.Singular, resource.KeyOf(obj), err)
	}
	return nil
}

// ensureRanges makes the default ServiceCIDR at the first start. The ranges are
// put to use without waiting for its event.
func (s *Server) ensureRanges(ctx context.Context, client *Client) error {
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: defaultServiceCIDR}}
	for _, prefix := range s.cfg.ServiceCIDRs {
		cidr.Spec.CIDRs = append(cidr.Spec.CIDRs, prefix.Masked().String())
	}
	k, err := client.servedOf(kind.ServiceCIDR)
	if err != nil {
		return s.services.addresses.SetRanges(s.cfg.ServiceCIDRs)
	}
	created, err := client.Create(ctx, kind.ServiceCIDR, cidr)
	if apierrors.IsAlreadyExists(err) {
		if len(s.services.addresses.Families()) > 0 {
			return nil
		}
		// Another instance made it just now, and its event is still on the way.
		return s.services.addresses.SetRanges(s.cfg.ServiceCIDRs)
	}
	if err != nil {
		return fmt.Errorf("create default ServiceCIDR: %w", err)
	}
	if k.status != nil {
		cidr = created.(*networkingv1.ServiceCIDR)
		cidr.Status.Conditions = []metav1.Condition{{
			Type:               networkingv1.ServiceCIDRConditionReady,
			Status:             metav1.ConditionTrue,
			LastTransitionTime: metav1.Now(),
			Message:            "Kubernetes default Service CIDR is ready",
		}}
		if _, err := client.UpdateStatus(ctx, kind.ServiceCIDR, cidr); err != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("mark default ServiceCIDR ready: %w", err)
		}
	}
	return s.services.addresses.SetRanges(s.cfg.ServiceCIDRs)
}

// ensureAPIService makes default/kubernetes at the first address of the range.
func (s *Server) ensureAPIService(ctx context.Context, client *Client) (*corev1.Service, error) {
	key := resource.Key{Namespace: metav1.NamespaceDefault, Name: apiService}
	k := s.kinds[corev1.SchemeGroupVersion.WithKind("Service")]
	target := intstr.FromInt32(int32(s.advertised().Port()))
	got, err := client.Get(ctx, k.kind, key)
	if err == nil {
		service := got.(*corev1.Service)
		if !s.cfg.Several && len(service.Spec.Ports) == 1 && service.Spec.Ports[0].TargetPort != target {
			service.Spec.Ports[0].TargetPort = target
			if got, err = client.Update(ctx, kind.Service, service); err != nil {
				return nil, fmt.Errorf("update service %s: %w", key, err)
			}
		}
		return got.(*corev1.Service), nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read service %s: %w", key, err)
	}
	policy := corev1.IPFamilyPolicySingleStack
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace,
			Name:      key.Name,
			Labels:    map[string]string{"component": "apiserver", "provider": "kubernetes"},
		},
		Spec: corev1.ServiceSpec{
			Type:            corev1.ServiceTypeClusterIP,
			ClusterIP:       s.cfg.ServiceCIDRs[0].Masked().Addr().Next().String(),
			IPFamilyPolicy:  &policy,
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{
				Name: apiPortName, Protocol: corev1.ProtocolTCP, Port: apiPort, TargetPort: target,
			}},
		},
	}
	got, err = client.Create(ctx, kind.Service, service)
	if apierrors.IsInvalid(err) {
		s.cfg.Logger.Warn("the first address of the service range is not free for default/kubernetes, taking another", "error", err)
		service.Spec.ClusterIP = ""
		got, err = client.Create(ctx, kind.Service, service)
	}
	if apierrors.IsAlreadyExists(err) {
		got, err = client.Get(ctx, k.kind, key)
	}
	if err != nil {
		return nil, fmt.Errorf("create service %s: %w", key, err)
	}
	return got.(*corev1.Service), nil
}

// ensureAPISlice makes this server the endpoint of the Service. Addresses that are
// valid only on this machine are left out; then the slice is empty.
func (s *Server) ensureAPISlice(ctx context.Context, client *Client, service *corev1.Service) error {
	at := s.advertised()
	if !reachable(at) {
		s.cfg.Logger.Info("service default/kubernetes has no endpoint: no address to advertise", "listening", at.String())
	}
	return s.ensureSlice(ctx, client, apiSlice(service.Name, []netip.AddrPort{at}))
}

// reachable reports whether other machines can reach an address.
func reachable(at netip.AddrPort) bool {
	addr := at.Addr()
	return addr.IsValid() && !addr.IsUnspecified() && !addr.IsLoopback()
}

// apiSlice has the addresses that can be reached, which are of one family and one port.
func apiSlice(name string, at []netip.AddrPort) *discoveryv1.EndpointSlice {
	port, number, protocol := apiPortName, int32(at[0].Port()), corev1.ProtocolTCP
	family := discoveryv1.AddressTypeIPv4
	if at[0].Addr().Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault,
			Name:      name,
			Labels:    map[string]string{discoveryv1.LabelServiceName: apiService},
		},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{},
		Ports:       []discoveryv1.EndpointPort{{Name: &port, Port: &number, Protocol: &protocol}},
	}
	for _, a := range at {
		if ready := true; reachable(a) {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{a.Addr().String()},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
	}
	return slice
}

// ensureSlice writes a slice of the Service unless it is there already.
func (s *Server) ensureSlice(ctx context.Context, client *Client, want *discoveryv1.EndpointSlice) error {
	k, err := client.servedOf(kind.EndpointSlice)
	if err != nil {
		return nil
	}
	key := resource.KeyOf(want)
	got, err := client.Get(ctx, k.kind, key)
	if apierrors.IsNotFound(err) {
		return s.ensure(ctx, client, k.kind, want)
	}
	if err != nil {
		return fmt.Errorf("read endpoint slice %s: %w", key, err)
	}
	have := got.(*discoveryv1.EndpointSlice)
	if apiequality.Semantic.DeepEqual(have.Ports, want.Ports) && slices.EqualFunc(have.Endpoints, want.Endpoints,
		func(a, b discoveryv1.Endpoint) bool { return slices.Equal(a.Addresses, b.Addresses) }) {
		return nil
	}
	// The address type of a slice is fixed, so another family needs another slice.
	if have.AddressType != want.AddressType {
		if err := client.Delete(ctx, k.kind, key, resource.Preconditions{UID: have.UID}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("replace endpoint slice %s: %w", key, err)
		}
		return s.ensure(ctx, client, k.kind, want)
	}
	have.Endpoints, have.Ports = want.Endpoints, want.Ports
	if _, err := client.Update(ctx, kind.EndpointSlice, have); err != nil {
		return fmt.Errorf("update endpoint slice %s: %w", key, err)
	}
	return nil
}

// PublishEndpoints makes the addresses of several servers on one store the endpoints of the
// Service "kubernetes": a slice for each family and port. It is for one of the servers at a
// time. Idempotent; it does nothing where there is no such Service.
func (s *Server) PublishEndpoints(ctx context.Context, at []netip.AddrPort) error {
	if len(s.cfg.ServiceCIDRs) == 0 || s.services == nil {
		return nil
	}
	at = slices.DeleteFunc(slices.Clone(at), func(a netip.AddrPort) bool { return !reachable(a) })
	slices.SortFunc(at, func(a, b netip.AddrPort) int {
		return cmp.Or(cmp.Compare(a.Addr().BitLen(), b.Addr().BitLen()), cmp.Compare(a.Port(), b.Port()), a.Addr().Compare(b.Addr()))
	})
	client := s.Client(ownUser)
	wanted := map[string]bool{}
	for len(at) > 0 {
		end := slices.IndexFunc(at, func(a netip.AddrPort) bool {
			return a.Port() != at[0].Port() || a.Addr().BitLen() != at[0].Addr().BitLen()
		})
		if end < 0 {
			end = len(at)
		}
		name := apiService
		if len(wanted) > 0 {
			name = fmt.Sprintf("%s-%d-%d", apiService, at[0].Addr().BitLen(), at[0].Port())
		}
		wanted[name] = true
		if err := s.ensureSlice(ctx, client, apiSlice(name, slices.Compact(at[:end]))); err != nil {
			return err
		}
		at = at[end:]
	}
	return s.dropSlices(ctx, client, wanted)
}

// dropSlices deletes those of the Service that are not wanted.
func (s *Server) dropSlices(ctx context.Context, client *Client, wanted map[string]bool) error {
	objects, _, err := client.List(ctx, kind.EndpointSlice, resource.ListOptions{
		Namespace: metav1.NamespaceDefault, Labels: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: apiService}),
	})
	if err != nil {
		return fmt.Errorf("list endpoint slices of service %s: %w", apiService, err)
	}
	for _, o := range objects {
		if wanted[o.GetName()] {
			continue
		}
		err := client.Delete(ctx, kind.EndpointSlice, resource.KeyOf(o), resource.Preconditions{UID: o.GetUID()})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete endpoint slice %s: %w", resource.KeyOf(o), err)
		}
	}
	return nil
}

// advertised is where clients in the cluster find this server.
func (s *Server) advertised() netip.AddrPort {
	if s.cfg.Advertise.IsValid() {
		return s.cfg.Advertise
	}
	at, _ := netip.ParseAddrPort(s.cfg.Listener.Addr().String())
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}
