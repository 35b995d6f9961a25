package modes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/proxy/ebpf"
)

const (
	// selfTestTimeout bounds the self-test, which takes 0.1 s and the start of a program.
	selfTestTimeout = 10 * time.Second
	// selfTestCgroup, and the number of the process that made it, are the name of its cgroup. Those that begin with
	// proxima- are of workloads, and agents remove empty ones.
	selfTestCgroup = "self-test-proxima-"
	// A cgroup can be removed a moment after its last process has ended.
	selfTestRemovals = 100
	selfTestPause    = 5 * time.Millisecond
)

// EstimateLayer finds out what the eBPF layer would save above a mode of this machine, or why it would not work. It blocks for
// about 0.1 s, changes nothing that traffic meets, and leaves nothing: program, with its first arguments, is this program started
// again in a network namespace and a cgroup of its own, with the name of the mode and the directory of the cgroup as further
// arguments, and has to call [MeasureLayer]. cgroupDir is as in [Config]; empty: the root of the hierarchy.
func EstimateLayer(ctx context.Context, program []string, mode, cgroupDir string) ebpf.Estimate {
	e, err := estimateLayer(ctx, program, mode, cgroupDir)
	if err != nil {
		return ebpf.Estimate{Unavailable: err.Error()}
	}
	return e
}

func estimateLayer(ctx context.Context, program []string, mode, dir string) (e ebpf.Estimate, err error) {
	if !TakesLayer(mode) {
		return e, fmt.Errorf("it is a layer above %s or %s, and neither works", nftablesName, iptablesName)
	}
	if dir == "" {
		if host, err := ebpf.OnHost(); err != nil || !host {
			return e, errors.Join(errors.New("this agent is not in the network namespace of the host, so it has to be given a cgroup (--cgroup)"), err)
		}
		if dir, err = cgroup.Root(); err != nil {
			if none := new(cgroup.UnavailableError); errors.As(err, &none) {
				err = fmt.Errorf("%s (in a container, mount the host's file system of cgroups, as the chart does with agent.mode: ebpf)", none.Reason)
			}
			return e, err
		}
	}
	sweepSelfTests(dir)
	dir = filepath.Join(dir, selfTestCgroup+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return e, fmt.Errorf("a cgroup for its self-test cannot be made: %w", err)
	}
	defer func() { err = errors.Join(err, removeSelfTest(dir)) }()
	f, err := os.Open(dir)
	if err != nil {
		return e, err
	}
	defer func() { _ = f.Close() }()
	ctx, cancel := context.WithTimeout(ctx, selfTestTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe") // also where the file was replaced
	cmd.Args = append(program[:len(program):len(program)], mode, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET, UseCgroupFD: true, CgroupFD: int(f.Fd()), Pdeathsig: unix.SIGKILL,
	}
	runtime.LockOSThread() // the signal is sent when the thread ends that started it
	defer runtime.UnlockOSThread()
	out, err := cmd.Output()
	if err != nil {
		return e, fmt.Errorf("its self-test cannot be run (CAP_SYS_ADMIN, and Linux 5.7 or later): %w", err)
	}
	if err := json.Unmarshal(out, &e); err != nil {
		return e, fmt.Errorf("result of its self-test: %w", err)
	}
	return e, nil
}

// sweepSelfTests removes cgroups of agents that were killed meanwhile.
func sweepSelfTests(in string) {
	found, _ := filepath.Glob(filepath.Join(in, selfTestCgroup+"*"))
	for _, dir := range found {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), selfTestCgroup))
		if err == nil && (pid == os.Getpid() || errors.Is(unix.Kill(pid, 0), unix.ESRCH)) {
			_ = os.Remove(dir)
		}
	}
}

func removeSelfTest(dir string) error {
	err := os.Remove(dir)
	for i := 0; errors.Is(err, unix.EBUSY) && i < selfTestRemovals; i++ {
		backoff.Sleep(context.Background(), selfTestPause)
		err = os.Remove(dir)
	}
	return err
}

// MeasureLayer is what the process of a self-test does, whose result, as JSON, goes to its standard output: see [EstimateLayer].
func MeasureLayer(ctx context.Context, mode, dir string) ebpf.Estimate {
	e, err := measureLayer(ctx, mode, dir)
	if err != nil {
		return ebpf.Estimate{Unavailable: err.Error()}
	}
	return e
}

func measureLayer(ctx context.Context, mode, dir string) (ebpf.Estimate, error) {
	if err := ebpf.Check(ebpf.Options{}); err != nil {
		return ebpf.Estimate{}, err
	}
	below, err := New(ctx, mode, Config{Logger: slog.New(slog.DiscardHandler), Owner: "a self-test"})
	if err != nil {
		return ebpf.Estimate{}, err
	}
	return ebpf.Measure(ctx, dir, below)
}
