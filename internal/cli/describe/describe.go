// Package describe prints an object's details and its effects as text: for
// a Service its addresses, its endpoints and why some get no traffic; for a Node
// or a Dataplane whether it is alive and who depends on it.
//
// It owns the reading of related objects, and the text. Enter at
// Describer.Describe. It changes nothing and keeps no state. Objects that may not
// be read, or are not served, are omitted with a note.
package describe

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Reader is the part of resource.Client that descriptions need.
type Reader interface {
	Get(ctx context.Context, kind *resource.Descriptor, key resource.Key) (resource.Object, error)
	List(ctx context.Context, kind *resource.Descriptor, opts resource.ListOptions) ([]resource.Object, string, error)
}

// Describer describes objects.
type Describer struct {
	Reader Reader
	// Events lists those about an object.
	Events func(ctx context.Context, about resource.Object, kind string) ([]corev1.Event, error)
	// Now is the time that ages are counted to.
	Now time.Time
}

// Describe one object on out. It blocks while it reads; errors are the
// Reader's.
func (d *Describer) Describe(ctx context.Context, out io.Writer, kind *resource.Descriptor, key resource.Key) error {
	obj, err := d.Reader.Get(ctx, kind, key)
	if err != nil {
		return err
	}
	p := &page{now: d.Now}
	p.metadata(obj)
	switch obj := obj.(type) {
	case *corev1.Service:
		err = d.service(ctx, p, obj)
	case *discoveryv1.EndpointSlice:
		d.slice(p, obj)
	case *mesh.Dataplane:
		err = d.dataplane(ctx, p, obj)
	case *corev1.Pod:
		err = d.pod(ctx, p, obj)
	case *corev1.Node:
		err = d.node(ctx, p, obj)
	case *mesh.ZoneIngress:
		err = d.gateway(ctx, p, obj, &obj.Spec)
	case *mesh.ZoneEgress:
		err = d.gateway(ctx, p, obj, &obj.Spec)
	case *networkingv1.ServiceCIDR:
		err = d.serviceCIDR(ctx, p, obj)
	case *corev1.Secret:
		secret(p, string(obj.Type), obj.Data)
	case *mesh.GlobalSecret:
		secret(p, obj.Type, obj.Data)
	default:
		err = contents(p, obj)
	}
	if err == nil {
		err = d.events(ctx, p, obj, kind.GVK.Kind)
	}
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, p.String())
	return err
}

// list objects of a kind. What may not be read is noted, and none.
func list[T resource.Object](ctx context.Context, d *Describer, p *page, kind *resource.Descriptor, opts resource.ListOptions) ([]T, error) {
	objects, _, err := d.Reader.List(ctx, kind, opts)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		p.note("%s can't be read: %v", kind.Resource, err)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", kind.Resource, err)
	}
	var out []T
	for _, o := range objects {
		if typed, ok := o.(T); ok {
			out = append(out, typed)
		}
	}
	return out, nil
}

// metadata that every object has.
func (p *page) metadata(obj resource.Object) {
	p.field("Name", obj.GetName())
	if obj.GetNamespace() != "" {
		p.field("Namespace", obj.GetNamespace())
	}
	p.pairs("Labels", obj.GetLabels())
	annotations := maps.Clone(obj.GetAnnotations())
	// kubectl's copy of the whole object says nothing new, and may be a secret.
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	p.pairs("Annotations", annotations)
	p.field("Created", p.ago(obj.GetCreationTimestamp().Time))
	if t := obj.GetDeletionTimestamp(); t != nil {
		p.field("Deletion", "asked for; it may take until "+p.moment(t.Time))
	}
	for _, o := range obj.GetOwnerReferences() {
		p.field("Owner", o.Kind+"/"+o.Name)
	}
	if f := obj.GetFinalizers(); len(f) > 0 {
		p.field("Finalizers", strings.Join(f, ", "))
	}
}

// contents of an object as YAML, without metadata.
func contents(p *page, obj resource.Object) error {
	body, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	var fields map[string]any
	if err := json.Unmarshal(body, &fields); err != nil {
		return err
	}
	for _, key := range []string{"apiVersion", "kind", "metadata"} {
		delete(fields, key)
	}
	// An empty status says nothing.
	maps.DeleteFunc(fields, func(_ string, value any) bool {
		nested, ok := value.(map[string]any)
		return ok && len(nested) == 0
	})
	if len(fields) == 0 {
		return nil
	}
	text, err := yaml.Marshal(fields)
	if err != nil {
		return err
	}
	p.block(string(text))
	return nil
}

// secret prints the keys, never the values.
func secret(p *page, kind string, data map[string][]byte) {
	p.field("Type", kind)
	var rows [][]string
	for _, key := range slices.Sorted(maps.Keys(data)) {
		rows = append(rows, []string{key, fmt.Sprintf("%d bytes", len(data[key]))})
	}
	p.table("Data", []string{"KEY", "SIZE"}, rows)
}

// events about the object, the newest last.
func (d *Describer) events(ctx context.Context, p *page, obj resource.Object, kind string) error {
	events, err := d.Events(ctx, obj, kind)
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		p.note("events can't be read: %v", err)
	case err != nil:
		return fmt.Errorf("events: %w", err)
	}
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return lastSeen(&a).Compare(lastSeen(&b)) })
	var rows [][]string
	for i := range events {
		e := &events[i]
		message := strings.TrimSpace(e.Message)
		if count := max(e.Count, seriesCount(e)); count > 1 {
			message += fmt.Sprintf(" (%d times)", count)
		}
		rows = append(rows, []string{p.since(lastSeen(e)), e.Type, e.Reason, cmp.Or(e.ReportingController, e.Source.Component, "-"), message})
	}
	p.table("Events", []string{"SEEN", "TYPE", "REASON", "FROM", "MESSAGE"}, rows)
	return nil
}

func seriesCount(e *corev1.Event) int32 {
	if e.Series == nil {
		return 0
	}
	return e.Series.Count
}

func lastSeen(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

func (p *page) since(t time.Time) string {
	if t.IsZero() {
		return "unknown"
	}
	return duration.HumanDuration(p.now.Sub(t))
}

func (p *page) ago(t time.Time) string {
	if t.IsZero() {
		return "unknown"
	}
	return p.since(t) + " ago"
}

func (p *page) moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// selects reports whether a Service's selector matches these labels.
func selects(selector map[string]string, set map[string]string) bool {
	return len(selector) > 0 && labels.SelectorFromValidatedSet(selector).Matches(labels.Set(set))
}
