package history

import (
	"testing"
	"time"
)

var now = time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC)

func TestParseMoment(t *testing.T) {
	for text, want := range map[string]Moment{
		"412": {Position: 412}, "2h": {Time: now.Add(-2 * time.Hour)}, "0s": {Time: now},
		"2026-01-31T14:00:00Z": {Time: time.Date(2026, 1, 31, 14, 0, 0, 0, time.UTC)},
	} {
		if got, err := ParseMoment(text, now); err != nil || got.Position != want.Position || !got.Time.Equal(want.Time) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-2h", "-1", "yesterday", "2026-01-31", "2h ago"} {
		if got, err := ParseMoment(text, now); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

func FuzzParseMoment(f *testing.F) {
	for _, text := range []string{"412", "2h", "2026-01-31T14:00:00Z", "-1", "99999999999999999999", "9999999h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if m, err := ParseMoment(text, now); err == nil && (m.Position < 0 || m.Position == 0 && m.Time.IsZero() && text != "0001-01-01T00:00:00Z") {
			t.Errorf("%q is %+v", text, m)
		}
	})
}
