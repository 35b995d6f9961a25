package mirror

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
)

// TestConnection: servers are tried one after the other; the first failure in a row is logged, and the next one
// after there was a link is, too.
func TestConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := NewConnection[int]([]string{"a:1", "b:1"}, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var tried []string
		c.Run(ctx, func(context.Context) error {
			tried = append(tried, c.Server())
			switch len(tried) {
			case 3:
				one := 1
				c.Set(&one)
				defer c.Set(nil)
				if got, err := c.Link(); err != nil || got != &one {
					t.Errorf("link %v, %v", got, err)
				}
			case 5:
				stop()
			}
			return errors.New("it has ended")
		})
		if got := strings.Join(tried, " "); got != "a:1 b:1 a:1 b:1 a:1" {
			t.Errorf("tried %s", got)
		}
		if _, err := c.Link(); !errors.Is(err, ErrAway) {
			t.Errorf("without a link: %v", err)
		}
		if got := strings.Count(log.String(), "is not connected"); got != 2 {
			t.Errorf("%d lines:\n%s", got, log.String())
		}
	})
}
