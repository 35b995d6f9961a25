package topology

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// write makes the plan of a Service in the API the given one; nil: none. It writes
// nothing if the plan there says the same.
func (c *Controller) write(
	ctx context.Context, key resource.Key, service *corev1.Service, was []*plannerv1alpha1.TrafficPlan, spec *plannerv1alpha1.TrafficPlanSpec,
) error {
	var next []*plannerv1alpha1.TrafficPlan
	if spec != nil {
		next = partsFor(service, spec)
	}
	if samePlan(was, next) {
		return nil
	}
	c.plans.Writes(key)
	expected := c.plans.Expectations(key)
	there := map[string]*plannerv1alpha1.TrafficPlan{}
	for _, part := range was {
		there[part.Name] = part
	}
	for _, part := range next {
		made, err := c.writePart(ctx, part, there[part.Name])
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil // the Service is about to go
		}
		if err != nil {
			return fmt.Errorf("write plan of service %s: %w", key, err)
		}
		expected.Await(made)
		delete(there, part.Name)
	}
	for _, part := range there {
		err := c.config.Client.Delete(ctx, kind.TrafficPlan, resource.KeyOf(part), resource.Preconditions{UID: part.UID})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete plan of service %s: %w", key, err)
		}
		expected.Deleted(part)
	}
	return nil
}

// writePart creates a part of a plan, or updates the one there is.
func (c *Controller) writePart(ctx context.Context, part, was *plannerv1alpha1.TrafficPlan) (made resource.Object, err error) {
	if was == nil {
		made, err = c.config.Client.Create(ctx, kind.TrafficPlan, part)
	} else {
		part.ObjectMeta.ResourceVersion, part.ObjectMeta.UID = was.ResourceVersion, was.UID
		made, err = c.config.Client.Update(ctx, kind.TrafficPlan, part)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		return nil, loop.ErrStale
	}
	return made, err
}

// samePlan says whether two plans say the same, whenever they were published.
func samePlan(was, is []*plannerv1alpha1.TrafficPlan) bool {
	if len(was) != len(is) {
		return false
	}
	for i := range is {
		a, b := was[i], is[i]
		if a.Name != b.Name || a.Spec.Service != b.Spec.Service || a.Spec.Mode != b.Spec.Mode || a.Spec.Parameters != b.Spec.Parameters ||
			len(a.Spec.Groups) != len(b.Spec.Groups) || !equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences) {
			return false
		}
		for k := range b.Spec.Groups {
			x, y := a.Spec.Groups[k], b.Spec.Groups[k]
			x.Published, x.Reason = y.Published, y.Reason
			if !equality.Semantic.DeepEqual(x, y) {
				return false
			}
		}
	}
	return true
}

// roomForMetadata of a part, and for what its spec has besides groups.
const roomForMetadata = 8 << 10

// partsFor are the objects that hold a plan: one, or several if it is too large for one.
func partsFor(service *corev1.Service, spec *plannerv1alpha1.TrafficPlanSpec) []*plannerv1alpha1.TrafficPlan {
	var parts []*plannerv1alpha1.TrafficPlan
	size := plannerv1alpha1.MaxPlanBytes // so that the first group begins a part
	for i := range spec.Groups {
		group := spec.Groups[i].DeepCopy()
		n := sizeOf(group)
		if n > plannerv1alpha1.MaxPlanBytes-roomForMetadata {
			group = &plannerv1alpha1.PortGroup{
				AddressType: group.AddressType, Ports: group.Ports, Outcome: plannerv1alpha1.OutcomeTooLarge, Published: group.Published,
			}
			n = sizeOf(group)
		}
		if size += n; size > plannerv1alpha1.MaxPlanBytes-roomForMetadata {
			parts = append(parts, newPart(service, spec, len(parts)+1))
			size = n
		}
		last := parts[len(parts)-1]
		last.Spec.Groups = append(last.Spec.Groups, *group)
	}
	if parts == nil {
		parts = append(parts, newPart(service, spec, 1))
	}
	return parts
}

func newPart(service *corev1.Service, spec *plannerv1alpha1.TrafficPlanSpec, number int) *plannerv1alpha1.TrafficPlan {
	p := &plannerv1alpha1.TrafficPlan{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: service.Name,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID, Controller: new(true),
			}},
		},
		Spec: plannerv1alpha1.TrafficPlanSpec{Service: spec.Service, Version: spec.Version, Mode: spec.Mode, Parameters: spec.Parameters},
	}
	if number > 1 {
		p.Name += "." + strconv.Itoa(number)
		p.Labels = map[string]string{plannerv1alpha1.LabelPart: strconv.Itoa(number)}
	}
	return p
}

// sizeOf a group as JSON. Small ones are not encoded to find out.
func sizeOf(g *plannerv1alpha1.PortGroup) int {
	const perZone, perShare, perEndpoint, perWeight, small = 512, 512, 128, 11, 64 << 10
	atMost := perZone + len(g.Endpoints)*(perEndpoint+perWeight*len(g.Zones))
	for i := range g.Zones {
		atMost += perZone + perShare*len(g.Zones[i].To)
	}
	for _, port := range g.Ports {
		atMost += len(port) + perZone
	}
	if atMost <= small {
		return atMost
	}
	body, err := json.Marshal(g)
	if err != nil {
		return plannerv1alpha1.MaxPlanBytes + 1 // a number that JSON does not have
	}
	return len(body)
}
