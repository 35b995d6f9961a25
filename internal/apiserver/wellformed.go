package apiserver

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/storage"
)

// wellFormed answers 400 to requests of resources for what registries would fail on with 500:
// namespaces that cannot be part of a key, and revisions of watches that are no numbers.
func wellFormed(next http.Handler, errors runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest {
			next.ServeHTTP(w, r)
			return
		}
		if err := illFormed(info, r); err != nil {
			responsewriters.ErrorNegotiated(err, errors, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func illFormed(info *request.RequestInfo, r *http.Request) error {
	if problems := content.IsPathSegmentName(info.Namespace); info.Namespace != "" && len(problems) > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid namespace: %q: %v", info.Namespace, problems))
	}
	if info.Verb != "watch" && info.Verb != "watchlist" {
		return nil
	}
	if _, err := (storage.APIObjectVersioner{}).ParseResourceVersion(r.URL.Query().Get("resourceVersion")); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	return nil
}

// missing answers requests of paths that are not served: with those that are, as upstream
// does, but for clients who are not known.
type missing struct{ paths routes.ListedPathProvider }

// ServeHTTP implements http.Handler.
func (m missing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if u, ok := request.UserFrom(r.Context()); !ok || u.GetName() == user.Anonymous {
		http.NotFound(w, r)
		return
	}
	routes.IndexLister{StatusCode: http.StatusNotFound, PathProvider: m.paths}.ServeHTTP(w, r)
}
