package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/bench/procstat"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// process is a program that says when it is ready.
type process struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan struct{}
	// ready is how long it took until the line.
	ready time.Duration
}

// launch a program, and wait for a line that begins with "ready ".
func launch(ctx context.Context, path string, args ...string) (*process, error) {
	p := &process{ended: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, path, args...)
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
	begin := time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w; build it with \"make build\"", err)
	}
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	p.ready = time.Since(begin)
	go func() {
		defer close(p.ended)
		_, _ = io.Copy(io.Discard, lines) // until it ends
		_ = p.cmd.Wait()                  // how it ended is in stderr
	}()
	if err != nil || !strings.HasPrefix(line, "ready ") {
		p.stop()
		return nil, fmt.Errorf("%s does not serve: %q\n%s", strings.Join(p.cmd.Args, " "), line, p.stderr.String())
	}
	return p, nil
}

// stop the process, and wait for its end.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt) // it may have ended
	<-p.ended
}

// settled is the lowest memory in a while: collections leave free memory for some seconds.
func settled(ctx context.Context, pid int, wait time.Duration) (float64, error) {
	const samples = 6
	var least float64
	for range samples {
		if err := pause(ctx, wait/samples); err != nil {
			return 0, err
		}
		now, err := procstat.Resident(pid)
		if err != nil {
			return 0, err
		}
		if least == 0 || now < least {
			least = now
		}
	}
	return least, nil
}

// control is a control plane with its administrator's client.
type control struct {
	*process
	dir string
	// xds is the address for proxies, tls what its administrator connects to it with.
	xds    string
	tls    *tls.Config
	ca     string // file
	client resource.Client
}

// startControl starts a control plane with a node and Services.
func startControl(ctx context.Context, p plan, dir string, services int) (*control, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	c := &control{dir: filepath.Join(dir, "plane"), xds: "127.0.0.1:" + ports[2]}
	c.process, err = launch(ctx, p.binary, "control-plane", "--data-dir", c.dir, "--log-level", "warn", "--store", "sqlite:",
		"--service-cidr", "127.96.0.0/16", "--api-address", "127.0.0.1:"+ports[0], "--grpc-port", ports[1], "--xds-port", ports[2])
	if err != nil {
		return nil, err
	}
	if err := c.connect(); err != nil {
		c.stop()
		return nil, err
	}
	_, err = c.client.Create(ctx, kind.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{corev1.LabelTopologyZone: "a"}}})
	if err == nil {
		err = each(services, func(i int) error {
			if _, err := c.client.Create(ctx, kind.Service, newService(i)); err != nil {
				return err
			}
			_, err := c.client.Create(ctx, kind.EndpointSlice, turned(i, 0))
			return err
		})
	}
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("objects of the control plane: %w", err)
	}
	return c, nil
}

func (c *control) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "kubeconfig"))
	if err != nil {
		return err
	}
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	if c.client, err = kubeclient.New(config, kind.All()); err != nil {
		return err
	}
	if c.tls, err = rest.TLSConfigFor(config); err != nil {
		return err
	}
	c.tls.NextProtos = []string{"h2"}
	if err := rest.LoadTLSFiles(config); err != nil {
		return err
	}
	c.ca = filepath.Join(filepath.Dir(c.dir), "ca.pem")
	return os.WriteFile(c.ca, config.CAData, 0o600)
}

// change an object that may have been changed by a controller.
func (c *control) change(ctx context.Context, d *resource.Descriptor, key resource.Key, edit func(resource.Object)) error {
	object, err := c.client.Get(ctx, d, key)
	if err != nil {
		return err
	}
	edit(object)
	object.SetResourceVersion("")
	_, err = c.client.Update(ctx, d, object)
	return err
}

// each calls f for the numbers below n, some at a time.
func each(n int, f func(i int) error) error {
	const workers = 16
	next := make(chan int)
	errs := make([]error, workers)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for i := range next {
				if errs[w] == nil {
					errs[w] = f(i)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	running.Wait()
	return errors.Join(errs...)
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
