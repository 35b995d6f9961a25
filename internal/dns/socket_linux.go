package dns

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// infoSize holds one control message of either family, and more.
const infoSize = 128

// askForInfo has packets come with IP_PKTINFO or IPV6_PKTINFO (ip(7), ipv6(7)).
func askForInfo(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		domain, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err == nil && domain == unix.AF_INET6 {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
		} else if err == nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1)
		}
		failed = err
	})
	return errors.Join(err, failed)
}

// replyInfo makes, in place, the control message of an answer out of that of a question: the
// address is the same, the interface that of the route. Nil: there is none.
func replyInfo(b []byte) []byte {
	const header = unix.SizeofCmsghdr
	if len(b) < header {
		return nil
	}
	// The length is a size_t, level and type are numbers of 4 bytes (cmsg(3)).
	size := int(binary.NativeEndian.Uint32(b))
	if unsafe.Sizeof(uintptr(0)) == 8 {
		size = int(binary.NativeEndian.Uint64(b))
	}
	if size < header || size > len(b) {
		return nil
	}
	level, typ := int(int32(binary.NativeEndian.Uint32(b[header-8:]))), int(int32(binary.NativeEndian.Uint32(b[header-4:])))
	data := b[header:size]
	switch {
	case level == unix.SOL_IP && typ == unix.IP_PKTINFO && len(data) == unix.SizeofInet4Pktinfo:
		clear(data[:4]) // ipi_ifindex
	case level == unix.SOL_IPV6 && typ == unix.IPV6_PKTINFO && len(data) == unix.SizeofInet6Pktinfo:
		if !netip.AddrFrom16([16]byte(data[:16])).IsLinkLocalUnicast() {
			clear(data[16:]) // ipi6_ifindex
		}
	default:
		return nil
	}
	return b
}
