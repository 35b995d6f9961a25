package apiserver_test

import (
	"net/http"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// TestEmptyKinds: every kind of kubectl's default prune list (k8s.io/kubectl/pkg/util/prune)
// can be listed; those that are not served are empty, and say what to use instead.
func TestEmptyKinds(t *testing.T) {
	lists, err := discovery.NewDiscoveryClientForConfigOrDie(shared.config("admin")).ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	verbs := map[string]string{}
	for _, list := range lists {
		for _, r := range list.APIResources {
			verbs[list.GroupVersion+" "+r.Name] = strings.Join(append(r.ShortNames, r.Verbs...), " ")
		}
	}
	for kind, want := range map[string]string{
		"v1 configmaps": "", "v1 endpoints": "", "v1 pods": "", "v1 secrets": "", "v1 services": "", "v1 namespaces": "",
		"v1 persistentvolumeclaims": "pvc get list", "v1 persistentvolumes": "pv get list", "v1 replicationcontrollers": "rc get list",
		"batch/v1 jobs": "get list", "batch/v1 cronjobs": "cj get list", "networking.k8s.io/v1 ingresses": "ing get list",
		"apps/v1 daemonsets": "ds get list", "apps/v1 deployments": "deploy get list", "apps/v1 replicasets": "rs get list",
		"apps/v1 statefulsets": "sts get list",
	} {
		if got := verbs[kind]; want != "" && got != want || !strings.Contains(got, "list") {
			t.Errorf("%s: %q, want %q", kind, got, want)
		}
	}
	cs := shared.clientset(t, "")
	claims, err := cs.CoreV1().PersistentVolumeClaims("").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil || len(claims.Items) != 0 || claims.ResourceVersion == "" {
		t.Errorf("list of claims: %v %+v", err, claims)
	}
	deployments, err := cs.AppsV1().Deployments("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(deployments.Items) != 0 || deployments.ResourceVersion == "" {
		t.Errorf("list of deployments: %v %+v", err, deployments)
	}
	if _, err := cs.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get a deployment: %v", err)
	}
	if _, err := cs.NetworkingV1().Ingresses("default").Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get an ingress: %v", err)
	}
	for _, tc := range []struct{ method, path, text string }{
		{http.MethodPost, "/apis/apps/v1/namespaces/default/deployments", "proxima run"},
		{http.MethodPatch, "/apis/apps/v1/namespaces/default/deployments/web", "proxima run"},
		{http.MethodGet, "/apis/apps/v1/deployments?watch=1", "Deployment.apps is not offered"},
		{http.MethodPost, "/api/v1/namespaces/default/persistentvolumeclaims", "it has no volumes"},
		{http.MethodDelete, "/api/v1/persistentvolumes/x", "it has no volumes"},
		{http.MethodGet, "/api/v1/replicationcontrollers?watch=1", "ReplicationController is not offered"},
		{http.MethodPut, "/apis/networking.k8s.io/v1/namespaces/default/ingresses/x", "HTTPRoutes"},
	} {
		code, body := shared.do(t, tc.method, tc.path, "admin", map[string][]string{"Content-Type": {"application/json"}}, "")
		if code != http.StatusMethodNotAllowed || !strings.Contains(body, tc.text) || !strings.Contains(body, `"kind":"Status"`) {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, code, body)
		}
	}
}

// TestMissingParts: what needs a kubelet or replicas says so, to those who may ask.
func TestMissingParts(t *testing.T) {
	const pod, services = "/api/v1/namespaces/default/pods/web", "/api/v1/namespaces/default/services/web"
	for _, tc := range []struct {
		method, path, user string
		code               int
		text               string
	}{
		{http.MethodGet, pod + "/log", "admin", 405, "journalctl"},
		{http.MethodPost, pod + "/exec?command=ls", "admin", 405, "no kubelet runs Pods"},
		{http.MethodPost, pod + "/attach", "admin", 405, "no kubelet runs Pods"},
		{http.MethodPost, pod + "/portforward", "admin", 405, "spec.addresses"},
		{http.MethodGet, services + "/scale", "admin", 405, "proxima run"},
		{http.MethodPatch, services + "/scale", "admin", 405, "proxima run"},
		{http.MethodPost, pod + "/exec", "reader", 403, "cannot create"},
		{http.MethodGet, pod + "/other", "admin", 404, ""},
	} {
		code, body := shared.do(t, tc.method, tc.path, tc.user, map[string][]string{"Content-Type": {"application/json"}}, "")
		if code != tc.code || !strings.Contains(body, tc.text) {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, code, body)
		}
	}
}

// TestUpdateCreates: PUT creates objects of the kinds of which Kubernetes creates them, and
// updates of controllers create nothing.
func TestUpdateCreates(t *testing.T) {
	const core, in = "/api/v1", "/namespaces/default/"
	for _, tc := range []struct {
		path, body string
		code       int
	}{
		{core + in + "services/put", `{"metadata":{"name":"put"},"spec":{"ports":[{"port":80}]}}`, 201},
		{core + in + "services/put", `{"metadata":{"name":"put"},"spec":{"ports":[{"port":81}]}}`, 200},
		{core + in + "services/put-status/status", `{"metadata":{"name":"put-status"},"spec":{"ports":[{"port":80}]}}`, 404},
		{core + in + "services/put-other", `{"metadata":{"name":"put"},"spec":{"ports":[{"port":80}]}}`, 400},
		{core + in + "services/put-uid", `{"metadata":{"name":"put-uid","uid":"x"},"spec":{"ports":[{"port":80}]}}`, 409},
		{core + "/namespaces/none/services/put", `{"metadata":{"name":"put"},"spec":{"ports":[{"port":80}]}}`, 404},
		{core + in + "endpoints/put", `{"metadata":{"name":"put"}}`, 201},
		{"/apis/coordination.k8s.io/v1" + in + "leases/put", `{"metadata":{"name":"put"},"spec":{}}`, 201},
		{core + in + "events/put", `{"metadata":{"name":"put"},"involvedObject":{"namespace":"default"}}`, 201},
		{"/apis/events.k8s.io/v1" + in + "events/put-v1", `{"metadata":{"name":"put-v1"},"regarding":{"namespace":"default"},
			"eventTime":"2026-01-01T00:00:00.000000Z","reportingController":"a.b/c","reportingInstance":"c","action":"a","reason":"r","type":"Normal"}`, 201},
		{core + in + "configmaps/put", `{"metadata":{"name":"put"}}`, 404},
		{core + "/nodes/put", `{"metadata":{"name":"put"}}`, 404},
	} {
		code, body := shared.do(t, http.MethodPut, tc.path, "admin", map[string][]string{"Content-Type": {"application/json"}}, tc.body)
		if code != tc.code {
			t.Errorf("PUT %s: %d, want %d: %s", tc.path, code, tc.code, body)
		}
	}
	svc, err := shared.clientset(t, "").CoreV1().Services("default").Get(t.Context(), "put", metav1.GetOptions{})
	if err != nil || svc.Spec.ClusterIP == "" || owner(t, shared.clientset(t, ""), svc.Spec.ClusterIP) == "" {
		t.Errorf("the service has no address: %v %+v", err, svc)
	}
	absent := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "put-absent", Namespace: "default"}}
	if _, err := shared.Client("system:test").Update(t.Context(), kind.Endpoints, absent); !apierrors.IsNotFound(err) {
		t.Errorf("update of what is gone by a controller: %v, want NotFound", err)
	}
}

// TestSelfSubjectRulesReview: kubectl auth can-i --list.
func TestSelfSubjectRulesReview(t *testing.T) {
	st := memory.New(memory.Options{})
	t.Cleanup(func() { st.Close() })
	h, err := start(st, func(c *apiserver.Config) { c.Rules = access.NewAuthorizer() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.stop(); err != nil {
			t.Error(err)
		}
	})
	reviews := h.clientset(t, "").AuthorizationV1().SelfSubjectRulesReviews()
	got, err := reviews.Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := authorizationv1.ResourceRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}
	found := false
	for _, r := range got.Status.ResourceRules {
		found = found || r.String() == all.String()
	}
	if !found || len(got.Status.NonResourceRules) == 0 || got.Status.Incomplete {
		t.Errorf("rules of an admin: %+v", got.Status)
	}
	_, err = reviews.Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{}, metav1.CreateOptions{})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "no namespace on request") {
		t.Errorf("without a namespace: %v", err)
	}
}
