// Package redact replaces values of objects by their hashes in the past that the change feed keeps.
//
// It owns what a redaction is, how it changes an object as it was, and how far each is done at this instance. Enter at New,
// Redactions.Redact and Redactions.Run. It never changes what an object is now, and never tells a redaction done while a file of the
// feed that it can see has the value.
//
// A redaction stays in the store for ever, encrypted: copies of segments may come back. Its key makes hashes that cannot be guessed
// from short values by who has a segment.
package redact

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

const (
	// MaxRedactions of a control plane.
	MaxRedactions = 1000

	recordPrefix = "feed/redactions/"
	keyBytes     = 32
	// passEvery is how often files that came back are looked for.
	passEvery = 30 * time.Second

	// progressPrefix of rows of the store that say how far an instance is. They are no secrets.
	progressPrefix = "/proxima/feed/redacted/"
	// reportEvery is how often an instance writes its row if nothing has changed; one that did not for forgetAfter is no instance any more.
	reportEvery = time.Hour
	forgetAfter = 7 * 24 * time.Hour
)

// Request for a redaction.
type Request struct {
	// Resource is the plural, Group empty for the core group.
	Group    string `json:"group,omitempty"`
	Resource string `json:"resource"`
	// Namespace is required for kinds that have one.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Field is a path (history.ParsePath).
	Field string `json:"field"`
	// KeepCurrent redacts the past even if the object has a value at the path now, which stays.
	KeepCurrent bool `json:"keepCurrent,omitempty"`
}

// row is a redaction in the store.
type row struct {
	ID string `json:"id"`
	Request
	By      string    `json:"by,omitempty"`
	Created time.Time `json:"created"`
	// UpTo is the revision of the store, of Epoch, up to which values are redacted; of other epochs it is all until Created.
	Epoch string          `json:"epoch"`
	UpTo  seglog.Position `json:"upTo"`
	// Key of the hashes.
	Key []byte `json:"key"`

	key string // of the object in the store
}

// Status of a redaction.
type Status struct {
	ID string `json:"id"`
	Request
	By      string          `json:"by,omitempty"`
	Created time.Time       `json:"created"`
	UpTo    seglog.Position `json:"upTo"`
	// Done: at the instance that answers, no file that it can see has the value. Outstanding says where it may be still, or that nobody
	// has looked yet.
	Done        bool     `json:"done"`
	Outstanding []string `json:"outstanding,omitempty"`
	// Replaced are values that this instance has replaced since it was started, in each copy.
	Replaced int `json:"replaced"`
	// Instances of the control plane, by name, where there may be several; this one among them.
	Instances []Instance `json:"instances,omitempty"`
}

// Instance is how far a redaction is at an instance of a control plane.
type Instance struct {
	Name string `json:"name"`
	// Done and Outstanding as in Status.
	Done        bool     `json:"done"`
	Outstanding []string `json:"outstanding,omitempty"`
	// Reported is when the instance has said so; it does each hour while it runs.
	Reported time.Time `json:"reported"`
}

// Everywhere reports whether it is done at all instances.
func (s *Status) Everywhere() bool {
	for i := range s.Instances {
		if !s.Instances[i].Done {
			return false
		}
	}
	return s.Done
}

// InvalidError reports a Request that cannot be.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }
func (e *InvalidError) Unwrap() error { return e.Err }

func invalidf(format string, args ...any) error { return &InvalidError{fmt.Errorf(format, args...)} }

// ErrPresent is returned for an object that has a value at the path now.
var ErrPresent = errors.New("the object has a value there now, which would go on into the change feed with its next change: " +
	"change the object first, or redact its past alone with --keep-current; the present value stays then")

// Objects tells how objects are stored. An *apiserver.Stored does, and documents the methods.
type Objects interface {
	Prefix(kind *resource.Descriptor, name resource.Key) string
	Decode(ctx context.Context, key string, value []byte, at store.Revision) (resource.Object, error)
	Encode(ctx context.Context, key string, obj resource.Object) ([]byte, error)
}

// Records keeps redactions, encrypted; a *sealed.Records is one, and documents the methods.
type Records interface {
	Names(ctx context.Context, prefix string) ([]string, error)
	Load(ctx context.Context, name string) ([]byte, error)
	Create(ctx context.Context, name string, data []byte) error
	Watch(ctx context.Context, changed func()) error
}
