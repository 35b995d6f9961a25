package dns

import (
	"net"
	"net/netip"
)

// udpSocket answers from the address that was asked, also where it listens on all addresses
// (on Linux; elsewhere from the one that the route picks).
type udpSocket struct {
	conn *net.UDPConn
	// info: packets come with the address that they were sent to.
	info bool
}

// client is who asked, and what an answer needs to come from the address that was asked.
type client struct {
	netip.AddrPort
	info []byte
}

func newUDPSocket(conn *net.UDPConn) udpSocket {
	local, ok := conn.LocalAddr().(*net.UDPAddr)
	return udpSocket{conn: conn, info: ok && local.IP.IsUnspecified() && askForInfo(conn) == nil}
}

// read one packet. info is room that the client keeps a part of.
func (u udpSocket) read(b, info []byte) (int, client, error) {
	if !u.info {
		n, from, err := u.conn.ReadFromUDPAddrPort(b)
		return n, client{AddrPort: from}, err
	}
	n, size, _, from, err := u.conn.ReadMsgUDPAddrPort(b, info)
	return n, client{from, replyInfo(info[:size])}, err
}

// write an answer. A client that does not listen any more has given up: failures are ignored.
func (u udpSocket) write(b []byte, to client) {
	if to.info == nil {
		_, _ = u.conn.WriteToUDPAddrPort(b, to.AddrPort)
		return
	}
	_, _, _ = u.conn.WriteMsgUDPAddrPort(b, to.info, to.AddrPort)
}
