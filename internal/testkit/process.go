// Package testkit runs real processes and machines for tests and benchmarks.
//
// It owns their life: whatever it starts is gone when the test ends. Enter at
// Start. Production code never imports it.
package testkit

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Timeout bounds the wait for a process, on a slow and busy machine. It bounds
// hangs; nothing is measured by it.
const Timeout = 60 * time.Second

var build struct {
	sync.Mutex
	done map[string]error
}

// Binary returns the path of bin/proxima, as "make build" made it, or builds it.
func Binary(t testing.TB) string { return binary(t, "proxima", "PROXIMA_BIN", ".", "./cmd/proxima") }

// Sidecar returns the path of bin/proxima-sidecar, built if need be.
func Sidecar(t testing.TB) string {
	return binary(t, "proxima-sidecar", "PROXIMA_SIDECAR_BIN", ".", "-tags=grpcnotrace", "-ldflags=-s -w", "./cmd/proxima-sidecar")
}

// Kubectl returns the path of bin/kubectl, the real one, built if need be.
func Kubectl(t testing.TB) string { return binary(t, "kubectl", "KUBECTL", "test/kubectl", ".") }

func binary(t testing.TB, name, env, dir string, args ...string) string {
	t.Helper()
	if path := os.Getenv(env); path != "" {
		return path
	}
	path := filepath.Join(Root(t), "bin", name)
	build.Lock()
	defer build.Unlock()
	if err, built := build.done[name]; built {
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	// go build is quick where nothing changed.
	cmd := exec.Command("go", append([]string{"build", "-trimpath", "-o", path}, args...)...)
	cmd.Dir = filepath.Join(Root(t), dir)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	if build.done == nil {
		build.done = map[string]error{}
	}
	build.done[name] = err
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Root is the top of the source tree. Tests run in the folder of their package, which is
// below it, also if they belong to a module of their own.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(mod), "module github.com/proxima-mesh/proxima\n") {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no folder above this test holds Proxima's go.mod")
		}
		dir = filepath.Dir(dir)
	}
}

// userspaceOnly keeps agents under test out of the kernel of the machine that
// tests run on; those in network namespaces set another one.
const userspaceOnly = "PROXIMA_MODE=userspace"

// Process is a program under test.
type Process struct {
	t      testing.TB
	name   string
	cmd    *exec.Cmd
	first  chan string
	done   chan struct{}
	Stdout *Output
	Stderr *Output
}

// Start runs a program until the test ends. Lines it prints are kept, and shown
// if the test fails.
func Start(t testing.TB, env []string, path string, args ...string) *Process {
	t.Helper()
	p := &Process{
		t: t, name: filepath.Base(path) + " " + strings.Join(args[:min(1, len(args))], " "),
		cmd: exec.Command(path, args...), first: make(chan string, 1), done: make(chan struct{}),
		Stdout: &Output{}, Stderr: &Output{},
	}
	p.cmd.Env = append(append(CleanEnv(), userspaceOnly), env...)
	p.cmd.Stderr = p.Stderr
	p.cmd.SysProcAttr = ownGroup()
	stdout, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	go p.follow(stdout)
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("--- %s, standard error:\n%s", p.name, p.Stderr)
		}
	})
	return p
}

func (p *Process) follow(stdout io.Reader) {
	defer close(p.done)
	reader := bufio.NewReader(stdout)
	if line, err := reader.ReadString('\n'); err == nil {
		fmt.Fprint(p.Stdout, line)
		p.first <- strings.TrimSpace(line)
	}
	close(p.first)
	_, _ = io.Copy(p.Stdout, reader)
	_ = p.cmd.Wait() // ExitCode reports it
}

// FirstLine waits for the first line on standard output: what a role prints
// when it serves.
func (p *Process) FirstLine() string {
	p.t.Helper()
	select {
	case line, ok := <-p.first:
		if ok {
			return line
		}
		p.t.Fatalf("%s ended without a word on standard output", p.name)
	case <-time.After(Timeout):
		p.t.Fatalf("%s printed nothing on standard output for %s", p.name, Timeout)
	}
	return ""
}

// Signal sends a signal to the process alone.
func (p *Process) Signal(sig os.Signal) { _ = p.cmd.Process.Signal(sig) }

// Kill ends the process the hard way and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop sends the process a signal to end, waits, and kills it if it takes too long.
func (p *Process) Stop() {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		p.t.Errorf("%s did not end on SIGTERM within 20 s", p.name)
		p.Kill()
	}
}

// Wait for the end and return the exit code.
func (p *Process) Wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(Timeout):
		p.t.Fatalf("%s did not end in %s", p.name, Timeout)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Ended says whether the process is gone.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// PID of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output is what a process wrote. Safe for concurrent use.
type Output struct {
	mu   sync.Mutex
	data []byte
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.data = append(o.data, p...)
	return len(p), nil
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.data)
}

// CleanEnv is the environment without settings of Proxima and kubectl.
func CleanEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PROXIMA_") && !strings.HasPrefix(v, "KUBECONFIG=") && !strings.HasPrefix(v, "HOME=") {
			env = append(env, v)
		}
	}
	return env
}

// The range of FreePort. It is below the ports that kernels choose for outgoing connections
// (ip_local_port_range), one of which could otherwise take a port between the call and its use, and
// below the node ports of Services.
const firstFreePort, lastFreePort = 16000, 29999

// nextFreePort of this process; each begins elsewhere.
var nextFreePort atomic.Uint32

func init() { nextFreePort.Store(rand.Uint32()) }

// FreePort finds a TCP port on 127.0.0.1 that is not in use, and that no earlier call in this process
// returned.
func FreePort(t testing.TB) int {
	t.Helper()
	var err error
	for range lastFreePort - firstFreePort + 1 {
		port := firstFreePort + int(nextFreePort.Add(1)%(lastFreePort-firstFreePort+1))
		var l net.Listener
		if l, err = net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatalf("no free port: %v", err)
	return 0
}

// Eventually polls cond until it is true. It is for outside systems
// that give no notification; it fails the test after Timeout.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(Timeout)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not within %s", what, Timeout)
		}
	}
}
