package app

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/sink"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// testLag is how late a replica may be in tests.
const testLag = 200 * time.Millisecond

// startFedReplica with a feed that keeps its data in dir.
func (c *fakeCluster) startFedReplica(name, dir string) *fedReplica {
	c.t.Helper()
	r := &fedReplica{replica: c.startReplicaOf(name, ControlPlaneConfig{Preset: PresetKubeProxyReplacement, DataDir: dir, Feed: FeedConfig{Copies: 1, lag: testLag}})}
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		c.t.Fatal(err)
	}
	r.cfg, r.asker = cfg, &fedPlane{t: c.t}
	eventually(c.t, "the feed begins", func() bool {
		r.p.changes.mu.Lock()
		defer r.p.changes.mu.Unlock()
		return !r.p.changes.began.IsZero()
	})
	return r
}

// fedReplica is a replica that can be asked for what has changed.
type fedReplica struct {
	*replica
	cfg   *rest.Config
	asker *fedPlane
}

// history of Services, as "update web 81", once the replica has seen what the cluster has.
func (r *fedReplica) history(c *fakeCluster, want ...string) []history.Change {
	r.t.Helper()
	var changes []history.Change
	var got []string
	defer func() {
		if !slices.Equal(got, want) {
			r.t.Errorf("the history is %q, want %q", got, want)
		}
	}()
	eventually(r.t, strings.Join(want, ", "), func() bool {
		changes, got = r.asker.answer(r.cfg, admin.FeedHistoryPath, "resource", "services").Changes, nil
		for i := range changes {
			text := string(changes[i].Operation) + " " + changes[i].Name
			for _, f := range changes[i].Fields {
				if strings.HasPrefix(f.Path, "spec.ports") {
					text += " " + string(f.To)
				}
			}
			got = append(got, text)
		}
		return slices.Equal(got, want)
	})
	return changes
}

func (c *fakeCluster) setPort(name string, port int32) resource.Object {
	c.t.Helper()
	key := resource.Key{Namespace: "default", Name: name}
	obj, err := c.client.Get(c.t.Context(), kind.Service, key)
	if err != nil {
		s := portService(port)
		s.Name = name
		if obj, err = c.client.Create(c.t.Context(), kind.Service, s); err != nil {
			c.t.Fatal(err)
		}
		return obj
	}
	obj.(*corev1.Service).Spec.Ports[0].Port = port
	if obj, err = c.client.Update(c.t.Context(), kind.Service, obj); err != nil {
		c.t.Fatal(err)
	}
	return obj
}

// TestClusterFeed: a replica in a cluster tells what changed since its feed began, with the resource versions of the cluster; also what
// changed while it was away. If its copy is damaged, it begins anew.
func TestClusterFeed(t *testing.T) {
	c := startCluster(t)
	c.setPort("web", 80)
	c.setPort("old", 80)
	dir := t.TempDir()
	a := c.startFedReplica("a", dir)
	a.history(c)
	updated := c.setPort("web", 81)
	changes := a.history(c, "update web 81")
	if changes[0].ResourceVersion != updated.GetResourceVersion() || changes[0].UID != string(updated.GetUID()) {
		t.Errorf("the change is of resource version %s and %s, the object's %s and %s", changes[0].ResourceVersion, changes[0].UID, updated.GetResourceVersion(), updated.GetUID())
	}
	before := time.Now().UTC().Format(time.RFC3339Nano)
	c.setPort("web", 82)
	a.history(c, "update web 81", "update web 82")
	code, _, body := a.asker.ask(a.cfg, admin.FeedStatePath, "resource", "services", "namespace", "default", "name", "web", "at", before)
	if code != http.StatusOK || !strings.Contains(body, `"port":81`) {
		t.Errorf("the state before: %d %s", code, body)
	}
	code, _, body = a.asker.ask(a.cfg, admin.FeedStatePath, "resource", "services", "table", "true", "at", before)
	if code != http.StatusOK || !strings.Contains(body, `"web"`) || !strings.Contains(body, `"old"`) {
		t.Errorf("the table of the state before: %d %s", code, body)
	}
	if code, _, body := a.asker.ask(a.cfg, admin.FeedHistoryPath, "resource", "secrets"); code != http.StatusBadRequest {
		t.Errorf("the history of secrets: %d %s", code, body)
	}

	a.stop()
	if err := c.client.Delete(t.Context(), kind.Service, resource.Key{Namespace: "default", Name: "old"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	c.setPort("web", 83)
	c.setPort("web", 84)
	a = c.startFedReplica("a", dir)
	a.history(c, "update web 81", "update web 82", "delete old", "update web 84")
	a.stop()

	// The copy is damaged: it is made again, above all positions that there were, and what it is filled with is no change.
	_, end := a.p.storage.feed.Log.End()
	copied := filepath.Join(dir, "feed", mirrorFile)
	if err := os.WriteFile(copied, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(copied + "-wal")
	a = c.startFedReplica("a", dir)
	c.setPort("web", 85)
	if changes := a.history(c, "update web 85"); len(changes) > 0 && changes[0].Position <= end {
		t.Errorf("the change is at %d, and the feed was at %d before", changes[0].Position, end)
	}
}

// TestClusterFeedSinks: a sink that is added at one replica is delivered by the one that leads, and by the next when that ends: nothing that
// changed in between is missing, though replicas have positions of their own.
func TestClusterFeedSinks(t *testing.T) {
	c := startCluster(t)
	for range 30 { // so that positions differ
		c.setPort("other", 80)
	}
	a := c.startFedReplica("a", t.TempDir())
	eventually(t, "a leads", a.leads)
	for port := range int32(30) {
		c.setPort("other", 100+port)
	}
	b := c.startFedReplica("b", t.TempDir())
	began := b.p.changes.began
	eventually(t, "b follows for longer than a replica may be late", func() bool { return time.Since(began) > 2*testLag })
	h := &hook{t: t}
	server := httptest.NewServer(h)
	defer server.Close()
	if _, err := b.p.api.sinks.Add(t.Context(), sink.Spec{Name: "cmdb", URL: server.URL, Resources: []string{"services"}, Namespaces: []string{"default"}}); err != nil {
		t.Fatal(err)
	}
	c.setPort("one", 80)
	eventually(t, "delivery by the leader", func() bool { return h.has(subjectOf("create", "one")) })
	if slices.ContainsFunc(h.all(), func(e string) bool { return strings.Contains(e, "/other") || strings.Contains(e, "expired") }) {
		t.Errorf("what was before the sink was delivered: %q", h.all())
	}
	h.set(true, false)
	c.setPort("two", 80)
	eventually(t, "a refusal", func() bool { return h.failures() > 0 })
	a.stop()
	c.setPort("three", 80)
	h.set(false, false)
	eventually(t, "delivery by the next leader", func() bool { return h.has(subjectOf("create", "two")) && h.has(subjectOf("create", "three")) })
	if slices.ContainsFunc(h.all(), func(e string) bool { return strings.Contains(e, "expired") }) {
		t.Errorf("the next leader did not go on where the other one was: %q", h.all())
	}
}

// reviewedAccess answers reviews from a table, and counts them.
type reviewedAccess struct {
	allowed []string // "USER VERB RESOURCE NAMESPACE/NAME"
	asked   int
	err     error
}

func (r *reviewedAccess) ReviewAccess(_ context.Context, spec authorizationv1.SubjectAccessReviewSpec) (s authorizationv1.SubjectAccessReviewStatus, err error) {
	r.asked++
	a := spec.ResourceAttributes
	s.Allowed = slices.Contains(r.allowed, strings.Join([]string{spec.User, a.Verb, a.Resource, a.Namespace + "/" + a.Name}, " "))
	return s, r.err
}

// TestClusterAccess: users of the cluster see in the feed what its roles let them get; others are judged by their credential.
func TestClusterAccess(t *testing.T) {
	r := &reviewedAccess{allowed: []string{"ann get services shop/", "bob get services shop/web"}}
	own := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == "admin" {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionDeny, "", nil
	})
	access := newClusterAccess(own, r)
	ask := func(who, name string, byRole bool) bool {
		t.Helper()
		decision, _, err := access.Authorize(context.WithValue(t.Context(), byCluster{}, byRole), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: who}, Verb: "get", Resource: "services", APIVersion: "v1", Namespace: "shop", Name: name, ResourceRequest: true,
		})
		if err != nil && r.err == nil {
			t.Fatal(err)
		}
		return decision == authorizer.DecisionAllow
	}
	for range 100 {
		if !ask("ann", "web", true) || !ask("ann", "api", true) {
			t.Fatal("who may get all Services of the namespace may not")
		}
	}
	if r.asked != 1 {
		t.Errorf("the cluster was asked %d times", r.asked)
	}
	for _, q := range []struct {
		who, name    string
		byRole, want bool
	}{
		{"bob", "web", true, true},
		{"bob", "api", true, false},
		{"eve", "web", true, false},
		{"admin", "web", true, false}, // a user of the cluster that has this name
		{"admin", "web", false, true},
		{"ann", "web", false, false},
	} {
		if got := ask(q.who, q.name, q.byRole); got != q.want {
			t.Errorf("%+v: %t", q, got)
		}
	}
	r.err = errors.New("no way to the cluster")
	if ask("joe", "web", true) {
		t.Error("what could not be asked is allowed")
	}
}

// subjectOf an event about a Service of the namespace default.
func subjectOf(operation, name string) string {
	return "dev.proxima.object." + operation + "d" + " services/default/" + name
}

// all that arrived.
func (h *hook) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.got)
}
