package audit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

// maxLine is far above what a bounded record takes; what is longer is none.
const maxLine = 1 << 20

// maxTorn bounds what a crash can leave behind the last record.
const maxTorn = 16 << 20

// Report of a log that was verified.
type Report struct {
	Files   int
	Records uint64
	// First and Last are the numbers of records.
	First, Last uint64
	// Hash of the last record.
	Hash string
	// Notes are what is no break of the chain, and good to know.
	Notes []string
}

// Break is the first place where a chain is broken.
type Break struct {
	File   string
	Line   int // 0: the file as a whole
	Reason string
}

func (b *Break) Error() string {
	if b.Line == 0 {
		return b.File + ": " + b.Reason
	}
	return fmt.Sprintf("%s:%d: %s", b.File, b.Line, b.Reason)
}

// Verify checks the chain of a log in a directory, from its oldest file to its head.
// The log may be written meanwhile. The error is a *Break, or one of reading.
//
// The chain has no secret: with write access to the files and the head, another chain
// can be made. To detect that, keep the hash of the last record elsewhere.
func Verify(dir, name string) (Report, error) {
	cfg := Config{Dir: dir, Name: name}
	// The head is read first, and the file that is written is opened before the others
	// are listed, so that what is written meanwhile makes no break.
	head, headErr := readHead(cfg)
	last, err := os.Open(cfg.path(".log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Report{}, err
	}
	v := &verifier{head: head}
	if err == nil {
		defer last.Close()
	}
	files, err := listRotated(dir, name)
	if err != nil {
		return Report{}, err
	}
	if last == nil && len(files) == 0 && headErr != nil {
		return Report{}, fmt.Errorf("%s: %w", cfg.path(".log"), os.ErrNotExist)
	}
	for _, f := range files {
		if f.first == 0 {
			v.note("%s has no chain: it is older than the log, or another program's", f.path)
			continue
		}
		if err := v.named(f.path, last); err != nil {
			return v.report, err
		}
	}
	if last != nil {
		if err := v.file(cfg.path(".log"), last); err != nil {
			return v.report, err
		}
	}
	if err := v.end(); err != nil {
		return v.report, err
	}
	if r := v.report; r.First > 1 && v.through+1 < r.First {
		return r, &Break{v.firstFile, 0, fmt.Sprintf("it begins with record %d, and no record explains the removal of those before it", r.First)}
	}
	return v.report, v.checkHead(cfg.path(".head"), headErr)
}

// VerifyFiles checks the chain in some files of one log, oldest first. What is missing
// before and after them is not noticed.
func VerifyFiles(files ...string) (Report, error) {
	v := &verifier{}
	for _, name := range files {
		if err := v.named(name, nil); err != nil {
			return v.report, err
		}
	}
	if err := v.end(); err != nil {
		return v.report, err
	}
	if v.report.First > 1 {
		v.note("the first record is number %d: what was before it is not checked", v.report.First)
	}
	return v.report, nil
}

// verifier follows a chain.
type verifier struct {
	report    Report
	head      position
	firstFile string
	// at is the last record, in line of path.
	at   position
	path string
	line int
	// pending are bytes behind it that are no record, from a line of a file on.
	pending     []byte
	pendingFrom Break
	// through is up to where records were removed.
	through uint64
}

func (v *verifier) note(format string, args ...any) {
	v.report.Notes = append(v.report.Notes, fmt.Sprintf(format, args...))
}

// named checks a file, unless it is the one that is open already: then it has been
// rotated since.
func (v *verifier) named(name string, not *os.File) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if not != nil {
		a, errA := f.Stat()
		b, errB := not.Stat()
		if errA == nil && errB == nil && os.SameFile(a, b) {
			return nil
		}
	}
	return v.file(name, f)
}

func (v *verifier) file(name string, from io.Reader) error {
	v.report.Files++
	in := bufio.NewReaderSize(from, maxLine)
	line := 1
	for {
		text, err := in.ReadSlice('\n')
		switch {
		case err == nil:
			if err := v.take(text, Break{File: name, Line: line}); err != nil {
				return err
			}
			line++
		case errors.Is(err, bufio.ErrBufferFull), errors.Is(err, io.EOF):
			if pendErr := v.pend(text, Break{File: name, Line: line}); pendErr != nil {
				return pendErr
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
		default:
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

// pend keeps bytes that are not a record until a later record explains them.
func (v *verifier) pend(text []byte, where Break) error {
	if len(text) == 0 {
		return nil
	}
	if len(v.pending) == 0 {
		v.pendingFrom = where
	}
	if v.pending = append(v.pending, text...); len(v.pending) > maxTorn {
		return v.garbage()
	}
	return nil
}

func (v *verifier) garbage() error {
	b := v.pendingFrom
	b.Reason = "it is no record, or was changed, and the next record does not report that a crash cut it off"
	return &b
}

// take a line with its end.
func (v *verifier) take(text []byte, where Break) error {
	line := text[:len(text)-1]
	r, err := decode(line)
	if err != nil {
		return v.pend(text, where)
	}
	if err := v.follows(r, where); err != nil {
		return err
	}
	v.at = position{r.Seq, hashOf(line)}
	v.path, v.line = where.File, where.Line
	if v.at.Seq == v.head.Seq && v.at.Hash != v.head.Hash {
		where.Reason = "it is not the record that was on the disk: its hash is another than the head's"
		return &where
	}
	if v.report.Records++; v.report.First == 0 {
		v.report.First, v.firstFile = r.Seq, where.File
	}
	v.report.Last, v.report.Hash = r.Seq, v.at.Hash
	return v.event(r, where)
}

// follows checks that a record follows the one before.
func (v *verifier) follows(r Record, where Break) error {
	switch {
	case v.report.Records == 0 && r.Seq == 1 && r.Prev != "":
		where.Reason = "it is the first record, but names one before it"
		return &where
	case v.report.Records > 0 && r.Prev != v.at.Hash:
		return &Break{v.path, v.line, fmt.Sprintf("it was changed, or what follows it: record %d at %s:%d has another hash",
			r.Seq, filepath.Base(where.File), where.Line)}
	case v.report.Records > 0 && r.Seq != v.at.Seq+1 && r.Event != EventMissing:
		where.Reason = fmt.Sprintf("record %d follows record %d", r.Seq, v.at.Seq)
		return &where
	}
	if (len(v.pending) > 0) != (r.Event == EventTorn) {
		if len(v.pending) > 0 {
			return v.garbage()
		}
		where.Reason = "it reports that a crash cut off the line before it, and there is no such line"
		return &where
	}
	if r.Event == EventTorn {
		size, err := strconv.Atoi(r.Details["bytes"])
		// The end of a line was added where it was missing.
		whole := err == nil && (size == len(v.pending) || size == len(v.pending)-1 && v.pending[size] == '\n')
		if !whole || hashOf(v.pending[:size]) != r.Details["sha256"] {
			return v.garbage()
		}
		v.note("%s:%d: %d bytes are no record: a crash cut them off", v.pendingFrom.File, v.pendingFrom.Line, size)
		v.pending = nil
	}
	return nil
}

// event checks a record of the log's own events.
func (v *verifier) event(r Record, where Break) error {
	switch r.Event {
	case EventMissing:
		if why := r.Details["head"]; why != "" {
			v.note("%s:%d: the head was %s when the log was opened: whether records were missing then is not known", where.File, where.Line, why)
			return nil
		}
		where.Reason = fmt.Sprintf(
			"records are missing before it: the log ended with record %s when it was opened, but record %s had been on the disk",
			r.Details["last"], r.Details["known"])
		return &where
	case EventRemoved:
		if n, err := strconv.ParseUint(r.Details["through"], 10, 64); err == nil {
			v.through = max(v.through, n)
		}
	case EventLost:
		v.note("%s:%d: %s records were lost before it: %s", where.File, where.Line, r.Details["records"], r.Details["reason"])
	case EventSuppressed:
		v.note("%s:%d: %s records were left out before it, as they came too fast", where.File, where.Line, r.Details["records"])
	}
	return nil
}

// end of the last file.
func (v *verifier) end() error {
	if len(v.pending) == 0 {
		return nil
	}
	if v.pending[len(v.pending)-1] == '\n' {
		return v.garbage()
	}
	v.note("%s:%d: the last line is not finished: it is being written, or a crash cut it off", v.pendingFrom.File, v.pendingFrom.Line)
	return nil
}

func (v *verifier) checkHead(path string, err error) error {
	switch {
	case err != nil && v.report.Records > 0:
		v.note("the head, %s, cannot be read (%v): whether records are missing at the end is not known", path, err)
	case err == nil && v.head.Seq > v.at.Seq:
		return &Break{File: path, Reason: fmt.Sprintf("the log ends with record %d, but record %d had been on the disk", v.at.Seq, v.head.Seq)}
	}
	return nil
}
