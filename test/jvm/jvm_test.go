package jvm

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/registry/eureka"
	"github.com/proxima-mesh/proxima/internal/registry/nacos"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	"github.com/proxima-mesh/proxima/internal/registry/zookeeper"
)

// folder of the classes of the clients; empty: they are not built.
var folder string

// build the clients, once.
var build = sync.OnceValue(func() (err error) {
	if folder, err = os.MkdirTemp("", "proxima-jvm"); err != nil {
		return err
	}
	out, err := exec.Command("mvn", "-q", "-B", "compile", "dependency:copy-dependencies", "-Dout="+folder, "-DoutputDirectory="+folder+"/lib").CombinedOutput()
	if err != nil {
		return fmt.Errorf("mvn: %w: %s", err, out)
	}
	return nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if folder != "" {
		_ = os.RemoveAll(folder)
	}
	os.Exit(code)
}

// client of the JVM, driven by lines.
type client struct {
	t       *testing.T
	name    string
	in      io.WriteCloser
	answers chan string
	events  chan string
	ended   chan struct{}
}

// start a client: see Main.java.
func start(t *testing.T, args ...string) *client {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir() // clients of Nacos keep what they have seen there
	cmd := exec.Command("java", append([]string{
		"-Xmx256m", "-XX:TieredStopAtLevel=1", "-Duser.home=" + home, "-DJM.LOG.PATH=" + home, "-DJM.SNAPSHOT.PATH=" + home,
		"-cp", folder + "/classes:" + folder + "/lib/*", "dev.proxima.clients.Main",
	}, args...)...)
	log, err := os.Create(filepath.Join(home, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	c := &client{t: t, name: strings.Join(args, " "), answers: make(chan string, 1), events: make(chan string, 1000), ended: make(chan struct{})}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if c.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if event, ok := strings.CutPrefix(lines.Text(), "event "); ok {
				c.events <- event
			} else {
				c.answers <- lines.Text()
			}
		}
	}()
	t.Cleanup(func() {
		_ = c.in.Close() // it ends by itself
		select {
		case <-c.ended:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
		}
		_ = cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", c.name, text[max(0, len(text)-4000):])
		}
	})
	if got := c.answer(time.Minute); got != "ok started" {
		t.Fatalf("%s: %s", c.name, got)
	}
	return c
}

func (c *client) answer(within time.Duration) string {
	c.t.Helper()
	select {
	case a := <-c.answers:
		return a
	case <-c.ended:
		c.t.Fatalf("%s: it has ended", c.name)
	case <-time.After(within):
		c.t.Fatalf("%s: no answer within %s", c.name, within)
	}
	return ""
}

// ask a command, and return its result; what begins with "error" is one.
func (c *client) ask(command ...string) string {
	c.t.Helper()
	if _, err := io.WriteString(c.in, strings.Join(command, " ")+"\n"); err != nil {
		c.t.Fatal(err)
	}
	answer := c.answer(30 * time.Second)
	if result, ok := strings.CutPrefix(answer, "ok "); ok {
		return result
	}
	return answer
}

// do a command that must succeed.
func (c *client) do(command ...string) {
	c.t.Helper()
	if got := c.ask(command...); strings.HasPrefix(got, "error") || got == "false" {
		c.t.Fatalf("%s: %v: %s", c.name, command, got)
	}
}

// until a command has a result.
func (c *client) until(want string, command ...string) {
	c.t.Helper()
	got := ""
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if got = c.ask(command...); got == want {
			return
		}
	}
	c.t.Errorf("%s: %v: %q, want %q", c.name, command, got, want)
}

// event waits until the client tells of something. What it tells before is returned.
func (c *client) event(want string) (before []string) {
	c.t.Helper()
	for end := time.After(30 * time.Second); ; {
		select {
		case got := <-c.events:
			if got == want {
				return before
			}
			before = append(before, got)
		case <-end:
			c.t.Fatalf("%s: no event %q, but %q", c.name, want, before)
		}
	}
}

// servers of all protocols, on addresses that stay when the control plane is restarted.
type servers struct {
	*registrytest.Plane
	t                        *testing.T
	nacos, eureka, zookeeper string
	stops                    []func()
}

func serve(t *testing.T) *servers {
	t.Helper()
	for _, tool := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed: no client of the JVM runs", tool)
		}
	}
	s := &servers{Plane: registrytest.New(t), t: t}
	for s.nacos == "" { // gRPC is 1000 above HTTP
		port := s.port("127.0.0.1:0")
		if port >= 64_000 {
			continue
		}
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port+1000)); err == nil {
			_ = l.Close()
			s.nacos = "127.0.0.1:" + strconv.Itoa(port)
		}
	}
	s.eureka, s.zookeeper = "127.0.0.1:"+strconv.Itoa(s.port("127.0.0.1:0")), "127.0.0.1:"+strconv.Itoa(s.port("127.0.0.1:0"))
	s.start()
	return s
}

func (s *servers) listen(address string) net.Listener {
	s.t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// port that is free.
func (s *servers) port(address string) int {
	s.t.Helper()
	l := s.listen(address)
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

func (s *servers) start() {
	s.t.Helper()
	n := nacos.New(s.Core)
	host, port, _ := net.SplitHostPort(s.nacos)
	number, err := strconv.Atoi(port)
	if err != nil {
		s.t.Fatal(err)
	}
	s.stops = []func(){
		s.ServeUntil(s.listen(s.nacos), n.ServeHTTPOn),
		s.ServeUntil(s.listen(net.JoinHostPort(host, strconv.Itoa(number+1000))), n.Serve),
		s.ServeUntil(s.listen(s.eureka), eureka.New(s.Core).Serve),
		s.ServeUntil(s.listen(s.zookeeper), zookeeper.New(s.Core).Serve),
	}
}

// restart the control plane, with its servers; it is away for a moment.
func (s *servers) restart() {
	s.t.Helper()
	for _, stop := range s.stops {
		stop()
	}
	s.Restart()
	s.start()
}

func (s *servers) startNacos() *client   { s.t.Helper(); return start(s.t, "nacos", s.nacos) }
func (s *servers) startCurator() *client { s.t.Helper(); return start(s.t, "curator", s.zookeeper) }
func (s *servers) startSpring(name string) *client {
	s.t.Helper()
	return start(s.t, "eureka", "http://"+s.eureka+"/eureka/", name)
}

// hello is a server that answers with its name, and its port.
func hello(t *testing.T, name string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
	t.Cleanup(server.Close)
	return strconv.Itoa(server.Listener.Addr().(*net.TCPAddr).Port)
}

// kubernetes has a Service with one endpoint.
func (s *servers) kubernetes(name, port string) {
	s.t.Helper()
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Client.Seed(
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
		},
		&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(number)), Protocol: new(corev1.ProtocolTCP)}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}}},
		},
	)
}

// Whatever an instance came by, each client finds it, and the load balancer of Spring calls it. Clients
// hear of changes, and live through a restart of the control plane: nobody sees an empty list, and no call
// fails.
func TestEveryClientFindsAll(t *testing.T) {
	s := serve(t)
	n, consumer := s.startNacos(), s.startNacos()
	c, other := s.startCurator(), s.startCurator()
	app, caller := s.startSpring("by-eureka"), s.startSpring("caller")
	ports := map[string]string{"by-nacos": hello(t, "by-nacos"), "by-curator": hello(t, "by-curator"), "by-kubernetes": hello(t, "by-kubernetes")}
	s.kubernetes("by-kubernetes", ports["by-kubernetes"])
	n.do("register", "by-nacos", "127.0.0.1", ports["by-nacos"])
	c.do("register", "by-curator", "127.0.0.1", ports["by-curator"])
	ports["by-eureka"] = app.ask("port")
	for name, port := range ports {
		for _, from := range []*client{consumer, other, caller} {
			from.until("127.0.0.1:"+port, "list", name)
		}
		caller.until(name, "call", name)
	}

	second := hello(t, "second")
	both := func(name string) string {
		a, b := "127.0.0.1:"+ports[name], "127.0.0.1:"+second
		return name + " " + min(a, b) + "," + max(a, b)
	}
	for _, w := range []*client{consumer, other} {
		for name := range ports {
			w.do("watch", name)
			w.event(name + " 127.0.0.1:" + ports[name])
		}
	}
	n.do("register", "by-curator", "127.0.0.1", second)
	c.do("register", "by-nacos", "127.0.0.1", second)
	for _, w := range []*client{consumer, other} {
		w.event(both("by-curator"))
	}
	for _, w := range []*client{consumer, other} {
		w.do("watch", "by-nacos") // once more: its change may have been before that of the other
		w.until(strings.TrimPrefix(both("by-nacos"), "by-nacos "), "list", "by-nacos")
	}

	s.restart()
	for range 50 { // for longer than clients take to come back
		for name := range ports {
			if got := caller.ask("call", name); got != name && got != "second" {
				t.Errorf("call %s after a restart: %s", name, got)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, w := range []*client{consumer, other} {
		for name, port := range ports {
			want := "127.0.0.1:" + port
			if name == "by-nacos" || name == "by-curator" {
				want = strings.TrimPrefix(both(name), name+" ")
			}
			w.until(want, "list", name)
		}
		for {
			select {
			case got := <-w.events:
				if strings.HasSuffix(got, " ") {
					t.Errorf("%s: told of an empty list: %q", w.name, got)
				}
				continue
			default:
			}
			break
		}
	}
	n.do("deregister", "by-curator", "127.0.0.1", second)
	for _, from := range []*client{consumer, other, caller} {
		from.until("127.0.0.1:"+ports["by-curator"], "list", "by-curator")
	}
}

// A client that ends takes its instances with it; persistent ones stay.
func TestClientsEnd(t *testing.T) {
	s := serve(t)
	consumer := s.startNacos()
	t.Run("clients", func(t *testing.T) {
		sub := *s
		sub.t = t
		n, c, app := sub.startNacos(), sub.startCurator(), sub.startSpring("one")
		n.do("register", "one", "127.0.0.1", "1")
		n.do("persist", "one", "10.1.0.9", "4")
		c.do("register", "one", "127.0.0.1", "2")
		port := app.ask("port")
		consumer.until("10.1.0.9:4,127.0.0.1:1,127.0.0.1:2,127.0.0.1:"+port, "list", "one")
	})
	consumer.until("10.1.0.9:4", "list", "one")
}

// The configuration of Nacos.
func TestConfiguration(t *testing.T) {
	s := serve(t)
	writer, reader := s.startNacos(), s.startNacos()
	reader.do("listen", "orders.yaml")
	for i := range 5 {
		content := "a:" + strconv.Itoa(i)
		writer.do("publish", "orders.yaml", content)
		reader.event("orders.yaml " + content)
		if got := writer.ask("get", "orders.yaml"); got != content {
			t.Errorf("read %q after %q was written", got, content)
		}
	}
	writer.do("remove", "orders.yaml")
	if got := writer.ask("get", "orders.yaml"); got != "null" {
		t.Errorf("read %q after it was removed", got)
	}
	s.restart()
	writer.do("publish", "orders.yaml", "again")
	reader.event("orders.yaml again")
}
