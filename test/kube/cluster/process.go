package cluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// grace is how long a part may take to end.
const grace = 20 * time.Second

// shown are the last bytes of a log that a failed test prints.
const shown = 3000

// part is a running program of a cluster. Its output goes to a file.
type part struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// startPart starts a program that ends with the test, in the namespace of this process.
func startPart(t testing.TB, dir, name string, args ...string) *part {
	t.Helper()
	return startIn(t, nil, dir, name, exec.Command(Binary(t, name), args...))
}

// startIn starts a command in a network namespace; nil: that of this process. The name is that
// of its log.
func startIn(t testing.TB, ns *netns.NS, dir, name string, cmd *exec.Cmd) *part {
	t.Helper()
	p := &part{name: name, log: filepath.Join(dir, name+".log"), cmd: cmd}
	p.start(t, ns, dir)
	t.Cleanup(func() {
		p.stop(t, syscall.SIGTERM)
		if t.Failed() {
			t.Logf("--- %s:\n%s", name, p.tail())
		}
	})
	return p
}

// start the command of the part.
func (p *part) start(t testing.TB, ns *netns.NS, dir string) {
	t.Helper()
	p.done = make(chan struct{})
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = out, out, dir
	p.cmd.Env = append(testkit.CleanEnv(), p.cmd.Env...)
	// A part ends with the thread that started it at the latest, if the test is killed.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	start := p.cmd.Start
	if ns != nil {
		start = func() error { return ns.Start(p.cmd) }
	}
	if err := start(); err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	_ = out.Close() // the child has its own
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
}

// again starts a part that has ended. Its place among those that end with the test is the
// first one's: what uses it ends before.
func (p *part) again(t testing.TB, dir string) {
	t.Helper()
	p.cmd = exec.Command(p.cmd.Path, p.cmd.Args[1:]...)
	p.start(t, nil, dir)
}

// stop ends the part by a signal, and waits until it is gone. It is idempotent.
func (p *part) stop(t testing.TB, sig syscall.Signal) {
	t.Helper()
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.done:
	case <-time.After(grace):
		t.Errorf("%s did not end within %s of %s", p.name, grace, sig)
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// ended reports the end of the part, as an error; nil: it runs.
func (p *part) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended (%v):\n%s", p.name, p.err, p.tail())
	default:
		return nil
	}
}

func (p *part) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	if len(text) > shown {
		text = text[len(text)-shown:]
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return string(text)
}
