package listener

import (
	"errors"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// scripted returns its errors in order, then connections.
type scripted struct {
	errs   []error
	closed chan struct{}
	at     []time.Time
}

func (s *scripted) Accept() (net.Conn, error) {
	s.at = append(s.at, time.Now())
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	}
	select {
	case <-s.closed:
		return nil, net.ErrClosed
	default:
		here, _ := net.Pipe()
		return here, nil
	}
}

func (s *scripted) Close() error   { close(s.closed); return nil }
func (s *scripted) Addr() net.Addr { return &net.TCPAddr{} }

func TestAcceptIsTriedAgain(t *testing.T) {
	for name, errno := range map[string]syscall.Errno{
		"process out of descriptors": syscall.EMFILE, "system out of descriptors": syscall.ENFILE,
		"out of memory": syscall.ENOMEM, "no buffers": syscall.ENOBUFS, "client gone": syscall.ECONNABORTED,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := &scripted{closed: make(chan struct{})}
				for range 12 {
					inner.errs = append(inner.errs, errno)
				}
				l := Limit(inner, Config{Name: "test", MaxConnections: 1})
				conn, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				conn.Close()
				pauses := []time.Duration{}
				for i := 1; i < len(inner.at); i++ {
					pauses = append(pauses, inner.at[i].Sub(inner.at[i-1]))
				}
				if len(pauses) != 12 || pauses[0] != 5*time.Millisecond || pauses[1] != 10*time.Millisecond || pauses[11] != time.Second {
					t.Errorf("pauses %v, want them to grow from 5ms to 1s", pauses)
				}
			})
		})
	}
}

func TestAcceptReturnsOtherErrors(t *testing.T) {
	l := Limit(&scripted{errs: []error{syscall.EINVAL}, closed: make(chan struct{})}, Config{MaxConnections: 1})
	if _, err := l.Accept(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("got %v, want EINVAL", err)
	}
	if conn, err := l.Accept(); err != nil {
		t.Errorf("the slot was not released: %v", err)
	} else {
		conn.Close()
	}
}

func TestCloseEndsAccept(t *testing.T) {
	for name, errs := range map[string][]error{"in a pause": {syscall.EMFILE, syscall.EMFILE, syscall.EMFILE}, "without a slot": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := Limit(&scripted{errs: errs, closed: make(chan struct{})}, Config{MaxConnections: 1})
				if errs == nil {
					if _, err := l.Accept(); err != nil { // stays open
						t.Fatal(err)
					}
				}
				done := make(chan error)
				go func() { _, err := l.Accept(); done <- err }()
				synctest.Wait()
				l.Close()
				if err := <-done; !errors.Is(err, net.ErrClosed) {
					t.Errorf("got %v, want net.ErrClosed", err)
				}
			})
		})
	}
}

func TestConnectionsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Limit(&scripted{closed: make(chan struct{})}, Config{MaxConnections: 2})
		first, _ := l.Accept()
		_, _ = l.Accept()
		var third atomic.Bool
		go func() { _, _ = l.Accept(); third.Store(true) }()
		synctest.Wait()
		if third.Load() {
			t.Fatal("a third connection was accepted")
		}
		first.Close()
		first.Close() // releases once only
		synctest.Wait()
		if !third.Load() {
			t.Error("no connection was accepted after one ended")
		}
		go func() { _, _ = l.Accept(); third.Store(false) }()
		synctest.Wait()
		if !third.Load() {
			t.Error("closing twice released two slots")
		}
		l.Close()
		synctest.Wait()
	})
}

// A server of net/http goes on, too, after an error that it would take for the
// end of its listener.
func TestHTTPServerSurvives(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := HTTPServer(http.NotFoundHandler())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(Limit(&failing{Listener: tcp, left: 3}, Config{MaxConnections: 8})) }()
	resp, err := http.Get("http://" + tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	srv.Close()
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

type failing struct {
	net.Listener
	left int
}

func (f *failing) Accept() (net.Conn, error) {
	if f.left--; f.left >= 0 {
		return nil, os.NewSyscallError("accept4", syscall.ENOBUFS)
	}
	return f.Listener.Accept()
}

func TestDescriptorShare(t *testing.T) {
	if n := DescriptorShare(7, 0.5); n != 7 {
		t.Errorf("a small limit became %d", n)
	}
	if n := DescriptorShare(1<<40, 1e-12); n != 1 {
		t.Errorf("a tiny part became %d, want 1", n)
	}
}
