package fromview

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/view"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
)

// TestSaveFails: while the state cannot be written, the status says why and since
// when; it is written soon after it can be, though nothing has changed.
func TestSaveFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "node")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // a file in the directory's place
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := &plane{}
		t.Cleanup(p.kill)
		b := view.NewBuilder(view.BuilderConfig{})
		replace(t, b, viewtest.Delta(1, viewtest.Service("web", "10.0.0.1")))
		p.start(b.Assign)
		began := time.Now()
		a := startAgent(t, p, filepath.Join(dir, "view"))
		a.expect(1, map[string]string{"web": "10.0.0.1"})
		time.Sleep(time.Hour)
		synctest.Wait()
		s := a.feed.Status()
		if s.SaveError == nil || !s.Unsaved || s.StateFile != filepath.Join(dir, "view") || s.UnsavedSince.Sub(began) > time.Second {
			t.Errorf("status %+v, want an error of saving since %s", s, began)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(saveRetry + time.Second)
		synctest.Wait()
		if s := a.feed.Status(); s.SaveError != nil || s.Unsaved || !s.UnsavedSince.IsZero() {
			t.Errorf("status after the disk was mended %+v", s)
		}
		if _, err := readState(filepath.Join(dir, "view")); err != nil {
			t.Error(err)
		}
	})
}
