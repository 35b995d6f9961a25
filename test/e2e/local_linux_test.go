package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// here runs a command as a user of the agent's machine does, who has no kubeconfig.
func (n *node) here(args ...string) (out string, took time.Duration, err error) {
	return hereIn(n.dir, nil, args...)
}

func hereIn(dataDir string, credential *syscall.Credential, args ...string) (out string, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(testkit.CleanEnv(), "HOME="+os.TempDir(), "PROXIMA_DATA_DIR="+dataDir)
	if credential != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	}
	began := time.Now()
	combined, err := cmd.CombinedOutput()
	return string(combined), time.Since(began), err
}

// prints fails unless a command's output has all the words.
func (n *node) prints(what string, words []string, args ...string) time.Duration {
	n.plane.t.Helper()
	out, took, _ := n.here(append([]string{testkit.Binary(n.plane.t)}, args...)...)
	for _, w := range words {
		if !strings.Contains(out, w) {
			n.plane.t.Errorf("%s: proxima %s: %q is missing in:\n%s", what, strings.Join(args, " "), w, out)
		}
	}
	return took
}

// isWell waits until status on the node's machine finds no problem.
func (n *node) isWell() {
	n.plane.t.Helper()
	testkit.Eventually(n.plane.t, "status finds no problem", func() bool {
		out, _, _ := n.here(testkit.Binary(n.plane.t), "status")
		return strings.Contains(out, "no problems found")
	})
}

// TestAgentOnlyMachine: what the guide for a second machine says, from the join to
// a workload, and what the commands say when the agent's process is stopped, killed
// or started twice.
func TestAgentOnlyMachine(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	p := startPlaneWith(t, "127.96.0.0/16")
	n := p.startNode("edge-1", "zone-a")
	p.apply(webService)
	vip := p.vip("web")
	bin := testkit.Binary(t)
	socket := filepath.Join(n.dir, "node", "agent.sock")

	t.Run("commands without a kubeconfig", func(t *testing.T) {
		n.prints("alone", []string{"https://" + p.apiAddress(), "node edge-1", "connected", "no problems found"}, "status")
		n.prints("alone", []string{"default/web:http", "by its cluster IP"}, "trace", vip)
		n.prints("alone", []string{"# node edge-1", "default/web:http"}, "node", "dump")
		n.prints(
			"alone",
			[]string{
				"ok       control plane https://" + p.apiAddress(),
				"ok       agent: mode userspace, connected",
				"service range 127.96.0.0/16: leads to this machine",
			},
			"doctor",
		)
		out, _, _ := n.here(bin, "doctor")
		if strings.Contains(out, "start a control plane") || strings.Contains(out, "port 6443") {
			t.Errorf("doctor takes the machine for one without a control plane:\n%s", out)
		}
	})

	t.Run("the metrics port has metrics alone", func(t *testing.T) {
		for path, want := range map[string]int{"/metrics": 200, "/status": 404, "/trace?to=10.0.0.1:1": 404, "/dump": 404} {
			if code, body, err := get(n.metrics, path); err != nil || code != want {
				t.Errorf("%s: %d %v, want %d\n%s", path, code, err, want, body)
			}
		}
		if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the socket: %v, %v", info, err)
		}
	})

	t.Run("another user", func(t *testing.T) {
		out, _, err := hereIn(n.dir, &syscall.Credential{Uid: 65534, Gid: 65534}, bin, "trace", vip)
		if err == nil || !strings.Contains(out, "belongs to another user") || !strings.Contains(out, "as root") {
			t.Errorf("%v\n%s", err, out)
		}
	})

	t.Run("a second agent with the data directory", func(t *testing.T) {
		out, _, err := n.here(bin, "node", "--server", p.apiAddress(), "--node-name", "edge-1", "--mode", "userspace",
			"--health-port", "0", "--metrics-port", "0", "--dns-port", "0")
		if err == nil || !strings.Contains(out, "in use by another agent") || !strings.Contains(out, "--data-dir") {
			t.Errorf("%v\n%s", err, out)
		}
	})

	t.Run("a workload", func(t *testing.T) { workloadOfAgent(t, p, n, vip) })

	t.Run("the agent's process is stopped", func(t *testing.T) {
		n.process.Signal(syscall.SIGSTOP)
		defer n.process.Signal(syscall.SIGCONT)
		const says = "the agent does not answer"
		for _, args := range [][]string{{"trace", vip}, {"status"}, {"doctor"}, {"node", "dump"}} {
			out, took, _ := n.here(append([]string{bin}, args...)...)
			if !strings.Contains(out, says) || strings.Contains(out, "another program") {
				t.Errorf("%v:\n%s", args, out)
			}
			t.Logf("%v took %s", args, took)
			if took > 4*time.Second { // 2 s, and the start of a process on a busy machine
				t.Errorf("%v took %s", args, took)
			}
		}
	})
	n.prints("after SIGCONT", []string{"no problems found"}, "status")

	t.Run("the agent is killed", func(t *testing.T) {
		n.process.Kill()
		start := "proxima node --server " + p.apiAddress() + " --node-name edge-1"
		n.prints("killed", []string{"problem  agent: it is not running", start}, "doctor")
		n.prints("killed", []string{"is not running", start}, "status")
		n.prints("killed", []string{"no agent with data directory"}, "trace", vip)
		n.start()  // replaces the socket that is left
		n.isWell() // it serves the state on disk before it is connected
	})

	t.Run("the control plane is away", func(t *testing.T) {
		p.process.Kill()
		testkit.Eventually(t, "status says so", func() bool {
			out, _, _ := n.here(bin, "status")
			return strings.Contains(out, "not connected") && strings.Contains(out, "serves its last state")
		})
		n.prints("away", []string{"problem  agent: it has no connection to the control plane"}, "doctor")
		n.prints("away", []string{"default/web:http"}, "trace", vip)
		p.start()
	})
}

// workloadOfAgent runs a command on the agent's machine, without a kubeconfig.
func workloadOfAgent(t *testing.T, p *plane, n *node, vip string) {
	port := strconv.Itoa(testkit.FreePort(t))
	bin := testkit.Binary(t)
	w := testkit.Start(t, []string{"PROXIMA_DATA_DIR=" + n.dir}, bin, "run", "--name", "web-1", "--labels", "app=web", "--port",
		"http:"+port, "--ready-http", "/", "--", bin, "demo", "backend", "--name", "web-1", "--zone", "zone-a", "--listen",
		"127.0.0.1:"+port)
	awaitAnswers(t, vip, "web-1")
	var dp struct {
		Metadata struct{ Annotations map[string]string }
		Spec     struct{ NodeName string }
	}
	if err := json.Unmarshal([]byte(p.proxima("get", "dataplane", "web-1", "-o", "json")), &dp); err != nil {
		t.Fatal(err)
	}
	if dp.Spec.NodeName != "edge-1" || len(dp.Metadata.Annotations["mesh.proxima.dev/machine-id"]) != 32 {
		t.Errorf("registered as %+v", dp)
	}
	out, _, err := n.here(bin, "run", "--name", "web-2", "--node-name", "edge-2", "--address", "127.0.0.1", "--", "true")
	if err == nil || !strings.Contains(out, "for node edge-1 only") {
		t.Errorf("a workload of another node: %v\n%s", err, out)
	}
	w.Signal(syscall.SIGTERM)
	w.Wait()
	testkit.Eventually(t, "the workload is deregistered", func() bool {
		out, err := p.try("", bin, "get", "dataplanes")
		return err == nil && !strings.Contains(out, "web-1")
	})
}

// TestOutOfDescriptors: an agent that may open no more files stays, and answers
// again by itself when it may.
func TestOutOfDescriptors(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	p := startPlaneWith(t, "127.96.0.0/16")
	n := p.startNode("edge-1", "zone-a")
	p.apply(webService)
	vip := p.vip("web")
	ended := make(chan int, 1)
	go func() { ended <- n.process.Wait() }()
	var was unix.Rlimit
	if err := unix.Prlimit(n.process.PID(), unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(n.process.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 8, Max: was.Max}, nil); err != nil {
		t.Fatal(err)
	}
	// Connections to every listener: none can be accepted.
	for _, address := range []string{
		fmt.Sprintf("127.0.0.1:%d", n.dns), fmt.Sprintf("127.0.0.1:%d", n.health), fmt.Sprintf("127.0.0.1:%d", n.metrics), vip,
	} {
		conn, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			continue // nothing listens where no endpoint is ready
		}
		defer conn.Close()
	}
	if conn, err := net.Dial("unix", filepath.Join(n.dir, "node", "agent.sock")); err == nil {
		defer conn.Close()
	}
	select {
	case code := <-ended:
		t.Fatalf("the agent exited with %d", code)
	case <-time.After(3 * time.Second): // several attempts to accept, and a heartbeat
	}
	if err := unix.Prlimit(n.process.PID(), unix.RLIMIT_NOFILE, &was, nil); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "every listener answers again", func() bool {
		for _, port := range []int{n.health, n.metrics} {
			if _, _, err := get(port, "/"); err != nil {
				return false
			}
		}
		conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", n.dns), time.Second)
		if err != nil {
			return false
		}
		conn.Close()
		out, _, _ := n.here(testkit.Binary(t), "status")
		return strings.Contains(out, "node edge-1")
	})
}

// TestDiskOfAMachine: a disk that is read-only or full stops neither the agent nor
// the control plane, and doctor and status say which file, why and since when.
func TestDiskOfAMachine(t *testing.T) {
	if !insideNamespace(t, true) {
		return
	}
	mount(t, "none", "/", syscall.MS_REC|syscall.MS_PRIVATE)
	disk := t.TempDir()
	mountTmpfs(t, disk, "size=24m")
	p := startPlaneWith(t, "127.96.0.0/16")
	n := &node{
		plane:   p,
		name:    "edge-1",
		zone:    "zone-a",
		dir:     filepath.Join(disk, "agent"),
		health:  testkit.FreePort(t),
		metrics: testkit.FreePort(t),
		dns:     testkit.FreePort(t),
	}
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	n.token = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(n.token, []byte(p.proxima("token", "create", "--kind", "node", "--name", n.name)), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	p.apply(webService)
	vip := p.vip("web")
	n.prints("before", []string{"no problems found"}, "status")

	faulty := func(why string) {
		t.Helper()
		p.kubectl("annotate", "service", "web", "--overwrite", "changed="+strconv.FormatInt(time.Now().UnixNano(), 36))
		view := filepath.Join(n.dir, "node", "view")
		testkit.Eventually(t, "status names the file", func() bool {
			out, _, _ := n.here(testkit.Binary(t), "status")
			return strings.Contains(out, "cannot write "+filepath.Join(n.dir, "node")+" since 20") && strings.Contains(out, why) ||
				strings.Contains(out, "cannot write "+view+" since 20")
		})
		n.prints(why, []string{"problem  agent's state on disk", why, "free space on the disk"}, "doctor")
		n.prints(why, []string{"default/web:http"}, "trace", vip)
	}

	t.Run("read-only", func(t *testing.T) {
		remount(t, disk, syscall.MS_RDONLY)
		faulty("read-only file system")
		n.process.Kill() // a start from a read-only disk, with a socket elsewhere or the same
		n.start()
		n.prints("started", []string{"default/web:http"}, "trace", vip)
		remount(t, disk, 0)
		n.isWell()
	})
	t.Run("full", func(t *testing.T) {
		fill := filepath.Join(disk, "fill")
		f, err := os.Create(fill)
		if err != nil {
			t.Fatal(err)
		}
		block := make([]byte, 4096)
		for err == nil {
			_, err = f.Write(block)
		}
		f.Close()
		faulty("no space left on device")
		if err := os.Remove(fill); err != nil {
			t.Fatal(err)
		}
		n.isWell()
	})
}

// TestStoreOnAFullDisk: the control plane says which file it cannot write, why
// and since when.
func TestStoreOnAFullDisk(t *testing.T) {
	if !insideNamespace(t, true) {
		return
	}
	mount(t, "none", "/", syscall.MS_REC|syscall.MS_PRIVATE)
	p := &plane{t: t, dir: filepath.Join(t.TempDir(), "data"), api: testkit.FreePort(t), grpc: testkit.FreePort(t), cidr: "127.96.0.0/16"}
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mountTmpfs(t, p.dir, "size=24m")
	p.kubeconfig = filepath.Join(p.dir, "kubeconfig")
	p.start()
	fill := filepath.Join(p.dir, "fill")
	f, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	f.Close()
	for i := range 20 { // the write-ahead log has some space left
		_, _ = p.try(fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%d}\ndata: {k: %q}\n", i, strings.Repeat("x", 64<<10)),
			testkit.Binary(t), "apply", "-f", "-")
	}
	testkit.Eventually(t, "status names the file", func() bool {
		out, _ := p.try("", testkit.Binary(t), "status")
		return strings.Contains(out, "store: state") && strings.Contains(out, "store.db") && strings.Contains(out, "cannot be written since 20")
	})
	out, _ := p.try("", testkit.Binary(t), "doctor", "--data-dir", p.dir)
	for _, w := range []string{"problem  data directory " + p.dir, "problem  store of the control plane", "cannot be written since 20"} {
		if !strings.Contains(out, w) {
			t.Errorf("doctor: %q is missing in:\n%s", w, out)
		}
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the store is well again", func() bool {
		out, _ := p.try("", testkit.Binary(t), "status")
		return !strings.Contains(out, "store: ")
	})
}

func mountTmpfs(t *testing.T, at, options string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", at, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount %s: %v", at, err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(at, syscall.MNT_DETACH) })
}

func remount(t *testing.T, at string, flags uintptr) {
	t.Helper()
	if err := syscall.Mount("", at, "", syscall.MS_REMOUNT|flags, ""); err != nil {
		t.Fatalf("remount %s: %v", at, err)
	}
}
