package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// cgroupAttr is INET_DIAG_CGROUP_ID of linux/inet_diag.h (Linux 5.8).
	cgroupAttr = 21
	// noCookie is INET_DIAG_NOCOOKIE.
	noCookie = ^uint32(0)
	// listening is TCP_LISTEN of net/tcp_states.h.
	listening = 10
	// messageSize is that of struct inet_diag_msg.
	messageSize = 72
)

// CgroupOf is the number of the cgroup (version 2) in which the TCP socket was made that has
// these two ends, and that is in this process's network namespace. It blocks for one question
// to the kernel, some microseconds. Errors: ErrNoSocket, and others.
func CgroupOf(local, remote netip.AddrPort) (uint64, error) {
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	remote = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	if local.Addr().Is4() != remote.Addr().Is4() {
		return 0, fmt.Errorf("socket from %s to %s: %w", local, remote, ErrNoSocket)
	}
	req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, 0)
	req.AddData(question{local, remote})
	answers, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, fmt.Errorf("socket from %s to %s: %w", local, remote, ErrNoSocket)
	case err != nil:
		return 0, fmt.Errorf("socket from %s to %s: %w", local, remote, err)
	}
	for _, answer := range answers {
		if number, ok := cgroupIn(answer, remote.Port()); ok {
			return number, nil
		}
	}
	// It is closed (TIME_WAIT and the like have no cgroup), or another one listens there.
	return 0, fmt.Errorf("socket from %s to %s: %w", local, remote, ErrNoSocket)
}

// question is struct inet_diag_req_v2.
type question struct{ local, remote netip.AddrPort }

// Len implements nl.NetlinkRequestData.
func (question) Len() int { return 56 }

// Serialize implements nl.NetlinkRequestData.
func (q question) Serialize() []byte {
	out := make([]byte, 8, 56)
	out[0], out[1] = unix.AF_INET6, unix.IPPROTO_TCP
	if q.local.Addr().Is4() {
		out[0] = unix.AF_INET
	}
	binary.NativeEndian.PutUint32(out[4:], ^uint32(0)) // all states
	out = binary.BigEndian.AppendUint16(out, q.local.Port())
	out = binary.BigEndian.AppendUint16(out, q.remote.Port())
	for _, a := range []netip.Addr{q.local.Addr(), q.remote.Addr()} {
		var field [16]byte
		copy(field[:], a.AsSlice())
		out = append(out, field[:]...)
	}
	out = binary.NativeEndian.AppendUint32(out, 0) // any interface
	out = binary.NativeEndian.AppendUint32(out, noCookie)
	return binary.NativeEndian.AppendUint32(out, noCookie)
}

// cgroupIn reads struct inet_diag_msg and its attributes.
func cgroupIn(answer []byte, remotePort uint16) (uint64, bool) {
	if len(answer) < messageSize || answer[1] == listening || binary.BigEndian.Uint16(answer[6:]) != remotePort {
		return 0, false
	}
	for rest := answer[messageSize:]; len(rest) >= unix.SizeofRtAttr; {
		size, kind := int(binary.NativeEndian.Uint16(rest)), binary.NativeEndian.Uint16(rest[2:])
		if size < unix.SizeofRtAttr || size > len(rest) {
			return 0, false
		}
		if kind == cgroupAttr && size >= unix.SizeofRtAttr+8 {
			return binary.NativeEndian.Uint64(rest[unix.SizeofRtAttr:]), true
		}
		rest = rest[min(len(rest), (size+3)&^3):]
	}
	return 0, false
}
