package userspace

import (
	"errors"

	"golang.org/x/sys/unix"
)

// pipe is where the kernel keeps what it moves from socket to socket.
type pipe struct{ read, write int }

// pipeSize is how much a pipe of ours may hold, if the system permits.
const pipeSize = bulkChunk

// newPipe returns nil if there are no descriptors for it.
func newPipe() *pipe {
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC) != nil {
		return nil
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize) // smaller ones serve as well
	return &pipe{read: fds[0], write: fds[1]}
}

func (p *pipe) close() {
	_ = unix.Close(p.read)
	_ = unix.Close(p.write)
}

const spliceFlags = unix.SPLICE_F_NONBLOCK | unix.SPLICE_F_MOVE

// fill moves what a socket has into the pipe, which is empty.
func (p *pipe) fill(from int) (int, error) {
	n, err := unix.Splice(from, nil, p.write, nil, pipeSize, spliceFlags)
	return int(max(n, 0)), err
}

// drain moves up to size bytes to a socket. 0: it takes none now.
func (p *pipe) drain(to, size int) (int, error) {
	for {
		n, err := unix.Splice(p.read, nil, to, nil, size, spliceFlags)
		switch {
		case err == nil:
			return int(n), nil
		case errors.Is(err, unix.EAGAIN):
			return 0, nil
		case !errors.Is(err, unix.EINTR):
			return 0, err
		}
	}
}
