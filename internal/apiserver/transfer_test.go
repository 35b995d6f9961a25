package apiserver

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// timed counts the deadlines that it is given.
type timed struct {
	http.ResponseWriter
	reads, writes int
}

func (w *timed) SetReadDeadline(time.Time) error  { w.reads++; return nil }
func (w *timed) SetWriteDeadline(time.Time) error { w.writes++; return nil }

// TestHandlerThatIsLate: a handler that Kubernetes' timeout left touches the connection no more.
func TestHandlerThatIsLate(t *testing.T) {
	w := &timed{ResponseWriter: httptest.NewRecorder()}
	request := newTransfer(w, time.Now())
	request.readUntil(time.Now())
	request.writeUntil(time.Now())
	request.over()
	request.readUntil(time.Now())
	request.writeUntil(time.Now())
	if w.reads != 1 || w.writes != 1 {
		t.Errorf("%d deadlines of reads, %d of writes, want 1 of each", w.reads, w.writes)
	}
}
