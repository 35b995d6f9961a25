package app

import (
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// cordons keep new workloads off nodes that take none, and kubectl from reporting a node
// drained that is not. The catalog is set before the server runs.
type cordons struct {
	nodes   *nodeTable
	catalog *catalog.Catalog
}

// allow refuses Dataplanes that are new on a cordoned or drained node. Those that are there
// may change. Pods are let through, as in Kubernetes: who sets spec.nodeName has decided.
func (c *cordons) allow(ctx context.Context, w access.Write) error {
	if n, ok := w.Object.(*corev1.Node); ok && n != nil && w.Subresource == "" {
		c.warn(n, w)
		return nil
	}
	dp, ok := w.Object.(*meshv1alpha1.Dataplane)
	if !ok || dp == nil || w.Subresource != "" || dp.Spec.NodeName == "" {
		return nil
	}
	if old, ok := w.Old.(*meshv1alpha1.Dataplane); ok && old != nil && old.Spec.NodeName == dp.Spec.NodeName {
		return nil
	}
	node, err := c.nodes.Node(ctx, dp.Spec.NodeName)
	if err != nil || node == nil {
		return err
	}
	return refusal(dp, node)
}

// refusal of a Dataplane that is new on a node; nil: the node takes it.
func refusal(dp *meshv1alpha1.Dataplane, node *corev1.Node) error {
	drained := kind.DrainOf(node)
	cause, why := meshv1alpha1.CauseNodeDrained, "is "+drained.String()
	undo := drained.Undo(node.Name)
	switch {
	case drained.Taint != nil && node.Spec.Unschedulable && drained.Taint.Key != meshv1alpha1.TaintDrain:
		undo += "\" and \"kubectl uncordon " + node.Name
	case drained.Taint != nil:
	case node.Spec.Unschedulable:
		cause, why = meshv1alpha1.CauseNodeCordoned, "is cordoned (spec.unschedulable)"
	default:
		return nil
	}
	err := apierrors.NewForbidden(kind.Dataplane.GroupResource(), dp.Name, fmt.Errorf(
		"spec.nodeName: node %s %s and takes no new workloads: \"%s\" ends that", node.Name, why, undo))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: cause, Field: "spec.nodeName", Message: node.Name,
	})
	return err
}

// warn who cordons a node that this alone takes nothing out of it: "kubectl drain" does no
// more to workloads that are not Pods. "kubectl cordon" wants just that.
func (c *cordons) warn(n *corev1.Node, w access.Write) {
	old, _ := w.Old.(*corev1.Node)
	if old == nil || old.Spec.Unschedulable || !n.Spec.Unschedulable || w.Command == "kubectl cordon" || w.Warn == nil {
		return
	}
	if count := c.inUse(n); count > 0 {
		w.Warn(fmt.Sprintf("node %s takes no new workloads now; what runs there (%s) stays in use: \"proxima node drain %s\" takes it out",
			n.Name, dataplanes(count), n.Name))
	}
}

// inUse counts the Dataplanes of a node that is not drained.
func (c *cordons) inUse(n *corev1.Node) (count int) {
	if !kind.DrainOf(n).Drained.IsZero() {
		return 0
	}
	for range c.catalog.Snapshot().DataplanesOn(n.Name) {
		count++
	}
	return count
}

func dataplanes(n int) string {
	if n == 1 {
		return "1 Dataplane"
	}
	return fmt.Sprintf("%d Dataplanes", n)
}

// commandDrain is how kubectl names itself in a header (KEP-859).
const commandDrain = "kubectl drain"

// guardDrain goes around the handlers of the API. "kubectl drain" evicts Pods alone and would
// report success while Dataplanes of the node are in use: a script would then reboot it. It
// lists the pods of the node before; that fails until the Dataplanes are taken out.
func (c *cordons) guardDrain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(access.CommandHeader) == commandDrain {
			if err := c.notDrained(r); err != nil {
				responsewriters.WriteRawJSON(int(err.ErrStatus.Code), err.Status(), w)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// notDrained is why "kubectl drain" is not to go on; nil: it is.
func (c *cordons) notDrained(r *http.Request) *apierrors.StatusError {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || info.Verb != "list" || info.APIGroup != "" || info.Resource != "pods" {
		return nil
	}
	selector, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return nil // the handler says so
	}
	name, ok := selector.RequiresExactMatch("spec.nodeName")
	if !ok {
		return nil
	}
	node, ok := c.catalog.Snapshot().Nodes.Get(resource.Key{Name: name})
	if !ok {
		return nil
	}
	count := c.inUse(node)
	if count == 0 {
		return nil
	}
	state := "in use"
	if kind.DrainOf(node).Taint != nil {
		state = "draining"
	}
	refused := apierrors.NewConflict(kind.Node.GroupResource(), name, fmt.Errorf(
		"its %s %s %s, and kubectl drain takes out Pods alone: run \"proxima node drain %s\" first, which waits for them",
		dataplanes(count), isAre(count), state, name))
	refused.ErrStatus.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return refused
}

func isAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}
