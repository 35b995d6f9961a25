package kind

import (
	"fmt"
	"net"
	"strconv"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// ZoneIngress describes mesh.proxima.dev/v1alpha1 ZoneIngress.
var ZoneIngress = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("ZoneIngress"),
	Resource:   "zoneingresses",
	Singular:   "zoneingress",
	Categories: []string{"proxima"},
	Direction:  resource.ZoneToZones,

	New:     func() resource.Object { return &mesh.ZoneIngress{} },
	NewList: func() runtime.Object { return &mesh.ZoneIngressList{} },

	Prepare: counted(func(g *mesh.ZoneIngress) any { return g.Spec }),
	Validate: compare(func(g, old *mesh.ZoneIngress) field.ErrorList {
		return append(checkMetaOf(g, old, false, validation.NameIsDNSSubdomain), checkGateway(&g.Spec)...)
	}),

	Fields:  of(func(g *mesh.ZoneIngress) fields.Set { return fields.Set{"spec.zone": g.Spec.Zone} }),
	Columns: gatewayColumns(),
	Cells:   of(func(g *mesh.ZoneIngress) []any { return gatewayCells(g, &g.Spec) }),
}

// ZoneEgress describes mesh.proxima.dev/v1alpha1 ZoneEgress.
var ZoneEgress = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("ZoneEgress"),
	Resource:   "zoneegresses",
	Singular:   "zoneegress",
	Categories: []string{"proxima"},
	Direction:  resource.ZoneToGlobal,

	New:     func() resource.Object { return &mesh.ZoneEgress{} },
	NewList: func() runtime.Object { return &mesh.ZoneEgressList{} },

	Prepare: counted(func(g *mesh.ZoneEgress) any { return g.Spec }),
	Validate: compare(func(g, old *mesh.ZoneEgress) field.ErrorList {
		return append(checkMetaOf(g, old, false, validation.NameIsDNSSubdomain), checkGateway(&g.Spec)...)
	}),

	Fields:  of(func(g *mesh.ZoneEgress) fields.Set { return fields.Set{"spec.zone": g.Spec.Zone} }),
	Columns: gatewayColumns(),
	Cells:   of(func(g *mesh.ZoneEgress) []any { return gatewayCells(g, &g.Spec) }),
}

// ZoneIngressInsight describes mesh.proxima.dev/v1alpha1 ZoneIngressInsight.
var ZoneIngressInsight = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("ZoneIngressInsight"),
	Resource:   "zoneingressinsights",
	Singular:   "zoneingressinsight",
	Categories: []string{"proxima"},
	Direction:  resource.ZoneToGlobal,

	New:     func() resource.Object { return &mesh.ZoneIngressInsight{} },
	NewList: func() runtime.Object { return &mesh.ZoneIngressInsightList{} },

	Validate: compare(func(i, old *mesh.ZoneIngressInsight) field.ErrorList {
		return append(checkMetaOf(i, old, false, validation.NameIsDNSSubdomain), checkClientInsight(&i.Status, maxGatewaySubscriptions)...)
	}),
	Columns: clientInsightColumns(),
	Cells:   of(func(i *mesh.ZoneIngressInsight) []any { return clientInsightCells(i, &i.Status) }),
}

// ZoneEgressInsight describes mesh.proxima.dev/v1alpha1 ZoneEgressInsight.
var ZoneEgressInsight = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("ZoneEgressInsight"),
	Resource:   "zoneegressinsights",
	Singular:   "zoneegressinsight",
	Categories: []string{"proxima"},
	Direction:  resource.ZoneToGlobal,

	New:     func() resource.Object { return &mesh.ZoneEgressInsight{} },
	NewList: func() runtime.Object { return &mesh.ZoneEgressInsightList{} },

	Validate: compare(func(i, old *mesh.ZoneEgressInsight) field.ErrorList {
		return append(checkMetaOf(i, old, false, validation.NameIsDNSSubdomain), checkClientInsight(&i.Status, maxGatewaySubscriptions)...)
	}),
	Columns: clientInsightColumns(),
	Cells:   of(func(i *mesh.ZoneEgressInsight) []any { return clientInsightCells(i, &i.Status) }),
}

// DataplaneInsight describes mesh.proxima.dev/v1alpha1 DataplaneInsight.
var DataplaneInsight = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("DataplaneInsight"),
	Resource:   "dataplaneinsights",
	Singular:   "dataplaneinsight",
	Categories: []string{"proxima"},
	Namespaced: true,
	Direction:  resource.ZoneToGlobal,

	New:     func() resource.Object { return &mesh.DataplaneInsight{} },
	NewList: func() runtime.Object { return &mesh.DataplaneInsightList{} },

	Validate: compare(func(i, old *mesh.DataplaneInsight) field.ErrorList {
		return append(checkMetaOf(i, old, true, validation.NameIsDNSSubdomain), checkClientInsight(&i.Status, maxClientSubscriptions)...)
	}),
	Columns: clientInsightColumns(),
	Cells:   of(func(i *mesh.DataplaneInsight) []any { return clientInsightCells(i, &i.Status) }),
}

// checkGateway allows loopback addresses: several zones can be on one machine.
func checkGateway(g *mesh.ZoneGatewaySpec) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if g.Zone != "" {
		errs = append(errs, checkLabel(path.Child("zone"), g.Zone)...)
	}
	if at := path.Child("address"); g.Address == "" {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, checkGatewayIP(at, g.Address)...)
	}
	errs = append(errs, checkPort(path.Child("port"), g.Port)...)
	switch at := path.Child("advertisedAddress"); {
	case g.AdvertisedAddress == "":
	case looksLikeIP(g.AdvertisedAddress):
		errs = append(errs, checkGatewayIP(at, g.AdvertisedAddress)...)
	default:
		errs = append(errs, checkSubdomain(at, g.AdvertisedAddress)...)
	}
	if g.AdvertisedPort != 0 {
		errs = append(errs, checkPort(path.Child("advertisedPort"), g.AdvertisedPort)...)
	}
	return errs
}

func checkGatewayIP(path *field.Path, address string) field.ErrorList {
	if errs := utilvalidation.IsValidIP(path, address); len(errs) > 0 {
		return errs
	}
	return checkNoSpecialIP(path, address, loopbackAllowed)
}

// GatewayAddress is the HOST:PORT by which a gateway is reached from elsewhere.
func GatewayAddress(g *mesh.ZoneGatewaySpec) string {
	port := g.Port
	if g.AdvertisedPort != 0 {
		port = g.AdvertisedPort
	}
	return net.JoinHostPort(orElse(g.AdvertisedAddress, g.Address), strconv.Itoa(int(port)))
}

func gatewayColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		nameColumn(),
		column("Zone", "The zone of the gateway."),
		column("Address", "Where the gateway listens."),
		column("Advertised", "Where the gateway is reached from elsewhere."),
		ageColumn(),
	}
}

func gatewayCells(obj metav1.Object, g *mesh.ZoneGatewaySpec) []any {
	return []any{
		obj.GetName(), orElse(g.Zone, none), net.JoinHostPort(g.Address, strconv.Itoa(int(g.Port))), GatewayAddress(g), age(obj),
	}
}

func checkClientInsight(s *mesh.ClientInsightStatus, subscriptions int) field.ErrorList {
	path := field.NewPath("status")
	errs := checkSubscriptions(path.Child("subscriptions"), s.Subscriptions, subscriptions)
	for i := range s.Subscriptions {
		at, types := path.Child("subscriptions").Index(i).Child("resources"), set[string]{}
		if n := len(s.Subscriptions[i].Resources); n > maxResourceTypes {
			errs = append(errs, field.TooMany(at, n, maxResourceTypes))
			continue
		}
		for k, r := range s.Subscriptions[i].Resources {
			errs = append(errs, keyed(at.Index(k).Child("type"), r.Type, types)...)
		}
	}
	if n := len(s.Certificates); n > maxCertificates {
		errs = append(errs, field.TooMany(path.Child("certificates"), n, maxCertificates))
	}
	if n := len(s.Rejected); n > maxRejected {
		errs = append(errs, field.TooMany(path.Child("rejected"), n, maxRejected))
	}
	if n := len(s.Learned); n > maxLearned {
		return append(errs, field.TooMany(path.Child("learned"), n, maxLearned))
	}
	ports := set[string]{}
	for i, l := range s.Learned {
		errs = append(errs, keyed(path.Child("learned").Index(i).Child("port"), l.Port, ports)...)
	}
	return errs
}

// keyed: a key of a list is there, and differs from the others.
func keyed(path *field.Path, value string, others set[string]) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(path, "")}
	case !others.add(value):
		return field.ErrorList{field.Duplicate(path, value)}
	}
	return nil
}

// What an insight of a proxy has at most.
const (
	maxResourceTypes = 16
	maxRejected      = 16
	maxCertificates  = 64
	maxLearned       = 256
)

func clientInsightColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		nameColumn(),
		column("Online", "Whether there is an open connection."),
		column("Version", "The version of the proxy."),
		column("Rejected", "The resources that the proxy rejects."),
		column("Certificate", "How long the newest certificate is valid."),
		column("Issued", "The number of certificates that were issued."),
		ageColumn(),
		wide("Identity", "The identity in the certificate."),
		wide("Instance", "The instance of the control plane that the newest connection is or was to."),
		wide("Connections", "The number of the proxy's connections that are known."),
	}
}

func clientInsightCells(obj metav1.Object, s *mesh.ClientInsightStatus) []any {
	expiry, identity, version, instance := none, none, none, none
	var issued, connections int64
	if c := s.Certificate; c != nil {
		expiry, identity, issued = c.Expiry.UTC().Format("2006-01-02T15:04:05Z"), orElse(c.Identity, none), c.Generations
	}
	if v := s.Versions; v != nil {
		version = orElse(v.Version, none)
	}
	if n := len(s.Subscriptions); n > 0 {
		instance, connections = orElse(s.Subscriptions[n-1].Instance, none), s.Subscriptions[n-1].Generation
	}
	return []any{obj.GetName(), fmt.Sprint(s.Online), version, len(s.Rejected), expiry, issued, age(obj), identity, instance, connections}
}
