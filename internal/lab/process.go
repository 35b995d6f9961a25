package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
)

// process of a lab, as its starter sees it.
type process struct {
	what, log, out string
	done           chan struct{} // closed when it has ended and is reaped
}

// start a command of Proxima in a namespace. It outlives this process; what it
// prints goes to files of the lab's folder, added to what is there.
func (l *Lab) start(what string, in *netns.NS, args ...string) (*process, error) {
	p := &process{
		what: what, done: make(chan struct{}),
		log: filepath.Join(dirOf(l.spec.Name), what+".log"), out: l.outOf(what),
	}
	out, err := os.OpenFile(p.out, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	log, err := os.OpenFile(p.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(l.spec.Executable, args...)
	cmd.Env, cmd.Dir = cleanEnvironment(), "/"
	cmd.Stdout, cmd.Stderr = out, log
	cmd.SysProcAttr = apart()
	leave, err := l.spec.join(cmd, in)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := in.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", what, err)
	}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the reason is in its log
	}()
	return p, l.kept.change(func(s *state) { s.Processes[what] = cmd.Process.Pid })
}

// Process is the ID of a process that this lab has started: NODE-agent, or the machine of a
// gateway; 0: there is none of that name.
func (l *Lab) Process(what string) (pid int) {
	l.kept.mu.Lock()
	defer l.kept.mu.Unlock()
	return l.kept.Processes[what]
}

// outOf a process is the file with what it printed.
func (l *Lab) outOf(what string) string { return filepath.Join(dirOf(l.spec.Name), what+".out") }

// ready waits for the line that a role prints when it serves. A file sends
// no notification when it grows, so it is polled.
func (p *process) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		if data, err := os.ReadFile(p.out); err == nil && bytes.Contains(data, []byte("\n")) {
			return nil
		}
		select {
		case <-poll.C:
		case <-p.done:
			return p.failure(errors.New("it ended before it was ready"))
		case <-ctx.Done():
			return p.failure(fmt.Errorf("it was not ready: %w", context.Cause(ctx)))
		}
	}
}

// failure adds what the process logged last.
func (p *process) failure(err error) error {
	const most = 2048
	data, _ := os.ReadFile(p.log)
	return fmt.Errorf("%s: %w; it logged last:\n%s", p.what, err, data[max(0, len(data)-most):])
}

// cleanEnvironment keeps settings of the user's own Proxima away from the lab's.
func cleanEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PROXIMA_") || strings.HasPrefix(v, "KUBECONFIG=")
	})
}
