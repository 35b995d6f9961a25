package multicluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// Imports keeps the ServiceImports of a zone and their derived Services. Make it with
// NewImports.
type Imports struct {
	Config
	loop *loop.Loop
}

// NewImports makes the controller; Run starts it.
func NewImports(config Config) *Imports {
	i := &Imports{Config: config}
	i.complete()
	i.loop = i.Config.loop("import", i.sync)
	return i
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (i *Imports) Run(ctx context.Context) error {
	return i.loop.Run(ctx, i.Catalog, i.dispatch,
		catalog.ServiceExports, catalog.ServiceImports, catalog.Services, catalog.Slices, catalog.Namespaces, catalog.ZoneIngresses)
}

// dispatch queues the names that a delta concerns.
func (i *Imports) dispatch(d catalog.Delta) {
	for _, change := range d.ServiceExports {
		if change.Old != nil {
			i.loop.Add(catalog.ExportedService(change.Old))
		}
		if change.New != nil {
			i.loop.Add(catalog.ExportedService(change.New))
		}
	}
	for _, change := range d.ServiceImports {
		i.loop.Add(change.Key)
	}
	for _, change := range d.Services {
		i.addService(d.After, change.Old)
		i.addService(d.After, change.New)
	}
	for _, change := range d.Slices {
		i.addSlice(d.After, change.Old)
		i.addSlice(d.After, change.New)
	}
	for _, change := range d.ZoneIngresses { // few, and of concern to all that their zones export
		i.addZone(d.After, change.Old)
		i.addZone(d.After, change.New)
	}
	for _, change := range d.Namespaces {
		for _, export := range d.After.ServiceExports.All() {
			if key := catalog.ExportedService(export); key.Namespace == change.Key.Name {
				i.loop.Add(key)
			}
		}
	}
}

func (i *Imports) addService(s *catalog.Snapshot, service *corev1.Service) {
	switch {
	case service == nil:
	case IsDerived(service):
		i.loop.Add(resource.Key{Namespace: service.Namespace, Name: service.Labels[mcs.LabelServiceName]})
	case isExported(s, resource.KeyOf(service)), servicetag.InNamespace(service.Namespace):
		i.loop.Add(resource.KeyOf(service))
	}
}

// addZone queues the names that the zone of a gateway exports.
func (i *Imports) addZone(s *catalog.Snapshot, ingress *meshv1alpha1.ZoneIngress) {
	if ingress == nil || ingress.Labels[meshv1alpha1.LabelZone] == "" {
		return
	}
	for _, export := range s.ServiceExports.All() {
		if export.Labels[meshv1alpha1.LabelZone] == ingress.Labels[meshv1alpha1.LabelZone] {
			i.loop.Add(catalog.ExportedService(export))
		}
	}
}

// addSlice queues the names whose slices are copied: see ReconcileSlices.
func (i *Imports) addSlice(s *catalog.Snapshot, slice *discoveryv1.EndpointSlice) {
	if slice == nil {
		return
	}
	if written(slice) {
		i.loop.Add(resource.Key{Namespace: slice.Namespace, Name: slice.Labels[mcs.LabelServiceName]})
		return
	}
	key := serviceOf(slice)
	service, ok := s.Services.Get(key)
	if ok && (headless(service) || len(service.Spec.Selector) == 0) && isExported(s, key) {
		i.loop.Add(key)
	}
}

// sync brings what one name has to what it should be.
func (i *Imports) sync(ctx context.Context, key resource.Key) error {
	s := i.Catalog.Snapshot()
	in := i.input(s, key)
	plan := ReconcileImport(in)
	if plan.Import == nil {
		return i.remove(ctx, in)
	}
	if in.Derived != nil && headless(in.Derived) != (plan.Import.Spec.Type == mcs.Headless) {
		// Virtual IPs cannot be added to a Service, or taken from it.
		if err := i.Client.Delete(ctx, kind.Service, resource.KeyOf(in.Derived), resource.Preconditions{UID: in.Derived.UID}); err != nil {
			return loop.Outcome("delete service of import "+key.String(), err)
		}
		return loop.ErrStale
	}
	derived, err := i.writeService(ctx, key, in, plan)
	if err != nil || derived == nil {
		return err
	}
	if err := i.writeImport(ctx, key, in, WithIPs(plan.Import, derived)); err != nil {
		return err
	}
	return i.writeSlices(ctx, s, key, in, derived)
}

func headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

func (i *Imports) input(s *catalog.Snapshot, key resource.Key) ImportInput {
	in := ImportInput{Key: key, Site: i.Site}
	in.Namespace, _ = s.Namespaces.Get(catalog.Key{Name: key.Namespace})
	in.Local, _ = s.Services.Get(key)
	in.Import, _ = s.ServiceImports.Get(key)
	if derived, ok := s.Services.Get(resource.Key{Namespace: key.Namespace, Name: DerivedName(key)}); ok && IsDerived(derived) {
		in.Derived = derived
	}
	for _, export := range s.ExportsOf(key) {
		in.Exports = append(in.Exports, export)
	}
	return in
}

// remove deletes the import before its Service, so that no name leads to an address that
// is free.
func (i *Imports) remove(ctx context.Context, in ImportInput) error {
	if in.Import != nil && owned(in.Import.Labels) {
		err := i.Client.Delete(ctx, kind.ServiceImport, in.Key, resource.Preconditions{UID: in.Import.UID})
		if err := loop.Outcome("delete import "+in.Key.String(), err); err != nil {
			return err
		}
	}
	if in.Derived == nil {
		i.loop.Forget(in.Key)
		return nil
	}
	err := i.Client.Delete(ctx, kind.Service, resource.KeyOf(in.Derived), resource.Preconditions{UID: in.Derived.UID})
	return loop.Outcome("delete service of import "+in.Key.String(), err)
}

// writeService creates or updates the derived Service. It returns nil where nothing can be
// created, as in a namespace that is being deleted.
func (i *Imports) writeService(ctx context.Context, key resource.Key, in ImportInput, plan ImportPlan) (*corev1.Service, error) {
	if plan.Derived == in.Derived {
		return in.Derived, nil
	}
	i.loop.Writes(key)
	write := i.Client.Update
	if in.Derived == nil {
		write = i.Client.Create
	}
	written, err := write(ctx, kind.Service, plan.Derived)
	if err != nil {
		return nil, loop.Outcome("write service of import "+key.String(), err)
	}
	return written.(*corev1.Service), nil
}

func (i *Imports) writeImport(ctx context.Context, key resource.Key, in ImportInput, next *mcs.ServiceImport) error {
	what := "write import " + key.String()
	status := next.Status
	if in.Import == nil {
		i.loop.Writes(key)
		made, err := i.Client.Create(ctx, kind.ServiceImport, next)
		if err != nil {
			return loop.Outcome(what, err)
		}
		next = made.(*mcs.ServiceImport)
	} else if !sameImport(in.Import, next) {
		i.loop.Writes(key)
		made, err := i.Client.Update(ctx, kind.ServiceImport, next)
		if err != nil {
			return loop.Outcome(what, err)
		}
		next = made.(*mcs.ServiceImport)
	}
	if equality.Semantic.DeepEqual(next.Status, status) && (in.Import == nil || equality.Semantic.DeepEqual(in.Import.Status, status)) {
		return nil
	}
	next.Status = status
	_, err := i.Client.UpdateStatus(ctx, kind.ServiceImport, next)
	return loop.Outcome(what, err)
}

func sameImport(a, b *mcs.ServiceImport) bool {
	return equality.Semantic.DeepEqual(a.Spec, b.Spec) && equality.Semantic.DeepEqual(a.Labels, b.Labels) &&
		equality.Semantic.DeepEqual(a.Annotations, b.Annotations)
}

// writeSlices brings the slices of an import to what they should be.
func (i *Imports) writeSlices(ctx context.Context, s *catalog.Snapshot, key resource.Key, in ImportInput, derived *corev1.Service) error {
	plan := ReconcileSlices(i.sliceInput(s, key, in, derived))
	what := fmt.Sprintf("slice of import %s", key)
	for _, slice := range plan.Create {
		if _, err := i.Client.Create(ctx, kind.EndpointSlice, slice); err != nil {
			return loop.Outcome("create "+what, err)
		}
	}
	for _, slice := range plan.Update {
		if _, err := i.Client.Update(ctx, kind.EndpointSlice, slice); err != nil {
			return loop.Outcome("update "+what, err)
		}
	}
	for _, slice := range plan.Delete {
		err := i.Client.Delete(ctx, kind.EndpointSlice, resource.KeyOf(slice), resource.Preconditions{UID: slice.UID})
		if err := loop.Outcome("delete "+what, err); err != nil {
			return err
		}
	}
	return nil
}

func (i *Imports) sliceInput(s *catalog.Snapshot, key resource.Key, in ImportInput, derived *corev1.Service) SliceInput {
	out := SliceInput{Name: key.Name, Site: i.Site, Derived: derived, Gateways: map[string][]*meshv1alpha1.ZoneIngress{}}
	if exportsOwn(in.Exports) && in.Local != nil && (headless(derived) || len(in.Local.Spec.Selector) == 0) {
		for _, slice := range s.SlicesOf(key) {
			out.Local = append(out.Local, slice)
		}
	}
	wanted := mcs.ClusterSetIP
	if headless(derived) {
		wanted = mcs.Headless
	}
	for _, o := range OffersOf(i.Site, meshOf(in.Namespace), in.Exports) {
		if o.Zone != i.Site && o.Type == wanted {
			out.Offers = append(out.Offers, o)
		}
	}
	for _, ingress := range s.ZoneIngresses.All() {
		if zone := ingress.Labels[meshv1alpha1.LabelZone]; zone != "" {
			out.Gateways[zone] = append(out.Gateways[zone], ingress)
		}
	}
	for _, slice := range s.SlicesOfImport(key) {
		if written(slice) {
			out.Have = append(out.Have, slice)
		}
	}
	for _, slice := range s.SlicesOf(resource.KeyOf(derived)) {
		// Earlier versions wrote copies without the labels of the import.
		if slice.Labels[discoveryv1.LabelManagedBy] == sliceManager && slice.Labels[mcs.LabelServiceName] == "" {
			out.Have = append(out.Have, slice)
		}
	}
	return out
}

// exportsOwn reports whether this zone exports the name.
func exportsOwn(exports []*mcs.ServiceExport) bool {
	for _, e := range exports {
		if e.Labels[meshv1alpha1.LabelZone] == "" && e.Status.Available != nil {
			return true
		}
	}
	return false
}
