package kube_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// commandTimeout bounds a command on a busy machine.
const commandTimeout = 2 * time.Minute

// need skips where the real parts were not asked for: they take minutes to build.
func need(t *testing.T) {
	t.Helper()
	if testing.Short() || os.Getenv("PROXIMA_KUBE") == "" {
		t.Skip("it builds Kubernetes: make interop-kube")
	}
}

// bench is a cluster and a user of it.
type bench struct {
	*cluster.Cluster
	t          *testing.T
	kubeconfig string
	home       string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	need(t)
	c := cluster.Start(t, cluster.Config{})
	return &bench{Cluster: c, t: t, kubeconfig: c.Kubeconfig(t, "admin"), home: t.TempDir()}
}

// run a command with the kubeconfig of an administrator; in is its standard input.
func (b *bench) run(in, path string, args ...string) (out string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewBufferString(in), &stdout, &stderr
	cmd.Env = append(testkit.CleanEnv(), "KUBECONFIG="+b.kubeconfig, "HOME="+b.home)
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %v: %w\n%s%s", path, args, err, stdout.String(), stderr.String())
	}
	return stdout.String() + stderr.String(), nil
}

// kubectl runs the real one, which must succeed.
func (b *bench) kubectl(in string, args ...string) string {
	b.t.Helper()
	out, err := b.run(in, testkit.Kubectl(b.t), args...)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// proxima runs a command of ours, which must succeed.
func (b *bench) proxima(args ...string) string {
	b.t.Helper()
	out, err := b.run("", testkit.Binary(b.t), args...)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// each runs f for all of a list, a few at a time, and returns the errors.
func each[T any](all []T, f func(T) error) []error {
	const atATime = 4
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, atATime)
	for _, v := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := f(v); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return errs
}
