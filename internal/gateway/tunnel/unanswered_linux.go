package tunnel

import (
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/gateway/stream"
)

// limitUnanswered ends a connection when data, or a keep-alive probe after so long without
// data, was not acknowledged for a time (TCP_USER_TIMEOUT and TCP_KEEPIDLE, tcp(7)): reads
// return ETIMEDOUT then. What is no TCP connection has no limit.
func limitUnanswered(conn net.Conn, unanswered, idle time.Duration) {
	tcp, ok := stream.Unwrap(conn).(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	// Where an option is refused the connection has no limit, and is of use all the same.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unanswered/time.Millisecond))
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(idle/time.Second))
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(idle/time.Second))
	})
}
