package e2e

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestRebootAfterExpiry: a machine that boots 25 h after its last renewal, when
// its certificate ran out an hour ago and its token file is deleted, serves from
// disk without a control plane, says what is wrong, and comes back by itself when
// the control plane does, unless --renew-expired forbids it.
func TestRebootAfterExpiry(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	if out, err := exec.CommandContext(t.Context(), "ip", "address", "add", "192.0.2.1/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p := &plane{t: t, dir: t.TempDir(), api: testkit.FreePort(t), grpc: testkit.FreePort(t), cidr: "127.96.0.0/16"}
	p.kubeconfig = filepath.Join(p.dir, "kubeconfig")
	installedBefore(t, p, 48*time.Hour)
	p.start()
	n := p.startNode("edge-1", "zone-a")
	portA, portB := backendNamed(t, "a"), backendNamed(t, "b")
	p.apply(fmt.Sprintf(httpService, "") + endpoint("web", "a", portA, "edge-2", "zone-a", ""))
	vip := p.vip("web")
	only(t, vip, "a")
	if err := os.Remove(n.token); err != nil {
		t.Fatal(err)
	}

	t.Run("renewed by proof of the key", func(t *testing.T) {
		n.process.Stop()
		p.process.Stop()
		ended := time.Now().Add(-time.Hour).Truncate(time.Second).UTC()
		n.expireCertificate(ended)
		n.startExpired(ended)
		only(t, vip, "a") // from disk
		for _, command := range []string{"status", "doctor"} {
			n.prints("alone", []string{
				"the certificate of system:node:edge-1 ran out on " + ended.Format(time.RFC3339) + ", ",
				"the agent renews it by itself when the control plane at " + p.apiAddress() + " answers",
				"proxima token create --kind node --name edge-1",
			}, command)
		}
		p.start()
		n.followsAgain("the certificate is renewed")
		if after := n.certificate().NotAfter; !after.After(time.Now()) {
			t.Errorf("the certificate on disk ends on %s", after)
		}
		p.apply(endpoint("web", "b", portB, "edge-2", "zone-a", ""))
		only(t, vip, "a", "b")
	})

	t.Run("--renew-expired 0", func(t *testing.T) {
		n.process.Stop()
		p.process.Stop()
		ended := time.Now().Add(-time.Hour).Truncate(time.Second).UTC()
		n.expireCertificate(ended)
		p.flags = []string{"--renew-expired", "0"}
		p.start()
		n.startExpired(ended)
		only(t, vip, "a", "b") // from disk
		testkit.Eventually(t, "status says that the renewal was refused", func() bool {
			out, _, _ := n.here(testkit.Binary(t), "status")
			return strings.Contains(out, "the server refused")
		})
		for _, command := range []string{"status", "doctor"} {
			n.prints("refused", []string{
				"the certificate of system:node:edge-1 ran out on " + ended.Format(time.RFC3339) + ", ", "the server refused",
				"on the control plane's machine: proxima token create --kind node --name edge-1; put it into the file that --token-file names",
			}, command)
		}
		p.kubectl("delete", "endpointslice", "web-a")
		only(t, vip, "a", "b") // it does not follow the control plane
		if after := n.certificate().NotAfter; !after.Equal(ended) {
			t.Errorf("the certificate on disk ends on %s, want %s as before", after, ended)
		}
		// What it says to do helps.
		if err := os.WriteFile(n.token, []byte(p.proxima("token", "create", "--kind", "node", "--name", n.name)), 0o600); err != nil {
			t.Fatal(err)
		}
		n.followsAgain("the node has joined by the new token")
		only(t, vip, "b")
	})
}

// startExpired starts the agent, which must serve and log that its certificate
// ran out.
func (n *node) startExpired(ended time.Time) {
	n.plane.t.Helper()
	n.start() // prints a line when it serves
	if first := strings.TrimSpace(n.process.Stdout.String()); !strings.HasPrefix(first, "ready") {
		n.plane.t.Errorf("the agent says %q, want ready", first)
	}
	if log := n.process.Stderr.String(); !strings.Contains(log, "the certificate has run out") ||
		!strings.Contains(log, ended.Format(time.RFC3339)[:len("2006-01-02T15:04:05")]) {
		n.plane.t.Errorf("the agent's log does not say that its certificate ran out on %s", ended)
	}
}

// followsAgain waits until the agent has a view of its control plane and no
// problems.
func (n *node) followsAgain(what string) {
	n.plane.t.Helper()
	testkit.Eventually(n.plane.t, what, func() bool {
		out, _, _ := n.here(testkit.Binary(n.plane.t), "status")
		return strings.Contains(out, "no problems found")
	})
	n.prints(what, []string{"ok       agent: mode userspace, connected", "ok       certificate: system:node:edge-1, for 23h"}, "doctor")
}

// installedBefore makes a control plane's authority before its first start, and
// as old as given: no certificate is valid before its authority.
func installedBefore(t *testing.T, p *plane, age time.Duration) {
	t.Helper()
	if _, err := identity.Open(filepath.Join(p.dir, "pki")); err != nil {
		t.Fatal(err)
	}
	ca, key := p.authority()
	ca.NotBefore = time.Now().Add(-age)
	if err := os.WriteFile(p.authorityFile("ca.crt"), sign(t, ca, ca, ca.PublicKey, key), 0o600); err != nil {
		t.Fatal(err)
	}
}

// storedCredentials is the file in which an agent keeps its credentials.
type storedCredentials struct {
	Server      string `json:"server"`
	GRPCAddress string `json:"grpcAddress,omitempty"`
	Certificate string `json:"certificate"`
	CA          string `json:"ca"`
	Key         string `json:"key"`
}

func (n *node) credentialsFile() string { return filepath.Join(n.dir, "node", "credentials.json") }

func (n *node) credentials() (c storedCredentials) {
	n.plane.t.Helper()
	if err := json.Unmarshal([]byte(readFile(n.plane.t, n.credentialsFile())), &c); err != nil {
		n.plane.t.Fatal(err)
	}
	return c
}

// certificate that the agent has on disk.
func (n *node) certificate() *x509.Certificate {
	n.plane.t.Helper()
	return parseCertificate(n.plane.t, n.credentials().Certificate)
}

// expireCertificate replaces the stored certificate by one of the same subject, key and
// authority that ended at a time, 24 h after it began.
func (n *node) expireCertificate(ended time.Time) {
	t := n.plane.t
	t.Helper()
	stored, leaf := n.credentials(), n.certificate()
	ca, key := n.plane.authority()
	leaf.NotBefore, leaf.NotAfter = ended.Add(-identity.ClientLife), ended
	stored.Certificate = string(sign(t, leaf, ca, leaf.PublicKey, key))
	data, err := json.Marshal(stored)
	if err == nil {
		err = os.WriteFile(n.credentialsFile(), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (p *plane) authorityFile(name string) string { return filepath.Join(p.dir, "pki", "ca", name) }

// authority of the control plane, from its data directory.
func (p *plane) authority() (*x509.Certificate, crypto.Signer) {
	p.t.Helper()
	block, _ := pem.Decode([]byte(readFile(p.t, p.authorityFile("ca.key"))))
	if block == nil {
		p.t.Fatal("the authority's key is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		p.t.Fatal(err)
	}
	return parseCertificate(p.t, readFile(p.t, p.authorityFile("ca.crt"))), key.(crypto.Signer)
}

func parseCertificate(t testing.TB, text string) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		t.Fatalf("not PEM: %s", text)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func sign(t testing.TB, template, parent *x509.Certificate, public any, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
