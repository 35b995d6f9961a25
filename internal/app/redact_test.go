package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/audit"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/redact"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// redact a field of an object in the namespace "default".
func (p *fedPlane) redact(cfg *rest.Config, resource, name, field string, keep bool) (code int, done redact.Status, body string) {
	p.t.Helper()
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	q := url.Values{"resource": {resource}, "namespace": {"default"}, "name": {name}, "field": {field}, "keepCurrent": {strconv.FormatBool(keep)}}
	resp, err := client.Post(cfg.Host+admin.FeedRedactionsPath+"?"+q.Encode(), "", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(all, &done); err != nil {
			p.t.Fatal(err)
		}
	}
	return resp.StatusCode, done, string(all)
}

// found are the sealed files below a directory that have a text in a value of an entry, however it is compressed.
func found(t *testing.T, dir, text string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, ".seg") {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		has := false
		_, err = seglog.EditFile(f, info.Size(), discarded{}, seglog.Editor{Edit: func(e *seglog.Entry, _ []string) (*seglog.Entry, error) {
			has = has || bytes.Contains(e.Value, []byte(text)) || bytes.Contains(e.PrevValue, []byte(text))
			return e, nil
		}})
		if err != nil && !strings.Contains(err.Error(), "not sealed") {
			return fmt.Errorf("%s: %w", path, err)
		}
		if has {
			out = append(out, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// discarded takes what is written.
type discarded struct{}

func (discarded) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

func configMap(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"}, Data: data}
}

// TestRedact: a value is in no segment after it was redacted: at no root, not at the place of --feed-offload, and not in a root that was
// away. All that reads the past shows the hash, checksums are right, and so it is after a restart.
func TestRedact(t *testing.T) {
	const secret, second = "hunter2-hunter2-hunter2", "correct-horse-battery"
	roots := []string{t.TempDir(), t.TempDir()}
	place, away := t.TempDir(), t.TempDir()
	p := startFed(t, FeedConfig{Roots: roots, Copies: 2, Offload: place, OffloadAfter: time.Hour})
	ctx := t.Context()
	made := configMap(map[string]string{"password": secret, "user": "ann"})
	made.Annotations = map[string]string{history.LastApplied: `{"data":{"password":"` + secret + `"}}`}
	if _, err := p.client(p.rest).Create(ctx, kind.ConfigMap, made); err != nil {
		t.Fatal(err)
	}
	if _, err := p.client(p.rest).Create(ctx, kind.Secret, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"}, Data: map[string][]byte{"token": []byte(secret)},
	}); err != nil {
		t.Fatal(err)
	}
	offload := func() {
		t.Helper()
		p.answer(p.rest, admin.FeedHistoryPath, "resource", "configmaps")
		if _, err := p.cp.storage.feed.OffloadNow(ctx); err != nil {
			t.Fatal(err)
		}
	}
	offload()

	// Who may not, and what may not.
	for what, tc := range map[string]struct {
		as    *rest.Config
		field string
		code  int
		text  string
	}{
		"a reader": {p.as(identity.ReadOnly, "eve"), "data.password", http.StatusForbidden, ""},
		"a node":   {p.as(identity.Node, "n1"), "data.password", http.StatusForbidden, ""},
		"present":  {p.rest, "data.password", http.StatusConflict, "--keep-current"},
		"its name": {p.rest, "metadata.name", http.StatusBadRequest, "cannot be redacted"},
		"no path":  {p.rest, "data[", http.StatusBadRequest, "no path of a field"},
	} {
		if code, _, body := p.redact(tc.as, "configmaps", "app", tc.field, false); code != tc.code || !strings.Contains(body, tc.text) {
			t.Errorf("%s: %d %s", what, code, body)
		}
	}
	if code, _, _ := p.ask(p.as(identity.ReadOnly, "adam"), admin.FeedRedactionsPath); code != http.StatusForbidden {
		t.Errorf("a reader lists redactions: %d", code)
	}
	if len(found(t, roots[0], secret)) == 0 || len(found(t, roots[1], secret)) == 0 || len(found(t, place, secret)) == 0 {
		t.Fatal("the value is not where it should be yet")
	}

	// A root goes away, with its copies; the value is changed, and the first redaction carried out.
	for _, path := range found(t, roots[1], secret) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(away, filepath.Base(path)), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.client(p.rest).Update(ctx, kind.ConfigMap, configMap(map[string]string{"password": second, "user": "ann"})); err != nil {
		t.Fatal(err)
	}
	offload()
	if _, err := p.client(p.rest).Update(ctx, kind.ConfigMap, configMap(map[string]string{"user": "ann"})); err != nil {
		t.Fatal(err)
	}
	code, done, body := p.redact(p.rest, "configmaps", "app", "data.password", false)
	if code != http.StatusOK || !done.Done || done.Replaced == 0 || done.By != "proxima:admin:admin" {
		t.Fatalf("%d %s", code, body)
	}
	gone := func(when string) {
		t.Helper()
		for _, dir := range append([]string{place}, roots...) {
			for _, text := range []string{secret, second} {
				if files := found(t, dir, text); len(files) > 0 {
					t.Errorf("%s: %s is in %v", when, text, files)
				}
			}
		}
		v, err := p.cp.storage.feed.Verify(ctx)
		if err != nil || len(v.Problems) > 0 || v.Local < 2 || v.Offloaded < 1 {
			t.Errorf("%s: %+v, %v", when, v, err)
		}
		_, _, body := p.ask(p.rest, admin.FeedHistoryPath, "resource", "configmaps", "namespace", "default", "name", "app", "full", "true")
		if strings.Contains(body, secret) || strings.Contains(body, second) || !strings.Contains(body, "sha256:") || !strings.Contains(body, `"user":"ann"`) {
			t.Errorf("%s: history: %s", when, body)
		}
		all := p.answer(p.rest, admin.FeedHistoryPath, "resource", "configmaps", "namespace", "default", "name", "app")
		if len(all.Changes) != 3 || all.Changes[0].Manager == "" {
			t.Fatalf("%s: %+v", when, all.Changes)
		}
		if _, _, body := p.ask(p.rest, admin.FeedStatePath, "resource", "configmaps", "namespace", "default", "name", "app", "at", fmt.Sprint(all.Changes[0].Position)); !strings.Contains(body, `"password":"sha256:`) {
			t.Errorf("%s: as it was: %s", when, body)
		}
	}
	gone("redacted")
	if _, err := audit.Verify(p.cfg.DataDir, audit.WritesLog); err != nil {
		t.Errorf("the audit log, after a redaction: %v", err)
	}
	if log, err := os.ReadFile(filepath.Join(p.cfg.DataDir, audit.WritesLog+".log")); err != nil || bytes.Contains(log, []byte(secret)) || !bytes.Contains(log, []byte("data.password")) {
		t.Errorf("the audit log has the value, or not the redaction: %v", err)
	}

	// Of a Secret, which is encrypted in segments: its value then is the hash.
	if err := p.client(p.rest).Delete(ctx, kind.Secret, resource.Key{Namespace: "default", Name: "app"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	if code, done, body := p.redact(p.rest, "secrets", "app", "data.token", false); code != http.StatusOK || !done.Done || done.Replaced == 0 {
		t.Fatalf("%d %s", code, body)
	}
	stored, err := p.cp.api.server.Stored()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	err = p.cp.storage.feed.History(ctx, 0, func(key string) bool { return strings.HasPrefix(key, "/registry/secrets/default/app") }, func(e *seglog.Entry) bool {
		for _, v := range [][]byte{e.Value, e.PrevValue} {
			if len(v) == 0 {
				continue
			}
			obj, err := stored.Decode(ctx, e.Key, v, 1)
			if err != nil {
				t.Fatal(err)
			}
			if token := string(obj.(*corev1.Secret).Data["token"]); !strings.HasPrefix(token, "sha256:") {
				t.Errorf("the token at %d is %q", e.Position, token)
			}
			n++
		}
		return true
	})
	if err != nil || n < 2 {
		t.Errorf("%d values of the Secret, %v", n, err)
	}

	// The root comes back, while the control plane runs, and when it is started again.
	back := func() {
		t.Helper()
		files, _ := filepath.Glob(filepath.Join(away, "*"))
		for _, path := range files {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(roots[1], filepath.Base(path)), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if len(found(t, roots[1], secret)) == 0 {
			t.Fatal("nothing came back")
		}
	}
	p.stop()
	back()
	p.start()
	until(t, "all is redacted after a restart", func() bool {
		list, err := p.cp.api.redactions.List(ctx)
		return err == nil && len(list) == 2 && list[0].Done && list[1].Done
	})
	gone("a root came back")

	// What cannot be read is outstanding, and named; another redaction goes on all the same.
	left := filepath.Join(roots[0], "feed-00000000000000000001.seg.left")
	if err := os.WriteFile(left, []byte("no segment"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, done, body = p.redact(p.rest, "configmaps", "app", "data.user", true)
	if code != http.StatusOK || done.Done || !strings.Contains(fmt.Sprint(done.Outstanding), left) {
		t.Errorf("%d %s", code, body)
	}
	if _, _, body := p.ask(p.rest, admin.FeedStatusPath); !strings.Contains(body, `"redactionProblems":["`+left) {
		t.Errorf("status: %s", body)
	}
	for _, dir := range []string{roots[1], place} {
		if files := found(t, dir, "ann"); len(files) > 0 {
			t.Errorf("the user is in %v", files)
		}
	}
	if obj, err := p.client(p.rest).Get(ctx, kind.ConfigMap, resource.Key{Namespace: "default", Name: "app"}); err != nil || obj.(*corev1.ConfigMap).Data["user"] != "ann" {
		t.Errorf("the object is %v, %v", obj, err)
	}
}
