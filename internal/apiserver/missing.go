package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Of the kinds that "kubectl apply --prune" asks for when it is not told which
// (k8s.io/kubectl/pkg/util/prune), those that this API lacks can be listed and are empty:
// kubectl stops where it cannot find one of them. Writes are refused with what to use instead.

// emptyVersion is the resource version of lists that are always empty.
const emptyVersion = "1"

const (
	insteadOfWorkloads = `it runs no containers; start workloads with "proxima run", and see them with "kubectl get dataplanes"`
	insteadOfVolumes   = "it has no volumes"
	insteadOfIngress   = "routes are HTTPRoutes, GRPCRoutes and TCPRoutes of gateway.networking.k8s.io, whose parents are Services"
)

// emptyElsewhere are the empty kinds of groups that have no others.
func emptyElsewhere() []Unoffered {
	var out []Unoffered
	add := func(gvk schema.GroupVersionKind, short ...string) {
		plural, singular := meta.UnsafeGuessKindToResource(gvk)
		out = append(out, Unoffered{
			GVK: gvk, Resource: plural.Resource, Singular: singular.Resource, ShortNames: short, Namespaced: true,
			Instead: insteadOfWorkloads, Empty: true,
		})
	}
	add(appsv1.SchemeGroupVersion.WithKind("DaemonSet"), "ds")
	add(appsv1.SchemeGroupVersion.WithKind("Deployment"), "deploy")
	add(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), "rs")
	add(appsv1.SchemeGroupVersion.WithKind("StatefulSet"), "sts")
	add(batchv1.SchemeGroupVersion.WithKind("CronJob"), "cj")
	add(batchv1.SchemeGroupVersion.WithKind("Job"))
	return out
}

// emptyKind is an empty kind of a group that has others: upstream's handlers serve it.
type emptyKind struct {
	Unoffered
	rest.TableConvertor
	newFunc, newList func() runtime.Object
}

var (
	_ rest.Getter               = emptyKind{}
	_ rest.Lister               = emptyKind{}
	_ rest.Scoper               = emptyKind{}
	_ rest.SingularNameProvider = emptyKind{}
	_ rest.ShortNamesProvider   = emptyKind{}
)

// emptyKinds of the groups of the kinds that are served.
func emptyKinds(served []*resource.Descriptor) []emptyKind {
	core, networking := corev1.SchemeGroupVersion, networkingv1.SchemeGroupVersion
	var out []emptyKind
	for _, k := range []emptyKind{
		newEmptyKind(core.WithKind("PersistentVolume"), "pv", insteadOfVolumes, &corev1.PersistentVolume{}, &corev1.PersistentVolumeList{}),
		newEmptyKind(core.WithKind("PersistentVolumeClaim"), "pvc", insteadOfVolumes,
			&corev1.PersistentVolumeClaim{}, &corev1.PersistentVolumeClaimList{}),
		newEmptyKind(core.WithKind("ReplicationController"), "rc", insteadOfWorkloads,
			&corev1.ReplicationController{}, &corev1.ReplicationControllerList{}),
		newEmptyKind(networking.WithKind("Ingress"), "ing", insteadOfIngress, &networkingv1.Ingress{}, &networkingv1.IngressList{}),
	} {
		if slices.ContainsFunc(served, func(d *resource.Descriptor) bool { return d.GVK.GroupVersion() == k.GVK.GroupVersion() }) {
			out = append(out, k)
		}
	}
	return out
}

func newEmptyKind(gvk schema.GroupVersionKind, short, instead string, obj, list runtime.Object) emptyKind {
	plural, singular := meta.UnsafeGuessKindToResource(gvk)
	return emptyKind{
		Unoffered: Unoffered{
			GVK: gvk, Resource: plural.Resource, Singular: singular.Resource, ShortNames: []string{short},
			Namespaced: gvk.Kind != "PersistentVolume", Instead: instead, Empty: true,
		},
		TableConvertor: rest.NewDefaultTableConvertor(plural.GroupResource()),
		newFunc:        obj.DeepCopyObject, newList: list.DeepCopyObject,
	}
}

func (e emptyKind) register(scheme *runtime.Scheme, gv schema.GroupVersion) {
	scheme.AddKnownTypeWithName(gv.WithKind(e.GVK.Kind), e.newFunc())
	scheme.AddKnownTypeWithName(gv.WithKind(e.GVK.Kind+"List"), e.newList())
}

// New implements rest.Storage.
func (e emptyKind) New() runtime.Object { return e.newFunc() }

// Destroy has nothing to free.
func (emptyKind) Destroy() {}

// NewList implements rest.Lister.
func (e emptyKind) NewList() runtime.Object { return e.newList() }

// NamespaceScoped implements rest.Scoper.
func (e emptyKind) NamespaceScoped() bool { return e.Namespaced }

// GetSingularName implements rest.SingularNameProvider.
func (e emptyKind) GetSingularName() string { return e.Singular }

// ShortNames implements rest.ShortNamesProvider.
func (e emptyKind) ShortNames() []string { return e.Unoffered.ShortNames }

// Get finds nothing.
func (e emptyKind) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: e.GVK.Group, Resource: e.Resource}, name)
}

// List is empty.
func (e emptyKind) List(context.Context, *metainternalversion.ListOptions) (runtime.Object, error) {
	list := e.newList()
	list.(metav1.ListInterface).SetResourceVersion(emptyVersion)
	return list, nil
}

// explainMissing answers requests, after authorization, for what Kubernetes has and this API
// has not, with what there is instead: NotFound would look like a mistake of the client.
func explainMissing(next http.Handler, served []*resource.Descriptor) http.Handler {
	empty := map[schema.GroupResource]emptyKind{}
	for _, k := range emptyKinds(served) {
		empty[schema.GroupResource{Group: k.GVK.Group, Resource: k.Resource}] = k
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest {
			next.ServeHTTP(w, r)
			return
		}
		if why := missingPart(info); why != "" {
			writeJSON(w, http.StatusMethodNotAllowed, metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
				Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed, Message: why,
				Details: &metav1.StatusDetails{Group: info.APIGroup, Kind: info.Resource, Name: info.Name},
			})
			return
		}
		k, ok := empty[schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}]
		if ok && (info.Subresource != "" || info.Verb != "get" && info.Verb != "list") {
			writeJSON(w, http.StatusMethodNotAllowed, k.status())
			return
		}
		next.ServeHTTP(w, r)
	})
}

// missingPart is why a sub-resource of Kubernetes is not served; empty: it is, or it is one that
// Kubernetes has not either.
func missingPart(info *request.RequestInfo) string {
	if info.Subresource == "scale" {
		return fmt.Sprintf(`%s %q cannot be scaled: a Service has as many endpoints as workloads are ready; start or end some with "proxima run"`,
			info.Resource, info.Name)
	}
	if info.APIGroup != "" || info.Resource != "pods" {
		return ""
	}
	switch info.Subresource {
	case "log":
		return fmt.Sprintf(`pod %q has no log here: no kubelet runs Pods; "proxima run" leaves the output of its command to where it was started`+
			" (a terminal, or the journal of its unit: journalctl -u UNIT)", info.Name)
	case "exec", "attach":
		return fmt.Sprintf("pod %q cannot be entered (%s): no kubelet runs Pods; log in to the machine of the workload, which is its Dataplane's spec.nodeName"+
			` ("kubectl cp" needs exec, too)`, info.Name, info.Subresource)
	case "portforward":
		return fmt.Sprintf("pod %q has no port-forward: no kubelet runs Pods; connect to the address of the workload (spec.addresses of its Dataplane),"+
			" or to its Service from a machine with an agent", info.Name)
	}
	return ""
}
