//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// timeout bounds what should take moments; nothing is measured by it.
const timeout = 2 * time.Minute

// process is a program on a machine, until stop or kill.
type process struct {
	cmd    *exec.Cmd
	began  time.Time
	first  chan time.Time // when it had printed a line; closed when it ends without one
	ended  chan struct{}
	stderr bytes.Buffer // to be read when it has ended
}

func (m *machine) start(program string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(program, args...), first: make(chan time.Time, 1), ended: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.cmd.Env = environment()
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.began = time.Now()
	if err := m.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w; \"make build\" makes proxima", program, err)
	}
	go func() {
		defer close(p.ended)
		lines := bufio.NewReader(stdout)
		if _, err := lines.ReadString('\n'); err == nil {
			p.first <- time.Now()
		}
		close(p.first)
		_, _ = io.Copy(io.Discard, lines)
		_ = p.cmd.Wait()
	}()
	return p, nil
}

// environment without the user's own settings.
func environment() []string {
	var out []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PROXIMA_") && !strings.HasPrefix(v, "KUBECONFIG=") {
			out = append(out, v)
		}
	}
	return out
}

// ready is how long the process took until it said that it serves.
func (p *process) ready(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case at, ok := <-p.first:
		if ok {
			return at.Sub(p.began), nil
		}
		<-p.ended
		return 0, fmt.Errorf("%s ended:\n%.2000s", strings.Join(p.cmd.Args, " "), p.stderr.String())
	case <-ctx.Done():
		return 0, fmt.Errorf("%s is not ready: %w", strings.Join(p.cmd.Args, " "), ctx.Err())
	}
}

// kill the process, and wait until it is gone. A second time does nothing.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// status is a figure of proc_pid_status(5) in kB, such as VmRSS, in MB of 10⁶ bytes.
func (p *process) status(name string) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kib * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", p.cmd.Process.Pid, name)
}

// ticksPerSecond of proc_pid_stat(5), as Linux reports it on all platforms (USER_HZ).
const ticksPerSecond = 100

// cpu is what the process has used so far, in seconds: utime and stime.
func (p *process) cpu() (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// The second field is the program's name, and may have spaces.
	_, rest, ok := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", p.cmd.Process.Pid, data)
	}
	user, err := strconv.ParseUint(fields[11], 10, 64)
	system, err2 := strconv.ParseUint(fields[12], 10, 64)
	return float64(user+system) / ticksPerSecond, errors.Join(err, err2)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("interrupted"), ctx.Err())
	}
}
