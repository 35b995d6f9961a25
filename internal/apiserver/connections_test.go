package apiserver

import (
	"errors"
	"io"
	"net"
	"testing"
)

// What a client holds open when the server has ended is closed; what the server
// closed itself is forgotten.
func TestConnectionsAreClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tracked := newConnections(l)
	dial := func() (client, server net.Conn) {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if server, err = tracked.Accept(); err != nil {
			t.Fatal(err)
		}
		return client, server
	}
	held, _ := dial()
	defer held.Close()
	ended, server := dial()
	defer ended.Close()
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if len(tracked.open) != 1 {
		t.Errorf("%d connections are open, want 1", len(tracked.open))
	}
	tracked.closeAll()
	if _, err := held.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the client that holds its connection reads %v, want the end", err)
	}
}
