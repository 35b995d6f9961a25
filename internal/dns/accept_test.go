package dns

import (
	"context"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/proxima-mesh/proxima/internal/dns/records"
)

// outOfDescriptors fails to accept a number of times.
type outOfDescriptors struct {
	net.Listener
	left int
}

func (l *outOfDescriptors) Accept() (net.Conn, error) {
	if l.left--; l.left >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// An agent that is out of file descriptors for a moment goes on to answer
// questions over TCP.
func TestAcceptSurvivesLackOfDescriptors(t *testing.T) {
	s, err := New(Config{Zone: records.New()})
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.ServeTCP(ctx, &outOfDescriptors{Listener: tcp, left: 4}) }()
	q := new(dns.Msg)
	q.SetQuestion("web.default.svc.cluster.local.", dns.TypeA)
	client := &dns.Client{Net: "tcp", Timeout: 10 * time.Second}
	if _, _, err := client.Exchange(q, tcp.Addr().String()); err != nil {
		t.Errorf("no answer: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
