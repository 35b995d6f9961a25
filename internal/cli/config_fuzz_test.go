package cli

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/problem"
)

// FuzzConfigFile reads --config: it sets flags or is refused, in bounded time.
func FuzzConfigFile(f *testing.F) {
	for _, seed := range []string{
		"zone: a\nservice-cidr: [10.96.0.0/16, \"fd00:96::/108\"]\nlog-level: debug\n",
		"api-address: 127.0.0.1:6443\ngrpc-port: 6444\n", "grpc-port: -1e400\n", "mode: {a: b}\n", "mode: [[[a]]]\n", "unknown: 1\n",
		"config: x\n", "log-level:\n", "renew-expired: 1h\nown-cgroup: maybe\n", "a: &a [*a]\n", "- a\n", "\x00", "zone: a\nzone: b\n", "",
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "proxima.yaml")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd, _, err := newRoot(&settings{}).Find([]string{"control-plane"})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		var coded *problem.Error
		if err := fromFile(cmd, path); err != nil && !errors.As(err, &coded) {
			t.Errorf("%q: an error without a code: %v", data, err)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%d bytes took %s", len(data), took)
		}
	})
}
