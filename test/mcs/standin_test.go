package mcs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
)

// standIn is in front of the API of a zone's control plane. All requests go through to it,
// but for what Kubernetes has and Proxima has not: Deployments and StatefulSets become Pods,
// Pods become listeners on an address of the zone's node, and a command in a Pod is run on
// that node.
type standIn struct {
	t    *testing.T
	url  string
	zone string
	// node that all pods are on, as the lab calls it, and its namespace.
	nodeName string
	node     *netns.NS
	site     byte
	client   kubernetes.Interface
	api      http.Handler
	tools    string

	mu   sync.Mutex
	last byte // address given to a pod
}

func newStandIn(t *testing.T, l *lab.Lab, name, zone string, site int) *standIn {
	letter := strings.TrimPrefix(zone, "zone-")
	s := &standIn{t: t, zone: zone, nodeName: letter + "-1", site: byte(site), last: 100}
	s.node = s.open("pxlab-" + name + "-" + s.nodeName)
	plane := s.open("pxlab-" + name + "-control-" + letter)
	path, err := l.KubeconfigOf(zone)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	config.Dial, config.QPS = plane.DialContext, -1
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	s.api = &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
	}
	s.makeTools()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *standIn) open(name string) *netns.NS {
	ns, err := netns.Open(name)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// makeTools makes what the images of the suite have and this machine may not: nc, which is
// this test's own (see connect), and the configuration of the resolver.
func (s *standIn) makeTools() {
	s.tools = s.t.TempDir()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	nc := fmt.Sprintf("#!/bin/sh\n%s=1 exec %s \"$@\"\n", connectVariable, self)
	if err := os.WriteFile(filepath.Join(s.tools, "nc"), []byte(nc), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.tools, "resolv.conf"), []byte("nameserver 127.0.0.1\n"), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// ServeHTTP answers for the zone's API.
func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var err error
	switch {
	case r.Method == http.MethodPost && match(parts, "apis", "apps", "v1", "namespaces", "*", "deployments"):
		err = s.deployment(w, r, parts[4])
	case r.Method == http.MethodPost && match(parts, "apis", "apps", "v1", "namespaces", "*", "statefulsets"):
		err = s.statefulSet(w, r, parts[4])
	case r.Method == http.MethodPost && match(parts, "api", "v1", "namespaces", "*", "pods"):
		err = s.requestPod(w, r, parts[3])
	case match(parts, "api", "v1", "namespaces", "*", "pods", "*", "exec"):
		err = s.exec(w, r)
	default:
		s.api.ServeHTTP(w, r)
	}
	if err != nil {
		s.t.Logf("%s: %s %s: %v", s.zone, r.Method, r.URL.Path, err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func match(parts []string, pattern ...string) bool {
	if len(parts) != len(pattern) {
		return false
	}
	for i := range parts {
		if pattern[i] != "*" && pattern[i] != parts[i] {
			return false
		}
	}
	return true
}

// decode an object in whichever of the API's encodings it is.
func decode(r *http.Request, into runtime.Object) error {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	_, _, err = scheme.Codecs.UniversalDeserializer().Decode(data, nil, into)
	return err
}

func answer(w http.ResponseWriter, object any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	return json.NewEncoder(w).Encode(object)
}

func (s *standIn) deployment(w http.ResponseWriter, r *http.Request, namespace string) error {
	var d appsv1.Deployment
	if err := decode(r, &d); err != nil {
		return err
	}
	for i := range *d.Spec.Replicas {
		pod := podOf(&d.Spec.Template, namespace, fmt.Sprintf("%s-%d", d.Name, i))
		if err := s.start(r.Context(), pod); err != nil {
			return err
		}
	}
	return answer(w, &d)
}

func (s *standIn) statefulSet(w http.ResponseWriter, r *http.Request, namespace string) error {
	var d appsv1.StatefulSet
	if err := decode(r, &d); err != nil {
		return err
	}
	for i := range *d.Spec.Replicas {
		pod := podOf(&d.Spec.Template, namespace, fmt.Sprintf("%s-%d", d.Name, i))
		pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, d.Spec.ServiceName
		if err := s.start(r.Context(), pod); err != nil {
			return err
		}
	}
	return answer(w, &d)
}

func podOf(template *corev1.PodTemplateSpec, namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: maps.Clone(template.Labels)},
		Spec:       *template.Spec.DeepCopy(),
	}
}

// start a pod of the hello service: an address of its own on the node, and a listener there
// that answers as the image of the suite does.
func (s *standIn) start(ctx context.Context, pod *corev1.Pod) error {
	s.mu.Lock()
	s.last++
	address := netip.AddrFrom4([4]byte{10, 200, s.site, s.last})
	s.mu.Unlock()
	if err := s.node.AddAddr("eth0", netip.PrefixFrom(address, 24)); err != nil {
		return err
	}
	if err := s.listen(address); err != nil {
		return err
	}
	_, err := s.run(ctx, pod, address)
	return err
}

// helloPort is that of the suite's service.
const helloPort = 42

func (s *standIn) listen(address netip.Addr) error {
	at, text := netip.AddrPortFrom(address, helloPort).String(), []byte("pod ip "+address.String()+"\n")
	l, err := s.node.Listen("tcp", at)
	if err != nil {
		return err
	}
	s.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = c.Write(text)
				_, _ = io.Copy(io.Discard, c) // until the client has had its say
			}()
		}
	}()
	p, err := s.node.ListenPacket("udp", at)
	if err != nil {
		return err
	}
	s.t.Cleanup(func() { _ = p.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			_, from, err := p.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = p.WriteTo(text, from)
			}
		}
	}()
	return nil
}

// requestPod is where the suite runs its commands: it has the address of the node.
func (s *standIn) requestPod(w http.ResponseWriter, r *http.Request, namespace string) error {
	var pod corev1.Pod
	if err := decode(r, &pod); err != nil {
		return err
	}
	pod.Namespace, pod.Spec.HostNetwork = namespace, true
	made, err := s.run(r.Context(), &pod, netip.AddrFrom4([4]byte{10, 200, s.site, 11}))
	if err != nil {
		return err
	}
	return answer(w, made)
}

// run writes a pod and its status, as scheduler and kubelet would.
func (s *standIn) run(ctx context.Context, pod *corev1.Pod, address netip.Addr) (*corev1.Pod, error) {
	pod.Spec.NodeName = s.nodeName
	made, err := s.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	made.Status.Phase = corev1.PodRunning
	made.Status.PodIP, made.Status.PodIPs = address.String(), []corev1.PodIP{{IP: address.String()}}
	made.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
	}
	return s.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{})
}

// execTimeout is longer than that of the suite.
const execTimeout = 10 * time.Second

// exec runs a command on the node: in its network, with its resolver, with nc in the path.
func (s *standIn) exec(w http.ResponseWriter, r *http.Request) error {
	const protocol = "v4.channel.k8s.io"
	if _, err := httpstream.Handshake(r, w, []string{protocol}); err != nil {
		return err
	}
	type arrival struct {
		httpstream.Stream
		sent <-chan struct{}
	}
	arrivals := make(chan arrival, 4)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, sent <-chan struct{}) error {
		arrivals <- arrival{stream, sent}
		return nil
	})
	if conn == nil {
		return nil // it has answered
	}
	defer conn.Close()
	streams := map[string]httpstream.Stream{}
	timeout := time.After(execTimeout)
	for wanted := 3; wanted > 0; wanted-- { // error, stdout and stderr
		select {
		case a := <-arrivals:
			<-a.sent
			streams[a.Headers().Get(corev1.StreamType)] = a.Stream
		case <-timeout:
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), execTimeout)
	defer cancel()
	args := append([]string{"--mount", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`,
		filepath.Join(s.tools, "resolv.conf")}, r.URL.Query()["command"]...)
	cmd := exec.CommandContext(ctx, "unshare", args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(os.Environ(), "PATH="+s.tools+":"+os.Getenv("PATH"))
	err := s.node.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if stdout := streams[corev1.StreamTypeStdout]; stdout != nil {
		_, _ = stdout.Write(out.Bytes())
	}
	status := metav1.Status{Status: metav1.StatusSuccess}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		status = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
	} // the suite judges what a command printed, and drops that with an exit code
	if stream := streams[corev1.StreamTypeError]; stream != nil {
		_ = json.NewEncoder(stream).Encode(status)
	}
	for _, stream := range streams {
		_ = stream.Close()
	}
	return nil
}
