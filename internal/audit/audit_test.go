package audit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// filled makes a log with some records.
func filled(t *testing.T, dir string, records int, change ...func(*Config)) {
	t.Helper()
	cfg := Config{Dir: dir, Name: "audit"}
	for _, f := range change {
		f(&cfg)
	}
	l := Open(cfg)
	for i := range records {
		l.Write(Record{User: "ann", Verb: "create", Object: fmt.Sprintf("configmaps/default/c%d", i), From: []string{"192.0.2.1"}, Code: 201})
	}
	l.Close()
	if s := l.Status(); s.Problem != "" || s.Lost != 0 {
		t.Fatalf("status %+v", s)
	}
}

func mustVerify(t *testing.T, dir string) Report {
	t.Helper()
	r, err := Verify(dir, "audit")
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	return r
}

func wantBreak(t *testing.T, dir, where string) {
	t.Helper()
	r, err := Verify(dir, "audit")
	var b *Break
	if !errors.As(err, &b) {
		t.Errorf("want a break with %q, got %v; %+v", where, err, r)
	} else if !strings.Contains(b.Error(), where) {
		t.Errorf("break %q, want %q in it", b, where)
	}
}

func small(c *Config) { c.FileBytes = 1000 }

func TestChainOverRotationAndRestart(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		filled(t, dir, 20, small)
	}
	r := mustVerify(t, dir)
	if r.Files < 10 || r.Records != 63 || r.First != 1 || r.Last != 63 || len(r.Notes) != 0 {
		t.Errorf("report %+v", r)
	}
	info, err := os.Stat(filepath.Join(dir, "audit.log"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v: %v", info, err)
	}
}

// TestEveryChangeIsFound changes each byte of a log, removes each line, swaps lines and
// cuts the end off.
func TestEveryChangeIsFound(t *testing.T) {
	dir := t.TempDir()
	filled(t, dir, 4)
	path := filepath.Join(dir, "audit.log")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, changed []byte) {
		t.Helper()
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		var b *Break
		if _, err := Verify(dir, "audit"); !errors.As(err, &b) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range whole {
		changed := bytes.Clone(whole)
		changed[i] ^= 1
		check(fmt.Sprintf("byte %d changed", i), changed)
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))[:5]
	for i := range lines {
		without := bytes.Join(append(append([][]byte{}, lines[:i]...), lines[i+1:]...), nil)
		check(fmt.Sprintf("line %d removed", i+1), without)
		check(fmt.Sprintf("line %d twice", i+1), bytes.Join(append(append([][]byte{}, lines[:i+1]...), lines[i:]...), nil))
	}
	lines[2], lines[3] = lines[3], lines[2]
	check("lines swapped", bytes.Join(lines, nil))
	check("all removed", nil)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	wantBreak(t, dir, "audit.head: the log ends with record 0, but record 5 had been on the disk")
}

func TestBreakNamesTheLine(t *testing.T) {
	dir := t.TempDir()
	filled(t, dir, 4)
	path := filepath.Join(dir, "audit.log")
	whole, _ := os.ReadFile(path)
	if err := os.WriteFile(path, bytes.Replace(whole, []byte("default/c1"), []byte("default/x1"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	wantBreak(t, dir, "audit.log:3: it was changed, or what follows it: record 4 at audit.log:4 has another hash")
}

// TestCrashAtEveryByte: whatever a crash leaves of the last write, the log goes on
// and the chain is whole.
func TestCrashAtEveryByte(t *testing.T) {
	from := t.TempDir()
	filled(t, from, 3)
	whole, err := os.ReadFile(filepath.Join(from, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	for size := 0; size <= len(whole); size++ {
		dir := t.TempDir() // no head: it was not written yet
		path := filepath.Join(dir, "audit.log")
		if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(dir, "audit"); err != nil {
			t.Fatalf("cut at %d, before a restart: %v", size, err)
		}
		filled(t, dir, 1)
		r, err := Verify(dir, "audit")
		if err != nil {
			t.Fatalf("cut at %d: %v", size, err)
		}
		torn := size > 0 && whole[size-1] != '\n' && (size == len(whole) || whole[size] != '\n')
		if reported := strings.Contains(strings.Join(r.Notes, " "), "a crash cut them off"); reported != torn {
			t.Fatalf("cut at %d: torn %t, notes %q", size, torn, r.Notes)
		}
		if size%20 != 0 {
			continue
		}
		filled(t, dir, 10, small) // and again, with a rotation
		if _, err := Verify(dir, "audit"); err != nil {
			t.Fatalf("cut at %d, later: %v", size, err)
		}
	}
}

// TestTornLineIsNoExcuse: what is marked as torn may not be changed either.
func TestTornLineIsNoExcuse(t *testing.T) {
	dir := t.TempDir()
	filled(t, dir, 2)
	path := filepath.Join(dir, "audit.log")
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(f, "%s\x00\x00\ngarbage", recordStart)
	f.Close()
	filled(t, dir, 1)
	if r := mustVerify(t, dir); len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "audit.log:4: 17 bytes are no record") {
		t.Errorf("notes %q", r.Notes)
	}
	whole, _ := os.ReadFile(path)
	if err := os.WriteFile(path, bytes.Replace(whole, []byte("garbage"), []byte("cabbage"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	wantBreak(t, dir, "audit.log:4: it is no record")
	if err := os.WriteFile(path, bytes.Replace(whole, []byte(recordStart+"\x00\x00\ngarbage\n"), nil, 1), 0o600); err != nil {
		t.Fatal(err)
	}
	wantBreak(t, dir, "audit.log:4: it reports that a crash cut off the line before it")
}

// TestTruncationIsNoticedAtStart, and stays known.
func TestTruncationIsNoticedAtStart(t *testing.T) {
	dir := t.TempDir()
	filled(t, dir, 5)
	path := filepath.Join(dir, "audit.log")
	whole, _ := os.ReadFile(path)
	cut := bytes.Join(bytes.SplitAfter(whole, []byte("\n"))[:3], nil)
	if err := os.WriteFile(path, cut, 0o600); err != nil {
		t.Fatal(err)
	}
	wantBreak(t, dir, "the log ends with record 3, but record 6 had been on the disk")
	filled(t, dir, 1)
	wantBreak(t, dir, "audit.log:4: records are missing before it: the log ended with record 3 when it was opened, "+
		"but record 6 had been on the disk")
}

func TestRemovedWithoutAWord(t *testing.T) {
	dir := t.TempDir()
	filled(t, dir, 40, small)
	files, err := listRotated(dir, "audit")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v: %v", files, err)
	}
	if err := os.Remove(files[0].path); err != nil {
		t.Fatal(err)
	}
	wantBreak(t, dir, filepath.Base(files[1].path)+": it begins with record")
	if _, err := VerifyFiles(files[1].path, files[2].path); err != nil {
		t.Errorf("some files: %v", err)
	}
	if _, err := VerifyFiles(files[1].path, files[3].path); err == nil {
		t.Error("a file between two was left out, and that was not noticed")
	}
}

func TestRetention(t *testing.T) {
	dir := t.TempDir()
	filled(t, dir, 100, small, func(c *Config) { c.MaxBytes = 5000 })
	r := mustVerify(t, dir)
	if r.First < 50 || r.Last < 101 {
		t.Errorf("report %+v", r)
	}
	total := int64(0)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		info, _ := e.Info()
		total += info.Size()
	}
	if total > 6000 {
		t.Errorf("%d bytes are kept", total)
	}
	files, err := listRotated(dir, "audit")
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-31 * 24 * time.Hour)
	for _, f := range files[:2] {
		if err := os.Chtimes(f.path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	filled(t, dir, 20, small)
	left, err := listRotated(dir, "audit")
	if err != nil || left[0].path != files[2].path {
		t.Errorf("files of 31 days are kept: %v: %v", left, err)
	}
	mustVerify(t, dir)
}

func TestLogOfAnEarlierVersion(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	if err := os.WriteFile(path, []byte(`{"time":"2026-01-01T00:00:00Z","level":"INFO","msg":"write"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	filled(t, dir, 1)
	if r := mustVerify(t, dir); r.Records != 2 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "has no chain") {
		t.Errorf("report %+v", r)
	}
}

func TestBounds(t *testing.T) {
	dir := t.TempDir()
	l := Open(Config{Dir: dir, Name: "audit"})
	long := strings.Repeat("ü\x00", 1<<20)
	l.Write(
		Record{User: long, Object: "/" + long, From: strings.Split(strings.Repeat("a,", 1000)+long, ","), Details: map[string]string{long: long}})
	l.Close()
	data, err := os.ReadFile(filepath.Join(dir, "audit.log"))
	if err != nil || len(data) > 64<<10 {
		t.Errorf("%d bytes: %v", len(data), err)
	}
	if got := cut(long); len(got) > MaxText || !utf8.ValidString(got) || !strings.HasSuffix(got, "…(3145728 bytes)") {
		t.Errorf("%d bytes, %q", len(got), got[max(0, len(got)-30):])
	}
	mustVerify(t, dir)
}

func TestMovedAway(t *testing.T) {
	dir := t.TempDir()
	l := Open(Config{Dir: dir, Name: "audit"})
	l.Write(Record{User: "a"})
	l.sync()
	if err := os.Remove(filepath.Join(dir, "audit.log")); err != nil {
		t.Fatal(err)
	}
	l.tend()
	l.Write(Record{User: "b"})
	l.Close()
	wantBreak(t, dir, "records are missing before it")
}

func TestConcurrentWriters(t *testing.T) {
	dir := t.TempDir()
	l := Open(Config{Dir: dir, Name: "audit", FileBytes: 5000})
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for range 100 {
				l.Write(Record{User: "a"})
			}
		})
	}
	for range 20 { // while it is written
		if _, err := Verify(dir, "audit"); err != nil {
			t.Errorf("meanwhile: %v", err)
		}
		l.sync()
	}
	writers.Wait()
	l.Close()
	if r := mustVerify(t, dir); r.Records != 801 {
		t.Errorf("%d records", r.Records)
	}
}

// faulty is a disk with injected faults.
type faulty struct {
	disk
	mu sync.Mutex
	// capacity is how many bytes can still be written; negative: unlimited.
	capacity int
	// broken: nothing can be done but to read; truncating fails too.
	broken bool
}

func (f *faulty) set(capacity int, broken bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity, f.broken = capacity, broken
}

func (f *faulty) Open(name string) (file, error) {
	opened, err := f.disk.Open(name)
	if err != nil {
		return nil, err
	}
	return faultyFile{opened, f}, nil
}

func (f *faulty) Replace(name string, data []byte) error {
	if err := f.write(len(data)); err < len(data) {
		return syscall.ENOSPC
	}
	return f.disk.Replace(name, data)
}

// write returns how many of n bytes fit.
func (f *faulty) write(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.capacity >= 0 {
		n = min(n, f.capacity)
		f.capacity -= n
	}
	return n
}

type faultyFile struct {
	file
	disk *faulty
}

func (f faultyFile) Write(p []byte) (int, error) {
	n := f.disk.write(len(p))
	if _, err := f.file.Write(p[:n]); err != nil {
		return 0, err
	}
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

func (f faultyFile) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.broken {
		return syscall.EIO
	}
	return f.file.Truncate(size)
}

// TestDiskFull at every byte of a few records: the failure is visible, callers go on,
// and once there is space again the log records how many records were lost.
func TestDiskFull(t *testing.T) {
	for _, broken := range []bool{false, true} {
		for capacity := 0; capacity < 700; capacity += 7 {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				fs := &faulty{capacity: -1}
				l := Open(Config{Dir: dir, Name: "audit", FileBytes: 400, fs: fs})
				defer l.Close()
				l.Write(Record{User: "before"})
				fs.set(capacity, broken)
				for range 10 {
					l.Write(Record{User: "meanwhile"})
				}
				s := l.Status()
				if s.Lost == 0 || s.Problem == "" || s.Since == nil || !strings.Contains(s.Problem, "no space left") {
					t.Fatalf("capacity %d: status %+v", capacity, s)
				}
				fs.set(-1, false)
				time.Sleep(3 * time.Second) // of the bubble: it is tried again
				l.Write(Record{User: "after"})
				if s := l.Status(); s.Problem != "" || s.Lost == 0 {
					t.Fatalf("capacity %d: status afterwards %+v", capacity, s)
				}
				l.Close()
				r := mustVerify(t, dir)
				if !strings.Contains(strings.Join(r.Notes, " "), fmt.Sprintf("%d records were lost before it", s.Lost)) {
					t.Fatalf("capacity %d: lost %d, notes %q", capacity, s.Lost, r.Notes)
				}
			})
		}
	}
}

// TestUnwritableDirectory: the log comes up when the directory does.
func TestUnwritableDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	synctest.Test(t, func(t *testing.T) {
		l := Open(Config{Dir: dir, Name: "audit"})
		defer l.Close()
		l.Write(Record{User: "lost"})
		if s := l.Status(); s.Lost != 1 || s.Problem == "" {
			t.Fatalf("status %+v", s)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		l.Write(Record{User: "kept"})
	})
	if r := mustVerify(t, dir); r.Records != 3 { // started, lost, kept
		t.Errorf("report %+v", r)
	}
}

func TestFilesRotateByAge(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := Open(Config{Dir: dir, Name: "audit"})
		defer l.Close()
		for range 3 {
			l.Write(Record{User: "a"})
			time.Sleep(25 * time.Hour)
		}
	})
	if r := mustVerify(t, dir); r.Files != 4 {
		t.Errorf("report %+v", r)
	}
}

func TestLimiter(t *testing.T) {
	var l Limiter
	now := time.Now()
	count := func(source string, n int) (allowed int) {
		for range n {
			if l.Allow(source, now) {
				allowed++
			}
		}
		return allowed
	}
	if n := count("a", 1000); n != sourceBurst {
		t.Errorf("%d of one source", n)
	}
	if n := count("b", 1); n != 1 {
		t.Error("another source suffers")
	}
	if n := l.Suppressed(); n != 1000-sourceBurst || l.Suppressed() != 0 {
		t.Errorf("%d suppressed", n)
	}
	total := 0
	for i := range 3 * maxSources {
		total += count(fmt.Sprint(i), 1)
	}
	if total > totalBurst || len(l.sources) > maxSources {
		t.Errorf("%d of many sources, %d remembered", total, len(l.sources))
	}
	now = now.Add(time.Hour)
	if n := count("a", 100); n != sourceBurst {
		t.Errorf("%d an hour later", n)
	}
	if SourceOf("2001:db8::1") != SourceOf("2001:db8::ffff:2") || SourceOf("192.0.2.1") == SourceOf("192.0.2.2") {
		t.Error("sources")
	}
}

// FuzzVerify reads bytes as a log: no panic, and what is accepted is a chain.
func FuzzVerify(f *testing.F) {
	dir := f.TempDir()
	l := Open(Config{Dir: dir, Name: "audit"})
	for range 3 {
		l.Write(Record{User: "a", Code: 200})
	}
	l.Close()
	whole, err := os.ReadFile(filepath.Join(dir, "audit.log"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole, whole)
	f.Add(whole[:300], []byte{})
	f.Add([]byte(`{"seq":1,"prev":""}`+"\n"), []byte(`{"seq":2,"event":"torn","details":{"bytes":"-1"}}`+"\n"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		v := &verifier{}
		err := v.file("first", bytes.NewReader(first))
		if err == nil {
			err = v.file("second", bytes.NewReader(second))
		}
		if err == nil {
			err = v.end()
		}
		if err != nil {
			return
		}
		if n := v.report.Last - v.report.First + 1; v.report.Records > 0 && n != v.report.Records {
			t.Fatalf("accepted %+v", v.report)
		}
		var tl tail
		tl.find(append(append([]byte{}, first...), second...), true)
	})
}
