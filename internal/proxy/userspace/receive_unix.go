//go:build unix

package userspace

import (
	"errors"
	"os"
	"syscall"
)

// receive passes what arrives on c to use, until use returns false or an error.
// It holds a buffer of the pool only while there is data. Empty data is the end
// of a stream or an empty datagram.
func receive(c syscall.Conn, pool *bufferPool, use func([]byte) (bool, error)) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	// The callback runs again whenever the runtime's poller finds c readable. It
	// may block in use; only other readers of c would have to wait, and there are
	// none.
	err = raw.Read(func(fd uintptr) (done bool) {
		b := pool.get()
		defer pool.put(b)
		for {
			n, err := syscall.Read(int(fd), *b)
			switch {
			case errors.Is(err, syscall.EINTR):
				continue
			case errors.Is(err, syscall.EAGAIN):
				return false
			case err != nil:
				result = os.NewSyscallError("read", err)
				return true
			}
			more, err := use((*b)[:n])
			if err != nil || !more {
				result = err
				return true
			}
		}
	})
	if err != nil {
		return err
	}
	return result
}
