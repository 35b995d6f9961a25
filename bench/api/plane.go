package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/bench/procstat"
)

// timeout bounds what should take moments; nothing is measured by it.
const timeout = time.Minute

// process is a role of proxima while it runs.
type process struct {
	dir    string
	cmd    *exec.Cmd
	api    string
	ready  time.Duration // from start until it said that it serves
	stderr bytes.Buffer
	ended  chan struct{}
}

// start runs a role on a directory, a new one if dir is empty, and waits until
// it serves.
func (b *bench) start(ctx context.Context, dir string, args ...string) (p *process, err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "proxima-bench-"); err != nil {
			return nil, err
		}
	}
	api, err := freePort()
	if err != nil {
		return nil, err
	}
	p = &process{dir: dir, api: api, ended: make(chan struct{})}
	args = append(args, "--data-dir", dir, "--api-address", api)
	p.cmd = exec.CommandContext(ctx, b.binary, args...)
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(os.Interrupt) }
	p.cmd.WaitDelay = 10 * time.Second
	p.cmd.Stderr = &p.stderr
	for _, v := range os.Environ() { // settings of the user's environment do not count
		if !strings.HasPrefix(v, "PROXIMA_") && !strings.HasPrefix(v, "KUBECONFIG=") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Env = append(p.cmd.Env, b.env...)
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w; build it with \"make build\"", err)
	}
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	p.ready = time.Since(began)
	go func() {
		defer close(p.ended)
		_, _ = lines.WriteTo(&bytes.Buffer{}) // until it ends
		_ = p.cmd.Wait()
	}()
	if err != nil || !strings.HasPrefix(line, "ready ") {
		p.stop()
		return nil, fmt.Errorf("%s does not serve:\n%s", strings.Join(p.cmd.Args, " "), p.stderr.String())
	}
	return p, nil
}

func (b *bench) startPlane(ctx context.Context, store string) (*process, error) {
	return b.start(ctx, "", "control-plane", "--store", store, "--grpc-port", "0", "--service-cidr", "127.96.0.0/16")
}

// stop the process, and wait until it has ended. Its directory stays.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	<-p.ended
}

// end the process, without a farewell to its clients, and remove what it left.
func (p *process) end() {
	_ = p.cmd.Process.Kill()
	<-p.ended
	_ = os.RemoveAll(p.dir)
}

// resident is the memory of the process, in MB of 10⁶ bytes.
func (p *process) resident() (float64, error) {
	n, err := procstat.Resident(p.cmd.Process.Pid)
	return n / 1e6, err
}

// cpu is the user and system time that the process has used. It says more than wall time where
// the machine does other work too.
func (p *process) cpu() (time.Duration, error) { return procstat.CPU(p.cmd.Process.Pid) }

// config of an administrator. Each has a connection of its own.
func (p *process) config() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.dir, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.Dial = (&net.Dialer{}).DialContext // with a dialer of its own client-go shares no transport
	return cfg, nil
}

func (p *process) client() (*kubernetes.Clientset, error) {
	cfg, err := p.config()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(cfg)
}

// clients that are connected already.
func (p *process) clients(ctx context.Context, n int) ([]*kubernetes.Clientset, error) {
	all := make([]*kubernetes.Clientset, n)
	for i := range all {
		c, err := p.client()
		if err == nil {
			_, err = c.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
		}
		if err != nil {
			return nil, err
		}
		all[i] = c
	}
	return all, nil
}

// freePort finds an address that is not in use.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// each runs f for the numbers below n, with so many at a time, and returns how
// long all took.
func each(workers, n int, f func(worker, i int) error) (time.Duration, error) {
	var next = make(chan int)
	var wg sync.WaitGroup
	errs := make([]error, workers)
	began := time.Now()
	for w := range workers {
		wg.Go(func() {
			for i := range next {
				if errs[w] == nil {
					errs[w] = f(w, i)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return time.Since(began), errors.Join(errs...)
}

func configMap(name string, size int) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Data:       map[string]string{"key": strings.Repeat("v", size)},
	}
}
