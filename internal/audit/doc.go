// Package audit keeps a log of requests in files: one JSON record a line, each with
// the SHA-256 of the line before it, so that a change of any line is found.
//
// A log NAME in a directory consists of NAME.log, the file being written,
// NAME-TIME-SEQ.log, the older files, and NAME.head, which holds the number and hash of
// the last record known to be on disk. The chain continues across rotations and
// restarts. Enter at Open to write and at Verify to check; Limiter bounds the rate of
// records. The log's own events are records too.
//
// A write failure never stops the caller. Records are then lost: Status reports it, and
// the first record written afterwards states how many.
package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Events of records that the log writes about itself.
const (
	// EventStarted: the log was opened.
	EventStarted = "started"
	// EventTorn: the bytes before this record are not one; a crash cut it off. Details
	// have their number and SHA-256.
	EventTorn = "torn"
	// EventMissing: the log ends before the record that its head names. Details have
	// the number of the last record that is there and of the one that was.
	EventMissing = "missing"
	// EventLost: records could not be written. Details have how many and why.
	EventLost = "lost"
	// EventRemoved: older files are removed, with all records up to the number
	// "through" in Details.
	EventRemoved = "removed"
	// EventSuppressed: records were left out, as they came too fast. Details have how
	// many.
	EventSuppressed = "suppressed"
)

// Bounds of a record's parts. What is longer is cut.
const (
	// MaxText of each part, in bytes.
	MaxText = 1 << 10
	// MaxSources are the last of From that are kept.
	MaxSources = 8
)

// Record is one line of a log.
type Record struct {
	// Seq numbers the records of a log from 1, without gaps.
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	// Event is set if the record is of the log itself.
	Event string `json:"event,omitempty"`
	// User in whose name the request was; Actor who sent it, if that is another.
	User  string `json:"user,omitempty"`
	Actor string `json:"actor,omitempty"`
	Verb  string `json:"verb,omitempty"`
	// Object is the path of a resource, or of the request if it has none.
	Object string `json:"object,omitempty"`
	// From are the addresses that it came by, the sender's own last.
	From   []string `json:"from,omitempty"`
	Code   int32    `json:"code,omitempty"`
	Reason string   `json:"reason,omitempty"`
	// Details by name, such as the kind of a token that was created.
	Details map[string]string `json:"details,omitempty"`
	// Prev is the SHA-256 of the line before, without its end, in hexadecimal; empty
	// in the first record.
	Prev string `json:"prev"`
}

// bounded cuts the parts of a record that are too long.
func (r Record) bounded() Record {
	for _, s := range []*string{&r.Event, &r.User, &r.Actor, &r.Verb, &r.Object, &r.Reason} {
		*s = cut(*s)
	}
	from := r.From
	if len(from) > MaxSources {
		from = from[len(from)-MaxSources:]
	}
	r.From = nil
	for _, s := range from {
		r.From = append(r.From, cut(s))
	}
	details := r.Details
	r.Details = nil
	for name, value := range details {
		if r.Details == nil {
			r.Details = map[string]string{}
		}
		r.Details[cut(name)] = cut(value)
	}
	return r
}

func cut(s string) string {
	if len(s) <= MaxText {
		return strings.ToValidUTF8(s, "�")
	}
	mark := fmt.Sprintf("…(%d bytes)", len(s))
	end := MaxText - len(mark)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return strings.ToValidUTF8(s[:end], "?") + mark
}

func encode(r Record) ([]byte, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode audit record: %w", err)
	}
	return line, nil
}

// recordStart is how every line begins.
const recordStart = `{"seq":`

var errNoRecord = errors.New("it is no record")

// decode a line, without its end.
func decode(line []byte) (Record, error) {
	var r Record
	if !bytes.HasPrefix(line, []byte(recordStart)) {
		return Record{}, errNoRecord
	}
	if err := json.Unmarshal(line, &r); err != nil || r.Seq == 0 {
		return Record{}, errNoRecord
	}
	return r, nil
}

func hashOf(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// position is where a chain is: the last record's number and hash. Zero: before the
// first.
type position struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}
