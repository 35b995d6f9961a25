package kube_test

import (
	"encoding/base64"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

const blueNamespace = `
apiVersion: v1
kind: Namespace
metadata: {name: blue, labels: {mesh.proxima.dev/mesh: blue}}
`

// blueObjects are another mesh of the cluster, of one namespace, with a Service that is exported.
const blueObjects = blueNamespace + `---
apiVersion: v1
kind: Service
metadata: {name: of-blue, namespace: blue}
spec: {selector: {app: blue-web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: of-blue, namespace: blue}
`

// twoMeshes: namespaces of two meshes in one cluster call their own names below .mesh, and know none of the other one, on both
// sides of the export.
func (s *sites) twoMeshes() {
	s.t.Helper()
	s.atGlobal(strings.Replace(defaultMesh, "name: default", "name: blue", 1), "apply", "-f", "-")
	s.kubectl(blueObjects, "apply", "-f", "-")
	s.at(s.west, blueNamespace, "apply", "-f", "-") // imports wait for their namespace
	s.until("the account of blue is there", func() bool {
		_, err := s.client.CoreV1().ServiceAccounts("blue").Get(s.t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	s.podIn("blue", "blue-web", "third")
	s.podIn("blue", "blue-client", "ours")
	blue := caller{s.nodes["ours"].PodNamespace(s.pods["blue-client"].UID), s.nodes["ours"].Addr + ":10053"}
	const own, imported, theirs, ofWest = "of-blue_blue_svc_80.mesh", "of-blue.blue.svc.clusterset.local", "from-east_shop_svc_80.mesh", "from-west_shop_svc_80.mesh"
	s.until("a Pod of mesh blue calls its own name", func() bool {
		who, err := blue.call(own)
		return err == nil && who == "east"
	})
	// West has the export of the other mesh by now, and none of its names.
	s.until("the machines have the export of mesh blue", func() bool {
		return strings.Contains(s.at(s.west, "", "get", "serviceimports", "-A", "-o", "name"), "of-blue")
	})
	for _, c := range []struct {
		what string
		from caller
		name string
	}{
		{"a Pod of blue calls a name of its own cluster", blue, theirs},
		{"a Pod of blue calls a name of the other zone", blue, ofWest},
		{"a Pod of blue calls an import of the other mesh", blue, namesOf("from-west")[0]},
		{"a Pod of the default mesh calls a name of blue", s.inEast(), own},
		{"a machine of the default mesh calls a name of blue", s.inWest(), own},
		{"a machine of the default mesh calls an import of blue", s.inWest(), imported},
	} {
		if who, err := c.from.call(c.name); err == nil {
			s.t.Errorf("%s, %s: %q answers", c.what, c.name, who)
		}
	}
	// Nor are they reached by the virtual IP.
	if addr, err := blue.resolve(own); err != nil {
		s.t.Error(err)
	} else if who, err := s.inEast().connect(addr); err == nil {
		s.t.Errorf("the virtual IP of blue answers a Pod of the default mesh: %q", who)
	}
	s.wantBoth()
}

// policySecret: a Secret that an ExternalService names is read once the chart's Role allows it. The condition names what is
// missing.
func (s *sites) policySecret() {
	s.t.Helper()
	s.atGlobal(`
apiVersion: mesh.proxima.dev/v1alpha1
kind: ExternalService
metadata: {name: vault, namespace: shop}
spec: {hosts: [vault.example], ports: [{port: 443}], tls: {caCertificates: {secretRef: {name: vault-ca, key: ca}}}}
`, "apply", "-f", "-")
	ca, err := os.ReadFile(s.CAFile())
	if err != nil {
		s.t.Fatal(err)
	}
	s.kubectl("apiVersion: v1\nkind: Secret\nmetadata: {name: vault-ca, namespace: shop}\ndata: {ca: "+base64.StdEncoding.EncodeToString(ca)+"}\n", "apply", "-f", "-")
	last := ""
	condition := func(want string) func() bool {
		return func() bool {
			last, err = s.run("", testkit.Kubectl(s.t), "--namespace", "shop", "get", "externalservice", "vault", "-o",
				`jsonpath={range .status.conditions[?(@.type=="TLSEnforced")]}{.status} {.message}{end}`)
			return err == nil && strings.Contains(last, want)
		}
	}
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("the condition of the ExternalService: %s", last)
		}
	})
	s.until("the condition names the missing permission", condition("policySecrets: {shop: [vault-ca]}"))
	s.install("--set", "policySecrets.shop=[vault-ca]")
	began := time.Now()
	s.until("the Secret is used", condition("True"))
	s.t.Logf("the Secret is used %s after its Role was made", time.Since(began).Round(time.Millisecond))
}
