package supervise

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errZombie: the process has ended, or another of its threads than the first is replacing its
// program: until that is done the first one looks as if it had ended (execve(2)).
var errZombie = errors.New("the process has ended")

// startTime of a process, in clock ticks since boot. It blocks for up to zombieWait if the process looks
// as if it had ended.
func startTime(pid int) (started uint64, err error) {
	const zombieWait, pause = 200 * time.Millisecond, 2 * time.Millisecond
	for end := time.Now().Add(zombieWait); ; time.Sleep(pause) {
		if started, err = startTimeNow(pid); !errors.Is(err, errZombie) || time.Now().After(end) {
			return started, err
		}
	}
}

// startTimeNow is field 22 of /proc/PID/stat, behind the name in parentheses (proc_pid_stat(5)).
func startTimeNow(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	const state, starttime = 3, 22
	if !ok || len(fields) <= starttime-state {
		return 0, errors.New("unknown form of /proc/PID/stat")
	}
	if fields[0] == "Z" {
		return 0, errZombie
	}
	return strconv.ParseUint(fields[starttime-state], 10, 64)
}

// watch a process, which is a child of this one only where this one is init.
func (p *process) watch() error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return err
	}
	// The number may have been given to another process meanwhile.
	if started, err := startTime(p.PID); err != nil || started != p.Started {
		return errors.Join(err, unix.Close(fd), errors.New("it has ended"))
	}
	go func() {
		defer close(p.exited)
		defer unix.Close(fd)
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		p.result = "its exit status is not known"
		var status unix.WaitStatus
		if reaped, err := unix.Wait4(p.PID, &status, unix.WNOHANG, nil); err == nil && reaped == p.PID {
			p.result = fmt.Sprintf("exit status %d, signal %d", status.ExitStatus(), status.Signal())
		}
	}()
	return nil
}

// identify a file: what differs after it was replaced. "": it is not there.
func identify(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	inode := uint64(0)
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = s.Ino
	}
	return fmt.Sprintf("%d/%d/%d", inode, info.Size(), info.ModTime().UnixNano())
}
