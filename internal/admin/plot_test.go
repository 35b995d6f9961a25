package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/plot"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// sellers may list the Services of namespace shop, everybody else all.
type sellers struct{}

func (sellers) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "seller" && a.GetNamespace() != "shop" {
		return authorizer.DecisionDeny, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// drawn is an instance that has sums of two Services in two namespaces.
func drawn(t *testing.T) Config {
	t.Helper()
	client := resourcetest.New()
	for _, namespace := range []string{"shop", "ops"} {
		client.Seed(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"}, Ports: []corev1.ServicePort{{Port: 80}}},
		})
	}
	world := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
	table := summary.New(summary.Config{Catalog: world, Tallier: topology.New(topology.Config{Client: client, Catalog: world}).Tallier()})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- world.Run(ctx) }()
	go func() { ended <- table.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended; <-ended })
	for {
		changed := table.Changed()
		if z, err := table.Zones(summary.Scope{All: true}); err == nil && z.Total.Services == 2 {
			return Config{Tables: world, Sums: func() *summary.Table { return table }, Authorizer: sellers{}, Logger: slog.New(slog.DiscardHandler)}
		}
		<-changed
	}
}

// TestPlots: drawings are of what their viewer may see, in both forms; an instance that does not plan passes on what another one draws.
func TestPlots(t *testing.T) {
	config := drawn(t)
	handlers := withSummaries(config, newScopes(config), map[string]http.Handler{})
	ask := func(handlers map[string]http.Handler, who, path, query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, path+"?"+query, nil)
		handlers[path].ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: who})))
		return w
	}
	for _, c := range []struct {
		who, path, query string
		code             int
		text             string
	}{
		{"admin", PlotZonesPath, "", 200, "2 Services;"},
		{"seller", PlotZonesPath, "", 200, "1 Service;"},
		{"admin", PlotServicePath, "namespace=ops&name=web", 200, "Service ops/web"},
		{"seller", PlotServicePath, "namespace=shop&name=web", 200, "Service shop/web"},
		{"seller", PlotServicePath, "namespace=ops&name=web", 404, "there is no service"},
		{"admin", PlotServicePath, "namespace=ops", 400, "both are required"},
		{"admin", PlotHistoryPath, "", 200, "Zones in the last hours"},
		{"admin", PlotHistoryPath, "minutes=0", 400, "1 to 360"},
		{"seller", PlotHistoryPath, "", 400, "which you may not list"},
		{"seller", PlotHistoryPath, "namespace=shop&name=web", 200, "Service shop/web in the last hours"},
		{"seller", PlotHistoryPath, "namespace=ops&name=web", 404, "there is no service"},
		{"admin", PlotZonesPath, "format=png", 400, "use svg or json"},
	} {
		w := ask(handlers, c.who, c.path, c.query)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.text) {
			t.Errorf("%s %s?%s: %d %s", c.who, c.path, c.query, w.Code, w.Body)
		}
		if svg := w.Header().Get("Content-Type") == "image/svg+xml"; svg != (w.Code == http.StatusOK) || svg && !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: headers %v", c.path, w.Header())
		}
	}
	var geometry plot.Drawing
	w := ask(handlers, "admin", PlotZonesPath, "format=json")
	svg := ask(handlers, "admin", PlotZonesPath, "").Body.Bytes()
	if err := json.Unmarshal(w.Body.Bytes(), &geometry); err != nil || !bytes.Equal(geometry.SVG(), svg) {
		t.Errorf("%v: the geometry is of another picture: %s", err, w.Body)
	}

	other := config
	other.Sums = func() *summary.Table { return nil }
	asAdmin := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers[r.URL.Path].ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "admin"})))
	})
	other.Planning = otherInstances{"leader": asAdmin}
	passing := withSummaries(other, newScopes(other), map[string]http.Handler{})
	if w := ask(passing, "seller", PlotZonesPath, ""); w.Code != 200 || !strings.Contains(w.Body.String(), "1 Service;") || w.Header().Get("Content-Type") != "image/svg+xml" ||
		w.Header().Get("Content-Security-Policy") == "" {
		t.Errorf("by another instance: %d %s", w.Code, w.Body)
	}
	other.Planning = nil
	if w := ask(withSummaries(other, newScopes(other), map[string]http.Handler{}), "seller", PlotZonesPath, ""); w.Code != http.StatusServiceUnavailable {
		t.Errorf("without another instance: %d %s", w.Code, w.Body)
	}
}
