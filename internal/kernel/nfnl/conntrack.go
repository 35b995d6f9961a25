//go:build linux

package nfnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Numbers of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet    = 1 // IPCTNL_MSG_CT_GET
	ctDelete = 2 // IPCTNL_MSG_CT_DELETE

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25

	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2
	ctaFilterProto      = 1 << 3 // CTA_FILTER_F_CTA_PROTO_NUM, net/netfilter/nf_internals.h

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaV4Src, ctaV4Dst, ctaV6Src, ctaV6Dst = 1, 2, 3, 4

	ctaProtoNum, ctaSrcPort, ctaDstPort = 1, 2, 3
)

// Flow is a connection that conntrack knows.
type Flow struct {
	Protocol uint8
	// To is where the client sent it, From where answers come from: the endpoint
	// if the connection was sent to one, else To.
	To, From netip.AddrPort
	tuple    string // as conntrack wrote it
	id, zone string
}

// Flows hands the flows of a family and protocol to each. The whole table is
// read; kernels from 5.8 on leave other protocols out by themselves.
func (c *Conn) Flows(family, protocol uint8, each func(Flow)) error {
	var a Attrs
	a.Nest(ctaTupleOrig, func() {
		a.Nest(ctaTupleProto, func() { a.U8(ctaProtoNum, protocol) })
	})
	a.Nest(ctaFilter, func() {
		// Flags are in the host's order, unlike everything else.
		a.Data(ctaFilterOrigFlags, Host(ctaFilterProto))
		a.Data(ctaFilterReplyFlags, Host(0))
	})
	err := c.request(unix.NFNL_SUBSYS_CTNETLINK<<8|ctGet, unix.NLM_F_DUMP, family, a.b, func(b []byte) {
		if f, ok := decodeFlow(b); ok && f.Protocol == protocol {
			each(f)
		}
	})
	if err != nil && !errors.Is(err, ErrInterrupted) { // the table always changes
		return fmt.Errorf("reading conntrack: %w", err)
	}
	return nil
}

func decodeFlow(b []byte) (f Flow, ok bool) {
	var haveTo, haveFrom bool
	for typ, v := range attrs(b) {
		switch typ {
		case ctaTupleOrig:
			_, f.To, f.Protocol, haveTo = decodeTuple(v)
			f.tuple = string(v)
		case ctaTupleReply:
			f.From, _, _, haveFrom = decodeTuple(v)
		case ctaID:
			f.id = string(v)
		case ctaZone:
			f.zone = string(v)
		}
	}
	return f, haveTo && haveFrom
}

func decodeTuple(b []byte) (src, dst netip.AddrPort, protocol uint8, ok bool) {
	var from, to netip.Addr
	var sport, dport uint16
	for typ, v := range attrs(b) {
		switch typ {
		case ctaTupleIP:
			for typ, v := range attrs(v) {
				switch typ {
				case ctaV4Src, ctaV6Src:
					from, _ = netip.AddrFromSlice(v)
				case ctaV4Dst, ctaV6Dst:
					to, _ = netip.AddrFromSlice(v)
				}
			}
		case ctaTupleProto:
			for typ, v := range attrs(v) {
				switch {
				case typ == ctaProtoNum && len(v) > 0:
					protocol = v[0]
				case typ == ctaSrcPort:
					sport = u16(v)
				case typ == ctaDstPort:
					dport = u16(v)
				}
			}
		}
	}
	return netip.AddrPortFrom(from, sport), netip.AddrPortFrom(to, dport), protocol, from.IsValid() && to.IsValid()
}

// DeleteFlows deletes flows, many with one system call, and tells how many there
// still were. One that ended by itself is no error.
func (c *Conn) DeleteFlows(family uint8, flows []Flow) (deleted int, err error) {
	const atOnce = 256
	for len(flows) > 0 {
		n := min(atOnce, len(flows))
		d, err := c.deleteFlows(family, flows[:n])
		deleted += d
		if err != nil {
			return deleted, fmt.Errorf("deleting flows from conntrack: %w", err)
		}
		flows = flows[n:]
	}
	return deleted, nil
}

func (c *Conn) deleteFlows(family uint8, flows []Flow) (deleted int, err error) {
	var a Attrs
	first := c.seq + 1
	for _, f := range flows {
		c.seq++
		at := len(a.b)
		a.b = appendMessage(a.b, unix.NFNL_SUBSYS_CTNETLINK<<8|ctDelete, unix.NLM_F_REQUEST|unix.NLM_F_ACK, c.seq, family, 0)
		a.Data(ctaTupleOrig|nested, f.tuple)
		if f.zone != "" {
			a.Data(ctaZone, f.zone)
		}
		if f.id != "" {
			a.Data(ctaID, f.id)
		}
		binary.NativeEndian.PutUint32(a.b[at:], uint32(len(a.b)-at))
	}
	if err := c.makeRoom(len(a.b)); err != nil {
		return 0, err
	}
	if err := unix.Sendto(c.fd, a.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	for answered := 0; answered < len(flows); {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return deleted, err
		}
		for m := range messages(c.buf[:n]) {
			if m.Type != unix.NLMSG_ERROR || m.Seq-first >= uint32(len(flows)) {
				continue
			}
			answered++
			switch e := errno(m.Body); {
			case e == nil:
				deleted++
			case !errors.Is(e, unix.ENOENT):
				return deleted, e
			}
		}
	}
	return deleted, nil
}
