package extension

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/dynamic/fake"
)

// reviewer allows a user, and remembers what was asked.
type reviewer struct {
	allowed string
	asked   []authorizationv1.SubjectAccessReviewSpec
	err     error
}

func (r *reviewer) ReviewAccess(
	_ context.Context, spec authorizationv1.SubjectAccessReviewSpec,
) (authorizationv1.SubjectAccessReviewStatus, error) {
	r.asked = append(r.asked, spec)
	return authorizationv1.SubjectAccessReviewStatus{Allowed: spec.User == r.allowed}, r.err
}

// authorities of a test: those of the API server, and others.
func authorities(t *testing.T) Authorities {
	t.Helper()
	all, _, err := Authorities(nil).Next(time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// client certificate of a name.
func client(t *testing.T, by Authorities, name string) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by[0].cert, by[0].key.Public(), by[0].key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func configMap(ca []byte) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{
		"requestheader-client-ca-file": string(ca), "requestheader-allowed-names": `["front"]`,
		"requestheader-username-headers": `["X-Remote-User"]`, "requestheader-group-headers": `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	}}}
}

func TestAggregated(t *testing.T) {
	front, foreign := authorities(t), authorities(t)
	asks := &reviewer{allowed: "alice"}
	a := NewAggregated(AggregatedConfig{
		Reviewer: asks, Paths: []string{"status", "simulate", "explain/service"}, Logger: slog.New(slog.DiscardHandler),
		Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who, _ := request.UserFrom(r.Context())
			_, _ = io.WriteString(w, who.GetName()+" asks "+r.URL.RequestURI())
		}),
	})
	ask := func(path, user string, cert *x509.Certificate) (int, string) {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("X-Remote-User", user)
		r.Header.Set("X-Remote-Extra-Authentication.kubernetes.io%2fnode-Name", "one")
		r.TLS = &tls.ConnectionState{}
		if cert != nil {
			r.TLS.PeerCertificates = []*x509.Certificate{cert}
		}
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	status := "/apis/control.mesh.proxima.dev/v1/status"
	if code, _ := ask(status, "alice", client(t, front, "front")); code != http.StatusServiceUnavailable {
		t.Errorf("nobody is known: %d", code)
	}
	a.learn(configMap(front.Bundle()))
	for _, c := range []struct {
		what, path, user string
		cert             *x509.Certificate
		code             int
		text             string
	}{
		{"allowed", status + "?zone=a", "alice", client(t, front, "front"), 200, "alice asks /proxima/v1/status?zone=a"},
		{"below", "/apis/control.mesh.proxima.dev/v1/explain/service", "alice", client(t, front, "front"), 200, "/proxima/v1/explain/service"},
		{"not allowed", status, "bob", client(t, front, "front"), 403, "proxima-viewer"},
		{"no certificate", status, "alice", nil, 401, "only the API server"},
		{"a foreign authority", status, "alice", client(t, foreign, "front"), 401, "only the API server"},
		{"another name", status, "alice", client(t, front, "other"), 401, "only the API server"},
		{"no user", status, "", client(t, front, "front"), 401, "only the API server"},
		{"discovery", "/apis/control.mesh.proxima.dev/v1", "bob", client(t, front, "front"), 200, `"name":"simulate"`},
		{"groups", "/apis", "bob", client(t, front, "front"), 200, `"APIGroupList"`},
		{"another group", "/apis/example.com/v1/status", "alice", client(t, front, "front"), 404, "alone"},
	} {
		if code, body := ask(c.path, c.user, c.cert); code != c.code || !strings.Contains(body, c.text) {
			t.Errorf("%s: %d %s", c.what, code, body)
		}
	}
	first := asks.asked[0]
	if r := first.ResourceAttributes; r.Resource != "status" || r.Group != GroupVersion.Group || r.Verb != "list" {
		t.Errorf("asked for %+v", r)
	}
	if got := first.Extra["authentication.kubernetes.io/node-name"]; len(got) != 1 || got[0] != "one" {
		t.Errorf("asked with %v", first.Extra)
	}
	asks.err = errors.New("no API server")
	if code, _ := ask(status, "alice", client(t, front, "front")); code != http.StatusServiceUnavailable {
		t.Errorf("the cluster cannot be asked: %d", code)
	}
	a.learn(configMap([]byte("no certificate")))
	if code, _ := ask(status, "alice", client(t, front, "front")); code != http.StatusServiceUnavailable {
		t.Errorf("a damaged ConfigMap: %d", code)
	}
}

// TestCertificates: a replica changes to a new authority when all API servers trust it, without
// being told again.
func TestCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		all := authorities(t)
		all[0].Published = now
		all, _, err := all.Next(now, true)
		if err != nil || len(all) != 2 {
			t.Fatal(len(all), err)
		}
		all[1].Published = now
		record, err := all.Encode()
		if err != nil {
			t.Fatal(err)
		}
		secret := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"namespace": "own", "name": SecretName},
			"data": map[string]any{recordKey: base64.StdEncoding.EncodeToString(record)},
		}}
		api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{secrets: "SecretList"}, secret)
		c := NewCertificates(api, "own", name, nil, slog.New(slog.DiscardHandler))
		if _, err := c.GetCertificate(&tls.ClientHelloInfo{ServerName: name}); !errors.Is(err, errNoCertificate) {
			t.Errorf("before: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(time.Second)
		synctest.Wait()
		signed(t, c, all, 0)
		time.Sleep(Settle)
		synctest.Wait()
		signed(t, c, all, 1)
		if leaf, err := c.GetCertificate(&tls.ClientHelloInfo{ServerName: "proxima"}); leaf != nil || err != nil {
			t.Errorf("for another name: %v, %v", leaf, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func signed(t *testing.T, c *Certificates, all Authorities, by int) {
	t.Helper()
	leaf, err := c.GetCertificate(&tls.ClientHelloInfo{ServerName: name})
	if err != nil {
		t.Fatal(err)
	}
	if !trusts(t, all[by].Cert, leaf, time.Now()) {
		t.Errorf("the certificate is not of authority %d", by)
	}
}
