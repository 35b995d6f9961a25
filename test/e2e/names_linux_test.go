package e2e

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// namesManifest has every sort of name, and endpoints that are not ready.
const namesManifest = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.50.0.10, selector: {app: web}, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: default}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: sql, port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: peers, namespace: default}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: db}, ports: [{name: sql, port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias, namespace: default}
spec: {type: ExternalName, externalName: web.default.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere, namespace: default}
spec: {clusterIP: None, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: elsewhere-1, namespace: default, labels: {kubernetes.io/service-name: elsewhere}}
addressType: FQDN
endpoints: [{addresses: [web.default.svc.cluster.local]}]
ports: [{name: http, port: 80, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-extra, namespace: default, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
endpoints:
- {addresses: [192.0.2.1], hostname: db-0, conditions: {ready: true}}
- {addresses: [192.0.2.2], hostname: db-1, conditions: {ready: false}}
ports: [{name: sql, port: 5432, protocol: TCP}]
---
apiVersion: mesh.proxima.dev/v1alpha1
kind: Dataplane
metadata: {name: db-9, namespace: default, labels: {app: db}}
spec: {addresses: [192.0.2.9], ports: [{name: sql, port: 5432}]}
`

// TestNamesOfAMachine: doctor finds that programs do not resolve names, mends it,
// and the agent takes that back when it ends, also when it was killed. Programs
// are Go's resolver and dig, in a mount namespace with a resolv.conf of its own
// and a network namespace without a way out.
func TestNamesOfAMachine(t *testing.T) {
	if !insideNamespace(t, true) {
		return
	}
	const before = "# this machine's own\nnameserver 127.0.0.99\noptions timeout:1 attempts:1\n"
	ownEtc(t, before)

	p := startPlaneWith(t, "10.50.0.0/16")
	n := p.startNodeAt("edge-1", "zone-a", 53)
	p.apply(namesManifest)
	doctor := func(args ...string) (string, error) {
		return p.try("", testkit.Binary(t), append([]string{"doctor", "--data-dir", n.dir}, args...)...)
	}
	testkit.Eventually(t, "the agent serves the names", func() bool {
		_, err := n.lookup("db-0.db.default.svc.cluster.local.")
		return err == nil
	})

	out, err := doctor("-o", "json")
	if problem := resolverFinding(t, out); err == nil || !strings.Contains(problem.Problem, "do not find names") ||
		!strings.Contains(problem.Fix, "doctor --fix") {
		t.Fatalf("before the fix: %v, %+v\n%s", err, problem, out)
	}
	out, _ = doctor("--fix", "-o", "json")
	if f := resolverFinding(t, out); f.Problem != "" {
		t.Fatalf("after the fix: %+v", f)
	}
	t.Run("programs", func(t *testing.T) { askAsPrograms(t) })

	t.Run("the control plane is away", func(t *testing.T) {
		p.process.Kill()
		askAsPrograms(t)
		p.start()
	})

	expect := func(when string) {
		t.Helper()
		if got := readFile(t, "/etc/resolv.conf"); got != before {
			t.Errorf("%s: resolv.conf is\n%s", when, got)
		}
		if _, err := os.Stat("/etc/resolv.conf.proxima-backup"); err == nil {
			t.Errorf("%s: the backup is left", when)
		}
	}
	if _, err := doctor("--undo"); err != nil {
		t.Logf("doctor --undo finds that names do not resolve: %v", err)
	}
	expect("after doctor --undo")

	_, _ = doctor("--fix")
	n.process.Signal(syscall.SIGTERM)
	n.process.Wait()
	expect("after the agent's end")

	n.start()
	_, _ = doctor("--fix")
	n.process.Kill()
	if got := readFile(t, "/etc/resolv.conf"); got == before {
		t.Error("killed, the agent could not have undone anything")
	}
	out, _ = doctor("-o", "json")
	if f := resolverFinding(t, out); !strings.Contains(f.Problem, "no agent answers") || !strings.Contains(f.Fix, "--undo") {
		t.Errorf("of a dead agent doctor says %+v", f)
	}
	n.start()
	expect("after the next start of a killed agent")
}

type finding struct{ Check, Problem, Fix, Note string }

func resolverFinding(t *testing.T, out string) finding {
	t.Helper()
	var all []finding
	// Chatter of the command follows its data where it failed.
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, f := range all {
		if strings.HasPrefix(f.Check, "names through this machine's resolver") {
			return f
		}
	}
	t.Fatalf("nothing about the resolver in %+v", all)
	return finding{}
}

// ownEtc gives this process a copy of /etc, in which resolv.conf is a mount of
// its own, as in containers: the most awkward case.
func ownEtc(t *testing.T, resolvConf string) {
	t.Helper()
	etc, conf := filepath.Join(t.TempDir(), "etc"), filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte(resolvConf), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", "/etc", etc).CombinedOutput(); err != nil {
		t.Fatalf("copy of /etc: %v: %s", err, out)
	}
	_ = os.Remove(filepath.Join(etc, "resolv.conf"))
	if err := os.WriteFile(filepath.Join(etc, "resolv.conf"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	mount(t, "", "/", syscall.MS_REC|syscall.MS_PRIVATE)
	mount(t, etc, "/etc", syscall.MS_BIND)
	mount(t, conf, "/etc/resolv.conf", syscall.MS_BIND)
	t.Cleanup(func() { // before the folders are removed
		_ = syscall.Unmount("/etc/resolv.conf", syscall.MNT_DETACH)
		_ = syscall.Unmount("/etc", syscall.MNT_DETACH)
	})
}

// startNodeAt joins an agent that serves DNS on a port of ours.
func (p *plane) startNodeAt(name, zone string, dns int) *node {
	p.t.Helper()
	n := &node{plane: p, name: name, zone: zone, dir: p.t.TempDir(), health: testkit.FreePort(p.t), metrics: testkit.FreePort(p.t), dns: dns}
	n.token = filepath.Join(n.dir, "token")
	token := p.proxima("token", "create", "--kind", "node", "--name", name)
	if err := os.WriteFile(n.token, []byte(token), 0o600); err != nil {
		p.t.Fatal(err)
	}
	n.start()
	return n
}

func mount(t *testing.T, source, target string, flags uintptr) {
	t.Helper()
	if err := syscall.Mount(source, target, "", flags, ""); err != nil {
		t.Fatalf("mount %s: %v", target, err)
	}
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// askAsPrograms resolves names by /etc/resolv.conf alone.
func askAsPrograms(t *testing.T) {
	t.Helper()
	r := &net.Resolver{PreferGo: true}
	// Go's resolver looks at the file every five seconds only.
	testkit.Eventually(t, "Go's resolver reads the new resolv.conf", func() bool {
		_, err := r.LookupHost(context.Background(), "web.default.svc.cluster.local.")
		return err == nil
	})
	for name, want := range map[string][]string{
		"web.default.svc.cluster.local.":       {"10.50.0.10"},
		"alias.default.svc.cluster.local.":     {"10.50.0.10"},
		"elsewhere.default.svc.cluster.local.": {"10.50.0.10"},
		"db.default.svc.cluster.local.":        {"192.0.2.1"},
		"db-0.db.default.svc.cluster.local.":   {"192.0.2.1"},
		"peers.default.svc.cluster.local.":     {"192.0.2.9"},
	} {
		if got, err := r.LookupHost(context.Background(), name); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s is %v, %v; want %v", name, got, err, want)
		}
	}
	for _, name := range []string{"none.default.svc.cluster.local.", "db-1.db.default.svc.cluster.local."} {
		if got, err := r.LookupHost(context.Background(), name); err == nil {
			t.Errorf("%s is %v, want no such name", name, got)
		}
	}
	dig, err := exec.LookPath("dig")
	if err != nil {
		t.Skip("needs dig: run tools/setup")
	}
	for args, want := range map[string]string{
		"web.default.svc.cluster.local A +short":            "10.50.0.10",
		"_sql._tcp.db.default.svc.cluster.local SRV +short": "0 100 5432 db-0.db.default.svc.cluster.local.",
		"-x 10.50.0.10 +short":                              "web.default.svc.cluster.local.",
		"elsewhere.default.svc.cluster.local CNAME +short":  "web.default.svc.cluster.local.",
	} {
		out, err := exec.CommandContext(t.Context(), dig, strings.Fields(args)...).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("dig %s: %q, %v; want %q", args, got, err, want)
		}
	}
}
