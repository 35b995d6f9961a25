package proxytest

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"
	"time"

	core "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// protocolSCTP is its number (RFC 9260 section 3).
const protocolSCTP = "132"

// sctp is proxied, as far as a kernel without its sockets shows: the first
// packet of an association arrives at an endpoint's address and port with a
// checksum that is right.
func sctp(k *kernel) {
	s := k.openService(0, k.all(local1, remote1)...)
	s.Ports = []proxy.Port{{Name: "sctp", Protocol: proxy.SCTP, Port: 80, NodePort: k.nodePort(0)}}
	k.apply(s)
	got := make(chan string, 64)
	for _, name := range []string{local1, remote1} {
		k.catchINIT(k.net.backends[name], got)
	}
	for _, c := range []client{k.pod(), k.node(), k.outside(0)} {
		for _, to := range k.everyKind(0) {
			k.sendINIT(c.ns, to)
			select {
			case what := <-got:
				if what != "" {
					k.Errorf("%s to %s: %s", c.name, to, what)
				}
			case <-time.After(prompt):
				k.Fatalf("%s to %s: no packet arrived", c.name, to)
			}
		}
	}
}

// catchINIT at a backend; what is wrong with a packet goes to the channel, or
// nothing.
func (k *kernel) catchINIT(b *backendPod, got chan<- string) {
	k.Helper()
	conn, err := b.ns.ListenPacket("ip:"+protocolSCTP, b.addr(k.family).String())
	if err != nil {
		k.Fatal(err)
	}
	k.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			got <- complaint(buf[:n])
		}
	}()
}

func complaint(packet []byte) string {
	switch {
	case len(packet) < 32:
		return "the packet was cut short"
	case binary.BigEndian.Uint16(packet[2:]) != backendPort:
		return "the port was not translated"
	}
	sum := binary.LittleEndian.Uint32(packet[8:])
	if checksumSCTP(packet) != sum {
		return "the checksum is wrong"
	}
	return ""
}

// checksumSCTP is CRC32c of the packet with a checksum of zero, sent in the
// order that is little endian (RFC 9260 appendix A).
func checksumSCTP(packet []byte) uint32 {
	clean := append([]byte(nil), packet...)
	clear(clean[8:12])
	return crc32.Checksum(clean, crc32.MakeTable(crc32.Castagnoli))
}

// sendINIT opens an association (RFC 9260 section 3.3.2) from a port of its own.
func (k *kernel) sendINIT(from *core.NS, to netip.AddrPort) {
	k.Helper()
	var conn net.Conn
	err := from.Do(func() (err error) {
		conn, err = net.Dial("ip:"+protocolSCTP, to.Addr().String())
		return err
	})
	if err != nil {
		k.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	p := make([]byte, 12, 32)
	binary.BigEndian.PutUint16(p[0:], k.nextPort())
	binary.BigEndian.PutUint16(p[2:], to.Port())
	p = append(p, 1, 0, 0, 20) // INIT, no flags, its length
	p = binary.BigEndian.AppendUint32(p, 0x1234abcd)
	p = binary.BigEndian.AppendUint32(p, 65536) // receiver window
	p = append(p, 0, 1, 0, 1)                   // streams out and in
	p = binary.BigEndian.AppendUint32(p, 1)     // first sequence number
	binary.LittleEndian.PutUint32(p[8:], checksumSCTP(p))
	if _, err := conn.Write(p); err != nil {
		k.Fatal(err)
	}
}

// nextPort is a source port that no association had before.
func (k *kernel) nextPort() uint16 {
	k.ports++
	return 20000 + k.ports
}
