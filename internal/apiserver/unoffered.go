package apiserver

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Unoffered is a kind of Kubernetes that this API refuses by name.
//
// Discovery lists it without verbs: kubectl resolves the kind, and so shows the answer to
// its request, while whatever walks the kinds that can be listed or deleted leaves it out.
type Unoffered struct {
	// GVK of the kind; Resource and Singular are its names in URLs and on the command line.
	GVK                schema.GroupVersionKind
	Resource, Singular string
	ShortNames         []string
	Namespaced         bool
	// Instead names what to use.
	Instead string
	// Empty: it can be read, and there are none. Discovery lists it with the verbs get and
	// list, which whoever walks the kinds can use.
	Empty bool
}

// status is the answer to every request for the kind. It is no NotFound: clients would
// create an object then.
func (u *Unoffered) status() metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: u.GVK.GroupKind().String() + " is not offered by this version: " + u.Instead,
		Details: &metav1.StatusDetails{Group: u.GVK.Group, Kind: u.Resource},
	}
}

// refuse the kinds of Config.Unoffered, whose groups must have no other kinds.
func (s *Server) refuse(kinds []Unoffered) {
	versions := map[schema.GroupVersion][]Unoffered{}
	var order []schema.GroupVersion
	for _, k := range kinds {
		gv := k.GVK.GroupVersion()
		if versions[gv] == nil {
			order = append(order, gv)
		}
		versions[gv] = append(versions[gv], k)
	}
	for _, gv := range order {
		s.refuseVersion(gv, versions[gv])
	}
}

func (s *Server) refuseVersion(gv schema.GroupVersion, kinds []Unoffered) {
	version := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
	group := metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"},
		Name:     gv.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
	}
	list := metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String(),
	}
	aggregated := apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	for _, k := range kinds {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: k.Resource, SingularName: k.Singular, Namespaced: k.Namespaced, Kind: k.GVK.Kind, Verbs: k.verbs(), ShortNames: k.ShortNames,
		})
		scope := apidiscoveryv2.ScopeCluster
		if k.Namespaced {
			scope = apidiscoveryv2.ScopeNamespace
		}
		aggregated.Resources = append(aggregated.Resources, apidiscoveryv2.APIResourceDiscovery{
			Resource: k.Resource, SingularResource: k.Singular, Scope: scope, Verbs: k.verbs(), ShortNames: k.ShortNames,
			ResponseKind: &metav1.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: k.GVK.Kind},
		})
	}
	s.generic.DiscoveryGroupManager.AddGroup(group)
	if s.generic.AggregatedDiscoveryGroupManager != nil {
		s.generic.AggregatedDiscoveryGroupManager.AddGroupVersion(gv.Group, aggregated)
	}
	mux, root := s.generic.Handler.NonGoRestfulMux, "/apis/"+gv.String()
	mux.HandleFunc("/apis/"+gv.Group, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, group) })
	mux.HandleFunc(root, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, list) })
	mux.HandlePrefix(root+"/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := slices.IndexFunc(kinds, func(k Unoffered) bool { return k.Resource == resourceIn(strings.TrimPrefix(r.URL.Path, root+"/")) })
		if at < 0 {
			http.NotFound(w, r)
			return
		}
		kinds[at].serve(w, r)
	}))
}

// serve a request for the kind.
func (u *Unoffered) serve(w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	switch {
	case !u.Empty || !ok || info.Subresource != "" || info.Verb != "get" && info.Verb != "list":
		writeJSON(w, http.StatusMethodNotAllowed, u.status())
	case info.Verb == "get":
		err := apierrors.NewNotFound(schema.GroupResource{Group: u.GVK.Group, Resource: u.Resource}, info.Name)
		err.ErrStatus.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		writeJSON(w, http.StatusNotFound, err.ErrStatus)
	default:
		writeJSON(w, http.StatusOK, metav1.PartialObjectMetadataList{
			TypeMeta: metav1.TypeMeta{Kind: u.GVK.Kind + "List", APIVersion: u.GVK.GroupVersion().String()},
			ListMeta: metav1.ListMeta{ResourceVersion: emptyVersion}, Items: []metav1.PartialObjectMetadata{},
		})
	}
}

func (u *Unoffered) verbs() []string {
	if u.Empty {
		return []string{"get", "list"}
	}
	return []string{}
}

// resourceIn a path below a version: RESOURCE[/…] or namespaces/NAMESPACE/RESOURCE[/…].
func resourceIn(path string) string {
	parts := strings.Split(path, "/")
	if len(parts) >= 3 && parts[0] == "namespaces" {
		return parts[2]
	}
	return parts[0]
}

func writeJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value) // the client may be gone
}
