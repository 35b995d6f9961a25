package audit

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"
)

// Defaults of Config.
const (
	DefaultFileBytes = 64 << 20
	DefaultFileAge   = 24 * time.Hour
	DefaultMaxBytes  = 1 << 30
	DefaultMaxAge    = 30 * 24 * time.Hour

	// syncEvery is how often records are brought to the disk. A loss of power takes
	// those since then.
	syncEvery = time.Second
	// retryEvery is how often a log that fails is tried again.
	retryEvery = time.Second
	// keepEvery is the interval between checks for expired files.
	keepEvery = time.Hour
)

// Config of a Log. Dir and Name are required; zero fields: the defaults.
type Config struct {
	Dir, Name string
	// A file of FileBytes, or FileAge old, is rotated.
	FileBytes int64
	FileAge   time.Duration
	// Older files are removed when all have more than MaxBytes, or when their last
	// record is older than MaxAge.
	MaxBytes int64
	MaxAge   time.Duration
	Logger   *slog.Logger

	fs fileSystem // nil: the machine's
}

// Status of a log.
type Status struct {
	// Records were written since the log was opened, Lost could not be.
	Records uint64 `json:"records"`
	Lost    uint64 `json:"lost,omitempty"`
	// Problem is why records cannot be written now, since Since; empty: they can.
	Problem string     `json:"problem,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
}

// Log is an audit log that is being written. Safe for concurrent use.
type Log struct {
	cfg Config

	mu   sync.Mutex
	file *current // nil: not open
	// at is the last record that was written.
	at     position
	dirty  bool
	status Status
	// tried to open last.
	tried time.Time
	// unreported are those of status.Lost that no record reports yet.
	unreported uint64
	lostWhy    string
	kept       time.Time
	started    bool // its start is recorded
	closed     bool

	stop chan struct{}
	done sync.WaitGroup
}

// Open a log, and close it when it is no longer needed. It returns no error: a failure
// to write is reported by Status, and writing is retried.
func Open(cfg Config) *Log {
	cfg.FileBytes = cmp.Or(cfg.FileBytes, DefaultFileBytes)
	cfg.FileAge = cmp.Or(cfg.FileAge, DefaultFileAge)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, DefaultMaxBytes)
	cfg.MaxAge = cmp.Or(cfg.MaxAge, DefaultMaxAge)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.fs == nil {
		cfg.fs = disk{}
	}
	l := &Log{cfg: cfg, stop: make(chan struct{})}
	l.mu.Lock()
	l.ready()
	l.mu.Unlock()
	l.done.Go(l.run)
	return l
}

// Write a record. It blocks for a write to the file system's cache. Seq and Prev are
// filled in, and Time if it is zero. What cannot be written is counted, and lost.
func (l *Log) Write(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready() {
		l.lose(1)
		return
	}
	if err := l.append(r); err != nil {
		l.fail(err)
		l.lose(1)
	}
}

// Status of now.
func (l *Log) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// Close brings everything to the disk. What is written afterwards is lost. Idempotent.
func (l *Log) Close() {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	if closed {
		return
	}
	close(l.stop)
	l.done.Wait()
	l.sync()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close() // it was synced
		l.file = nil
	}
}

func (l *Log) run() {
	tick := time.NewTicker(syncEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.sync()
			l.tend()
		case <-l.stop:
			return
		}
	}
}

// ready opens the log if it is not, at most once in a while. The lock is held.
func (l *Log) ready() bool {
	if l.file != nil {
		return true
	}
	now := time.Now()
	if l.closed || !l.tried.IsZero() && now.Sub(l.tried) < retryEvery {
		return false
	}
	l.tried = now
	if err := l.open(); err != nil {
		l.fail(err)
		return false
	}
	l.recovered()
	return true
}

// fail closes the file; the next attempt inspects its content. The lock is held.
func (l *Log) fail(err error) {
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
	l.tried = time.Now()
	l.problem(err)
}

// problem is shown until it is over. The lock is held.
func (l *Log) problem(err error) {
	if l.status.Problem == "" {
		now := time.Now()
		l.status.Since = &now
		l.cfg.Logger.Error("the audit log cannot be written; requests go on without a record", "log", l.cfg.Name, "error", err)
	}
	l.status.Problem = err.Error()
}

func (l *Log) recovered() {
	if l.status.Problem != "" {
		l.cfg.Logger.Info("the audit log can be written again", "log", l.cfg.Name, "lost", l.unreported)
		l.status.Problem, l.status.Since = "", nil
	}
}

func (l *Log) lose(n uint64) {
	l.status.Lost += n
	l.unreported += n
	l.lostWhy = cmp.Or(l.status.Problem, "the log is closed")
}

// append a record, after one of what was lost. The lock is held, the file open.
func (l *Log) append(r Record) error {
	if n := l.unreported; n > 0 {
		err := l.appendOne(Record{Event: EventLost, Details: map[string]string{"records": strconv.FormatUint(n, 10), "reason": l.lostWhy}})
		if err != nil {
			return err
		}
		l.unreported -= n
	}
	return l.appendOne(r)
}

func (l *Log) appendOne(r Record) error {
	if l.file.isFull(l.cfg, time.Now()) {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	return l.put(r)
}

// put a record into the file that is open.
func (l *Log) put(r Record) error {
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	r = r.bounded()
	r.Time = r.Time.UTC()
	r.Seq, r.Prev = l.at.Seq+1, l.at.Hash
	line, err := encode(r)
	if err != nil {
		return err
	}
	if err := l.file.append(append(line, '\n'), r); err != nil {
		return err
	}
	l.at = position{r.Seq, hashOf(line)}
	l.dirty = true
	l.status.Records++
	return nil
}

// sync flushes what was written to disk, and only then updates the head: the head
// never names a record that a power failure can lose.
func (l *Log) sync() {
	l.mu.Lock()
	file, at, dirty := l.file, l.at, l.dirty
	l.dirty = false
	l.mu.Unlock()
	if file == nil || !dirty {
		return
	}
	err := file.Sync()
	if err == nil {
		err = writeHead(l.cfg, at)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && l.file == file {
		l.dirty = true
		l.problem(fmt.Errorf("bring the audit log to the disk: %w", err))
	} else if err == nil && l.file != nil {
		l.recovered()
	}
}

// tend retries what failed and removes old files.
func (l *Log) tend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready() {
		return
	}
	if l.moved() {
		l.fail(errors.New("the file was moved or removed"))
		l.tried = time.Time{}
		l.ready()
		return
	}
	now := time.Now()
	var err error
	if l.file.records > 0 && l.file.isFull(l.cfg, now) {
		err = l.rotate()
	} else if now.Sub(l.kept) >= keepEvery {
		err = l.retain(now)
	}
	if err != nil {
		l.fail(err)
	}
}

// moved reports whether the open file no longer has its name, for example after a
// rename. The lock is held.
func (l *Log) moved() bool {
	named, err := os.Stat(l.cfg.path(".log"))
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	open, err := l.file.Stat()
	return err == nil && !os.SameFile(named, open)
}
