package gatewayapi

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// insideVariable is set in the process that runs the tests: it is in a network namespace of its own,
// with the loopback interface alone, so that nothing leaves the machine.
const insideVariable = "PROXIMA_GATEWAYAPI_INSIDE"

// address of the API server in that namespace. A loopback address is no endpoint.
const address = "192.0.2.1"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case echoServer:
			exit(serve(os.Args[2:]))
		case echoClient:
			exit(call(os.Args[2:]))
		}
	}
	if os.Getenv("PROXIMA_GATEWAYAPI") == "" || os.Getuid() != 0 {
		os.Exit(m.Run())
	}
	if os.Getenv(insideVariable) == "" {
		os.Exit(inside())
	}
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"address", "add", address + "/32", "dev", "lo"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			exit(fmt.Errorf("ip %v: %w\n%s", args, err, out))
		}
	}
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// inside runs this program again, in a new network namespace. What has to be built is built before:
// modules may have to be fetched.
func inside() int {
	cmd, err := again()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
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

func again() (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	// The versions of the cluster's programs are those of that module.
	if err := os.Chdir(filepath.Join("..", "kube")); err != nil {
		return nil, err
	}
	if err := errors.Join(cluster.Build(), os.Chdir(here)); err != nil {
		return nil, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}
