package kind

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Zone describes mesh.proxima.dev/v1alpha1 Zone.
var Zone = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("Zone"),
	Resource:   "zones",
	Singular:   "zone",
	Categories: []string{"proxima"},

	New:     func() resource.Object { return &mesh.Zone{} },
	NewList: func() runtime.Object { return &mesh.ZoneList{} },

	Default: on(func(z *mesh.Zone) {
		if z.Spec.Enabled == nil {
			z.Spec.Enabled = new(true)
		}
	}),
	Prepare:  counted(func(z *mesh.Zone) any { return z.Spec }),
	Validate: compare(validateZone),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Enabled", "Whether the zone may connect, and others may send it traffic."),
		ageColumn(),
	},
	Cells: of(func(z *mesh.Zone) []any { return []any{z.Name, fmt.Sprint(ZoneEnabled(z)), age(z)} }),
}

// ZoneInsight describes mesh.proxima.dev/v1alpha1 ZoneInsight.
var ZoneInsight = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("ZoneInsight"),
	Resource:   "zoneinsights",
	Singular:   "zoneinsight",
	Categories: []string{"proxima"},

	New:     func() resource.Object { return &mesh.ZoneInsight{} },
	NewList: func() runtime.Object { return &mesh.ZoneInsightList{} },

	Validate: compare(validateZoneInsight),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Online", "Whether the zone is connected and gave a sign of life in time."),
		column("Version", "The version of the zone's control plane at its last connection."),
		column("Since", "How long ago the last connection began."),
		column("Held", "The deletions that wait for a confirmation."),
		column("Refused", "The objects that the receiver refused."),
		ageColumn(),
	},
	Cells: of(zoneInsightCells),
}

// reservedZones mean something else where a zone is named.
var reservedZones = set[string]{"local": {}, "global": {}}

// ZoneEnabled reports whether a zone may connect.
func ZoneEnabled(z *mesh.Zone) bool { return z.Spec.Enabled == nil || *z.Spec.Enabled }

// validateZone: the name is a value of labels and a part of DNS names, so it is a
// DNS label.
func validateZone(z, old *mesh.Zone) field.ErrorList {
	errs := checkMetaOf(z, old, false, validation.NameIsDNSLabel)
	if _, ok := reservedZones[z.Name]; ok && old == nil {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), z.Name, "is reserved: choose another name"))
	}
	return errs
}

func validateZoneInsight(i, old *mesh.ZoneInsight) field.ErrorList {
	errs := checkMetaOf(i, old, false, validation.NameIsDNSLabel)
	path := field.NewPath("status")
	errs = append(errs, checkSubscriptions(path.Child("subscriptions"), i.Status.Subscriptions, maxZoneSubscriptions)...)
	type way struct{ name, direction string }
	seen := set[way]{}
	for n, t := range i.Status.Types {
		at := path.Child("types").Index(n)
		if t.Type == "" {
			errs = append(errs, field.Required(at.Child("type"), ""))
		}
		if t.Direction != mesh.SyncToZone && t.Direction != mesh.SyncToGlobal {
			errs = append(errs, field.NotSupported(at.Child("direction"), t.Direction, []string{mesh.SyncToGlobal, mesh.SyncToZone}))
		}
		if !seen.add(way{t.Type, t.Direction}) {
			errs = append(errs, field.Duplicate(at, t.Type+" "+t.Direction))
		}
	}
	return errs
}

// Subscriptions that an insight has at most.
const (
	maxZoneSubscriptions   = 10
	maxClientSubscriptions = 2
	// maxGatewaySubscriptions of a gateway.
	maxGatewaySubscriptions = 10
)

func checkSubscriptions(path *field.Path, all []mesh.Subscription, limit int) field.ErrorList {
	if len(all) > limit {
		return field.ErrorList{field.TooMany(path, len(all), limit)}
	}
	var errs field.ErrorList
	ids := set[string]{}
	for i, s := range all {
		if s.ID == "" {
			errs = append(errs, field.Required(path.Index(i).Child("id"), ""))
		}
		if !ids.add(s.ID) {
			errs = append(errs, field.Duplicate(path.Index(i).Child("id"), s.ID))
		}
	}
	return errs
}

func zoneInsightCells(i *mesh.ZoneInsight) []any {
	version, from := none, none
	if n := len(i.Status.Subscriptions); n > 0 {
		last := i.Status.Subscriptions[n-1]
		version, from = orElse(last.Version, unknown), since(last.ConnectTime.Time)
	}
	held, refused := 0, 0
	for _, t := range i.Status.Types {
		held += int(t.Held)
		refused += len(t.Refused)
	}
	return []any{i.Name, fmt.Sprint(i.Status.Online), version, from, held, refused, age(i)}
}
