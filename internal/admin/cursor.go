package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/feed/cursor"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

const (
	// FeedCursorsPath answers GET with the cursors of those who follow the change feed, as a list of FeedCursor.
	FeedCursorsPath = "/proxima/v1/feed/cursors"
	// FeedSeekPath sets a cursor to a moment, to POST of a SeekRequest. The answer is a FeedCursor.
	FeedSeekPath = "/proxima/v1/feed/seek"
)

// SeekRequest names a cursor, and the moment (see history.ParseMoment) after which it goes on.
type SeekRequest struct {
	Name string `json:"name"`
	To   string `json:"to"`
}

// FeedCursor is how far a subscriber of the change feed has come.
type FeedCursor struct {
	cursor.State
	// Expired: the feed has not all that comes after the mark any more.
	Expired bool `json:"expired,omitempty"`
}

// Cursors of the change feed. A *cursor.Cursors is one, and documents the methods.
type Cursors interface {
	List(ctx context.Context) ([]cursor.State, error)
	Seek(ctx context.Context, name string, to seglog.Position) (cursor.State, error)
	Expired(s *cursor.State) error
}

func (c *Config) feedCursor(s cursor.State) FeedCursor {
	return FeedCursor{State: s, Expired: c.Cursors.Expired(&s) != nil}
}

func feedCursors(c Config, w http.ResponseWriter, r *http.Request) error {
	all, err := c.Cursors.List(r.Context())
	if err != nil {
		return err
	}
	out := make([]FeedCursor, len(all))
	for i := range all {
		out[i] = c.feedCursor(all[i])
	}
	answer(w, out)
	return nil
}

// seekHandler sets cursors.
type seekHandler struct{ Config }

// ServeHTTP implements http.Handler.
func (h seekHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST is answered here", http.StatusMethodNotAllowed)
		return
	}
	feedHandler{h.Config, feedSeek}.ServeHTTP(w, r)
}

func feedSeek(c Config, w http.ResponseWriter, r *http.Request) error {
	var in SeekRequest
	if !decodeRequest(w, r, &in) {
		return nil
	}
	to, err := c.momentOf(r.Context(), "to", in.To)
	if err != nil {
		return err
	}
	s, err := c.Cursors.Seek(r.Context(), in.Name, to)
	if errors.Is(err, cursor.ErrNotFound) {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Errorf("cursor %w: see proxima feed cursors", err))
		return nil
	}
	if err != nil {
		return err
	}
	answer(w, c.feedCursor(s))
	return nil
}
