package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/audit"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	storememory "github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// rights are the namespaces whose Services users may list; "*" is all.
type rights map[string][]string

func (r rights) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	of := r[a.GetUser().GetName()]
	if a.GetVerb() == "list" && a.GetResource() == "services" && (slices.Contains(of, "*") || a.GetNamespace() != "" && slices.Contains(of, a.GetNamespace())) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionDeny, "", nil
}

type noTokens struct{}

func (noTokens) List(context.Context) ([]identity.TokenInfo, error) { return nil, nil }

// summed is an instance with sums of three Services in two namespaces.
func summed(t *testing.T) Config {
	t.Helper()
	client := resourcetest.New()
	for _, name := range []string{"shop", "ops"} {
		client.Seed(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range []string{"shop/web", "shop/cart", "ops/log"} {
		namespace, name, _ := strings.Cut(name, "/")
		client.Seed(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"}, Ports: []corev1.ServicePort{{Port: 80}}},
		})
	}
	world := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
	plans := topology.New(topology.Config{Client: client, Catalog: world})
	table := summary.New(summary.Config{Catalog: world, Tallier: plans.Tallier()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	for _, run := range []func(context.Context) error{world.Run, table.Run} {
		go func() { _ = run(ctx); done <- struct{}{} }()
	}
	t.Cleanup(func() { cancel(); <-done; <-done })
	for {
		changed := table.Changed()
		if z, err := table.Zones(summary.Scope{All: true}); err == nil && z.Total.Services == 3 {
			break
		}
		<-changed
	}
	return Config{
		Tables: world, Sums: func() *summary.Table { return table }, Logger: slog.New(slog.DiscardHandler), Store: storememory.New(storememory.Options{}),
		Authorizer: rights{"admin": {"*"}, "seller": {"shop"}, "nobody": nil}, Audit: func() audit.States { return nil }, Tokens: noTokens{},
		Problems: func(*Status, *catalog.Snapshot) []Problem {
			return []Problem{
				{Code: "store-full", Severity: SeverityWarning, Problem: "x"},
				{Code: "HintsDisabled", Severity: SeverityWarning, Kind: "Service", Namespace: "ops", Name: "log", Problem: "y"},
				{Code: "HintsDisabled", Severity: SeverityError, Kind: "Service", Namespace: "shop", Name: "web", Problem: "y"},
			}
		},
	}
}

// serverOf an instance, for users by their names.
func serverOf(t *testing.T, c Config) *httptest.Server {
	handlers := withSummaries(c, newScopes(c), map[string]http.Handler{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := handlers[r.URL.Path]
		if h == nil {
			http.NotFound(w, r)
			return
		}
		h.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: r.Header.Get("User")})))
	}))
	t.Cleanup(s.Close)
	return s
}

func asked(t *testing.T, s *httptest.Server, who, path string, into any) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("User", who)
	resp, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode
}

// TestAccess: whoever may list the Services of some namespaces gets their rows and their totals, nothing else; directly, and by an
// instance that has to ask another one.
func TestAccess(t *testing.T) {
	leads := summed(t)
	leader := serverOf(t, leads)
	follows := leads
	follows.Sums, follows.Instances = func() *summary.Table { return nil }, theOther{leader}
	for name, s := range map[string]*httptest.Server{"the leader": leader, "another instance": serverOf(t, follows)} {
		for _, w := range wronglyAnswered(t, s) {
			t.Errorf("%s, %s", name, w)
		}
		for path, want := range map[string]int{
			SummaryServicesPath + "?sort=size": 400, SummaryServicesPath + "?limit=x": 400, SummaryServicesPath + "?limit=100000": 400, SummaryServicePath: 400,
			SeriesPath + "?minutes=0": 400, StreamPath + "?topics=all": 400, StreamPath: 400, StreamPath + "?topics=zones&position=x": 400,
		} {
			if code := asked(t, s, "admin", path, nil); code != want {
				t.Errorf("%s, %s answers %d, want %d", name, path, code, want)
			}
		}
	}
	alone := leads
	alone.Sums = func() *summary.Table { return nil }
	if code := asked(t, serverOf(t, alone), "admin", SummaryZonesPath, nil); code != http.StatusServiceUnavailable {
		t.Errorf("without an instance that plans: %d", code)
	}
}

// wronglyAnswered is what a server answers to users against their rights, or does not answer.
func wronglyAnswered(t *testing.T, s *httptest.Server) (found []string) {
	t.Helper()
	say := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	for _, c := range []struct {
		who       string
		services  []string
		problems  int
		ofOthers  int // status of a Service of ops
		theSeries int
	}{
		{"admin", []string{"ops/log", "shop/cart", "shop/web"}, 3, 200, 200},
		{"seller", []string{"shop/cart", "shop/web"}, 1, 404, 400},
		{"nobody", nil, 0, 404, 400},
	} {
		var services summary.Services
		if code := asked(t, s, c.who, SummaryServicesPath+"?sort=name", &services); code != 200 {
			t.Fatalf("%s: %d", c.who, code)
		}
		var names []string
		for _, l := range services.Services {
			names = append(names, l.Namespace+"/"+l.Name)
		}
		var zones summary.Zones
		var problems Problems
		asked(t, s, c.who, SummaryZonesPath, &zones)
		asked(t, s, c.who, ProblemsPath, &problems)
		limited := c.who != "admin"
		if !slices.Equal(names, c.services) || zones.Total.Services != len(names) || len(problems.Problems) != c.problems ||
			limited != (zones.Partial != "") || limited != (services.Partial != "") || limited != (problems.Partial != "") {
			say("%s: %v, totals %+v, partial %q, problems %+v", c.who, names, zones.Total, zones.Partial, problems)
		}
		if code := asked(t, s, c.who, SummaryServicePath+"?namespace=ops&name=log", &summary.Detail{}); code != c.ofOthers {
			say("%s: a Service of ops answers %d", c.who, code)
		}
		if code := asked(t, s, c.who, SeriesPath+"?namespace=ops&name=log", &summary.Series{}); code != c.ofOthers {
			say("%s: the series of a Service of ops answers %d", c.who, code)
		}
		if code := asked(t, s, c.who, SeriesPath, &summary.Series{}); code != c.theSeries {
			say("%s: the series answer %d", c.who, code)
		}
	}
	return found
}

// TestGuardsBite: what TestAccess looks for is found where rights are others.
func TestGuardsBite(t *testing.T) {
	for name, broken := range map[string]rights{
		"a user of one namespace sees all": {"admin": {"*"}, "seller": {"*"}},
		"a user without rights sees one":   {"admin": {"*"}, "seller": {"shop"}, "nobody": {"ops"}},
		"an administrator sees one":        {"admin": {"shop"}, "seller": {"shop"}},
	} {
		c := summed(t)
		c.Authorizer = broken
		if len(wronglyAnswered(t, serverOf(t, c))) == 0 {
			t.Error("it is not found that " + name)
		}
	}
}

// theOther instance is a server; requests come to it as of the control plane, which may list everything.
type theOther struct{ s *httptest.Server }

func (theOther) Others() []string { return []string{"other"} }

func (o theOther) Send(ctx context.Context, _ string, r *http.Request) (*http.Response, error) {
	out, err := http.NewRequestWithContext(ctx, r.Method, o.s.URL+r.URL.RequestURI(), nil)
	if err != nil {
		return nil, err
	}
	out.Header = r.Header.Clone()
	out.Header.Set("User", "admin")
	return o.s.Client().Do(out)
}

// TestStream: a snapshot first, then changes; a client that comes back gets what has changed since; it is let go when another instance
// has the sums.
func TestStream(t *testing.T) {
	c := summed(t)
	table := c.Sums()
	gone := make(chan struct{})
	c.Sums = func() *summary.Table {
		select {
		case <-gone:
			return nil
		default:
			return table
		}
	}
	s := serverOf(t, c)
	open := func(who, query string) (next func() (Frame, summary.Delta), end func() error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		t.Cleanup(cancel)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+StreamPath+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("User", who)
		resp, err := s.Client().Do(r)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", resp, err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		lines := bufio.NewReader(resp.Body)
		return func() (f Frame, d summary.Delta) {
				line, err := lines.ReadBytes('\n')
				if err != nil {
					t.Fatal(err)
				}
				if err = json.Unmarshal(line, &f); err == nil && f.Delta != nil {
					err = json.Unmarshal(f.Delta, &d)
				}
				if err != nil {
					t.Fatal(err)
				}
				return f, d
			}, func() error {
				_, err := io.Copy(io.Discard, lines)
				return err
			}
	}
	next, _ := open("admin", "?topics=zones")
	f, d := next()
	if f.Topic != "zones" || !d.Snapshot || d.Rows["total"] == nil || d.Epoch == "" {
		t.Fatalf("the first frame is %+v, %+v", f, d)
	}
	next, _ = open("seller", "?topics=problems")
	if f, d := next(); f.Topic != "problems" || len(d.Rows) != 1 || d.Rows["problem/HintsDisabled/Service shop/web"] == nil {
		t.Errorf("problems of the seller: %+v, %v", f, d.Rows)
	}
	next, end := open("admin", fmt.Sprintf("?topics=zones&position=%s:%d", d.Epoch, d.Sequence))
	if f, _ := next(); f.Topic != "" {
		t.Errorf("whoever has everything gets %+v", f)
	}
	close(gone)
	if err := end(); err != nil {
		t.Errorf("after another instance has the sums: %v", err)
	}
}
