package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func put(ctx context.Context, t Target, name string, data []byte) error {
	return t.Put(ctx, name, bytes.NewReader(data), int64(len(data)), sha256.Sum256(data))
}

func names(t *testing.T, target Target, prefix string) string {
	t.Helper()
	list, err := target.List(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, b := range list {
		out = append(out, fmt.Sprintf("%s:%d", b.Name, b.Size))
	}
	return strings.Join(out, " ")
}

func openAt(t *testing.T, location string) Target {
	t.Helper()
	target, err := Open(location)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// TestTarget is what all targets do.
func TestTarget(t *testing.T) {
	s := newS3Server(t)
	for name, location := range map[string]string{
		"directory": filepath.Join(t.TempDir(), "new", "place"),
		"s3":        "s3://bucket/some/prefix?endpoint=" + s.url,
		"s3 root":   "s3://bucket?endpoint=" + s.url,
	} {
		t.Run(name, func(t *testing.T) {
			clear(s.objects)
			target, ctx := openAt(t, location), t.Context()
			if got := names(t, target, ""); got != "" {
				t.Errorf("a new target has %s", got)
			}
			for _, name := range []string{"a/2", "b/x/1", "a/1", "c"} {
				for range 2 {
					if err := put(ctx, target, name, []byte("data of "+name)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got := names(t, target, ""); got != "a/1:11 a/2:11 b/x/1:13 c:9" {
				t.Errorf("listed: %s", got)
			}
			if got := names(t, target, "a/"); got != "a/1:11 a/2:11" {
				t.Errorf("listed below a: %s", got)
			}
			var got bytes.Buffer
			if err := target.Get(ctx, "a/2", &got); err != nil || got.String() != "data of a/2" {
				t.Errorf("got %q, %v", got.String(), err)
			}
			for range 2 {
				if err := target.Delete(ctx, "a/2"); err != nil {
					t.Fatal(err)
				}
			}
			if err := target.Get(ctx, "a/2", &got); !errors.Is(err, ErrNotFound) {
				t.Errorf("what was deleted: %v", err)
			}
			for _, bad := range []string{"", "/x", "../x", "a//b", ".x", "a/.new-1"} {
				if err := put(ctx, target, bad, []byte("x")); err == nil {
					t.Errorf("the name %q is taken", bad)
				}
			}
			before := names(t, target, "")
			if err := target.Put(ctx, "wrong", strings.NewReader("abc"), 3, sha256.Sum256([]byte("abd"))); err == nil {
				t.Error("what has another checksum is taken")
			}
			ended, cancel := context.WithCancel(ctx)
			cancel()
			if err := put(ended, target, "late", make([]byte, 100)); !errors.Is(err, context.Canceled) {
				t.Errorf("after the end of its context: %v", err)
			}
			if got := names(t, target, ""); got != before {
				t.Errorf("after puts that failed it has %s", got)
			}
		})
	}
}

func TestDirOfHalfFiles(t *testing.T) {
	dir := t.TempDir()
	target := openAt(t, dir)
	for name, age := range map[string]time.Duration{".new-1": 0, ".new-2": 48 * time.Hour} { // of processes that were killed
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("ha"), 0o600); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(-age)
		if err := os.Chtimes(file, when, when); err != nil {
			t.Fatal(err)
		}
	}
	if err := put(t.Context(), target, "whole", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := names(t, target, ""); got != "whole:1" {
		t.Errorf("listed: %s", got)
	}
	left, _ := filepath.Glob(filepath.Join(dir, ".new-*"))
	if len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

func TestS3Faults(t *testing.T) {
	s := newS3Server(t)
	target, ctx := openAt(t, "s3://bucket/p?region=eu-test-1&endpoint="+s.url), t.Context()
	data := make([]byte, 300<<10)
	for i := range data {
		data[i] = byte(rand.IntN(256))
	}
	for name, fault := range map[string]func(){
		"unavailable once":             func() { s.unavailable = 1 },
		"the connection breaks":        func() { s.cut = 1 },
		"it does not tell of checksum": func() { s.noSums = true },
	} {
		t.Run(name, func(t *testing.T) {
			s.set(fault)
			if err := put(ctx, target, "x", data); err != nil {
				t.Error(err)
			}
			s.set(func() { s.cut, s.noSums, s.unavailable = 0, false, 0 })
		})
	}
	for name, fault := range map[string]func(){
		"it stores other bytes":                             func() { s.flip = 1 },
		"it stores other bytes and tells no checksum":       func() { s.flip, s.noSums = 1, true },
		"the connection breaks each time, in the middle":    func() { s.cut = 1000 },
		"it is away, and says so with the next name it has": func() { s.unavailable = 1000 },
	} {
		t.Run(name, func(t *testing.T) {
			s.set(func() { clear(s.objects); fault() })
			err := put(ctx, target, "x", data)
			var wrong *ChecksumError
			if err == nil || strings.HasPrefix(name, "it stores") != errors.As(err, &wrong) || !strings.Contains(err.Error(), "s3://bucket/p: x") {
				t.Errorf("put: %v", err)
			}
			s.set(func() { s.cut, s.noSums, s.unavailable, s.flip = 0, false, 0, 0 })
			if got := names(t, target, ""); got != "" {
				t.Errorf("it has %s", got)
			}
		})
	}
	if err := put(ctx, target, "x", data); err != nil {
		t.Fatal(err)
	}
	s.set(func() { s.cut = 1000 })
	var got bytes.Buffer
	if err := target.Get(ctx, "x", &got); err == nil {
		t.Error("an answer that was cut off is taken")
	}
	if len(s.auth) != 1 {
		t.Errorf("requests were signed for %v", s.auth)
	}
}

// TestS3Parts sends what is large in parts, of which none is listed before all are there.
func TestS3Parts(t *testing.T) {
	s := newS3Server(t)
	target := openAt(t, "s3://bucket/p?endpoint="+s.url)
	target.(*S3).partBytes = 5 << 20
	s.uploads["p/x"] = map[int][]byte{1: []byte("of a process that was killed")}
	data := make([]byte, 11<<20)
	data[10<<20] = 1
	s.cut = 1
	if err := put(t.Context(), target, "x", data); err != nil {
		t.Fatal(err)
	}
	if s.puts < 4 || len(s.uploads) != 0 {
		t.Errorf("%d puts, uploads left: %d", s.puts, len(s.uploads))
	}
	var got bytes.Buffer
	if err := target.Get(t.Context(), "x", &got); err != nil || !bytes.Equal(got.Bytes(), data) {
		t.Errorf("got %d bytes, %v", got.Len(), err)
	}
	s.cut = 1000
	if err := put(t.Context(), target, "y", data); err == nil || names(t, target, "") != "x:11534336" {
		t.Errorf("an upload that was cut short: %v; it has %s", err, names(t, target, ""))
	}
}

func TestOpenRefuses(t *testing.T) {
	for location, want := range map[string]string{
		"":                                 "want a directory",
		"http://host/x":                    `the scheme "http"`,
		"s3://":                            "want s3://BUCKET",
		"s3://key:secret@bucket/x":         "no credentials",
		"s3://bucket/x?secret=hunter2":     `the option "secret"`,
		"s3://bucket/x?path-style=perhaps": "path-style",
		"s3://bucket/x?endpoint=a%20b":     "endpoint",
		"s3://key:hunter2@b\x00/":          "not a URL",
	} {
		_, err := Open(location)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Open(%q) = %v, want %q", location, err, want)
		}
	}
}
