package kube_test

import (
	"fmt"
	"net"
	"os"
)

// podVariable names the pod in whose place this program runs: it answers on port 8080, TCP and
// UDP, with that name and the address that it sees.
const podVariable = "PROXIMA_KUBE_POD"

func runPod(name string) int {
	packets, err := net.ListenPacket("udp", ":8080")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go answerPackets(name, packets)
	l, err := net.Listen("tcp", ":8080")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		c, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		from, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		fmt.Fprintf(c, "%s %s", name, from)
		_ = c.Close()
	}
}

func answerPackets(name string, packets net.PacketConn) {
	buffer := make([]byte, 1500)
	for {
		_, from, err := packets.ReadFrom(buffer)
		if err != nil {
			continue // of an answer before, whose client is gone
		}
		host, _, _ := net.SplitHostPort(from.String())
		_, _ = packets.WriteTo([]byte(name+" "+host), from)
	}
}
