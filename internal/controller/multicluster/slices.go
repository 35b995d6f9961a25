package multicluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// sliceManager marks the EndpointSlices that this package writes.
const sliceManager = "multicluster.mesh.proxima.dev"

// annotationSource on such a slice names the one that it is a copy of.
const annotationSource = "mesh.proxima.dev/source-slice"

// SliceInput is what the EndpointSlices of an import follow from. ReconcileSlices changes
// none of it.
type SliceInput struct {
	// Name of the import.
	Name string
	Site string
	// Derived Service of the import, which owns the slices.
	Derived *corev1.Service
	// Local are slices of the Service of this zone to be copied: those whose endpoints
	// others write, and those of headless Services.
	Local []*discoveryv1.EndpointSlice
	// Offers of other zones of the type that the import has.
	Offers []Offer
	// Gateways of other zones, by their zones: the ZoneIngresses that connections to a
	// virtual IP go through.
	Gateways map[string][]*meshv1alpha1.ZoneIngress
	// Have are the slices of this package that there are.
	Have []*discoveryv1.EndpointSlice
}

// SlicePlan is what has to be written, in this order.
type SlicePlan struct{ Create, Update, Delete []*discoveryv1.EndpointSlice }

// ReconcileSlices derives the EndpointSlices of an import that this package writes. They
// carry the labels of the Multi-Cluster Services API, with the zone that they are of.
//
// Those of headless Services, and copies of local slices, are slices of the derived Service
// too, so that names and virtual IPs lead to them. Those of other zones behind a virtual IP
// are not: their endpoints are the gateways of the zone, for people and tools to see, and
// agents find gateways by other ways.
func ReconcileSlices(in SliceInput) SlicePlan {
	var p SlicePlan
	have := map[string]*discoveryv1.EndpointSlice{}
	for _, s := range in.Have {
		have[s.Name] = s
	}
	for _, next := range in.wanted() {
		was := have[next.Name]
		delete(have, next.Name)
		if was == nil {
			p.Create = append(p.Create, next)
			continue
		}
		changed := was.DeepCopy()
		changed.OwnerReferences, changed.Labels, changed.Annotations = next.OwnerReferences, next.Labels, next.Annotations
		changed.AddressType, changed.Endpoints, changed.Ports = next.AddressType, next.Endpoints, next.Ports
		if !equality.Semantic.DeepEqual(was, changed) {
			p.Update = append(p.Update, changed)
		}
	}
	for _, s := range in.Have {
		if have[s.Name] != nil {
			p.Delete = append(p.Delete, s)
		}
	}
	return p
}

func (in *SliceInput) wanted() []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, s := range in.Local {
		next := in.slice(mcs.DerivedServiceName(in.Derived.Name, s.Name), in.Site, s.AddressType)
		next.Labels[discoveryv1.LabelServiceName] = in.Derived.Name
		next.Annotations = map[string]string{annotationSource: s.Name}
		next.Endpoints, next.Ports = s.Endpoints, s.Ports
		out = append(out, next)
	}
	for _, o := range in.Offers {
		if o.Type == mcs.Headless {
			out = append(out, in.hosts(o)...)
		} else if o.Instances > 0 {
			out = append(out, in.gateways(o.Zone)...)
		}
	}
	return out
}

// slice without endpoints.
func (in *SliceInput) slice(name, zone string, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: in.Derived.Namespace, Name: name,
			Labels: map[string]string{
				discoveryv1.LabelManagedBy: sliceManager, mcs.LabelServiceName: in.Name, mcs.LabelSourceCluster: zone,
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(in.Derived, corev1.SchemeGroupVersion.WithKind("Service"))},
		},
		AddressType: family,
	}
}

// hosts of a headless Service of another zone.
func (in *SliceInput) hosts(o Offer) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for i, group := range o.Endpoints {
		next := in.slice(in.remoteName(o.Zone, group.AddressType, i), o.Zone, group.AddressType)
		next.Labels[discoveryv1.LabelServiceName] = in.Derived.Name
		for _, p := range group.Ports {
			next.Ports = append(next.Ports, discoveryv1.EndpointPort{
				Name: new(p.Name), Port: new(p.Port), Protocol: new(protocolOf(p.Protocol)), AppProtocol: p.AppProtocol,
			})
		}
		for _, host := range group.Hosts {
			e := discoveryv1.Endpoint{
				Addresses:  []string{host.Address},
				Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			}
			if host.Hostname != "" {
				e.Hostname = new(host.Hostname)
			}
			next.Endpoints = append(next.Endpoints, e)
		}
		out = append(out, next)
	}
	return out
}

// gateways of another zone: a slice for each family and port.
func (in *SliceInput) gateways(zone string) []*discoveryv1.EndpointSlice {
	type key struct {
		family discoveryv1.AddressType
		port   int32
	}
	byKey := map[key]*discoveryv1.EndpointSlice{}
	var out []*discoveryv1.EndpointSlice
	for _, g := range in.Gateways[zone] {
		host, port := cmp.Or(g.Spec.AdvertisedAddress, g.Spec.Address), cmp.Or(g.Spec.AdvertisedPort, g.Spec.Port)
		if host == "" || port == 0 {
			continue
		}
		k := key{discoveryv1.AddressTypeFQDN, port}
		if addr, err := netip.ParseAddr(host); err == nil {
			k.family = discoveryv1.AddressTypeIPv4
			if addr.Is6() {
				k.family = discoveryv1.AddressTypeIPv6
			}
		}
		s := byKey[k]
		if s == nil {
			s = in.slice(in.remoteName(zone, k.family, int(port)), zone, k.family)
			s.Ports = []discoveryv1.EndpointPort{{Name: new("gateway"), Port: new(port), Protocol: new(corev1.ProtocolTCP)}}
			byKey[k], out = s, append(out, s)
		}
		if !slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Addresses[0] == host }) {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{host}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			})
		}
	}
	return out
}

// remoteName of a slice of another zone. The slash keeps it apart from those of copies.
func (in *SliceInput) remoteName(zone string, family discoveryv1.AddressType, number int) string {
	return mcs.DerivedServiceName(in.Derived.Name+"/"+zone, fmt.Sprintf("%s-%s-%d", zone, strings.ToLower(string(family)), number))
}

// written reports whether this package wrote a slice.
func written(s *discoveryv1.EndpointSlice) bool {
	return s != nil && s.Labels[discoveryv1.LabelManagedBy] == sliceManager && s.Labels[mcs.LabelServiceName] != ""
}

func serviceOf(s *discoveryv1.EndpointSlice) resource.Key {
	return resource.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}
