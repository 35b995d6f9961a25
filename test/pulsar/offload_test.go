//go:build interop

package pulsar

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// network is a proxy before the object store, with faults of uploads.
type network struct {
	mode    atomic.Int32
	uploads chan struct{} // an upload has begun, if mode is not pass
}

const (
	pass    = iota
	stall   // what is uploaded does not arrive
	cut     // the connection ends in the midst of an upload
	corrupt // a byte of an upload is another
	slow    // answers take half a second
)

func (n *network) ServeHTTP(w http.ResponseWriter, r *http.Request, next http.Handler) {
	mode := n.mode.Load()
	if mode == slow {
		time.Sleep(500 * time.Millisecond) // the fault itself
	}
	if r.Method != http.MethodPut || mode == pass || mode == slow {
		next.ServeHTTP(w, r)
		return
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, 2000)) // beyond the signature of a chunk
	select {
	case n.uploads <- struct{}{}:
	default:
	}
	switch mode {
	case stall:
		<-r.Context().Done()
	case cut:
		panic(http.ErrAbortHandler)
	case corrupt:
		body[len(body)/2] ^= 1
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), r.Body))
		next.ServeHTTP(w, r)
	}
}

// startMoto runs the S3 server moto with an empty bucket, and returns its URL.
func startMoto(t *testing.T) string {
	t.Helper()
	python := os.Getenv("PROXIMA_PULSAR_PYTHON")
	if python == "" {
		t.Skip("there is no python3, or PyPI does not answer: no S3 server runs")
	}
	port := strconv.Itoa(testkit.FreePort(t))
	cmd := exec.Command(filepath.Join(filepath.Dir(python), "moto_server"), "-H", "127.0.0.1", "-p", port)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	at := "http://127.0.0.1:" + port
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if _, err := s3(http.MethodPut, at+"/bucket", nil); err == nil {
			return at
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func s3(method, at string, body []byte) ([]byte, error) {
	req, err := http.NewRequest(method, at, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	// moto asks who reads, and checks no signature.
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, at, resp.Status, answer)
	}
	return answer, err
}

// A control plane that is killed again and again while it offloads to an S3 server, over a network that fails, loses nothing; damage
// at the server is told; the state at a time comes from there alone.
func TestOffloadToS3(t *testing.T) {
	store := startMoto(t)
	target, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	between := &network{uploads: make(chan struct{}, 1)}
	next := httputil.NewSingleHostReverseProxy(target)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { between.ServeHTTP(w, r, next) }))
	t.Cleanup(proxy.CloseClientConnections)
	env := []string{"AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret"}
	location := "s3://bucket/proxima?region=us-east-1&endpoint=" + proxy.URL
	p := newControlPlane(t, env, "--feed-offload", location, "--feed-offload-after", "1ns")
	token := strings.TrimSpace(p.proxima("token", "create", "--kind", "read-only", "--name", "inventory"))
	c := must(pulsar.NewClient(pulsar.ClientOptions{
		URL: "pulsar://127.0.0.1:" + strconv.Itoa(p.port), Authentication: pulsar.NewAuthenticationToken(token), OperationTimeout: time.Minute,
	}))(t)
	defer c.Close()
	namespace := must(p.namespace(t.Context(), c))(t)
	backup := filepath.Join(t.TempDir(), "backup")
	p.proxima("backup", "--with-keys", backup)
	var names []string
	put := func(n int) {
		t.Helper()
		for range n {
			name := fmt.Sprintf("s%03d", len(names))
			if err := p.put(t.Context(), namespace, name); err != nil {
				t.Fatal(err)
			}
			names = append(names, name)
		}
	}
	complete := func() {
		t.Helper()
		r := must(c.CreateReader(pulsar.ReaderOptions{Topic: "persistent://default/" + namespace + "/services", StartMessageID: pulsar.EarliestMessageID()}))(t)
		defer r.Close()
		for _, name := range names {
			if m := next10(t, r); m.Key() != name || m.Properties()["snapshot"] != "" {
				t.Fatalf("got %s %v, want the change of %s", m.Key(), m.Properties(), name)
			}
		}
	}
	var moment time.Time
	var known int
	for round, mode := range []int32{stall, cut, stall, corrupt, stall} {
		put(20)
		between.mode.Store(mode)
		done := make(chan error, 1)
		go func() { _, err := p.try("feed", "offload"); done <- err }()
		select {
		case <-between.uploads:
		case <-time.After(30 * time.Second):
			t.Fatal("no upload begins")
		}
		if mode == corrupt {
			if err := <-done; err == nil || !strings.Contains(strings.ToLower(err.Error()), "checksum") && !strings.Contains(err.Error(), "MD5") && !strings.Contains(err.Error(), "BadDigest") {
				t.Errorf("a byte is another: %v", err)
			}
		}
		p.process.Kill()
		between.mode.Store(pass)
		p.start()
		if mode != corrupt {
			<-done
		}
		if round == 2 {
			p.proxima("feed", "offload")
			time.Sleep(10 * time.Millisecond) // a time of its own, in ms
			moment, known = time.Now(), len(names)
			time.Sleep(10 * time.Millisecond)
		}
	}
	between.mode.Store(slow)
	p.proxima("feed", "offload")
	between.mode.Store(pass)
	if out := p.proxima("feed", "verify"); !strings.Contains(out, "are whole") {
		t.Errorf("verify: %s", out)
	}
	complete()

	// Damage at the server is told, by verify and by who reads it.
	answer, err := s3(http.MethodGet, store+"/bucket?list-type=2&prefix=proxima/", nil)
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Contents []struct{ Key string }
	}
	if err := xml.Unmarshal(answer, &list); err != nil || len(list.Contents) < 3 {
		t.Fatalf("%d objects: %v", len(list.Contents), err)
	}
	at := store + "/bucket/" + (&url.URL{Path: list.Contents[1].Key}).EscapedPath()
	whole, err := s3(http.MethodGet, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(whole)
	damaged[len(damaged)/2] ^= 1
	if _, err := s3(http.MethodPut, at, damaged); err != nil {
		t.Fatal(err)
	}
	if out, err := p.try("feed", "verify"); err == nil || !strings.Contains(err.Error(), filepath.Base(list.Contents[1].Key)) {
		t.Errorf("verify of a damaged object: %s %v", out, err)
	}
	if _, err := s3(http.MethodPut, at, whole); err != nil {
		t.Fatal(err)
	}
	p.proxima("feed", "verify")

	// Restored at a time, from a backup of before and what is at the server.
	restored := t.TempDir()
	p.process.Kill()
	cmd := exec.CommandContext(t.Context(), p.binary, "restore", backup, "--at", moment.UTC().Format("2006-01-02T15:04:05.000Z"), "--data-dir", restored, "--feed-offload", location)
	cmd.Env = append(testkit.CleanEnv(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p.dir, p.kubeconfig = restored, filepath.Join(restored, "kubeconfig")
	p.start()
	services, err := p.objects.CoreV1().Services(namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil || len(services.Items) != known {
		t.Errorf("restored: %d Services, want %d; %v", len(services.Items), known, err)
	}
}

func next10(t *testing.T, r pulsar.Reader) pulsar.Message {
	t.Helper()
	return next(t, readerReceiver{r})
}
