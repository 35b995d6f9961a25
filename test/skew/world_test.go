package skew

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// plane is a control plane whose program changes and whose data stay.
type plane struct {
	t         *testing.T
	name, dir string
	api, grpc int
	flags     []string
	now       *revision
	process   *testkit.Process
	client    resource.Client
}

func newPlane(t *testing.T, name string, flags ...string) *plane {
	return &plane{t: t, name: name, dir: t.TempDir(), api: testkit.FreePort(t), grpc: testkit.FreePort(t), flags: flags}
}

func (p *plane) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.api)) }

// run it as a revision, in place of the one that it runs as.
func (p *plane) run(r *revision) {
	p.t.Helper()
	if p.process != nil {
		p.process.Stop()
	}
	p.now = r
	p.process = testkit.Start(p.t, nil, r.binary, append([]string{"control-plane", "--data-dir", p.dir,
		"--store", "sqlite:" + filepath.Join(p.dir, "store.db"), "--api-address", p.address(), "--grpc-port", strconv.Itoa(p.grpc)}, p.flags...)...)
	p.process.FirstLine()
	if p.client != nil {
		return
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.dir, "kubeconfig"))
	if err != nil {
		p.t.Fatal(err)
	}
	cfg.QPS, cfg.WarningHandler = -1, rest.NoWarnings{}
	if p.client, err = kubeclient.New(cfg, kind.All()); err != nil {
		p.t.Fatal(err)
	}
}

// proxima runs a command of the revision that the plane runs as.
func (p *plane) proxima(args ...string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), testkit.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.now.binary, append(args, "--data-dir", p.dir)...)
	cmd.Env = append(testkit.CleanEnv(), "HOME="+p.dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatalf("proxima %s at %s: %v\n%s", strings.Join(args, " "), p.name, err, stderr.String())
	}
	return string(out)
}

// tokenFile runs a command that prints a token.
func (p *plane) tokenFile(args ...string) string {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(p.proxima(args...)), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

func (p *plane) create(k *resource.Descriptor, obj resource.Object) resource.Object {
	p.t.Helper()
	out, err := p.client.Create(p.t.Context(), k, obj)
	if err != nil {
		p.t.Fatalf("create %s at %s: %v", k.Singular, p.name, err)
	}
	return out
}

// get returns nil for what cannot be read.
func (p *plane) get(k *resource.Descriptor, namespace, name string) resource.Object {
	obj, err := p.client.Get(p.t.Context(), k, resource.Key{Namespace: namespace, Name: name})
	if err != nil {
		return nil
	}
	return obj
}

// objects are all that a plane keeps, by kind and name, with their UIDs. Events and Leases
// come and go.
func (p *plane) objects() map[string]string {
	p.t.Helper()
	out := map[string]string{}
	for _, k := range kind.All() {
		if k == kind.Lease || k.Singular == "event" {
			continue
		}
		all, _, err := p.client.List(p.t.Context(), k, resource.ListOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			continue // this revision does not serve it
		}
		if err != nil {
			p.t.Fatalf("list %s at %s: %v", k.Resource, p.name, err)
		}
		for _, obj := range all {
			out[k.Singular+" "+resource.KeyOf(obj).String()] = string(obj.GetUID())
		}
	}
	return out
}

// zone is a site with a control plane, an agent and, unless its agent is too old, an ingress.
type zone struct {
	*plane
	number int
	agent  *agent
	// backends of the zone's Service; ready is the one that has the traffic.
	backends [2]*backend
	ready    int
	// local and remote calls, the latter to the Service of each other zone by name.
	local  *caller
	remote map[string]*caller
}

func (z *zone) service() string { return "web-" + z.name }

// agent is a node's agent, or an ingress.
type agent struct {
	zone    *zone
	name    string
	command []string
	dir     string
	now     *revision
	process *testkit.Process
}

func (z *zone) newAgent(name string, command ...string) *agent {
	z.t.Helper()
	token := z.tokenFile("token", "create", "--kind", "node", "--name", name)
	return &agent{zone: z, name: name, dir: z.t.TempDir(), command: append(command, "--server", z.address(), "--token-file", token,
		"--node-name", name, "--health-port", "0", "--metrics-port", "0")}
}

func (a *agent) run(r *revision) {
	a.zone.t.Helper()
	if a.process != nil {
		a.process.Stop()
	}
	a.now = r
	a.process = testkit.Start(a.zone.t, nil, r.binary, append(a.command, "--data-dir", a.dir)...)
	a.process.FirstLine()
}

// address of workloads and ingresses. Loopback addresses are not exported to other zones, so
// calls between zones need another one that this machine has.
func address() string { return cmp.Or(os.Getenv("PROXIMA_SKEW_ADDRESS"), "127.0.0.1") }

// backend is a server that says its name and echoes.
type backend struct {
	name string
	port int
}

func startBackend(t *testing.T, name string) *backend {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintln(c, name)
				lines := bufio.NewScanner(c)
				for lines.Scan() {
					if _, err := fmt.Fprintln(c, lines.Text()); err != nil {
						return
					}
				}
			}()
		}
	}()
	return &backend{name: name, port: l.Addr().(*net.TCPAddr).Port}
}

// dial a virtual IP and read who answers.
func dial(at string) (net.Conn, *bufio.Reader, string, error) {
	c, err := net.DialTimeout("tcp", at, 5*time.Second)
	if err != nil {
		return nil, nil, "", err
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err != nil {
		c.Close()
		return nil, nil, "", err
	}
	return c, r, strings.TrimSpace(line), nil
}

// caller makes one connection after the other through a virtual IP.
type caller struct {
	at               string
	requests, failed atomic.Int64
	paused           atomic.Bool

	mu     sync.Mutex
	answer string // who answered last
	err    error  // the newest failure
}

const pause = 10 * time.Millisecond

func (c *caller) run(ctx context.Context) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if c.paused.Load() {
			continue
		}
		conn, _, answer, err := dial(c.at)
		c.mu.Lock()
		if err != nil {
			c.err = fmt.Errorf("%s: %w", time.Now().Format("15:04:05.000"), err)
			c.failed.Add(1)
		} else {
			conn.Close()
			c.answer = answer
		}
		c.mu.Unlock()
		c.requests.Add(1)
	}
}

func (c *caller) last() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answer
}

// clear begins the count of a pairing.
func (c *caller) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests.Store(0)
	c.failed.Store(0)
	c.answer, c.err = "", nil
}

// prepare makes the Service of the zone, exports it and registers the backends, of which the
// first is ready.
func (z *zone) prepare() {
	z.t.Helper()
	z.create(kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: z.service()},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": z.service()}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("web")}},
		},
	})
	z.create(kind.ServiceExport, &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: z.service()}})
	for i := range z.backends {
		b := startBackend(z.t, fmt.Sprintf("%s-%d", z.service(), i))
		z.backends[i] = b
		z.create(kind.Dataplane, &meshv1alpha1.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: b.name, Labels: map[string]string{"app": z.service()}},
			Spec: meshv1alpha1.DataplaneSpec{
				NodeName: z.agent.name, Addresses: []string{address()},
				Ports: []meshv1alpha1.DataplanePort{{Name: "web", Port: int32(b.port)}},
			},
		})
	}
	z.ready = 1
	z.turn()
}

// turn makes the other backend the one that is ready, without a moment that has none.
func (z *zone) turn() {
	z.t.Helper()
	z.ready = 1 - z.ready
	z.setReady(z.backends[z.ready], metav1.ConditionTrue)
	z.setReady(z.backends[1-z.ready], metav1.ConditionFalse)
}

func (z *zone) setReady(b *backend, ready metav1.ConditionStatus) {
	z.t.Helper()
	testkit.Eventually(z.t, b.name+" is ready: "+string(ready), func() bool {
		obj := z.get(kind.Dataplane, "default", b.name)
		if obj == nil {
			return false
		}
		d := obj.(*meshv1alpha1.Dataplane)
		d.Status.Conditions = []metav1.Condition{{
			Type: meshv1alpha1.DataplaneReady, Status: ready, Reason: "Test", LastTransitionTime: metav1.Now(),
		}}
		_, err := z.client.UpdateStatus(z.t.Context(), kind.Dataplane, d)
		return err == nil
	})
}
