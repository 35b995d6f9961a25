//go:build linux

package nfnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrOverrun: notifications were lost. What they said has to be read back.
var ErrOverrun = errors.New("netlink notifications were lost")

// Listener receives a netlink protocol's notifications. Receive and Close may
// be called at the same time.
type Listener struct {
	f      *os.File
	buf    []byte
	closed atomic.Bool
}

// ListenTables listens to changes of nf_tables in a namespace, without those
// that the socket with port makes: they are dropped before they fill the buffer.
func ListenTables(namespace int, port uint32) (*Listener, error) {
	return listen(namespace, unix.NETLINK_NETFILTER, port, unix.NFNLGRP_NFTABLES)
}

// ListenAddresses listens to changes of the addresses in a namespace.
func ListenAddresses(namespace int) (*Listener, error) {
	return listen(namespace, unix.NETLINK_ROUTE, 0, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
}

func listen(namespace, protocol int, ignore uint32, groups ...int) (*Listener, error) {
	var c *Conn
	err := Inside(namespace, func() (err error) {
		c, err = open(protocol)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := subscribe(c.fd, ignore, groups); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	// Non-blocking, the file waits in Go's poller, and Close wakes it.
	return &Listener{f: os.NewFile(uintptr(c.fd), "netlink"), buf: c.buf}, nil
}

func subscribe(fd int, ignore uint32, groups []int) error {
	if ignore != 0 {
		if err := dropFrom(fd, ignore); err != nil {
			return err
		}
	}
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			return fmt.Errorf("listening to netlink group %d: %w", g, err)
		}
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("making a netlink socket non-blocking: %w", err)
	}
	return nil
}

// dropFrom attaches a classic BPF program that drops datagrams of one sender.
// A datagram holds messages of one transaction, so the first one's port
// (nlmsghdr.nlmsg_pid, in the host's order) holds for all.
func dropFrom(fd int, port uint32) error {
	want := port
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		want = bits.ReverseBytes32(port) // BPF loads words in network order
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: want, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
	}
	err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	if err != nil {
		return fmt.Errorf("filtering own notifications: %w", err)
	}
	return nil
}

// Receive waits for notifications and hands each to f; a message is valid until
// f returns. [ErrOverrun] does not end the listener, os.ErrClosed does.
func (l *Listener) Receive(f func(Message)) error {
	raw, err := l.f.SyscallConn()
	if err != nil { // only a closed file has none
		return os.ErrClosed
	}
	var n int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, _, failed = unix.Recvfrom(int(fd), l.buf, 0)
			if !errors.Is(failed, unix.EINTR) {
				return !errors.Is(failed, unix.EAGAIN)
			}
		}
	})
	switch {
	case l.closed.Load():
		return os.ErrClosed
	case err != nil:
		return err
	case errors.Is(failed, unix.ENOBUFS):
		return ErrOverrun
	case failed != nil:
		return fmt.Errorf("receiving notifications from netlink: %w", failed)
	}
	for m := range messages(l.buf[:n]) {
		f(m)
	}
	return nil
}

// Close ends the listener.
func (l *Listener) Close() error {
	l.closed.Store(true)
	return l.f.Close()
}

// Table reports which table a notification of nf_tables is about; ok is false for
// messages about none, such as the number of a new generation.
func (m Message) Table() (t Table, ok bool) {
	if m.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || m.Type&0xff == unix.NFT_MSG_NEWGEN || len(m.Body) < familyHeader {
		return Table{}, false
	}
	for typ, v := range ParseAttrs(m.Body[familyHeader:]) {
		if typ == unix.NFTA_TABLE_NAME { // 1, in messages about what is in tables too
			return Table{Family: m.Body[0], Name: text(v)}, true
		}
	}
	return Table{}, false
}
