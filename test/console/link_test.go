package console

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// link is a TCP connection between machines that a test cuts, holds up and slows down: a listener in front of an address.
type link struct {
	listener net.Listener
	to       string
	pumps    sync.WaitGroup

	mu       sync.Mutex
	state    linkState
	changed  chan struct{} // closed with the next change of state
	conns    map[*wire]struct{}
	attempts int // connections that were refused or held since the last change
}

// linkState is what happens to bytes.
type linkState struct {
	cut, frozen, slow bool
}

// wire is a connection through a link: both of its ends.
type wire struct {
	near, far net.Conn // far is nil until it is there
	lost      bool     // nothing of it arrives any more, and nobody is told
}

const (
	slowBy    = 150 * time.Millisecond // a chunk
	slowChunk = 4 << 10
)

// newLink to an address, which may be given later.
func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{listener: l, to: to, changed: make(chan struct{}), conns: map[*wire]struct{}{}}
	k.pumps.Go(k.accept)
	t.Cleanup(func() {
		_ = l.Close()
		k.set(linkState{cut: true})
		k.pumps.Wait()
	})
	return k
}

func (k *link) address() string { return k.listener.Addr().String() }

func (k *link) accept() {
	for {
		near, err := k.listener.Accept()
		if err != nil {
			return
		}
		k.pumps.Go(func() { k.serve(near) })
	}
}

func (k *link) serve(near net.Conn) {
	w := &wire{near: near}
	k.mu.Lock()
	k.conns[w] = struct{}{}
	if k.state.cut || k.state.frozen {
		k.attempts++
	}
	cut := k.state.cut
	k.mu.Unlock()
	defer k.drop(w)
	if cut || !k.pass(w) {
		return
	}
	far, err := net.Dial("tcp", k.to)
	if err != nil {
		return
	}
	k.mu.Lock()
	w.far = far
	cut = k.state.cut
	k.mu.Unlock()
	if cut {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { k.pump(w, near, far) })
	k.pump(w, far, near)
	both.Wait()
}

// pump bytes from one end to the other, and close both at the end.
func (k *link) pump(w *wire, from, to net.Conn) {
	defer k.drop(w)
	buffer := make([]byte, slowChunk)
	for {
		n, err := from.Read(buffer)
		if err != nil || !k.pass(w) {
			return
		}
		k.mu.Lock()
		slow := k.state.slow
		k.mu.Unlock()
		if slow {
			time.Sleep(slowBy) // it is what a slow link does
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// pass waits until bytes of a wire may go on. false: they never do.
func (k *link) pass(w *wire) bool {
	for {
		k.mu.Lock()
		state, lost, changed := k.state, w.lost, k.changed
		_, there := k.conns[w]
		k.mu.Unlock()
		switch {
		case !there || state.cut && !lost:
			return false
		case !lost && !state.frozen:
			return true
		}
		if lost {
			// Until its near end gives up: what comes is lost.
			_, _ = io.Copy(io.Discard, w.near)
			return false
		}
		<-changed
	}
}

// drop a wire, with a reset.
func (k *link) drop(w *wire) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closeWire(w)
}

func (k *link) closeWire(w *wire) {
	delete(k.conns, w)
	for _, c := range []net.Conn{w.near, w.far} {
		if c, ok := c.(*net.TCPConn); ok && c != nil {
			_ = c.SetLinger(0) // of a socket that is closed anyway
			_ = c.Close()
		}
	}
}

func (k *link) set(s linkState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state, k.attempts = s, 0
	if s.cut {
		for w := range k.conns {
			k.closeWire(w)
		}
	}
	close(k.changed)
	k.changed = make(chan struct{})
}

// lose what is connected, without a word to either end, and let new connections through.
func (k *link) lose() {
	k.mu.Lock()
	for w := range k.conns {
		w.lost = true
	}
	k.mu.Unlock()
	k.set(linkState{})
}

// tried is how many connections were refused or held since the last change.
func (k *link) tried() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.attempts
}
