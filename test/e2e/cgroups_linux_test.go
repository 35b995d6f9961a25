package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// prober is a command that says again and again what it reaches: a line "NAME=yes NAME=no …"
// in a file. It does not end by SIGTERM if it is stubborn.
const prober = `
exec >/dev/null 2>&1
[ "$1" = stubborn ] && trap '' TERM
file=$2; shift 2
while :; do
	line=$$
	for target; do
		name=${target%%=*} at=${target#*=}
		(exec 3<>"/dev/tcp/${at%:*}/${at#*:}" && read -r -t 2 -u 3) 2>/dev/null && answer=yes || answer=no
		line="$line $name=$answer"
	done
	echo "$line" >"$file.new" && mv "$file.new" "$file"
	sleep 0.05
done`

// atNode is a workload at the node's own address, run by the real command.
type atNode struct {
	t    *testing.T
	file string
	run  *testkit.Process
}

func (p *plane) runAtNode(n *node, namespace, name, stubborn string) *atNode {
	w := &atNode{t: p.t.(*testing.T), file: filepath.Join(p.t.TempDir(), name)}
	w.run = testkit.Start(p.t, nil, testkit.Binary(p.t), "run", "--kubeconfig", p.kubeconfig, "--data-dir", n.dir, "--node-name", n.name,
		"--namespace", namespace, "--name", name, "--address", nodeAtOutside, "--port", "9000", "--",
		"bash", "-c", prober, "prober", stubborn, w.file, "web="+plainVIP, "cart="+blueVIP,
		"outside="+net.JoinHostPort(outsideIP, strconv.Itoa(backendPort)))
	return w
}

// nodeAtOutside is the node's address that connections to the machine outside come from.
const nodeAtOutside = "198.51.100.1"

// sees waits until the workload reaches this; a pid of 0 is any.
func (w *atNode) sees(when, want string) (pid int) {
	w.t.Helper()
	var line string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("%s: last %q; %s", when, line, w.run.Stderr.String())
		}
	}()
	_ = os.Remove(w.file)
	testkit.Eventually(w.t, when+": "+want, func() bool {
		data, _ := os.ReadFile(w.file)
		line = strings.TrimSpace(string(data))
		number, rest, _ := strings.Cut(line, " ")
		pid, _ = strconv.Atoi(number)
		return rest == want
	})
	return pid
}

// TestWorkloadsAtOneAddress: two workloads of two meshes at the node's own address. Each
// reaches the Services of its mesh alone, one of them nothing outside; over a restart of the
// agent, too, and after `proxima run` was killed, for as long as its command lives. Then no
// cgroup and no rule is left.
func TestWorkloadsAtOneAddress(t *testing.T) {
	if _, err := cgroup.Find(); err != nil {
		t.Skip(err)
	}
	if !insideNamespace(t, false) {
		return
	}
	layMeshNet(t)
	p := startPlaneWith(t, kernelServices)
	p.apply(strings.ReplaceAll(meshObjects, "BACKEND", strconv.Itoa(backendPort)))
	p.kubectl("patch", "mesh", "blue", "--type", "merge", "-p", `{"spec":{"networking":{"outbound":{"passthrough":false}}}}`)
	n := &node{plane: p, name: "edge-1", zone: "zone-a", dir: t.TempDir(), health: testkit.FreePort(t), metrics: testkit.FreePort(t), dns: testkit.FreePort(t)}
	n.token = filepath.Join(n.dir, "token")
	if err := os.WriteFile(n.token, []byte(p.proxima("token", "create", "--kind", "node", "--name", n.name)), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() {
		n.process = testkit.Start(t, nil, testkit.Binary(t), "node", "--server", p.apiAddress(), "--host", nodeForPods,
			"--token-file", n.token, "--node-name", n.name, "--zone", n.zone, "--mode", "nftables", "--data-dir", n.dir,
			"--health-port", strconv.Itoa(n.health), "--metrics-port", strconv.Itoa(n.metrics), "--dns-port", strconv.Itoa(n.dns))
		n.process.FirstLine()
	}
	start()
	here, blue := p.runAtNode(n, "default", "here", ""), p.runAtNode(n, "shop", "there", "stubborn")
	const ofDefault, ofBlue = "web=yes cart=no outside=yes", "web=no cart=yes outside=no"
	here.sees("at first", ofDefault)
	pid := blue.sees("at first", ofBlue)
	p.kubectl("annotate", "mesh", "blue", "looked=again") // the status is looked at once in a minute otherwise
	for _, condition := range []string{"IsolationEnforced", "PassthroughEnforced"} {
		testkit.Eventually(t, "condition "+condition, func() bool {
			return p.kubectl("get", "mesh", "blue", "-o", "jsonpath={.status.conditions[?(@.type==\""+condition+"\")].status}") == "True"
		})
	}
	path := p.kubectl("get", "dataplane", "there", "-n", "shop", "-o", `jsonpath={.metadata.annotations.mesh\.proxima\.dev/cgroup}`)
	if !strings.Contains(path, "proxima-shop.there-"+strconv.Itoa(blue.run.PID())) {
		t.Errorf("the cgroup is %q", path)
	}
	n.prints("nftables", []string{"2 cgroups of workloads"}, "doctor")
	// The test's own process is on the node, and in no cgroup of a workload.
	for _, to := range []string{plainVIP, blueVIP} {
		if c, err := net.Dial("tcp", to); err != nil {
			t.Errorf("a program that is no workload, to %s: %v", to, err)
		} else {
			c.Close()
		}
	}

	n.process.Kill()
	blue.sees("without an agent", ofBlue)
	start()
	blue.sees("after a restart of the agent", ofBlue)
	here.sees("after a restart of the agent", ofDefault)

	blue.run.Kill()
	blue.sees("after its run was killed", ofBlue)
	here.run.Kill()
	rules := func() string {
		out, err := exec.Command("nft", "list", "table", "ip", "proxima").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	count := func() int { return strings.Count(rules(), "socket cgroupv2") }
	testkit.Eventually(t, "the rules of the command that is left", func() bool { return count() > 0 })
	blue.sees("alone", ofBlue)
	if process, err := os.FindProcess(pid); err != nil || process.Kill() != nil {
		t.Fatalf("the command %d: %v", pid, err)
	}
	testkit.Eventually(t, "no rule is left", func() bool { return count() == 0 })
	testkit.Eventually(t, "no cgroup is left", func() bool {
		found, err := exec.Command("find", "/sys/fs/cgroup", "-maxdepth", "6", "-name", fmt.Sprintf("proxima-shop.there-%d", blue.run.PID())).Output()
		return err == nil && len(strings.TrimSpace(string(found))) == 0
	})
}
