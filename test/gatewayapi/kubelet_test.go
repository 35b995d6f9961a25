package gatewayapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// kubeletPort is where the API server asks a node that names no other port.
const kubeletPort = "10250"

// execTimeout bounds a command in a Pod: a batch of 500 requests on a busy machine.
const execTimeout = 2 * time.Minute

// kubelet answers the API server on a node for what package cluster leaves out: commands in Pods
// (https://kubernetes.io/docs/reference/node/kubelet-api is the kubelet's own; the path is that of the
// API server's proxy, /exec/NAMESPACE/POD/CONTAINER).
type kubelet struct {
	t      *testing.T
	node   *cluster.Node
	client kubernetes.Interface
	// dns is the address of the cluster's names (--cluster-dns).
	dns string
	dir string
	// program of all containers; a command is its arguments.
	program string
}

// serve until the test ends.
func (k *kubelet) serve() {
	k.t.Helper()
	l, err := k.node.NS.Listen("tcp", k.node.Addr+":"+kubeletPort)
	if err != nil {
		k.t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(k)
	_ = server.Listener.Close()
	server.Listener = l
	server.StartTLS() // the API server does not verify kubelets unless it is told an authority
	k.t.Cleanup(server.Close)
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) != 4 || parts[0] != "exec" {
		http.NotFound(w, r)
		return
	}
	pod, err := k.client.CoreV1().Pods(parts[1]).Get(r.Context(), parts[2], metav1.GetOptions{})
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		k.t.Logf("node %s: %v", k.node.Name, err)
		return // it has answered
	}
	k.exec(w, r, pod)
}

// arrival of a stream; it can be used when sent is closed.
type arrival struct {
	httpstream.Stream
	sent <-chan struct{}
}

// exec runs the command of a request in a Pod, on the streams that the client opens.
func (k *kubelet) exec(w http.ResponseWriter, r *http.Request, pod *corev1.Pod) {
	query := r.URL.Query()
	wanted := 1 // the stream of errors
	for _, name := range []string{"input", "output", "error"} {
		if query.Get(name) == "1" || query.Get(name) == "true" {
			wanted++
		}
	}
	arrivals := make(chan arrival, wanted)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, sent <-chan struct{}) error {
		select {
		case arrivals <- arrival{stream, sent}:
			return nil
		default:
			return errors.New("more streams than were announced")
		}
	})
	if conn == nil {
		return // it has answered
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(r.Context(), execTimeout)
	defer cancel()
	streams := map[string]httpstream.Stream{}
	for range wanted {
		select {
		case a := <-arrivals:
			<-a.sent
			streams[a.Headers().Get(corev1.StreamType)] = a.Stream
		case <-ctx.Done():
			return
		}
	}
	stdout, stderr, err := k.run(ctx, pod, query["command"])
	for name, text := range map[string][]byte{corev1.StreamTypeStdout: stdout, corev1.StreamTypeStderr: stderr} {
		if s := streams[name]; s != nil {
			_, _ = s.Write(text)
		}
	}
	if s := streams[corev1.StreamTypeError]; s != nil {
		_ = json.NewEncoder(s).Encode(statusOf(err, stderr))
	}
	for _, s := range streams {
		_ = s.Close()
	}
}

// statusOf a command that has ended.
func statusOf(err error, stderr []byte) *metav1.Status {
	if err == nil {
		return &metav1.Status{Status: metav1.StatusSuccess}
	}
	return &metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: err.Error() + ": " + string(stderr),
		Code: http.StatusInternalServerError,
	}
}

// run a command in the network namespace of a Pod, with the resolver's file that kubelet writes for it
// (dnsPolicy ClusterFirst).
func (k *kubelet) run(ctx context.Context, pod *corev1.Pod, command []string) (stdout, stderr []byte, err error) {
	ns := k.node.PodNamespace(pod.UID)
	if ns == nil {
		return nil, nil, errors.New("the Pod does not run")
	}
	file := filepath.Join(k.dir, pod.Namespace+".resolv.conf")
	text := "nameserver " + k.dns + "\nsearch " + pod.Namespace + ".svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
	if err := writeOnce(file, text); err != nil {
		return nil, nil, err
	}
	args := append([]string{"--mount", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, file, k.program}, command...)
	cmd := exec.CommandContext(ctx, "unshare", args...) // the mounts are of the command alone
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(os.Environ(), "HOSTNAME="+pod.Name)
	if err := ns.Start(cmd); err != nil {
		return nil, nil, err
	}
	err = cmd.Wait()
	return out.Bytes(), errs.Bytes(), err
}

// writeOnce makes a file that several commands use, complete when it is there.
func writeOnce(path, text string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), "new")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close(), os.Rename(f.Name(), path))
}

// schedule binds Pods to nodes by turns, as there is no scheduler, until the test ends.
func schedule(t *testing.T, client kubernetes.Interface, nodes []string) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for turn := 0; ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
			if err != nil {
				continue
			}
			for _, p := range pods.Items {
				if p.Namespace == ownNamespace {
					continue // this test runs what the manifests would
				}
				turn++
				err := client.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{
					ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: nodes[turn%len(nodes)]},
				}, metav1.CreateOptions{})
				if err != nil && ctx.Err() == nil {
					t.Logf("bind %s: %v", p.Name, err)
				}
			}
		}
	}()
}
