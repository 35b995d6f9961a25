package app

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
)

func TestUnsavedFilesKeepTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u unsavedFiles
		began := time.Now()
		u.note("/b", errors.New("no space left on device"))
		time.Sleep(time.Hour)
		u.note("/b", errors.New("read-only file system"))
		u.note("/a", errors.New("no space left on device"))
		want := []admin.UnsavedFile{
			{File: "/a", Error: "no space left on device", Since: began.Add(time.Hour)},
			{File: "/b", Error: "read-only file system", Since: began},
		}
		if got := u.list(); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		u.note("/b", nil)
		if got := u.list(); len(got) != 1 || u.has("/b") || !u.has("/a") {
			t.Errorf("after a write that went well: %v", got)
		}
	})
}

func TestTryDisk(t *testing.T) {
	dir := t.TempDir()
	if err := tryDisk(dir); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
	if err := tryDisk(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
}
