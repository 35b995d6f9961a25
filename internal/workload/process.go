package workload

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is the command while it runs.
type process struct {
	cmd  *exec.Cmd
	done chan int
}

// start runs the command. If this process dies, so does the command, where the
// system can see to that.
func start(cfg Config) (*process, error) {
	cmd := exec.Command(cfg.Command[0], cfg.Command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = cfg.Stdin, cfg.Stdout, cfg.Stderr
	cmd.Env = append(os.Environ(), cfg.Env...)
	tieToParent(cmd)
	if cfg.Start != nil {
		cfg.Start(cmd)
	}
	p := &process{cmd: cmd, done: make(chan int, 1)}
	started := make(chan error)
	go func() {
		// Linux ties the child to the thread that made it, so that one must live
		// as long as the child (prctl(2), PR_SET_PDEATHSIG).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // the exit code says it
		p.done <- exitCode(cmd.ProcessState)
	}()
	return p, <-started
}

// wait passes signals through until the command has ended, and returns its exit
// code. before is called ahead of each signal and says whether to pass it. If ctx
// ends, the command is asked to terminate.
func (p *process) wait(ctx context.Context, signals <-chan os.Signal, before func(os.Signal) bool) int {
	ended := ctx.Done()
	for {
		select {
		case code := <-p.done:
			return code
		case sig := <-signals:
			if before(sig) {
				_ = p.cmd.Process.Signal(sig) // it may be gone already
			}
		case <-ended:
			ended = nil
			before(syscall.SIGTERM)
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
		}
	}
}

func endsProcess(sig os.Signal) bool {
	return sig == syscall.SIGTERM || sig == os.Interrupt || sig == syscall.SIGQUIT || sig == syscall.SIGHUP
}

// fromTerminal: the key strokes that a terminal turns into signals (termios(3),
// ISIG).
func fromTerminal(sig os.Signal) bool { return sig == os.Interrupt || sig == syscall.SIGQUIT }

// exitCode as a shell would return it: 128+n for signal n.
func exitCode(state *os.ProcessState) int {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return state.ExitCode()
}

// signalled is the exit code of a command that a signal ended.
func signalled(sig os.Signal) int {
	n, _ := sig.(syscall.Signal)
	return 128 + int(n)
}
