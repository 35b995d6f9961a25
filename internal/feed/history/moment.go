package history

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

// Moment is a point of the past, as a user names it. The zero value is none.
type Moment struct {
	// Position, or Time if that is 0.
	Position seglog.Position
	Time     time.Time
}

// ParseMoment reads a time (RFC 3339), a duration before now (90s, 2h), or a position (a number above 0).
func ParseMoment(text string, now time.Time) (Moment, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 {
		return Moment{Position: seglog.Position(n)}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return Moment{Time: now.Add(-ago)}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return Moment{Time: at}, nil
	}
	return Moment{}, fmt.Errorf("%q is not a moment: write a time as in %s, a duration before now as in 2h, or a position",
		text, now.UTC().Truncate(time.Second).Format(time.RFC3339))
}

// FutureError is returned for a moment that is yet to come.
type FutureError struct{ error }

// EarlyError is returned for a moment before the beginning of the feed.
type EarlyError struct {
	// First and Begins as in Answer.
	First  seglog.Position
	Begins time.Time
}

func (e *EarlyError) Error() string {
	return fmt.Sprintf("the change feed begins at %s, after position %d; what was before is not kept. "+
		"To keep more from now on, start the control plane with a greater --feed-retention",
		e.Begins.UTC().Format(time.RFC3339), e.First)
}

// At returns the position that the store was at, at a moment. It blocks until the feed has what is committed now. Errors:
// *EarlyError, *FutureError.
func (r *Reader) At(ctx context.Context, m Moment) (seglog.Position, error) {
	now, err := r.reach(ctx)
	if err != nil {
		return 0, err
	}
	first, begins := r.Begins()
	at := m.Position
	switch {
	case at > now:
		return 0, &FutureError{fmt.Errorf("position %d is yet to come: the store is at %d", at, now)}
	case at == 0 && m.Time.After(time.Now().Add(time.Second)):
		return 0, &FutureError{fmt.Errorf("%s is yet to come", m.Time.Format(time.RFC3339))}
	case at == 0:
		at, err = r.Feed.At(m.Time)
	}
	var expired *seglog.ExpiredError
	if at < first && err == nil || errors.As(err, &expired) {
		return 0, &EarlyError{First: first, Begins: begins}
	}
	return at, err
}
