package supervise

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

// replacements is the variable with how often TestReplaced, in a process of its own, still replaces its
// program.
const replacements = "PROXIMA_TEST_REPLACEMENTS"

func init() {
	if os.Getenv(replacements) != "" {
		runtime.LockOSThread() // the first thread is that of main, so a test runs in another one
	}
}

// TestReplaced: a process whose program is replaced by another thread than its first one, as a launched
// Envoy's is, has not ended, although its first thread looks so for a moment.
func TestReplaced(t *testing.T) {
	if left, err := strconv.Atoi(os.Getenv(replacements)); err == nil && left > 0 {
		t.Setenv(replacements, strconv.Itoa(left-1))
		t.Fatal(syscall.Exec(os.Args[0], os.Args, os.Environ()))
	}
	if os.Getenv(replacements) != "" {
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestReplaced$")
	cmd.Env = append(os.Environ(), replacements+"=200")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	started, err := startTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	asked, looked := 0, 0
	for {
		if _, err := startTimeNow(cmd.Process.Pid); errors.Is(err, errZombie) {
			looked++ // as if it had ended
		}
		again, err := startTime(cmd.Process.Pid)
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the process: %v", err)
			}
			t.Logf("asked %d times; %d times it looked as if it had ended", asked, looked)
			return
		default:
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			t.Fatalf("after %d times: %v", asked, err)
		}
		if err == nil && again != started {
			t.Fatalf("the start time is %d, was %d", again, started)
		}
		asked++
	}
}
