//go:build unix

package record

import (
	"errors"
	"os"
	"syscall"
)

const canRead = true

// attempt is called by the runtime's poller, at once and whenever the socket may have
// become readable.
func (s *source) attempt(fd uintptr) (done bool) {
	b := s.user.space()
	for {
		n, err := syscall.Read(int(fd), b)
		switch {
		case err == nil:
			s.n = n
			if n == 0 {
				s.user.idle()
			}
			return true
		case errors.Is(err, syscall.EINTR):
			continue
		}
		s.user.idle()
		if !errors.Is(err, syscall.EAGAIN) {
			s.err = os.NewSyscallError("read", err)
			return true
		}
		if !s.waited {
			s.waited = true
			if s.err = s.user.beforeWait(); s.err != nil {
				return true
			}
		}
		return false
	}
}
