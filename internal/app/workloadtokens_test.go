package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	sidecarsecret "github.com/proxima-mesh/proxima/internal/sidecar/secret"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// withCertificates gives the default mesh an authority.
func (p *proxyPlane) withCertificates() {
	p.t.Helper()
	mtls := &meshv1alpha1.MeshMTLS{EnabledBackend: "ca", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "ca", Type: meshv1alpha1.BackendBuiltin}}}
	obj, err := p.client.Get(p.t.Context(), kind.Mesh, resource.Key{Name: meshv1alpha1.DefaultMesh})
	if apierrors.IsNotFound(err) {
		_, err = p.client.Create(p.t.Context(), kind.Mesh, &meshv1alpha1.Mesh{
			ObjectMeta: metav1.ObjectMeta{Name: meshv1alpha1.DefaultMesh}, Spec: meshv1alpha1.MeshSpec{MTLS: mtls},
		})
	} else if err == nil {
		m := obj.(*meshv1alpha1.Mesh)
		m.Spec.MTLS = mtls
		_, err = p.client.Update(p.t.Context(), kind.Mesh, m)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// token of a kind, in a file.
func (p *proxyPlane) token(of identity.Kind, name string) (file, id string) {
	p.t.Helper()
	token, info, err := p.cp.storage.tokens.Create(p.t.Context(), of, name, time.Hour, "test")
	if err != nil {
		p.t.Fatal(err)
	}
	file = filepath.Join(p.t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token.Reveal()), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return file, info.ID
}

// certificate that the sidecar of a workload gets by a token: its ID, or the first problem.
func (p *proxyPlane) certificate(token, name, account string) (id string, err error) {
	p.t.Helper()
	roots := filepath.Join(p.t.TempDir(), "ca.pem")
	if err := os.WriteFile(roots, p.rest.CAData, 0o600); err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), testkit.Timeout)
	defer cancel()
	err = errors.New("neither a certificate nor a problem")
	sidecarsecret.Token{
		File: token, Servers: []string{p.address}, Authorities: roots, Mesh: meshv1alpha1.DefaultMesh, Namespace: "default", Name: name, Account: account,
	}.Run(ctx, nil, func(i *sidecarsecret.Identity) error {
		id, err = i.ID(), nil
		cancel()
		return nil
	}, func(problem error) {
		switch {
		case problem == nil || ctx.Err() != nil:
		case strings.Contains(problem.Error(), "no authority"), strings.Contains(problem.Error(), "Unavailable"): // not yet
		default:
			err = problem
			cancel()
		}
	})
	return id, err
}

// TestWorkloadTokens: a token of kind workload is good for certificates of its service account, for workloads
// that are registered with it, and for nothing else.
func TestWorkloadTokens(t *testing.T) {
	p := startProxyPlane(t)
	p.withCertificates()
	for name, account := range map[string]string{"web-1": "web", "web-2": "web", "api-1": "api"} {
		d := workloadAt(name, map[string]string{"web-1": "10.0.0.1", "web-2": "10.0.0.2", "api-1": "10.0.0.3"}[name])
		d.Spec.ServiceAccount = account
		if _, err := p.client.Create(t.Context(), kind.Dataplane, d); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the tables have the workloads", func() bool { return p.cp.instance.catalog.Snapshot().Dataplanes.Len() == 3 })
	web, id := p.token(identity.Workload, "default/web")
	elsewhere, _ := p.token(identity.Workload, "shop/web")
	node, _ := p.token(identity.Node, "n1")
	none := filepath.Join(t.TempDir(), "none")
	if err := os.WriteFile(none, []byte("a.b.c"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ token, workload, account, id, problem string }{
		"its own":             {web, "web-1", "web", "spiffe://default.mesh/ns/default/sa/web", ""},
		"another of it":       {web, "web-2", "web", "spiffe://default.mesh/ns/default/sa/web", ""},
		"of another account":  {web, "api-1", "web", "", "has service account api, and the token is of web"},
		"not registered":      {web, "web-3", "web", "", "register the workload first"},
		"of another name":     {web, "web-1", "api", "", "has not exactly the name spiffe://default.mesh/ns/default/sa/web"},
		"another namespace":   {elsewhere, "web-1", "web", "", "there is no Dataplane shop/web-1"},
		"the token of a node": {node, "web-1", "web", "", "is no workload"},
		"no token of ours":    {none, "web-1", "web", "", "Unauthenticated"},
	} {
		got, err := p.certificate(test.token, test.workload, test.account)
		if got != test.id || test.problem == "" && err != nil || test.problem != "" && (err == nil || !strings.Contains(err.Error(), test.problem)) {
			t.Errorf("%s: %q %v, want %q %q", name, got, err, test.id, test.problem)
		}
	}
	if _, err := p.cp.storage.tokens.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if got, err := p.certificate(web, "web-1", "web"); err == nil || !strings.Contains(err.Error(), "Unauthenticated") {
		t.Errorf("a token that was revoked: %q %v", got, err)
	}
}
