package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/gateway/stream"
)

// soOriginalDst is SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST
// (linux/netfilter_ipv4.h, linux/netfilter_ipv6/ip6_tables.h).
const soOriginalDst = 80

// originalDestination is where the client connected to before the kernel redirected
// it.
func originalDestination(conn net.Conn) (netip.AddrPort, error) {
	tcp, ok := stream.Unwrap(conn).(*net.TCPConn)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("original destination: %T is no TCP connection", conn)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	var at netip.AddrPort
	var failure error
	local := addrPort(tcp.LocalAddr())
	err = raw.Control(func(fd uintptr) {
		if local.Addr().Is4() {
			at, failure = original4(fd)
		} else {
			at, failure = original6(fd)
		}
	})
	if err == nil && failure != nil {
		err = os.NewSyscallError("getsockopt", failure)
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("original destination: was the connection redirected? %w", err)
	}
	if at == local {
		return netip.AddrPort{}, errors.New("original destination: the connection was made to the tunnel's port itself, not redirected")
	}
	return at, nil
}

func original4(fd uintptr) (netip.AddrPort, error) {
	var sa unix.RawSockaddrInet4
	if err := getsockopt(fd, unix.SOL_IP, unsafe.Pointer(&sa), unsafe.Sizeof(sa)); err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), networkOrder(sa.Port)), nil
}

func original6(fd uintptr) (netip.AddrPort, error) {
	var sa unix.RawSockaddrInet6
	if err := getsockopt(fd, unix.SOL_IPV6, unsafe.Pointer(&sa), unsafe.Sizeof(sa)); err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), networkOrder(sa.Port)), nil
}

// networkOrder reads a port as the kernel stores it, on any machine.
func networkOrder(port uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&port))
	return uint16(b[0])<<8 | uint16(b[1])
}

func getsockopt(fd uintptr, level int, value unsafe.Pointer, size uintptr) error {
	length := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, uintptr(level), soOriginalDst, uintptr(value), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
