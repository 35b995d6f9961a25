package supervise

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// LaunchArgument is the first argument of a program that calls Launch.
const LaunchArgument = "launch-envoy"

// launcherVariable tells the second stage of a launch which process is to be gone.
const launcherVariable = "PROXIMA_SIDECAR_LAUNCHER"

// launchTimeout bounds the wait for the launcher's end, which follows at once.
const launchTimeout = 10 * time.Second

// Launch starts an Envoy that is no child of this process, and prints its process ID: args are
// the user and group ID ("-1": this process's), the path and its arguments. It is called in a
// process of its own, by the program that is started with LaunchArgument, and returns its exit
// code.
//
// With hot restarts, Envoy asks the kernel to end it with its parent (PR_SET_PDEATHSIG), so that
// it would not outlive its supervisor. Its parent has to be init before it does so.
func Launch(args []string) int {
	var err error
	if launcher := os.Getenv(launcherVariable); launcher != "" {
		err = become(launcher, args)
	} else {
		err = detach(args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "launch Envoy:", err)
		return 1
	}
	return 0
}

// detach is the first stage: it starts the second one, and ends.
func detach(args []string) error {
	if len(args) < 3 {
		return errors.New("want UID GID PATH [ARG…]")
	}
	uid, err1 := strconv.ParseInt(args[0], 10, 64)
	gid, err2 := strconv.ParseInt(args[1], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, append([]string{LaunchArgument}, args[2:]...)...)
	cmd.Env = append(os.Environ(), launcherVariable+"="+strconv.Itoa(os.Getpid()))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	// Signals of a terminal are the supervisor's to pass on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if uid >= 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, err = fmt.Println(cmd.Process.Pid)
	return err
}

// become is the second stage: once the first one is gone, this process becomes Envoy.
func become(launcher string, args []string) error {
	if len(args) == 0 {
		return errors.New("no path")
	}
	for end := time.Now().Add(launchTimeout); strconv.Itoa(os.Getppid()) == launcher; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("the launcher does not end")
		}
	}
	if err := os.Unsetenv(launcherVariable); err != nil {
		return err
	}
	raiseDescriptors()
	return syscall.Exec(args[0], args, os.Environ())
}

// raiseDescriptors lets Envoy open as many files as this machine allows: each connection has two. Go
// programs do so for themselves, and start others with the limit that they had.
func raiseDescriptors() {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) // it stays as it is
	}
}

// launch Envoy by another process of this program, and return its ID.
func (e *Envoy) launch(args []string) (pid int, err error) {
	uid, gid := -1, -1
	if u := e.config.User; u != nil {
		uid, gid = int(u.Uid), int(u.Gid)
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, append([]string{LaunchArgument, strconv.Itoa(uid), strconv.Itoa(gid), e.config.Path}, args...)...)
	cmd.Stderr = e.config.Output
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	line, _ := bufio.NewReader(stdout).ReadString('\n') // without a line the exit code says why
	if err := cmd.Wait(); err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line))
}
