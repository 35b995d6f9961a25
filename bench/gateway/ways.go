package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/gatewaytest"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
)

// serverName is what the client side of a pair sends as SNI.
const serverName = "web.default.proxima"

// way is one way from the client to the endpoint.
type way struct {
	Name string
	Addr string
	// Proxies are the process IDs of client side and server side; none on the direct way.
	Proxies []int
}

// bench has the processes.
type bench struct {
	out      io.Writer
	dir      string
	endpoint string
	ways     []way
	running  []*exec.Cmd
	pinned   bool
	// clientSide, serverSide and at are the machines of the two sides and of the endpoint; nil:
	// this one.
	clientSide, serverSide, at *machine
}

// machine is a network namespace, and its address.
type machine struct {
	ns   *netns.NS
	addr string
}

// start a command on a machine.
func (m *machine) start(cmd *exec.Cmd) error {
	if m == nil {
		return cmd.Start()
	}
	return m.ns.Start(cmd)
}

// freeAddress of a machine is one that nothing listens on.
func (m *machine) freeAddress() (at string, err error) {
	listen, host := net.Listen, "127.0.0.1"
	if m != nil {
		listen, host = m.ns.Listen, m.addr
	}
	l, err := listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (m *machine) dial(at string) (net.Conn, error) {
	if m == nil {
		return net.Dial("tcp", at)
	}
	return m.ns.DialContext(context.Background(), "tcp", at)
}

const (
	proxyCore  = "0"
	clientCore = "1"
)

func newBench(out io.Writer) (*bench, error) {
	dir, err := os.MkdirTemp("", "proxima-bench-")
	if err != nil {
		return nil, err
	}
	b := &bench{out: out, dir: dir}
	if err := b.writeCerts(); err != nil {
		b.close()
		return nil, err
	}
	_, err = exec.LookPath("taskset")
	b.pinned = err == nil && runtime.NumCPU() > 1
	if !b.pinned {
		fmt.Fprintln(out, "one core only, or no taskset: proxies and clients share cores, and figures mean little")
	}
	return b, nil
}

func (b *bench) close() {
	for _, c := range b.running {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	_ = os.RemoveAll(b.dir)
}

func (b *bench) writeCerts() error {
	ca, err := gatewaytest.NewCA()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.dir, "ca.pem"), ca.PEM(), 0o600); err != nil {
		return err
	}
	for _, name := range []string{"node", "ingress"} {
		cert, err := ca.Issue("spiffe://mesh.example/"+name, 24*time.Hour, serverName)
		if err != nil {
			return err
		}
		chain, key, err := gatewaytest.EncodePEM(cert)
		if err != nil {
			return err
		}
		for file, data := range map[string][]byte{name + ".pem": chain, name + ".key": key, name + ".both": append(chain, key...)} {
			if err := os.WriteFile(filepath.Join(b.dir, file), data, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// pinSelf moves the client to its core.
func (b *bench) pinSelf() error {
	if !b.pinned {
		return nil
	}
	runtime.GOMAXPROCS(1)
	return exec.Command("taskset", "-a", "-c", "-p", clientCore, strconv.Itoa(os.Getpid())).Run()
}

// command on a core.
func (b *bench) command(core, path string, args ...string) *exec.Cmd {
	var cmd *exec.Cmd
	if b.pinned {
		cmd = exec.Command("taskset", append([]string{"-c", core, path}, args...)...)
	} else {
		cmd = exec.Command(path, args...)
	}
	return cmd
}

// self starts this program in a role.
func (b *bench) self(on *machine, core, role, target string) (*exec.Cmd, string, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	args := []string{"-role", role, "-dir", b.dir, "-target", target}
	if on != nil {
		args = append(args, "-listen", net.JoinHostPort(on.addr, strconv.Itoa(endpointPort)))
	}
	cmd := b.command(core, path, args...)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // whose end ends the process
		return nil, "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := on.start(cmd); err != nil {
		return nil, "", err
	}
	b.running = append(b.running, cmd)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, "", fmt.Errorf("starting %s: %w", role, err)
	}
	return cmd, strings.TrimSpace(line), nil
}

// start starts everything.
func (b *bench) start() (err error) {
	if _, b.endpoint, err = b.self(nil, clientCore, "endpoint", ""); err != nil {
		return err
	}
	b.ways = []way{{Name: "direct", Addr: b.endpoint}}
	in, at, err := b.self(nil, proxyCore, "ingress", b.endpoint)
	if err != nil {
		return err
	}
	node, at, err := b.self(nil, proxyCore, "node", at)
	if err != nil {
		return err
	}
	b.ways = append(b.ways, way{"proxima", at, []int{node.Process.Pid, in.Process.Pid}})
	return b.startPeers()
}

// startPeers starts the pairs of those that are installed.
func (b *bench) startPeers() error {
	if path, err := exec.LookPath("haproxy"); err != nil {
		fmt.Fprintln(b.out, "haproxy is not installed, so nothing is compared with it: bench/gateway/peers installs it")
	} else if err := b.pair("haproxy", path, haproxyArgs, haproxyServer, haproxyClient); err != nil {
		return err
	}
	if path := envoyPath(); path == "" {
		fmt.Fprintln(b.out, "envoy is not installed, so nothing is compared with it: ENVOY=$(bench/gateway/peers) installs it")
	} else if err := b.pair("envoy", path, envoyArgs, envoyServer, envoyClient); err != nil {
		return err
	}
	return nil
}

func envoyPath() string {
	if path := os.Getenv("ENVOY"); path != "" {
		return path
	}
	path, _ := exec.LookPath("envoy")
	return path
}

// pair starts two proxies of one kind: the server side in front of the endpoint, and
// the client side in front of that.
func (b *bench) pair(name, path string, args func(config string) []string, server, client string) error {
	pids := make([]int, 2)
	to := b.endpoint
	for i, side := range []struct {
		name, config string
		on           *machine
	}{{"server", server, b.serverSide}, {"client", client, b.clientSide}} {
		at, err := side.on.freeAddress()
		if err != nil {
			return err
		}
		file := filepath.Join(b.dir, name+"-"+side.name+configSuffix(name))
		config := strings.NewReplacer("$DIR", b.dir, "$ADDRESS", at, "$HOST", host(at), "$PORT", port(at),
			"$TARGETHOST", host(to), "$TARGETPORT", port(to), "$TARGET", to, "$SNI", serverName).Replace(side.config)
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return err
		}
		cmd := b.command(proxyCore, path, args(file)...)
		cmd.Stdout, cmd.Stderr = nil, nil
		cmd.Dir = b.dir
		if err := side.on.start(cmd); err != nil {
			return err
		}
		b.running = append(b.running, cmd)
		if err := side.on.awaitListener(at); err != nil {
			return fmt.Errorf("%s (%s side) does not listen: %w", name, side.name, err)
		}
		pids[1-i], to = cmd.Process.Pid, at
	}
	b.ways = append(b.ways, way{name, to, pids})
	return nil
}

func configSuffix(name string) string {
	if name == "envoy" {
		return ".yaml"
	}
	return ".cfg"
}

func host(addr string) string { h, _, _ := strings.Cut(addr, ":"); return h }
func port(addr string) string { _, p, _ := strings.Cut(addr, ":"); return p }

// awaitListener polls, as the peers do not say when they listen.
func (m *machine) awaitListener(at string) error {
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		c, err := m.dial(at)
		if err == nil {
			return c.Close()
		}
		if time.Since(begin) > 20*time.Second {
			return err
		}
	}
}

// cpu is what the proxies' threads have used so far, from the scheduler, whose clock
// is finer than that of process times.
func (w *way) cpu() time.Duration {
	var sum time.Duration
	for _, p := range w.Proxies {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p))
		for _, f := range files {
			data, _ := os.ReadFile(f) // a thread may have ended
			spent, _, _ := strings.Cut(string(data), " ")
			ns, _ := strconv.ParseInt(spent, 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum
}

// resident memory of a process, in bytes.
func resident(pid int) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("no VmRSS")
}
