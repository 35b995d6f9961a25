package outage_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/store/outage"
)

// TestOutage: its beginning is waited out, from the first call that fails; then calls fail
// at once, until one goes well.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := outage.Outage{Timeout: 10 * time.Second}
		began := time.Now()
		tries := 0
		for o.Again(t.Context(), tries) {
			tries++
		}
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second || tries < 10 || tries > 30 {
			t.Errorf("%d tries in %v", tries, took)
		}
		if began = time.Now(); o.Again(t.Context(), 0) || time.Since(began) != 0 {
			t.Error("a later call is not refused at once")
		}
		o.Over()
		if !o.Again(t.Context(), 0) {
			t.Error("the next outage is not waited out")
		}
		o.Over()
		if o.Began(time.Now().Add(-11 * time.Second)); o.Again(t.Context(), 0) {
			t.Error("a call that has waited long is tried again")
		}
	})
}

func TestFault(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	same := func(err error) error { return err }
	var f outage.Fault
	for _, err := range []error{nil, errors.New("one"), errors.New("two"), nil, nil} {
		if got := f.Note(err, log, "db", same); !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
		if f.Present() != (err != nil) {
			t.Errorf("after %v: %v", err, f.Present())
		}
	}
	if got := text.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "error=one") || !strings.Contains(got, "again") {
		t.Errorf("log:\n%s", got)
	}
}
