package cli

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestCompletionDoesNotWait: a server that never answers completes nothing, and
// does not block the completion.
func TestCompletionDoesNotWait(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			go io.Copy(io.Discard, conn)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })

	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["a"] = &clientcmdapi.Cluster{Server: fmt.Sprintf("http://%s", l.Addr())}
	cfg.Contexts["a"] = &clientcmdapi.Context{Cluster: "a"}
	cfg.CurrentContext = "a"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"get", "services", ""}, {"token", "revoke", ""},
	} {
		var out, errs bytes.Buffer
		s := &settings{io: IO{Out: &out, Err: &errs, Env: environment{"PROXIMA_KUBECONFIG": file}.lookup}}
		if code := execute(t.Context(), s, append([]string{"__complete"}, args...)); code != 0 || out.String() != ":4\n" {
			t.Errorf("%v: exit code %d, %q, %q", args, code, &out, &errs)
		}
	}
}
