package extension

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/dynamic"

	"github.com/proxima-mesh/proxima/internal/certpem"
)

// GroupVersion of the aggregated API.
var GroupVersion = schema.GroupVersion{Group: "control.mesh.proxima.dev", Version: "v1"}

// prefix of our paths outside the aggregated API.
const prefix = "/proxima/v1/"

// GroupPath is where the aggregated API has a path of ours. It is empty for others.
func GroupPath(path string) string {
	rest, ok := strings.CutPrefix(path, prefix)
	if !ok {
		return ""
	}
	return "/apis/" + GroupVersion.String() + "/" + rest
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// frontProxies is the ConfigMap in which the API server of a cluster says who may speak for users
// (k8s.io/apiserver, DelegatingAuthenticationOptions).
const frontProxies = "extension-apiserver-authentication"

// Reviewer asks the API of a cluster whether a user may do something.
type Reviewer interface {
	// ReviewAccess blocks for a request to the API. An error means that it could not be asked.
	ReviewAccess(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error)
}

// AggregatedConfig of an Aggregated.
type AggregatedConfig struct {
	Client   dynamic.Interface
	Reviewer Reviewer
	// Next answers our paths, for the user in the context of the request (package request of
	// k8s.io/apiserver).
	Next http.Handler
	// Paths that Next answers to, by their names after the prefix, as in "status".
	Paths  []string
	Logger *slog.Logger
}

// Aggregated serves our paths below /apis/GROUP/VERSION to the API server of a cluster, which says
// for whom it asks. The permission is that of the cluster. Make it with NewAggregated.
type Aggregated struct {
	cfg     AggregatedConfig
	infos   request.RequestInfoFactory
	proxies atomic.Pointer[authenticator.Request]
}

// NewAggregated makes the handler; Run lets it know whom to believe.
func NewAggregated(cfg AggregatedConfig) *Aggregated {
	return &Aggregated{cfg: cfg, infos: request.RequestInfoFactory{
		APIPrefixes: sets.NewString("apis", "api"), GrouplessAPIPrefixes: sets.NewString("api"),
	}}
}

// Run until ctx ends, and return nil then.
func (a *Aggregated) Run(ctx context.Context) error {
	var following sync.WaitGroup
	defer following.Wait()
	follow(ctx, &following, a.cfg.Client, configMaps, metav1.NamespaceSystem, frontProxies, a.learn)
	<-ctx.Done()
	return nil
}

// learn whom to believe.
func (a *Aggregated) learn(config *unstructured.Unstructured) {
	if config == nil {
		a.proxies.Store(nil)
		return
	}
	auth, err := frontProxiesOf(config)
	if err != nil {
		a.cfg.Logger.Warn("configmap kube-system/"+frontProxies+" cannot be used: nobody is believed", "error", err)
		a.proxies.Store(nil)
		return
	}
	a.proxies.Store(&auth)
}

// frontProxiesOf makes an authenticator of the ConfigMap: it believes the headers of a client with
// a certificate of the authority there.
func frontProxiesOf(config *unstructured.Unstructured) (authenticator.Request, error) {
	data, _, err := unstructured.NestedStringMap(config.Object, "data")
	if err != nil {
		return nil, err
	}
	certs, err := certpem.ParseCertificates([]byte(data["requestheader-client-ca-file"]))
	if err != nil {
		return nil, fmt.Errorf("requestheader-client-ca-file: %w", err)
	}
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	lists := map[string]headerrequest.StaticStringSlice{}
	for _, name := range []string{"allowed-names", "username-headers", "uid-headers", "group-headers", "extra-headers-prefix"} {
		text := data["requestheader-"+name]
		var list []string
		if text == "" {
			continue // of an API server that has no such setting
		}
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return nil, fmt.Errorf("requestheader-%s: %w", name, err)
		}
		lists[name] = list
	}
	if len(lists["username-headers"]) == 0 {
		return nil, errors.New("requestheader-username-headers: no header has the name of the user")
	}
	verify := func() (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
	}
	return headerrequest.NewDynamicVerifyOptionsSecure(verify, lists["allowed-names"], lists["username-headers"], lists["uid-headers"],
		lists["group-headers"], lists["extra-headers-prefix"]), nil
}

// ServeHTTP implements http.Handler.
func (a *Aggregated) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	auth := a.proxies.Load()
	if auth == nil {
		Refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			"it is not known yet who may speak for users: configmap kube-system/"+frontProxies)
		return
	}
	who, ok, err := (*auth).AuthenticateRequest(r)
	if err != nil || !ok {
		a.cfg.Logger.Info("request for the aggregated API refused", "from", r.RemoteAddr, "error", err)
		Refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "only the API server of the cluster asks here, for its users")
		return
	}
	if a.discover(w, r) {
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/apis/"+GroupVersion.String()+"/")
	if !ok {
		Refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound,
			"the aggregated API has the paths below /apis/"+GroupVersion.String()+" alone")
		return
	}
	if !a.may(w, r, who) {
		return
	}
	inner := r.Clone(request.WithUser(r.Context(), who.User))
	inner.URL.Path, inner.URL.RawPath, inner.RequestURI = prefix+rest, "", ""
	a.cfg.Next.ServeHTTP(w, inner)
}

// may asks the cluster. It answers the request where the user may not.
func (a *Aggregated) may(w http.ResponseWriter, r *http.Request, who *authenticator.Response) bool {
	info, err := a.infos.NewRequestInfo(r)
	if err != nil {
		Refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return false
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for name, values := range who.User.GetExtra() {
		extra[name] = values
	}
	status, err := a.cfg.Reviewer.ReviewAccess(r.Context(), authorizationv1.SubjectAccessReviewSpec{
		User: who.User.GetName(), UID: who.User.GetUID(), Groups: who.User.GetGroups(), Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: info.Verb, Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource, Subresource: info.Subresource,
			Name: info.Name, Namespace: info.Namespace,
		},
	})
	switch {
	case err != nil:
		a.cfg.Logger.Warn("the cluster could not be asked whether a user may ask", "user", who.User.GetName(), "error", err)
		Refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			"the cluster could not be asked whether you may do that; try again")
	case !status.Allowed:
		Refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("user %q cannot %s %s of %s in the cluster: %s",
			who.User.GetName(), info.Verb, info.Resource, GroupVersion.Group, "bind it the ClusterRole proxima-viewer"))
	default:
		return true
	}
	return false
}

// discover answers what the API server asks to know what is here.
func (a *Aggregated) discover(w http.ResponseWriter, r *http.Request) bool {
	version := metav1.GroupVersionForDiscovery{GroupVersion: GroupVersion.String(), Version: GroupVersion.Version}
	group := metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: GroupVersion.Group,
		Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
	}
	var answer any
	switch strings.TrimSuffix(r.URL.Path, "/") {
	case "/apis":
		answer = metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{group}}
	case "/apis/" + GroupVersion.Group:
		answer = group
	case "/apis/" + GroupVersion.String():
		answer = metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: GroupVersion.String(), APIResources: a.resources(),
		}
	default:
		return false
	}
	if r.Method != http.MethodGet {
		Refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "only GET is answered here")
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client may be gone
	return true
}

// resources are questions, not objects: they are not listed or watched.
func (a *Aggregated) resources() []metav1.APIResource {
	var names []string
	for _, path := range a.cfg.Paths {
		name, _, _ := strings.Cut(path, "/")
		names = append(names, name)
	}
	slices.Sort(names)
	var out []metav1.APIResource
	for _, name := range slices.Compact(names) {
		verbs := metav1.Verbs{"get"}
		switch name {
		case "certificates":
			verbs = metav1.Verbs{"create"}
		case "simulate": // of all Services, with a file of traffic
			verbs = metav1.Verbs{"create", "get"}
		}
		out = append(out, metav1.APIResource{Name: name, SingularName: name, Kind: strings.ToUpper(name[:1]) + name[1:], Verbs: verbs})
	}
	return out
}

// Refuse a request as the Kubernetes API does.
func Refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{ // the client may be gone
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message,
	})
}
