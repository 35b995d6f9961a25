package workload

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
)

// Proxy stands before the command: it serves before the command starts, and ends after it.
type Proxy interface {
	// Start blocks until the proxy serves. The error says why it cannot.
	Start(ctx context.Context) error
	// Ready returns why it does not serve now; nil: it does.
	Ready(ctx context.Context) error
	// Drain has clients go elsewhere; connections that exist go on. It does not wait for them.
	Drain(ctx context.Context)
	// Stop ends the proxy, and waits for its end.
	Stop()
}

const (
	// proxyTimeout bounds a question to the supervisor.
	proxyTimeout = 2 * time.Second
	// proxyStop is how long the supervisor has to end: it drains first.
	proxyStop = 15 * time.Second
)

// restartProxy spaces starts of a supervisor that ended by itself; Envoy goes on meanwhile.
var restartProxy = backoff.Policy{First: 100 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.2}

// Sidecar is a Proxy: an Envoy below the program proxima-sidecar.
type Sidecar struct {
	// Path of proxima-sidecar, and its arguments.
	Path string
	Args []string
	// Control is the supervisor's socket.
	Control string
	// Leave Envoy running when this process dies without Stop, for the next one to adopt.
	Leave bool
	// Output of supervisor and Envoy. They may outlive this process, so it has to be a file.
	Output *os.File
	Logger *slog.Logger

	mu      sync.Mutex
	process *supervisor
	ended   bool
	ending  chan struct{} // closed by Stop
	done    chan struct{} // closed when no supervisor is started any more
}

// supervisor is a process of proxima-sidecar.
type supervisor struct {
	process *os.Process
	ready   chan struct{} // closed when it says so
	exited  chan struct{}
	err     error // once exited is closed
}

// Start implements Proxy.
func (s *Sidecar) Start(ctx context.Context) error {
	p, err := s.launch()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.process, s.ending, s.done = p, make(chan struct{}), make(chan struct{})
	s.mu.Unlock()
	select {
	case <-p.ready:
		go s.keep(p)
		return nil
	case <-p.exited:
		close(s.done)
		return fmt.Errorf("the sidecar did not start: %w", p.err)
	case <-ctx.Done():
		go s.keep(p)
		s.Stop()
		return ctx.Err()
	}
}

// launch a supervisor. It ends with this process.
func (s *Sidecar) launch() (*supervisor, error) {
	cmd := exec.Command(s.Path, s.Args...)
	cmd.Stderr = s.Output
	tieToParent(cmd)
	if s.Leave {
		leaveProxy(cmd)
	}
	ownGroup(cmd) // signals of a terminal are the command's, and end the proxy only after it
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &supervisor{ready: make(chan struct{}), exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // as in start
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		p.process = cmd.Process
		started <- err
		if err != nil {
			return
		}
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "ready ") {
				close(p.ready)
				break
			}
		}
		_, _ = io.Copy(io.Discard, stdout) // until its end
		p.err = cmp.Or(cmd.Wait(), lines.Err())
		if p.err == nil {
			p.err = errors.New("it ended")
		}
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the sidecar: %w", err)
	}
	return p, nil
}

// keep a supervisor running until Stop. The next one adopts the running Envoy.
func (s *Sidecar) keep(p *supervisor) {
	defer close(s.done)
	pause := backoff.Backoff{Policy: restartProxy}
	for {
		<-p.exited
		for {
			if s.isEnded() {
				return
			}
			delay := pause.Next()
			s.Logger.Error("the supervisor of the proxy ended; it is started again", "error", p.err, "in", delay)
			select {
			case <-s.ending:
				return
			case <-time.After(delay):
			}
			next, err := s.relaunch()
			if next != nil {
				p = next
				break
			}
			if err == nil {
				return
			}
			p.err = err
		}
	}
}

// relaunch unless Stop was called; nil and no error: it was.
func (s *Sidecar) relaunch() (*supervisor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, nil //nolint:nilnil // documented
	}
	p, err := s.launch()
	if err == nil {
		s.process = p
	}
	return p, err
}

func (s *Sidecar) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// Stop implements Proxy.
func (s *Sidecar) Stop() {
	s.mu.Lock()
	p, done := s.process, s.done
	if p != nil && !s.ended {
		close(s.ending)
	}
	s.ended = true
	s.mu.Unlock()
	if p == nil {
		return
	}
	_ = p.process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.exited:
	case <-time.After(proxyStop):
		s.Logger.Warn("the supervisor of the proxy does not end; it is killed")
		_ = p.process.Kill() // it may have ended
		<-p.exited
	}
	<-done
}

// Ready implements Proxy.
func (s *Sidecar) Ready(ctx context.Context) error {
	if err := s.call(ctx, http.MethodGet, "/ready"); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	return nil
}

// Drain implements Proxy.
func (s *Sidecar) Drain(ctx context.Context) {
	if err := s.call(ctx, http.MethodPost, "/drain"); err != nil {
		s.Logger.Warn("inbound connections of the proxy do not drain", "error", err)
	}
}

// call the supervisor.
func (s *Sidecar) call(ctx context.Context, method, path string) error {
	ctx, cancel := context.WithTimeout(ctx, proxyTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://sidecar"+path, http.NoBody)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", s.Control)
		},
		DisableKeepAlives: true,
	}}
	resp, err := client.Do(req)
	if err != nil {
		return errors.New("its supervisor does not answer")
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err == nil && resp.StatusCode >= http.StatusBadRequest {
		err = errors.New(strings.TrimSpace(string(body)))
	}
	return err
}
