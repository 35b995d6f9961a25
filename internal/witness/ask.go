package witness

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/controller/health"
)

// askEvery is the pause between the packets of one probe.
const askEvery = 150 * time.Millisecond

// wsaConnReset is what Windows says where others say ECONNREFUSED (WSAECONNRESET,
// winsock2.h).
const wsaConnReset = syscall.Errno(10054)

// Ask whether the agent of a node answers at an address. It blocks for at most
// health.ProbeTimeout; a ctx that ends earlier makes it health.Failed.
func Ask(ctx context.Context, node string, addr netip.AddrPort) health.Outcome {
	deadline := time.Now().Add(health.ProbeTimeout)
	conn, err := (&net.Dialer{Deadline: deadline}).DialContext(ctx, "udp", addr.String())
	if err != nil {
		return health.Failed // no way there, or not allowed
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	p := newQuestion(node)
	b := make([]byte, packetSize+1)
	for now := time.Now(); now.Before(deadline); now = time.Now() {
		if _, err := conn.Write(p.encode()); err != nil {
			if o, known := outcomeOf(err); known {
				return o
			}
		}
		until := now.Add(askEvery)
		if until.After(deadline) {
			until = deadline
		}
		_ = conn.SetReadDeadline(until)
		if o, known := await(conn, p, b); known {
			return o
		}
		if ctx.Err() != nil {
			break
		}
		// The kernel may have reported an error at once: no faster for that.
		if wait := time.Until(until); wait > 0 {
			time.Sleep(wait)
		}
	}
	if ctx.Err() != nil {
		return health.Failed
	}
	return health.Silent
}

// await the answer to a question until the read deadline.
func await(conn net.Conn, p packet, b []byte) (o health.Outcome, known bool) {
	for {
		n, err := conn.Read(b)
		if err != nil {
			return outcomeOf(err)
		}
		got, err := decodePacket(b[:n])
		if err == nil && got.kind == answer && got.nonce == p.nonce && got.name == p.name {
			return health.Answered, true
		}
	}
}

// outcomeOf an error of a connected UDP socket. What routers say of the way (EHOSTUNREACH,
// ENETUNREACH) is silence, too: a zone without power has no way to it. Where this machine
// itself has no way, the socket could not be connected.
func outcomeOf(err error) (o health.Outcome, known bool) {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), runtime.GOOS == "windows" && errors.Is(err, wsaConnReset):
		return health.Refused, true
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES): // a firewall here
		return health.Failed, true
	}
	return health.Silent, false
}
