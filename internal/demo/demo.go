// Package demo shows Proxima at work on one machine, behind one virtual IP: as
// root a lab of three zones, whose nodes carry traffic in the kernel; otherwise
// a control plane, an agent and three backends, each a process of its own.
//
// It owns the script and what is printed. Enter at Run, and at Backend for the
// sample service. It uses nothing but the commands that a user has, keeps all
// its files in a temporary directory, and leaves nothing behind.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

const (
	requests    = 12
	servicePort = 8080
	// timeout with processes that start on a busy machine.
	timeout = 60 * time.Second
)

var zones = []string{"zone-a", "zone-b", "zone-c"}

// Config of the demo.
type Config struct {
	// Executable to run everything with.
	Executable string
	Out        io.Writer
	// Mode as --mode names it. Auto: kernel modes in a lab where namespaces can be
	// made (root), else userspace.
	Mode string
	// Once ends the demo after the shift; otherwise it stays until ctx ends.
	Once bool
	// Color allows terminal colours.
	Color bool
	// Verbose shows what the processes log.
	Verbose bool
}

// Run plays the demo. It returns when everything it started is gone. An error
// carries what the failed process logged last.
func Run(ctx context.Context, cfg Config) (err error) {
	kernel, err := inKernel(cfg.Mode)
	if err != nil {
		return err
	}
	if kernel {
		return runLab(ctx, cfg)
	}
	// The children are tied to the thread that starts them (prctl(2),
	// PR_SET_PDEATHSIG): it must live as long as the demo.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dir, err := os.MkdirTemp("", "proxima-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := &demo{cfg: cfg, dir: dir, screen: screen{out: cfg.Out, color: cfg.Color}}
	defer d.stopAll()
	if err := d.play(ctx); err != nil {
		if ctx.Err() != nil && !cfg.Once {
			return nil // Ctrl-C is how it ends
		}
		return err
	}
	return nil
}

type demo struct {
	cfg       Config
	dir       string
	screen    screen
	processes []*child
	client    *kubeclient.Client
	api       string
	vip       string
}

func (d *demo) play(ctx context.Context) error {
	d.screen.title("Proxima: three backends in three zones behind one virtual IP")
	if err := d.startControlPlane(ctx); err != nil {
		return err
	}
	if err := d.startAgent(ctx); err != nil {
		return err
	}
	if err := d.createService(ctx); err != nil {
		return err
	}
	if err := d.startBackends(ctx); err != nil {
		return err
	}

	d.screen.title("%d requests to http://%s", requests, d.vip)
	before, err := d.ask(ctx)
	if err != nil {
		return err
	}
	if len(before.answers) != len(zones) {
		return fmt.Errorf("only %d of %d backends answered", len(before.answers), len(zones))
	}

	d.screen.title("kill -9 of zone-a's backend (process %d), then %d more", before.pids["web-a"], requests)
	if err := kill(ctx, before.pids["web-a"]); err != nil {
		return fmt.Errorf("kill zone-a's backend: %w", err)
	}
	after, err := d.ask(ctx)
	if err != nil {
		return err
	}
	if after.answers["web-a"] > 0 {
		return errors.New("the dead backend answered")
	}
	d.screen.line("The traffic moved on: no request failed.")
	d.screen.line("As root it shows more: a zone with a control plane of its own that loses power, in network namespaces.")
	d.printWhatNext()
	if d.cfg.Once {
		return nil
	}
	<-ctx.Done()
	d.screen.line("")
	return nil
}

func (d *demo) startControlPlane(ctx context.Context) error {
	api, err := freeAddress()
	if err != nil {
		return err
	}
	grpc, err := freeAddress()
	if err != nil {
		return err
	}
	_, grpcPort, _ := net.SplitHostPort(grpc)
	c, err := d.start("control-plane", "control-plane", "--role", "standalone", "--data-dir", d.dir,
		"--store", "sqlite:"+filepath.Join(d.dir, "store.db"), "--api-address", api, "--grpc-port", grpcPort,
		"--service-cidr", "127.96.0.0/16")
	if err != nil {
		return err
	}
	if _, err := c.ready(ctx); err != nil {
		return err
	}
	d.api = api
	kubeconfig, err := clientcmd.BuildConfigFromFlags("", filepath.Join(d.dir, "kubeconfig"))
	if err != nil {
		return err
	}
	if d.client, err = kubeclient.New(kubeconfig, kind.All()); err != nil {
		return err
	}
	d.screen.done("control plane   https://%s", api)
	return nil
}

func (d *demo) startAgent(ctx context.Context) error {
	tokenFile := filepath.Join(d.dir, "node-token")
	token, err := d.output(ctx, "token", "create", "--kind", "node", "--name", "demo-a", "--ttl", "1h",
		"--kubeconfig", filepath.Join(d.dir, "kubeconfig"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(tokenFile, token, 0o600); err != nil {
		return err
	}
	agent, err := d.start("agent", "node", "--server", d.api, "--token-file", tokenFile, "--node-name", "demo-a", "--zone", "zone-a",
		"--data-dir", filepath.Join(d.dir, "agent"), "--mode", "userspace", "--dns-port", "0", "--health-port", "0", "--metrics-port", "0")
	if err != nil {
		return err
	}
	if _, err := agent.ready(ctx); err != nil {
		return err
	}
	d.screen.done("agent           node demo-a in zone-a, a process of its own")
	return nil
}

func (d *demo) createService(ctx context.Context) error {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: metav1.NamespaceDefault},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"},
			Ports:    []corev1.ServicePort{{Name: "http", Port: servicePort}},
		},
	}
	// Named target ports let each backend listen where it likes.
	svc.Spec.Ports[0].TargetPort.Type = 1
	svc.Spec.Ports[0].TargetPort.StrVal = "http"
	created, err := d.client.Create(ctx, kind.Service, svc)
	if err != nil {
		return fmt.Errorf("create service web: %w", err)
	}
	d.vip = net.JoinHostPort(created.(*corev1.Service).Spec.ClusterIP, fmt.Sprint(servicePort))
	d.screen.done("service         default/web at %s", d.vip)
	return nil
}

func (d *demo) startBackends(ctx context.Context) error {
	for _, zone := range zones {
		listen, err := freeAddress()
		if err != nil {
			return err
		}
		_, port, _ := net.SplitHostPort(listen)
		name := "web-" + zone[len(zone)-1:]
		_, err = d.start(name, "run", "--name", name, "--labels", "app=web,"+corev1.LabelTopologyZone+"="+zone,
			"--port", "http:"+port, "--address", "127.0.0.1", "--ready-http", "/",
			"--kubeconfig", filepath.Join(d.dir, "kubeconfig"),
			"--", d.cfg.Executable, "demo", "backend", "--name", name, "--zone", zone, "--listen", listen)
		if err != nil {
			return err
		}
		d.screen.done("backend         %s in %s at %s", name, zone, listen)
	}
	if err := lab.AwaitEndpoints(ctx, d.client, "web", len(zones)); err != nil {
		return d.failure(err)
	}
	return d.waitForAnswers(ctx, len(zones))
}

// waitForAnswers sends requests until every backend has answered: then the agent has
// the slice, too.
func (d *demo) waitForAnswers(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	heard := map[string]bool{}
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	for len(heard) < want {
		if a, err := d.askOnce(ctx); err == nil {
			heard[a.Name] = true
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return d.failure(fmt.Errorf("%s: %d of %d backends answered in %s", d.vip, len(heard), want, timeout))
		}
	}
	return nil
}

// tally of a round of requests.
type tally struct {
	answers map[string]int
	pids    map[string]int
}

// ask sends the requests, one connection each, and shows who answered.
func (d *demo) ask(ctx context.Context) (tally, error) {
	t := tally{answers: map[string]int{}, pids: map[string]int{}}
	d.screen.begin()
	for range requests {
		a, err := d.askOnce(ctx)
		if err != nil {
			d.screen.end()
			return t, d.failure(fmt.Errorf("request through %s: %w", d.vip, err))
		}
		t.answers[a.Name]++
		t.pids[a.Name] = a.PID
		d.screen.answer(a.Name)
	}
	d.screen.end()
	for _, zone := range zones {
		name := "web-" + zone[len(zone)-1:]
		d.screen.bar(name, zone, t.answers[name])
	}
	return t, nil
}

func (d *demo) askOnce(ctx context.Context) (answer, error) {
	var a answer
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.vip+"/", nil)
	if err != nil {
		return a, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}
	resp, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return a, fmt.Errorf("answered %s", resp.Status)
	}
	return a, json.NewDecoder(io.LimitReader(resp.Body, 4096)).Decode(&a)
}

func (d *demo) printWhatNext() {
	if d.cfg.Once {
		d.screen.line("Without --once it stays, with commands to try in another terminal.")
		return
	}
	d.screen.title("Try it yourself, in another terminal")
	d.screen.line("  export KUBECONFIG=%s", filepath.Join(d.dir, "kubeconfig"))
	d.screen.line("  curl http://%s", d.vip)
	d.screen.line("  %s get endpointslices -o wide        # or kubectl", d.cfg.Executable)
	d.screen.line("  %s top services                      # what goes where, as it changes", d.cfg.Executable)
	d.screen.line("  %s console                           # the same in a browser, with the reasons", d.cfg.Executable)
	d.screen.line("")
	d.screen.line("Ctrl-C ends the demo and removes everything.")
}

// kill ends a process the hard way, and waits until the kernel has closed its
// sockets: until then it still takes connections, only to reset them.
func kill(ctx context.Context, pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	if err := p.Kill(); err != nil {
		return err
	}
	gone := time.NewTicker(time.Millisecond)
	defer gone.Stop()
	for p.Signal(syscall.Signal(0)) == nil {
		select {
		case <-gone.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// freeAddress finds a loopback port that is not in use.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
