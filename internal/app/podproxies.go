package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/identity/issue"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/kubernetes/inject"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/xds/build"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

// Pods with a sidecar are Dataplanes for the server of xDS. There are no objects of them: they are
// made of the Pods, with the ports that the annotation of the injection has.

// sidecarDataplane is the Dataplane of a Pod with a sidecar; nil: it has none, or is none.
func sidecarDataplane(p *corev1.Pod, namespace *corev1.Namespace) *meshv1alpha1.Dataplane {
	s, err := inject.SidecarOf(p)
	if s == nil || err != nil {
		return nil
	}
	d := podDataplane(p, namespace)
	if d == nil {
		return nil
	}
	// A Pod without a change is another Dataplane in a namespace of another mesh.
	d.ResourceVersion, d.UID, d.Generation = p.ResourceVersion+"."+d.Spec.Mesh, p.UID, p.Generation
	d.Annotations = p.Annotations
	// Its ports have a proxy as soon as it serves: it is not ready before. Instances that its stream is
	// not to know it by this.
	d.Status.Conditions = []metav1.Condition{{Type: meshv1alpha1.DataplaneProxyConnected, Status: metav1.ConditionTrue, Reason: insight.ReasonConnected}}
	for _, port := range s.Ports {
		d.Spec.Ports = append(d.Spec.Ports, meshv1alpha1.DataplanePort{Name: port.Name, Port: port.Port, Protocol: string(corev1.ProtocolTCP)})
	}
	return d
}

// sidecarOf a Pod's key, in the tables of now.
func sidecarOf(tables *catalog.Snapshot, key resource.Key) (*meshv1alpha1.Dataplane, bool) {
	pod, ok := tables.Pods.Get(key)
	if !ok {
		return nil, false
	}
	namespace, _ := tables.Namespaces.Get(resource.Key{Name: key.Namespace})
	d := sidecarDataplane(pod, namespace)
	return d, d != nil
}

// podSource is build.Source with Dataplanes that are made of Pods.
type podSource struct {
	of      build.Source
	overlay catalog.Overlay
}

// Next implements build.Source.
func (s *podSource) Next(ctx context.Context) (catalog.Delta, error) {
	d, err := s.of.Next(ctx)
	if err != nil {
		return d, err
	}
	d.Dataplanes = nil
	again := map[resource.Key]bool{}
	for _, c := range d.Pods {
		again[c.Key] = true
	}
	for _, c := range d.Namespaces { // rare
		if namespaceMesh(c.Old) != namespaceMesh(c.New) {
			for key := range d.After.Pods.Namespace(c.Key.Name) {
				again[key] = true
			}
		}
	}
	for key := range again {
		is, _ := sidecarOf(d.After, key)
		if c, changed := s.overlay.Set(key, is); changed {
			d.Dataplanes = append(d.Dataplanes, c)
		}
	}
	slices.SortFunc(d.Dataplanes, func(a, b catalog.Change[*meshv1alpha1.Dataplane]) int {
		return strings.Compare(a.Key.String(), b.Key.String())
	})
	d.After = s.overlay.On(d.After)
	return d, nil
}

// podInsights is a client of insights of Pods: their owner is the Pod, and no Dataplane has
// conditions.
type podInsights struct {
	resource.Client
	tables *catalog.Catalog
}

// Get implements resource.Client.
func (c podInsights) Get(ctx context.Context, d *resource.Descriptor, key resource.Key) (resource.Object, error) {
	if d == kind.Dataplane {
		return nil, apierrors.NewNotFound(d.GroupResource(), key.Name)
	}
	return c.Client.Get(ctx, d, key)
}

// Create implements resource.Client.
func (c podInsights) Create(ctx context.Context, d *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	if pod, ok := c.tables.Snapshot().Pods.Get(resource.KeyOf(obj)); ok && d == kind.DataplaneInsight {
		obj.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}})
	}
	return c.Client.Create(ctx, d, obj)
}

// podTokens are callers that show the projected token of a Pod, which the API of the cluster
// reviews. A Pod gets certificates for itself, and nothing else. In the records of certificates its
// name is podPeer.
type podTokens struct {
	reviewer access.TokenReviewer
	tables   *catalog.Catalog
	log      *slog.Logger
}

// podPeer is a holder of certificates that is no node: names of nodes have no "/".
func podPeer(key resource.Key) string { return "pod/" + key.Namespace + "/" + key.Name }

// caller implements issue.Config.Caller. It blocks for a review of the token.
func (t podTokens) caller(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	token, ok := "", false
	if len(values) == 1 {
		token, ok = strings.CutPrefix(values[0], "Bearer ")
	}
	if !ok || strings.Count(token, ".") != 2 {
		return "", status.Error(codes.Unauthenticated, "the token of a Pod is needed: a projected one of its service account")
	}
	if !t.tables.Listed() {
		return "", status.Error(codes.Unavailable, errNotSynced.Error())
	}
	review, err := t.reviewer.ReviewToken(ctx, token, []string{inject.Audience})
	if err != nil {
		t.log.Warn("the token of a Pod could not be reviewed", "error", err)
		return "", status.Error(codes.Unavailable, access.ErrNotReviewed.Error())
	}
	key, err := t.podOf(review.Authenticated, review.Audiences, review.User.Username, func(name string) string {
		if all := review.User.Extra[name]; len(all) == 1 {
			return all[0]
		}
		return ""
	})
	if err != nil {
		t.log.Info("the token of a Pod is refused", "reason", err)
		return "", status.Error(codes.Unauthenticated, err.Error())
	}
	return podPeer(key), nil
}

// podOf a token that was reviewed.
func (t podTokens) podOf(good bool, audiences []string, user string, extra func(string) string) (resource.Key, error) {
	namespace, account, err := serviceaccount.SplitUsername(user)
	key := resource.Key{Namespace: namespace, Name: extra(serviceaccount.PodNameKey)}
	switch {
	case !good:
		return key, errors.New("the cluster refuses the token")
	case !slices.Contains(audiences, inject.Audience):
		return key, fmt.Errorf("the token is not for the audience %q", inject.Audience)
	case err != nil || key.Name == "":
		return key, errors.New("the token is not bound to a Pod")
	}
	pod, ok := t.tables.Snapshot().Pods.Get(key)
	if !ok || string(pod.UID) != extra(serviceaccount.PodUIDKey) || pod.Spec.ServiceAccountName != account {
		// Another replica, or a moment later, may know it.
		return key, fmt.Errorf("there is no Pod %s with the service account and the UID of the token here (yet)", key)
	}
	return key, nil
}

// ownPods lets a Pod have the certificate of its own workload.
type ownPods struct{ issue.Workloads }

// Workload implements issue.Workloads.
func (o ownPods) Workload(ctx context.Context, namespace, name string) (issue.Workload, bool, error) {
	w, ok, err := o.Workloads.Workload(ctx, namespace, name)
	w.Node = podPeer(resource.Key{Namespace: namespace, Name: name})
	return w, ok, err
}

// NodeInMesh implements issue.Workloads.
func (ownPods) NodeInMesh(context.Context, string, string) (bool, error) { return false, nil }

// Gateway implements issue.Workloads.
func (ownPods) Gateway(context.Context, string, mesh.Kind) (bool, error) { return false, nil }

// servePods has the certificates of Pods issued to them, at the port of xDS.
func (d *identities) servePods(p *proxies, workloads issue.Workloads, reviewer access.TokenReviewer, site string) {
	log := d.log.With("callers", "pods")
	identityv1.RegisterIdentityServer(p.grpc, issue.NewServer(issue.Config{
		Zone: site, Caller: podTokens{reviewer, d.catalog, log}.caller, Workloads: ownPods{workloads}, Mesh: d.mesh,
		Record: d.recordPod(workloads), Board: d.board, Logger: log,
	}))
}

// recordPod records the certificate of a Pod as one of its node: there is one record of each node, and
// none of each Pod.
func (d *identities) recordPod(workloads issue.Workloads) func(context.Context, issue.Issued) error {
	return func(ctx context.Context, i issue.Issued) error {
		w, ok, err := workloads.Workload(ctx, i.Namespace, i.Workload)
		if err != nil || !ok {
			return errors.Join(err, fmt.Errorf("pod %s/%s is gone", i.Namespace, i.Workload))
		}
		i.Node = w.Node
		return d.record(ctx, i)
	}
}

// forgetPods that are gone: a change of authorities does not wait for them.
func (d *identities) forgetPods(ctx context.Context) error {
	sub := d.catalog.Subscribe(catalog.Pods)
	defer sub.Close()
	for {
		delta, err := sub.Next(ctx)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		for _, c := range delta.Pods {
			if c.Old != nil && (c.New == nil || c.New.UID != c.Old.UID) && c.Old.Annotations[meshv1alpha1.AnnotationSidecar] != "" {
				d.board.Forget(podPeer(c.Key))
			}
		}
	}
}
