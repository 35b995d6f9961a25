//go:build interop

package pulsar

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// controlPlane is a process of bin/proxima with a port for clients of Pulsar.
type controlPlane struct {
	t                  *testing.T
	dir                string
	api, port          int
	args               []string // further ones
	env                []string
	process            *testkit.Process
	objects            kubernetes.Interface
	kubeconfig, binary string

	mu sync.Mutex
	n  int // changes and namespaces so far
}

// newControlPlane starts one, which ends with the test.
func newControlPlane(t *testing.T, env []string, args ...string) *controlPlane {
	t.Helper()
	p := &controlPlane{t: t, dir: t.TempDir(), api: testkit.FreePort(t), port: testkit.FreePort(t), args: args, env: env, binary: testkit.Binary(t)}
	p.kubeconfig = filepath.Join(p.dir, "kubeconfig")
	p.start()
	return p
}

func (p *controlPlane) start() {
	p.t.Helper()
	args := append([]string{"control-plane", "--data-dir", p.dir, "--api-address", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.api)), "--grpc-port", "0",
		"--xds-port", "0", "--service-cidr", "127.96.0.0/16", "--pulsar-port", strconv.Itoa(p.port)}, p.args...)
	p.process = testkit.Start(p.t, p.env, p.binary, args...)
	p.process.FirstLine()
	cfg, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig)
	if err == nil {
		cfg.QPS = -1
		p.objects, err = kubernetes.NewForConfig(cfg)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// run a command of bin/proxima as an admin, and return what it prints and its error.
func (p *controlPlane) try(args ...string) (string, error) {
	cmd := exec.Command(p.binary, append([]string{"--kubeconfig", p.kubeconfig}, args...)...)
	cmd.Env = append(testkit.CleanEnv(), p.env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("proxima %s: %w\n%s%s", strings.Join(args, " "), err, out, &errs)
	}
	return string(out), err
}

func (p *controlPlane) proxima(args ...string) string {
	p.t.Helper()
	out, err := p.try(args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// put changes a Service of a namespace, by one change of the store.
func (p *controlPlane) put(ctx context.Context, namespace, name string) error {
	p.mu.Lock()
	p.n++
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"change": strconv.Itoa(p.n)}},
		Spec:       corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 80}}},
	}
	p.mu.Unlock()
	services := p.objects.CoreV1().Services(namespace)
	_, err := services.Create(ctx, o, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	was, err := services.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	was.Labels = o.Labels
	_, err = services.Update(ctx, was, metav1.UpdateOptions{})
	return err
}

// namespace makes one whose topics can be read.
func (p *controlPlane) namespace(ctx context.Context, c pulsar.Client) (string, error) {
	p.mu.Lock()
	p.n++
	name := fmt.Sprint("n", p.n)
	p.mu.Unlock()
	if _, err := p.objects.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	for { // tables follow the store in a moment
		if _, err := c.TopicPartitions("persistent://default/" + name + "/services"); err == nil {
			return name, nil
		} else if ctx.Err() != nil {
			return "", err
		}
	}
}

// changer lets the programs of clients change objects: /new, /put/NAMESPACE/NAME, /delete/NAMESPACE/NAME, /restart. It returns its URL.
func (p *controlPlane) changer(c pulsar.Client) string {
	mux := http.NewServeMux()
	handle := func(pattern string, do func(*http.Request) (string, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			text, err := do(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			fmt.Fprint(w, text)
		})
	}
	handle("/new", func(r *http.Request) (string, error) { return p.namespace(r.Context(), c) })
	handle("/put/{namespace}/{name}", func(r *http.Request) (string, error) {
		return "", p.put(r.Context(), r.PathValue("namespace"), r.PathValue("name"))
	})
	handle("/delete/{namespace}/{name}", func(r *http.Request) (string, error) {
		return "", p.objects.CoreV1().Services(r.PathValue("namespace")).Delete(r.Context(), r.PathValue("name"), metav1.DeleteOptions{})
	})
	handle("/restart", func(*http.Request) (string, error) {
		p.process.Kill()
		p.start()
		return "", nil
	})
	server := httptest.NewServer(mux)
	p.t.Cleanup(server.Close)
	return server.URL
}

// TestClients runs the clients of Java and Python on a control plane. Their programs print a line for each case.
func TestClients(t *testing.T) {
	for _, c := range []struct {
		name    string
		cases   int
		command func(t *testing.T) []string
	}{
		{"Java", 17, func(t *testing.T) []string {
			classes := os.Getenv("PROXIMA_PULSAR_JAVA") // set by tools/interop-pulsar, as is the other
			if classes == "" {
				t.Skip("there are no JDK and mvn: no client of Java runs")
			}
			return []string{"java", "-Xmx256m", "-cp", classes, "Main"}
		}},
		{"Python", 17, func(t *testing.T) []string {
			python := os.Getenv("PROXIMA_PULSAR_PYTHON")
			if python == "" {
				t.Skip("there is no python3, or PyPI does not answer: no client of Python runs")
			}
			return []string{python, "-B", filepath.Join("python", "main.py")}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			command := c.command(t)
			p := newControlPlane(t, nil)
			token := strings.TrimSpace(p.proxima("token", "create", "--kind", "read-only", "--name", "inventory"))
			address := net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port))
			client, err := pulsar.NewClient(pulsar.ClientOptions{URL: "pulsar://" + address, Authentication: pulsar.NewAuthenticationToken(token)})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			ca := filepath.Join(t.TempDir(), "ca.crt")
			cfg, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig)
			if err == nil {
				err = os.WriteFile(ca, cfg.CAData, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, command[0], append(command[1:], "pulsar://"+address, "pulsar+ssl://"+address, ca, token, p.changer(client))...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			cases := 0
			for lines := bufio.NewScanner(out); lines.Scan(); {
				verdict, rest, _ := strings.Cut(lines.Text(), " ")
				name, why, _ := strings.Cut(rest, ": ")
				if verdict != "PASS" && verdict != "FAIL" {
					t.Log(lines.Text())
					continue
				}
				cases++
				t.Run(name, func(t *testing.T) {
					if verdict != "PASS" {
						t.Error(why)
					}
				})
			}
			if err := errors.Join(cmd.Wait(), ctx.Err()); err != nil || cases != c.cases {
				t.Errorf("%d of %d cases ran: %v", cases, c.cases, err)
			}
		})
	}
}
