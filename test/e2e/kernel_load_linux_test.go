package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	core "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// The network of a machine whose agent programs the kernel. It is the namespace
// that the test runs in; around it are a client behind it, as a pod is, and one
// more machine, which has all backends: each address of backendRange serves.
const (
	kernelServices = "10.96.0.0/16"
	backendRange   = "10.200.0.0/16"
	backendPort    = 8080
	servicePort    = 80
)

type kernelNet struct {
	here *core.NS
	pod  *netns.NS
}

// backendAt is the i-th backend of the s-th service.
func backendAt(s, i int) string { return fmt.Sprintf("10.200.%d.%d", s, i+1) }

func vipAt(s int) string { return fmt.Sprintf("10.96.1.%d", s+1) }

func layKernelNet(t testing.TB) *kernelNet {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	here, err := core.Current()
	must(err)
	t.Cleanup(func() { _ = here.Close() })
	n := &kernelNet{here: here, pod: netns.New(t, "pmus-pod")}
	far := netns.New(t, "pmus-far")
	must(here.SetSysctl("net.ipv4.ip_forward", "1"))
	for _, peer := range []struct {
		ns          *netns.NS
		link        string
		ours, their string
	}{{n.pod, "pmus-pod", "192.0.2.1/30", "192.0.2.2/30"}, {far, "pmus-far", "198.51.100.1/30", "198.51.100.2/30"}} {
		must(core.Connect(
			core.End{NS: here, Link: peer.link, Addrs: []netip.Prefix{netip.MustParsePrefix(peer.ours)}},
			core.End{NS: peer.ns.NS, Link: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix(peer.their)}}))
		peer.ns.Route("0.0.0.0/0", netip.MustParsePrefix(peer.ours).Addr().String())
	}
	// The kernel needs a route before it translates; machines have a default one.
	must(here.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("198.51.100.2")))
	far.Run("ip", "route", "add", "local", backendRange, "dev", "lo")
	// A virtual address that is not translated must fail, and at once.
	far.Run("ip", "route", "add", "unreachable", kernelServices)
	ln, err := far.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", backendPort))
	must(err)
	t.Cleanup(func() { _ = ln.Close() })
	go serveBackends(ln)
	return n
}

// serveBackends says which address was asked, then repeats what it hears.
func serveBackends(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			host, _, _ := net.SplitHostPort(c.LocalAddr().String())
			_, _ = fmt.Fprintln(c, host)
			_, _ = io.Copy(c, c)
		}()
	}
}

// load is traffic of clients to virtual addresses until end.
type load struct {
	stopping chan struct{}
	stop     func()
	running  sync.WaitGroup

	mu       sync.Mutex
	failures []string
	made     int // connections
	echoed   int // answers within sessions
	resent   int // connections whose first packet was lost
	slowest  time.Duration
	answered map[string]int
}

// bound of one exchange: it distinguishes a hang from slowness, nothing is measured by it.
const bound = 5 * time.Second

// startLoad sends requests to each address from the machine itself and from the pod,
// on long and on short connections.
func (n *kernelNet) startLoad(t testing.TB, addrs ...string) *load {
	t.Helper()
	l := &load{stopping: make(chan struct{}), answered: map[string]int{}}
	l.stop = sync.OnceFunc(func() { close(l.stopping) })
	for _, a := range addrs {
		for _, from := range []*core.NS{n.here, n.pod.NS} {
			established := make(chan struct{})
			l.running.Go(func() { l.hold(from, a, established) })
			l.running.Go(func() { l.knock(from, a) })
			select {
			case <-established:
			case <-time.After(bound):
				t.Fatalf("no session from %s to %s", from.Name(), a)
			}
		}
	}
	t.Cleanup(func() { l.stop(); l.running.Wait() })
	return l
}

// end stops the traffic and waits for what is under way: one that hangs has
// failed, too. What failed fails the test.
func (l *load) end(t testing.TB) {
	t.Helper()
	l.stop()
	l.running.Wait()
	t.Logf("%d connections, slowest %s; %d exchanges in sessions that lasted", l.made, l.slowest.Round(time.Microsecond), l.echoed)
	if l.made == 0 || l.echoed == 0 {
		t.Error("there was no traffic")
	}
	if l.resent > 0 {
		t.Errorf("the first packet of %d connections was lost", l.resent)
	}
	if len(l.failures) > 0 {
		t.Errorf("%d failures, the first ones:\n%s", len(l.failures), strings.Join(l.failures[:min(5, len(l.failures))], "\n"))
	}
}

func (l *load) fail(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, fmt.Sprintf("%s %s: %v", time.Now().Format("05.000"), what, err))
}

// count of connections so far.
func (l *load) count() (made, failed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.made, len(l.failures)
}

// knock makes one connection after another.
func (l *load) knock(from *core.NS, to string) {
	for l.pause(4 * time.Millisecond) {
		began := time.Now()
		c, name, err := ask(context.Background(), from, to)
		if err != nil {
			l.fail("new connection from "+from.Name()+" to "+to, err)
			continue
		}
		took := time.Since(began)
		again := retransmitted(c)
		_ = c.(*net.TCPConn).SetLinger(0) // no TIME_WAIT: ports are few
		_ = c.Close()
		l.mu.Lock()
		l.made++
		l.answered[name]++
		l.slowest = max(l.slowest, took)
		if again {
			l.resent++
		}
		l.mu.Unlock()
	}
}

// hold uses one connection all the time.
func (l *load) hold(from *core.NS, to string, established chan<- struct{}) {
	c, _, err := ask(context.Background(), from, to)
	if err != nil {
		l.fail("session from "+from.Name()+" to "+to, err)
		return
	}
	defer func() { _ = c.Close() }()
	close(established)
	for l.pause(5 * time.Millisecond) {
		if err := echo(c); err != nil {
			l.fail("session from "+from.Name()+" to "+to, err)
			return
		}
		l.mu.Lock()
		l.echoed++
		l.mu.Unlock()
	}
}

func (l *load) pause(d time.Duration) bool {
	select {
	case <-l.stopping:
		return false
	case <-time.After(d):
		return true
	}
}

// ask connects, reads the name of the backend, and has it echo a message.
func ask(ctx context.Context, from *core.NS, to string) (net.Conn, string, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	c, err := from.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, "", err
	}
	_ = c.SetDeadline(time.Now().Add(bound))
	line, err := bufio.NewReader(io.LimitReader(c, 64)).ReadString('\n')
	if err == nil {
		err = echo(c)
	}
	if err != nil {
		_ = c.Close()
		return nil, "", err
	}
	return c, strings.TrimSpace(line), nil
}

func echo(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(bound))
	if _, err := c.Write([]byte("ping")); err != nil {
		return err
	}
	buf := make([]byte, 4)
	if _, err := io.ReadFull(c, buf); err != nil {
		return err
	}
	if string(buf) != "ping" {
		return fmt.Errorf("answered %q", buf)
	}
	return nil
}

// retransmitted reports whether the connection lost a packet, which a fresh one on
// a quiet network does only if rules were missing for a moment.
func retransmitted(c net.Conn) bool {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return false
	}
	var info *unix.TCPInfo
	_ = raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	return err == nil && info != nil && info.Total_retrans > 0
}

// cluster is the API of a control plane, for tests that write fast.
type cluster struct {
	t      testing.TB
	client kubernetes.Interface
}

func (p *plane) cluster() *cluster {
	p.t.Helper()
	return &cluster{t: p.t, client: kubernetes.NewForConfigOrDie(p.config())}
}

// addService makes the s-th service, whose endpoints are written by the test.
func (c *cluster) addService(s int) {
	c.t.Helper()
	if err := c.tryService(s, nil); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) tryService(s int, change func(*corev1.Service)) error {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", s), Namespace: "default"},
		Spec:       corev1.ServiceSpec{ClusterIP: vipAt(s), Ports: []corev1.ServicePort{{Name: "p", Port: servicePort}}},
	}
	if change != nil {
		change(svc)
	}
	_, err := c.client.CoreV1().Services("default").Create(c.t.Context(), svc, metav1.CreateOptions{})
	return err
}

// sliceOf the s-th service, with the backends of these numbers.
func sliceOf(s int, backends ...int) *discoveryv1.EndpointSlice {
	name, port, protocol := "p", int32(backendPort), corev1.ProtocolTCP
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprint("s", s, "-1"),
			Namespace: "default",
			Labels:    map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("s", s)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	for _, i := range backends {
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: []string{backendAt(s, i)}})
	}
	return out
}

// put creates or replaces a slice.
func (c *cluster) put(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	slices := c.client.DiscoveryV1().EndpointSlices("default")
	_, err := slices.Update(ctx, slice, metav1.UpdateOptions{})
	if isNotFound(err) {
		_, err = slices.Create(ctx, slice, metav1.CreateOptions{})
	}
	return err
}

func isNotFound(err error) bool {
	var status interface{ Status() metav1.Status }
	return errors.As(err, &status) && status.Status().Reason == metav1.StatusReasonNotFound
}

func (c *cluster) mustPut(slice *discoveryv1.EndpointSlice) {
	c.t.Helper()
	if err := c.put(c.t.Context(), slice); err != nil {
		c.t.Fatal(err)
	}
}
