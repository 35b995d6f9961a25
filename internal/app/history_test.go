package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/feed/cursor"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// fedPlane is a control plane on a disk, with a change feed, that can be started again.
type fedPlane struct {
	t    *testing.T
	cfg  ControlPlaneConfig
	cp   *standalone
	rest *rest.Config
	stop func()
}

func startFed(t *testing.T, feed FeedConfig) *fedPlane {
	cfg := planeConfig(t, RoleStandalone)
	cfg.Store, cfg.Feed = "sqlite", feed
	p := &fedPlane{t: t, cfg: cfg}
	p.start()
	t.Cleanup(func() { p.stop() })
	return p
}

func (p *fedPlane) start() {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cp, err := newStandalone(ctx, p.cfg)
	if err != nil {
		cancel()
		p.t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- run(ctx, cp.election, append(cp.components(), announce(func(Serving) { close(ready) }, cp.serving())))
	}()
	stopped := false
	p.cp, p.stop = cp, func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			p.t.Error(err)
		}
		cp.close()
	}
	select {
	case <-ready:
	case <-time.After(testkit.Timeout):
		p.t.Fatal("the control plane does not become ready")
	}
	if p.rest, err = clientcmd.BuildConfigFromFlags("", filepath.Join(p.cfg.DataDir, "kubeconfig")); err != nil {
		p.t.Fatal(err)
	}
}

// as is the way of a user to the API.
func (p *fedPlane) as(of identity.Kind, name string) *rest.Config {
	p.t.Helper()
	subject, err := identity.SubjectFor(of, name)
	if err != nil {
		p.t.Fatal(err)
	}
	token, info, err := p.cp.storage.tokens.Create(p.t.Context(), of, name, time.Hour, "test")
	if err != nil {
		p.t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(p.rest)
	cfg.UserAgent = "editor-of-" + strings.ReplaceAll(name, "/", "-")
	if of == identity.Admin || of == identity.ReadOnly {
		cfg.BearerToken = token.Reveal()
		return cfg
	}
	subject.TokenID = info.ID // a token of the others only buys a certificate
	pair, err := p.cp.storage.ca.IssueClient(subject, time.Hour)
	if err != nil {
		p.t.Fatal(err)
	}
	cfg.CertData, cfg.KeyData = pair.Cert, pair.Key
	return cfg
}

func (p *fedPlane) client(cfg *rest.Config) resource.Client {
	p.t.Helper()
	c, err := kubeclient.New(cfg, kind.All())
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// ask one of our paths.
func (p *fedPlane) ask(cfg *rest.Config, path string, query ...string) (code int, header http.Header, body string) {
	p.t.Helper()
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	q := url.Values{}
	for i := 0; i < len(query); i += 2 {
		q.Set(query[i], query[i+1])
	}
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, cfg.Host+path+"?"+q.Encode(), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(all)
}

func (p *fedPlane) answer(cfg *rest.Config, path string, query ...string) *history.Answer {
	p.t.Helper()
	code, _, body := p.ask(cfg, path, query...)
	if code != http.StatusOK {
		p.t.Fatalf("%s %v: %d %s", path, query, code, body)
	}
	out := &history.Answer{}
	if err := json.Unmarshal([]byte(body), out); err != nil {
		p.t.Fatal(err)
	}
	return out
}

// told is a change in short: who did what, with which fields.
func told(c *history.Change) string {
	out := fmt.Sprintf("%s %s by %s", c.Operation, c.Name, c.User)
	for _, f := range c.Fields {
		if strings.HasPrefix(f.Path, "spec.ports") || strings.HasPrefix(f.Path, "data") {
			out += fmt.Sprintf("; %s: %s -> %s", f.Path, f.From, f.To)
		}
	}
	return out
}

func portService(port int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: port}}},
	}
}

// TestHistory: what two users did to a Service is told with who did it, over a restart, after the store has forgotten it, and
// both lives of one that was made again; and the Service is shown as it was.
func TestHistory(t *testing.T) {
	p := startFed(t, FeedConfig{})
	alice, bob := p.as(identity.Admin, "alice"), p.as(identity.Admin, "bob")
	ctx, service := t.Context(), resource.Key{Namespace: "default", Name: "web"}
	made, err := p.client(alice).Create(ctx, kind.Service, portService(80))
	if err != nil {
		t.Fatal(err)
	}
	changed := made.DeepCopyObject().(*corev1.Service)
	changed.Spec.Ports[0].Port = 8080
	if _, err := p.client(bob).Update(ctx, kind.Service, changed); err != nil {
		t.Fatal(err)
	}
	if err := p.client(alice).Delete(ctx, kind.Service, service, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	p.answer(p.rest, admin.FeedHistoryPath, "resource", "services") // the actors are in the feed now
	p.stop()
	p.start()
	if _, err := p.client(p.rest).Create(ctx, kind.Service, portService(443)); err != nil {
		t.Fatal(err)
	}
	now, err := p.cp.storage.store.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the store may forget what the feed has", func() bool { return p.cp.storage.compactable() >= now })
	if err := p.cp.storage.store.Compact(ctx, now); err != nil {
		t.Fatal(err)
	}

	got := p.answer(p.rest, admin.FeedHistoryPath, "resource", "services", "namespace", "default", "name", "web", "since", "1h", "full", "true")
	want := []string{
		"create web by proxima:admin:alice; spec.ports:  -> [{\"port\":80,\"protocol\":\"TCP\",\"targetPort\":80}]",
		"update web by proxima:admin:bob; spec.ports[0].port: 80 -> 8080",
		"delete web by proxima:admin:alice",
		"create web by proxima:admin:admin; spec.ports:  -> [{\"port\":443,\"protocol\":\"TCP\",\"targetPort\":443}]",
	}
	var have []string
	for i := range got.Changes {
		have = append(have, told(&got.Changes[i]))
	}
	if !slices.Equal(have, want) {
		t.Errorf("history:\n%s\nwant:\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	if len(got.Changes) != 4 {
		t.Fatal("cannot go on")
	}
	if c := got.Changes[1]; c.Manager != "editor-of-bob" || c.Object == nil || c.UID != string(made.GetUID()) {
		t.Errorf("%+v", c)
	}
	if got.Changes[0].UID == got.Changes[3].UID || got.More || got.Begins.IsZero() {
		t.Errorf("%+v", got)
	}
	if got := p.answer(p.rest, admin.FeedHistoryPath, "resource", "services", "namespace", "default", "name", "web", "limit", "1"); len(got.Changes) != 1 ||
		got.Changes[0].Operation != history.Create || !got.More {
		t.Errorf("the newest: %+v", got)
	}

	for i, port := range []string{`"port":80,`, `"port":8080,`} {
		code, header, body := p.ask(p.rest, admin.FeedStatePath, "resource", "services", "namespace", "default", "name", "web",
			"at", fmt.Sprint(got.Changes[i].Position))
		if code != http.StatusOK || !strings.Contains(body, port) || header.Get(admin.PositionHeader) != fmt.Sprint(got.Changes[i].Position) {
			t.Errorf("at %d: %d %s", got.Changes[i].Position, code, body)
		}
	}
	deleted := fmt.Sprint(got.Changes[2].Position)
	if code, _, body := p.ask(p.rest, admin.FeedStatePath, "resource", "services", "namespace", "default", "name", "web", "at", deleted); code != http.StatusNotFound {
		t.Errorf("after its deletion: %d %s", code, body)
	}
	if code, _, body := p.ask(p.rest, admin.FeedStatePath, "resource", "services", "at", got.Changes[1].Time.Format(time.RFC3339Nano), "table", "true"); code != http.StatusOK ||
		!strings.Contains(body, `"web"`) || !strings.Contains(body, "8080/TCP") {
		t.Errorf("a table: %d %s", code, body)
	}
	for what, tc := range map[string]struct {
		code int
		text string
		path string
		q    []string
	}{
		"before the beginning": {http.StatusGone, "--feed-retention", admin.FeedStatePath, []string{"resource", "services", "at", "24h"}},
		"the future":           {http.StatusBadRequest, "yet to come", admin.FeedStatePath, []string{"resource", "services", "at", "99999999"}},
		"no moment":            {http.StatusBadRequest, "not a moment", admin.FeedStatePath, []string{"resource", "services", "at", "yesterday"}},
		"no kind":              {http.StatusBadRequest, "no such kind", admin.FeedHistoryPath, []string{"resource", "widgets"}},
		"a kind that is not fed": {http.StatusBadRequest, "not in the change feed", admin.FeedHistoryPath,
			[]string{"resource", "leases", "group", "coordination.k8s.io"}},
		"a name without namespace": {http.StatusBadRequest, "namespace: required", admin.FeedHistoryPath, []string{"resource", "services", "name", "web"}},
		"a limit":                  {http.StatusBadRequest, "1 to 1000", admin.FeedHistoryPath, []string{"resource", "services", "limit", "0"}},
	} {
		if code, _, body := p.ask(p.rest, tc.path, tc.q...); code != tc.code || !strings.Contains(body, tc.text) {
			t.Errorf("%s: %d %s, want %d with %q", what, code, body, tc.code, tc.text)
		}
	}
}

// TestFeedTail: who follows gets what comes next, and goes on from there.
func TestFeedTail(t *testing.T) {
	p := startFed(t, FeedConfig{})
	at := p.answer(p.rest, admin.FeedTailPath, "resource", "services").Next
	followed := make(chan *history.Answer, 1)
	go func() {
		followed <- p.answer(p.rest, admin.FeedTailPath, "resource", "services", "namespace", "default", "name", "web", "from", fmt.Sprint(at))
	}()
	if _, err := p.client(p.rest).Create(t.Context(), kind.Service, portService(80)); err != nil {
		t.Fatal(err)
	}
	got := <-followed
	if len(got.Changes) != 1 || got.Changes[0].Operation != history.Create || got.Next < got.Changes[0].Position {
		t.Fatalf("%+v", got)
	}
	if err := p.client(p.rest).Delete(t.Context(), kind.Service, resource.Key{Namespace: "default", Name: "web"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	if got := p.answer(p.rest, admin.FeedTailPath, "namespace", "default", "from", fmt.Sprint(got.Next)); len(got.Changes) == 0 {
		t.Errorf("all kinds: %+v", got)
	}
}

// TestHistoryAccess: the past of an object is for those who may get it, by the same rules as the present; of Secrets nobody
// gets a value.
func TestHistoryAccess(t *testing.T) {
	p := startFed(t, FeedConfig{})
	for _, ns := range []string{"shop", "other"} {
		if _, err := p.client(p.rest).Create(t.Context(), kind.Namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			t.Fatal(err)
		}
		meta := metav1.ObjectMeta{Namespace: ns, Name: "x"}
		service := portService(80)
		service.ObjectMeta = meta
		secretMeta := *meta.DeepCopy()
		secretMeta.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "s3cret"}
		for _, o := range []struct {
			kind   *resource.Descriptor
			object resource.Object
		}{
			{kind.Service, service},
			{kind.ConfigMap, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"key": "value"}}},
			{kind.Secret, &corev1.Secret{ObjectMeta: secretMeta, Data: map[string][]byte{"password": []byte("s3cret")}}},
		} {
			if _, err := p.client(p.rest).Create(t.Context(), o.kind, o.object); err != nil {
				t.Fatal(err)
			}
		}
	}
	secret := resource.Key{Namespace: "shop", Name: "x"}
	if _, err := p.client(p.rest).Update(t.Context(), kind.Secret, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name}, Data: map[string][]byte{"password": []byte("n3w")},
	}); err != nil {
		t.Fatal(err)
	}
	users := map[string]*rest.Config{
		"admin": p.rest, "read-only": p.as(identity.ReadOnly, "eve"), "node": p.as(identity.Node, "n1"), "workload": p.as(identity.Workload, "shop/web"),
		"anonymous": rest.AnonymousClientConfig(p.rest),
	}
	all := []string{"admin", "read-only", "node", "workload"}
	for _, resource := range []string{"services", "configmaps", "secrets"} {
		for _, ns := range []string{"shop", "other", ""} {
			for _, name := range []string{"x", ""} {
				if ns == "" && name != "" {
					continue
				}
				may := []string{"admin"}
				switch {
				case resource == "services" && ns == "shop":
					may = all
				case resource == "services":
					may = []string{"admin", "read-only", "node"}
				case resource == "configmaps":
					may = []string{"admin", "read-only"}
				}
				for user, cfg := range users {
					for path, extra := range map[string][]string{
						admin.FeedHistoryPath: {"full", "true"}, admin.FeedStatePath: {"at", "0s"}, admin.FeedTailPath: {"from", "1", "full", "true"},
					} {
						code, _, body := p.ask(cfg, path, append(extra, "resource", resource, "namespace", ns, "name", name)...)
						want := http.StatusForbidden
						if slices.Contains(may, user) {
							want = http.StatusOK
						}
						if code != want {
							t.Errorf("%s: %s of %s %q/%q: %d, want %d: %s", user, path, resource, ns, name, code, want, body)
						}
						for _, value := range []string{"s3cret", "n3w", "czNjcmV0", "bjN3"} {
							if strings.Contains(body, value) {
								t.Errorf("%s: %s of %s gives a value away: %s", user, path, resource, body)
							}
						}
						if code == http.StatusOK && !strings.Contains(body, `"x"`) {
							t.Errorf("%s: %s of %s %q/%q lacks the object: %s", user, path, resource, ns, name, body)
						}
					}
				}
			}
		}
	}
	// Without a kind: what the user may see, and nothing else.
	for user, want := range map[string]string{"admin": "secrets services", "read-only": "services", "node": "services", "workload": "services"} {
		got := p.answer(users[user], admin.FeedTailPath, "namespace", "shop", "from", "1", "limit", "1000")
		seen := map[string]bool{}
		for _, c := range got.Changes {
			seen[c.Resource] = true
		}
		for _, resource := range []string{"secrets", "services"} {
			if seen[resource] != slices.Contains(strings.Fields(want), resource) {
				t.Errorf("%s follows %v, want of these %s", user, seen, want)
			}
		}
	}
	if code, _, _ := p.ask(users["workload"], admin.FeedTailPath, "from", "1"); code != http.StatusForbidden {
		t.Errorf("a workload follows all namespaces: %d", code)
	}
	got := p.answer(p.rest, admin.FeedHistoryPath, "resource", "secrets", "namespace", "shop", "name", "x")
	if n := len(got.Changes); n != 2 || !slices.ContainsFunc(got.Changes[1].Fields, func(f history.Field) bool { return f.Path == "data.password" && f.Hidden }) {
		t.Errorf("that a value of a secret changed is not told: %+v", got.Changes)
	}
	for user, want := range map[string]int{"admin": 200, "read-only": 200, "node": 403, "workload": 403, "anonymous": 403} {
		if code, _, body := p.ask(users[user], admin.FeedStatusPath); code != want {
			t.Errorf("%s: status of the feed: %d %s, want %d", user, code, body, want)
		}
	}
}

// TestFeedCursors: administrators see and set how far a subscriber has come; others do not set it.
func TestFeedCursors(t *testing.T) {
	p := startFed(t, FeedConfig{})
	if _, err := p.cp.storage.cursors.Create(t.Context(), "billing", cursor.Shared, 7, nil); err != nil {
		t.Fatal(err)
	}
	eve := p.as(identity.ReadOnly, "eve")
	if code, _, body := p.ask(eve, admin.FeedCursorsPath); code != http.StatusOK || !strings.Contains(body, `"name":"billing","type":"shared","mark":7`) {
		t.Errorf("cursors: %d %s", code, body)
	}
	seek := func(cfg *rest.Config, name, to string) (int, string) {
		client, err := rest.HTTPClientFor(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer client.CloseIdleConnections()
		resp, err := client.Post(cfg.Host+admin.FeedSeekPath, "application/json", strings.NewReader(fmt.Sprintf(`{"name":%q,"to":%q}`, name, to)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	for what, tc := range map[string]struct {
		as       *rest.Config
		name, to string
		code     int
	}{
		"a reader": {eve, "billing", "3", http.StatusForbidden}, "no such": {p.rest, "absent", "3", http.StatusNotFound},
		"the future": {p.rest, "billing", "99999", http.StatusBadRequest}, "before the feed": {p.rest, "billing", "24h", http.StatusGone},
	} {
		if code, body := seek(tc.as, tc.name, tc.to); code != tc.code {
			t.Errorf("%s: %d %s, want %d", what, code, body, tc.code)
		}
	}
	if s, err := p.cp.storage.cursors.Get(t.Context(), "billing"); err != nil || s.Mark != 7 {
		t.Errorf("a refused seek: %+v, %v", s, err)
	}
	if code, body := seek(p.rest, "billing", "3"); code != http.StatusOK || !strings.Contains(body, `"mark":3`) {
		t.Errorf("seek: %d %s", code, body)
	}
}

// TestNoFeed: without a feed the answer names the flag.
func TestNoFeed(t *testing.T) {
	p := startFed(t, FeedConfig{Off: true})
	for _, path := range []string{admin.FeedHistoryPath, admin.FeedStatePath, admin.FeedTailPath, admin.FeedStatusPath} {
		if code, _, body := p.ask(p.rest, path, "resource", "services", "at", "1h"); code != http.StatusMethodNotAllowed || !strings.Contains(body, "--feed off") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}
