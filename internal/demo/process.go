package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is a process that the demo started.
type child struct {
	name  string
	cmd   *exec.Cmd
	lines chan string
	log   *tail
	done  chan struct{}
}

// start runs the executable with arguments. Its first line of output is for
// ready; what it logs is kept for the case that it fails.
func (d *demo) start(name string, args ...string) (*child, error) {
	cmd := exec.Command(d.cfg.Executable, args...)
	cmd.Env = cleanEnvironment()
	c := &child{name: name, cmd: cmd, lines: make(chan string, 1), log: &tail{}, done: make(chan struct{})}
	cmd.Stderr = c.log
	if d.cfg.Verbose {
		cmd.Stderr = io.MultiWriter(c.log, os.Stderr)
	}
	detach(cmd)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	d.processes = append(d.processes, c)
	go func() {
		defer close(c.done)
		reader := bufio.NewReader(stdout)
		if line, err := reader.ReadString('\n'); err == nil {
			c.lines <- strings.TrimSpace(line)
		}
		close(c.lines)
		_, _ = io.Copy(io.Discard, reader)
		_ = cmd.Wait() // it was stopped, or the reason is in its log
	}()
	return c, nil
}

// ready waits for the line that a role prints when it serves.
func (c *child) ready(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case line, ok := <-c.lines:
		if !ok {
			<-c.done
			return "", fmt.Errorf("%s ended before it was ready:\n%s", c.name, c.log)
		}
		return line, nil
	case <-ctx.Done():
		return "", fmt.Errorf("%s was not ready in %s:\n%s", c.name, timeout, c.log)
	}
}

// output runs the executable to its end.
func (d *demo) output(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, d.cfg.Executable, args...)
	cmd.Env = cleanEnvironment()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("proxima %s: %w\n%s", args[0], err, stderr.Bytes())
	}
	return out, nil
}

// stopAll ends the processes, the last one first, and waits for them.
func (d *demo) stopAll() {
	for _, c := range slices.Backward(d.processes) {
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-c.done:
		case <-time.After(10 * time.Second):
			_ = c.cmd.Process.Kill()
			<-c.done
		}
	}
	d.processes = nil
}

// failure adds what the processes logged last.
func (d *demo) failure(err error) error {
	errs := []error{err}
	for _, c := range d.processes {
		errs = append(errs, fmt.Errorf("--- %s logged last:\n%s", c.name, c.log))
	}
	return errors.Join(errs...)
}

// cleanEnvironment keeps settings of the user's own Proxima away from the demo's.
func cleanEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PROXIMA_") || strings.HasPrefix(v, "KUBECONFIG=")
	})
}

// tail keeps the last few kilobytes written to it.
type tail struct {
	mu   sync.Mutex
	data []byte
}

const tailSize = 2048

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if over := len(t.data) - tailSize; over > 0 {
		t.data = slices.Delete(t.data, 0, over)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}
