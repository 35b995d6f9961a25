package kube_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// commandTimeout bounds a command on a busy machine.
const commandTimeout = 2 * time.Minute

// insideVariable is set in the process that runs the tests: it is in a network namespace of
// its own, with the loopback interface alone, so that nothing leaves the machine.
const insideVariable = "PROXIMA_KUBE_INSIDE"

// address of the API server in that namespace. A loopback address is no endpoint.
const address = "192.0.2.1"

func TestMain(m *testing.M) {
	cluster.EnterContainer()
	if name := os.Getenv(podVariable); name != "" {
		os.Exit(runPod(name))
	}
	if os.Getenv("PROXIMA_KUBE") == "" || os.Getuid() != 0 {
		os.Exit(m.Run())
	}
	if os.Getenv(insideVariable) == "" {
		os.Exit(inside())
	}
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"address", "add", address + "/32", "dev", "lo"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "ip %v: %v\n%s", args, err, out)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// inside runs this program again, in a new network namespace. What has to be built is built
// before: modules may have to be fetched.
func inside() int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := cluster.Build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// need skips where the real parts were not asked for: they take minutes to build.
func need(t *testing.T) {
	t.Helper()
	if testing.Short() || os.Getenv("PROXIMA_KUBE") == "" {
		t.Skip("it builds Kubernetes: make interop-kube")
	}
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
}

// bench is a cluster and a user of it.
type bench struct {
	*cluster.Cluster
	t          *testing.T
	kubeconfig string
	home       string
	// starting and started are when the API server was, again.
	starting, started time.Time
}

// startAgain starts the API server that KillAPI ended.
func (b *bench) startAgain() {
	b.t.Helper()
	b.starting = time.Now()
	b.StartAPI(b.t)
	b.started = time.Now().Add(time.Second)
	b.t.Cleanup(func() { b.KillAPI(b.t) }) // it would wait for the watches of those that end after it
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return newBenchOf(t, cluster.Config{Host: address})
}

func newBenchOf(t *testing.T, cfg cluster.Config) *bench {
	t.Helper()
	need(t)
	c := cluster.Start(t, cfg)
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
