package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/bench/procstat"
)

// process is a server, in a directory of its own.
type process struct {
	name  string
	dir   string
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
	// By protocol: addresses of ours, and of the peer that speaks it. Empty: it does not.
	nacos, zookeeper, eureka string
}

// launch a program, and wait until a port takes connections.
func launch(ctx context.Context, name, wait string, env []string, path string, args ...string) (*process, error) {
	dir, err := os.MkdirTemp("", "proxima-bench-")
	if err != nil {
		return nil, err
	}
	p := &process{name: name, dir: dir, log: filepath.Join(dir, "log"), ended: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	for i, a := range args {
		args[i] = strings.ReplaceAll(a, "{dir}", dir)
	}
	p.cmd = exec.CommandContext(ctx, path, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	for _, v := range os.Environ() { // settings of the user's environment do not count
		if !strings.HasPrefix(v, "PROXIMA_") && !strings.HasPrefix(v, "RNACOS_") && !strings.HasPrefix(v, "KUBECONFIG=") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	if err := p.cmd.Start(); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // how it ended is in its log
	}()
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		if c, err := net.Dial("tcp", wait); err == nil {
			c.Close()
			return p, nil
		}
		select {
		case <-p.ended:
			text, _ := os.ReadFile(p.log)
			p.stop()
			return nil, fmt.Errorf("%s ended:\n%s", name, tail(text))
		case <-time.After(50 * time.Millisecond):
		}
	}
	p.stop()
	return nil, fmt.Errorf("%s does not listen at %s after %s", name, wait, startTimeout)
}

// startTimeout is long, as servers on the JVM take a minute where the machine does other work, too.
const startTimeout = 5 * time.Minute

func tail(text []byte) []byte { return text[max(0, len(text)-2000):] }

// stop the process and remove what it left.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Signal(syscall.SIGKILL)
		<-p.ended
	}
	os.RemoveAll(p.dir)
}

func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// nacosPorts are one for HTTP and the one 1000 above it.
func nacosPorts() (int, error) {
	for range 100 {
		ports, err := freePorts(1)
		if err != nil {
			return 0, err
		}
		l, err := net.Listen("tcp", at(ports[0]+1000))
		if err == nil {
			l.Close()
			return ports[0], nil
		}
	}
	return 0, errors.New("no two ports are free that are 1000 apart")
}

func at(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// startOurs starts a control plane with one protocol, on SQLite.
func startOurs(ctx context.Context, p plan, protocol string) (*process, error) {
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	port, listens := ports[1], ports[1]
	if protocol == "nacos" {
		if port, err = nacosPorts(); err != nil {
			return nil, err
		}
		listens = port + 1000
	}
	out, err := launch(ctx, "proxima", at(listens), p.env, p.binary, "control-plane", "--data-dir", "{dir}/data", "--log-level", "warn",
		"--service-cidr", "10.192.0.0/12", "--api-address", at(ports[0]), "--grpc-port", "0", "--"+protocol+"-port", strconv.Itoa(port))
	if err != nil {
		return nil, err
	}
	switch protocol {
	case "nacos":
		out.nacos = at(listens)
	case "zookeeper":
		out.zookeeper = at(listens)
	case "eureka":
		out.eureka = at(listens)
	}
	return out, nil
}

func startRNacos(ctx context.Context, p plan) (*process, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	port, err := nacosPorts()
	if err != nil {
		return nil, err
	}
	out, err := launch(ctx, "r-nacos", at(port+1000), []string{
		"RNACOS_HTTP_PORT=" + strconv.Itoa(port), "RNACOS_GRPC_PORT=" + strconv.Itoa(port+1000), "RNACOS_HTTP_CONSOLE_PORT=" + strconv.Itoa(ports[0]),
		"RNACOS_SDK_HOST=127.0.0.1", "RNACOS_DATA_DIR=data", "RUST_LOG=warn",
	}, filepath.Join(p.peers, "rnacos-0.8.8", "bin", "rnacos"))
	if err != nil {
		return nil, err
	}
	out.nacos = at(port + 1000)
	return out, nil
}

func startZooKeeper(ctx context.Context, p plan) (*process, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	lib := filepath.Join(p.peers, "zookeeper-3.8.4")
	if _, err := os.Stat(lib); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`printf 'tickTime=2000\ndataDir=%%s/data\nclientPort=%d\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n' {dir} >zoo.cfg
exec java -Xmx%s -cp '%s/*' org.apache.zookeeper.server.ZooKeeperServerMain zoo.cfg`, ports[0], p.heap, lib)
	out, err := launch(ctx, "ZooKeeper", at(ports[0]), nil, "sh", "-c", config)
	if err != nil {
		return nil, err
	}
	out.zookeeper = at(ports[0])
	return out, nil
}

// startEureka starts Netflix's server; tuned: without its response cache.
func startEureka(ctx context.Context, p plan, tuned bool) (*process, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	lib := filepath.Join(p.peers, "eureka-server-4.2.0")
	if _, err := os.Stat(lib); err != nil {
		return nil, err
	}
	name := "Eureka"
	args := []string{
		"-Xmx" + p.heap, "-cp", lib + "/*:" + lib, "dev.proxima.EurekaServer", "--server.port=" + strconv.Itoa(ports[0]), "--server.address=127.0.0.1",
		"--eureka.client.register-with-eureka=false", "--eureka.client.fetch-registry=false", "--spring.application.name=eureka",
	}
	if tuned {
		name = "Eureka, tuned"
		args = append(args, "--eureka.server.use-read-only-response-cache=false")
	}
	out, err := launch(ctx, name, at(ports[0]), nil, "java", args...)
	if err != nil {
		return nil, err
	}
	out.eureka = at(ports[0])
	return out, nil
}

// resident memory of the process, in MB of 10⁶ bytes.
func (p *process) resident() (float64, error) {
	n, err := procstat.Resident(p.cmd.Process.Pid)
	return n / 1e6, err
}

// cpu is the user and system time that the process has used. It says more than wall time where
// the machine does other work too.
func (p *process) cpu() (time.Duration, error) { return procstat.CPU(p.cmd.Process.Pid) }
