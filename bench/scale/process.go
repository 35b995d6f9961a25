package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/bench/procstat"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// process is a control plane while it runs.
type process struct {
	dir    string
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan struct{}
}

// start runs "proxima control-plane" on a directory, and waits until it serves.
func start(ctx context.Context, binary, dir string, args ...string) (*process, error) {
	p := &process{dir: dir, ended: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, binary, append([]string{"control-plane", "--data-dir", dir, "--log-level", "warn"}, args...)...)
	p.cmd.Stderr = &p.stderr
	for _, v := range os.Environ() { // settings of the user's environment do not count
		if !strings.HasPrefix(v, "PROXIMA_") && !strings.HasPrefix(v, "KUBECONFIG=") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w; build it with \"make build\"", err)
	}
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	go func() {
		defer close(p.ended)
		_, _ = io.Copy(io.Discard, lines) // until it ends
		_ = p.cmd.Wait()
	}()
	if err != nil || !strings.HasPrefix(line, "ready ") {
		p.kill()
		return nil, fmt.Errorf("%s does not serve:\n%s", strings.Join(p.cmd.Args, " "), p.stderr.String())
	}
	return p, nil
}

// kill ends the process at once, as a power failure would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// stop ends the process, and waits until it has.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	<-p.ended
}

// memory is the resident memory, in bytes.
func (p *process) memory() (float64, error) { return procstat.Resident(p.cmd.Process.Pid) }

// ownCPU is the CPU time of this process.
func ownCPU() time.Duration {
	d, _ := (&process{cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}}).cpu() // an error has shown at the control plane
	return d
}

// load is the load average of the last minute; empty: unknown.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// settled is the lowest memory in a while: collections leave free memory for some seconds.
func (p *process) settled(ctx context.Context, wait time.Duration) (float64, error) {
	const samples = 6
	var least float64
	for range samples {
		if err := pause(ctx, wait/samples); err != nil {
			return 0, err
		}
		now, err := p.memory()
		if err != nil {
			return 0, err
		}
		if least == 0 || now < least {
			least = now
		}
	}
	return least, nil
}

// quiet waits until the process has nothing to do: it has used almost no CPU time for a while. A
// control plane serves before its caches are complete.
func (p *process) quiet(ctx context.Context, seconds int) error {
	const (
		limit = 20 * time.Minute
		idle  = 30 * time.Millisecond // per second
	)
	late := time.Now().Add(limit)
	last, err := p.cpu()
	for calm := 0; calm < seconds && err == nil; {
		if time.Now().After(late) {
			return errors.New("it is still busy after " + limit.String())
		}
		if err = pause(ctx, time.Second); err != nil {
			break
		}
		var now time.Duration
		if now, err = p.cpu(); now-last > idle {
			calm = 0
		} else {
			calm++
		}
		last = now
	}
	return err
}

// cpu is the user and system time that the process has used.
func (p *process) cpu() (time.Duration, error) { return procstat.CPU(p.cmd.Process.Pid) }

// config of the administrator.
func (p *process) config() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.dir, "kubeconfig"))
	if err == nil {
		cfg.QPS = -1
	}
	return cfg, err
}

// client of the administrator.
func (p *process) client() (resource.Client, error) {
	cfg, err := p.config()
	if err != nil {
		return nil, err
	}
	return kubeclient.New(cfg, kind.All())
}

// http is the administrator's client of paths that are no resources, and the API's URL.
func (p *process) http() (*http.Client, string, error) {
	cfg, err := p.config()
	if err != nil {
		return nil, "", err
	}
	c, err := rest.HTTPClientFor(cfg)
	return c, cfg.Host, err
}

// freePorts finds ports that are not in use.
func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
