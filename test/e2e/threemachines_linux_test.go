package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// threeMachines are those of docs/how-to/three-machines.md, as processes with host names and
// addresses of their own in one network namespace.
type threeMachines struct {
	t        *testing.T
	page     string
	dir, url string
	// ns is the network namespace.
	ns string
	// hosts is an /etc/hosts in which cp.example has the addresses of all.
	hosts string
	cps   [3]*testkit.Process
}

// network makes the namespace, which has no way out, with the addresses of the machines.
func (m *threeMachines) network() {
	m.t.Helper()
	ip := func(args ...string) {
		m.t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			m.t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	ip("netns", "add", m.ns)
	m.t.Cleanup(func() { ip("netns", "delete", m.ns) })
	ip("-n", m.ns, "link", "set", "lo", "up")
	for i := range m.cps {
		ip("-n", m.ns, "address", "add", fmt.Sprintf("10.0.0.%d/32", i+1), "dev", "lo")
	}
}

// commands of the page that follow a mark, for machine i.
func (m *threeMachines) commands(mark string, i int) string {
	m.t.Helper()
	_, after, ok := strings.Cut(m.page, "<!-- test: "+mark+" -->\n```\n")
	if !ok {
		m.t.Fatalf("the page has no block marked %q", mark)
	}
	body, _, _ := strings.Cut(after, "\n```")
	return strings.NewReplacer(
		"/etc/proxima", filepath.Join(m.dir, fmt.Sprint("etc-", i)), "/var/lib/proxima", filepath.Join(m.dir, fmt.Sprint("data-", i)),
		"10.0.0.1:", fmt.Sprintf("10.0.0.%d:", i+1), "10.96.0.0/16", "127.96.0.0/16",
	).Replace(body)
}

// sh runs commands of the page on machine i.
func (m *threeMachines) sh(mark string, i int) string {
	m.t.Helper()
	out, err := m.try(m.commands(mark, i), i)
	if err != nil {
		m.t.Fatalf("block %s on machine %d: %v\n%s", mark, i+1, err, out)
	}
	return out
}

func (m *threeMachines) try(script string, i int) (string, error) {
	cmd := exec.CommandContext(m.t.Context(), "ip", "netns", "exec", m.ns, "bash", "-c", "set -e\n"+script)
	cmd.Env = append(testkit.CleanEnv(), m.env(i)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (m *threeMachines) env(i int) []string {
	data := filepath.Join(m.dir, fmt.Sprint("data-", i))
	return []string{
		"HOME=" + m.dir, "KUBECONFIG=" + filepath.Join(data, "kubeconfig"), "PROXIMA_DATA_DIR=" + data,
		"PATH=" + filepath.Dir(testkit.Kubectl(m.t)) + ":" + filepath.Dir(testkit.Binary(m.t)) + ":" + os.Getenv("PATH"),
	}
}

// unit starts the control plane of machine i with the settings of the page, as systemd does.
func (m *threeMachines) unit(i int) *testkit.Process {
	env := m.env(i)
	for line := range strings.Lines(m.commands("settings", i)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name == "PROXIMA_STORE" {
			value = m.url
		}
		env = append(env, name+"="+value)
	}
	m.cps[i] = testkit.Start(m.t, env, "ip", "netns", "exec", m.ns, "unshare", "--uts", "sh", "-c",
		fmt.Sprintf("hostname cp-%d && exec proxima control-plane", i+1))
	return m.cps[i]
}

// following is what the status of machine i says of the agent: the instance that has its
// stream; empty: this one, "-": none.
func (m *threeMachines) following(i int) string {
	out, err := m.try("proxima status -o json", i)
	var s struct {
		Nodes []struct {
			Following bool   `json:"following"`
			Instance  string `json:"instance"`
		} `json:"nodes"`
	}
	if err != nil || json.Unmarshal([]byte(out), &s) != nil || len(s.Nodes) != 1 || !s.Nodes[0].Following {
		return "-"
	}
	return s.Nodes[0].Instance
}

// TestThreeMachines follows the page: three instances on a real PostgreSQL, an agent that moves
// when its instance is killed, a machine that is replaced, and another cluster key.
func TestThreeMachines(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces and host names for the instances need root")
	}
	page, err := os.ReadFile(filepath.Join(testkit.Root(t), "docs/how-to/three-machines.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := &threeMachines{t: t, page: string(page), dir: t.TempDir(), url: testkit.Postgres(t), ns: fmt.Sprint("px-three-", os.Getpid())}
	m.network()
	m.hosts = filepath.Join(m.dir, "hosts")
	names := "127.0.0.1 localhost\n10.0.0.1 cp.example\n10.0.0.2 cp.example\n10.0.0.3 cp.example\n"
	if err := os.WriteFile(m.hosts, []byte(names), 0o644); err != nil {
		t.Fatal(err)
	}
	m.sh("key", 0)
	for i := range m.cps {
		m.copyKey(i)
		m.unit(i).FirstLine()
	}
	testkit.Eventually(t, "the three instances know each other", func() bool {
		out, err := m.try(m.commands("status", 2), 2) // until there is a leader, there is no slice
		return err == nil && strings.Contains(out, "10.0.0.1 10.0.0.2 10.0.0.3")
	})
	if out := m.sh("status", 0); !strings.Contains(out, "no problems found") {
		t.Errorf("status:\n%s", out)
	}

	m.startAgent()
	at := m.awaitFollowing([]int{0, 1, 2})
	m.cps[at].Kill()
	others := []int{(at + 1) % 3, (at + 2) % 3}
	m.awaitFollowing(others)

	// Replace the machine: an empty data directory.
	if err := os.RemoveAll(filepath.Join(m.dir, fmt.Sprint("data-", at))); err != nil {
		t.Fatal(err)
	}
	m.unit(at).FirstLine()
	m.awaitFollowing([]int{0, 1, 2})

	m.sh("rotate", 0)
	for i := range m.cps {
		m.copyKey(i)
		m.restart(i)
	}
	m.sh("rewrap", 1)
	m.sh("drop", 0)
	m.cps[2].Stop()
	out, err := m.try("cp "+filepath.Join(m.dir, "etc-2", "old.key")+" "+filepath.Join(m.dir, "etc-2", "cluster.key"), 2)
	if err != nil {
		t.Fatal(out)
	}
	refused := m.unit(2)
	if code := refused.Wait(); code == 0 || !strings.Contains(refused.Stderr.String(), "it was wrapped by another cluster key") {
		t.Errorf("with the old key: exit %d\n%s", code, refused.Stderr)
	}
	m.copyKey(2)
	m.unit(2).FirstLine()
	m.awaitFollowing([]int{0, 1, 2})
}

// copyKey copies the key file of the first machine to machine i, which keeps the one before.
func (m *threeMachines) copyKey(i int) {
	m.t.Helper()
	if i == 0 {
		return
	}
	etc := filepath.Join(m.dir, fmt.Sprint("etc-", i))
	script := fmt.Sprintf("mkdir -p -m 0700 %[1]s; [ ! -e %[1]s/cluster.key ] || cp -p %[1]s/cluster.key %[1]s/old.key; cp -p %[2]s/cluster.key %[1]s/",
		etc, filepath.Join(m.dir, "etc-0"))
	if out, err := m.try(script, i); err != nil {
		m.t.Fatal(out)
	}
}

func (m *threeMachines) restart(i int) {
	m.cps[i].Stop()
	m.unit(i).FirstLine()
}

// startAgent starts an agent that knows the common name alone.
func (m *threeMachines) startAgent() {
	m.t.Helper()
	token := filepath.Join(m.dir, "host-7.token")
	if out, err := m.try("proxima token create --kind node --name host-7 > "+token, 0); err != nil {
		m.t.Fatal(out)
	}
	args := fmt.Sprintf("mount --bind %s /etc/hosts && exec proxima node --server cp.example:6443 --token-file %s --node-name host-7 "+
		"--mode userspace --data-dir %s --dns-port 0 --health-port 0 --metrics-port 0", m.hosts, token, filepath.Join(m.dir, "agent"))
	testkit.Start(m.t, m.env(0), "ip", "netns", "exec", m.ns, "unshare", "--mount", "sh", "-c", args).FirstLine()
}

// awaitFollowing waits until the status of each of some machines says that the agent follows,
// and at the same instance, which it returns.
func (m *threeMachines) awaitFollowing(machines []int) (at int) {
	m.t.Helper()
	testkit.Eventually(m.t, fmt.Sprintf("machines %v know where the agent follows", machines), func() bool {
		at = -1
		for _, i := range machines {
			where := i
			switch instance := m.following(i); {
			case instance == "-":
				return false
			case instance != "":
				if _, err := fmt.Sscanf(instance, "cp-%d", &where); err != nil {
					m.t.Fatalf("instance %q", instance)
				}
				where--
			}
			if at >= 0 && at != where {
				return false
			}
			at = where
		}
		return true
	})
	return at
}
