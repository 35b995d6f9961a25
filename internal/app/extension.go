package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/dynamic"
	typedauthorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kubernetes/extension"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// webhookConfiguration is the name of the object of the validating webhooks.
const webhookConfiguration = "proxima"

// clusterExtension is what the API server of a cluster calls: admission, and the aggregated API.
// It has a name of its own on the port of the API, and a certificate for it.
type clusterExtension struct {
	name         string
	mux          *http.ServeMux
	certificates *extension.Certificates
	keeper       func() *extension.Keeper
	targets      []extension.Target    // of the keeper; not changed once components run
	aggregated   *extension.Aggregated // nil: off
}

// newExtension adds the extension to the paths; nil: there is none.
func (p *clusterPlane) newExtension() (*clusterExtension, error) {
	rules := &clusterWrites{site: p.cfg.accessSite(), meshes: p.api.meshes}
	x, err := newClusterExtension(p.cfg, p.paths, rules, aggregatedPaths(), p.ofCluster(p.paths.mux), p.log)
	if x != nil && p.meshes != nil && p.meshes.proxies != nil && p.cfg.Injection != nil {
		x.targets = append(x.targets, extension.MutatingTarget(webhookConfiguration))
		x.mux.Handle(extension.InjectionPath, extension.NewInjection(p.inject, p.log.With("component", "injection")))
	}
	return x, err
}

// newClusterExtension adds the extension to the paths of a control plane; nil: there is none. rules
// judge what users of the cluster write.
// aggregated are the paths that the aggregated API has, by their names, and next what answers them.
func newClusterExtension(
	cfg ControlPlaneConfig, paths *ownPaths, rules *clusterWrites, aggregated []string, next http.Handler, log *slog.Logger,
) (*clusterExtension, error) {
	if cfg.ExtensionService == "" {
		return nil, nil //nolint:nilnil // as the comment says
	}
	client, err := dynamic.NewForConfig(clusterREST(cfg.Cluster))
	if err != nil {
		return nil, err
	}
	log = log.With("component", "extension")
	x := &clusterExtension{name: fmt.Sprintf("%s.%s.svc", cfg.ExtensionService, cfg.Namespace), mux: http.NewServeMux()}
	x.certificates = extension.NewCertificates(client, cfg.Namespace, x.name, nil, log)
	x.targets = []extension.Target{extension.WebhookTarget(webhookConfiguration)}
	if cfg.AggregatedAPI {
		x.targets = append(x.targets, extension.APIServiceTarget())
		x.aggregated = extension.NewAggregated(extension.AggregatedConfig{
			Client: client, Reviewer: accessReviews{cfg.Cluster}, Next: next, Paths: aggregated, Logger: log,
		})
		x.mux.Handle("/apis/", x.aggregated)
		x.mux.Handle("/apis", x.aggregated)
	}
	x.keeper = func() *extension.Keeper {
		return extension.NewKeeper(extension.KeeperConfig{Client: client, Namespace: cfg.Namespace, Targets: x.targets, Logger: log})
	}
	x.mux.Handle(extension.AdmissionPath, extension.NewAdmission(kind.All(), rules.allow, log))
	x.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuseRequest(w, http.StatusNotFound, metav1.StatusReasonNotFound, "this name is for the API server of the cluster: "+
			"admission, and the aggregated API where it is on")
	})
	paths.extension = x
	paths.tls.GetCertificate = x.certificates.GetCertificate
	return x, nil
}

// aggregatedPaths are those that the aggregated API has, by their names.
func aggregatedPaths() []string {
	return append(pathNames(
		admin.StatusPath, admin.DemandPath, admin.ExplainServicePath, admin.SimulatePath, admin.SurveyPath, identity.CertificatesPath,
		admin.SummaryZonesPath, admin.SummaryServicesPath, admin.SummaryServicePath, admin.SeriesPath, admin.StreamPath, admin.ProblemsPath,
		admin.PlotZonesPath, admin.PlotServicePath, admin.PlotHistoryPath,
	), feedPaths()...)
}

// pathNames of our paths in the aggregated API.
func pathNames(paths ...string) []string {
	var out []string
	for _, path := range paths {
		out = append(out, strings.TrimPrefix(path, "/proxima/v1/"))
	}
	return out
}

// components of the extension.
func (x *clusterExtension) components() []component {
	if x == nil {
		return nil
	}
	out := []component{
		{Name: "certificate for the API server", Run: x.certificates.Run},
		{Name: "authority for the API server", Scope: leader, Run: func(ctx context.Context) error { return x.keeper().Run(ctx) }},
	}
	if x.aggregated != nil {
		out = append(out, component{Name: "aggregated API", Run: x.aggregated.Run})
	}
	return out
}

// ofCluster lets users of the cluster ask. Who may do what was decided by the cluster; a
// certificate is for the node of an agent's pod alone.
func (p *clusterPlane) ofCluster(next http.Handler) http.Handler {
	return onlyPaths(aggregatedPaths(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(context.WithValue(r.Context(), byCluster{}, true))
		if r.URL.Path != identity.CertificatesPath {
			next.ServeHTTP(w, r)
			return
		}
		who, _ := request.UserFrom(r.Context())
		subject, err := p.nodeSubject(who)
		if err != nil {
			refuseRequest(w, http.StatusForbidden, metav1.StatusReasonForbidden, err.Error())
			return
		}
		next.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{
			Name: subject.User, Groups: append(subject.Groups, user.AllAuthenticated),
		})))
	}))
}

// byCluster is the key of a request's context that tells that it came by the API server of the
// cluster, whose roles have decided.
type byCluster struct{}

// fromCluster reports whether a request came by the API server of the cluster.
func fromCluster(ctx context.Context) bool {
	by, _ := ctx.Value(byCluster{}).(bool)
	return by
}

// onlyPaths lets requests for paths with these names through.
func onlyPaths(known []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(known, strings.TrimPrefix(r.URL.Path, "/proxima/v1/")) {
			refuseRequest(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the aggregated API answers "+strings.Join(known, ", "))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// nodeSubject is the node of an agent: that of the pod to which the token is bound by which it
// came to the API server (KEP-4193).
func (p *clusterPlane) nodeSubject(who user.Info) (identity.Subject, error) {
	agent := serviceaccount.MakeUsername(p.cfg.Namespace, p.cfg.AgentServiceAccount)
	node := who.GetExtra()[serviceaccount.NodeNameKey]
	if who.GetName() != agent || len(node) != 1 || len(who.GetExtra()[serviceaccount.PodNameKey]) != 1 {
		return identity.Subject{}, fmt.Errorf("certificates of nodes are for %s alone, with the token of a pod of the node", agent)
	}
	return identity.SubjectFor(identity.Node, node[0])
}

// accessReviews asks the API of the cluster.
type accessReviews struct{ cfg *rest.Config }

// ReviewAccess implements extension.Reviewer.
func (a accessReviews) ReviewAccess(
	ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec,
) (status authorizationv1.SubjectAccessReviewStatus, err error) {
	client, err := typedauthorization.NewForConfig(clusterREST(a.cfg))
	if err != nil {
		return status, err
	}
	review, err := client.SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return status, err
	}
	return review.Status, nil
}
