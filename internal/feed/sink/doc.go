// Package sink sends the changes of a change feed to others: to webhooks, as CloudEvents, and to whatever kinds of sinks it is given.
//
// It owns what a sink is, how far each is, and the repetition of deliveries that failed. Enter at New and Sinks.Run. It never loses a
// change that is in the feed: one that is not accepted is sent again, with all that follow behind it.
//
// A Kind makes a Target of a sink's Spec; a worker reads the feed and has the target deliver. The kind of this package is the webhook. Its
// format is CloudEvents 1.0 over HTTP, in batches (application/cloudevents-batch+json). Deliveries are signed as Standard
// Webhooks 1.0 says (standardwebhooks.com): headers webhook-id, webhook-timestamp and webhook-signature, HMAC-SHA256.
package sink

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Bounds.
const (
	// MaxSinks of a control plane.
	MaxSinks = 32
	// idleEvery is how often a sink that selects nothing of what happens moves on.
	idleEvery = 30 * time.Second
)

// Spec is what a sink is to do.
type Spec struct {
	// Name: lower case letters, digits, "-" and ".".
	Name string `json:"name"`
	// Kind of sink: "webhook", also if it is empty, or one of Config.Kinds.
	Kind string `json:"kind,omitempty"`
	// URL that changes are delivered to: of http or https for a webhook. Credentials in it are not shown.
	URL string `json:"url"`
	// Resources by their plurals, as "services" or "dataplanes.mesh.proxima.dev"; none: all.
	Resources []string `json:"resources,omitempty"`
	// Namespaces; none: all, and what is in none.
	Namespaces []string `json:"namespaces,omitempty"`
	// Secret of the signatures of a webhook, as "whsec_" and base64 of 24 to 64 bytes; empty in requests: one is made.
	Secret string `json:"secret,omitempty"`
	// Token that is shown to the receiver, if the kind of sink has it.
	Token string `json:"token,omitempty"`
	// ID that no other sink has had: it is made.
	ID string `json:"id,omitempty"`
	// Authorities (PEM) that certificates of the receiver are checked by; empty: the system's.
	Authorities string    `json:"authorities,omitempty"`
	Created     time.Time `json:"created"`
	// By is the user who added it.
	By string `json:"by,omitempty"`
}

var names = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)

// ErrExists and ErrNotFound are returned by Sinks.Add and Sinks.Remove.
var (
	ErrExists   = errors.New("there is a sink of that name")
	ErrNotFound = errors.New("there is no sink of that name")
)

// InvalidError reports a Spec that cannot be.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }
func (e *InvalidError) Unwrap() error { return e.Err }

// Invalid makes an *InvalidError.
func Invalid(format string, args ...any) error { return &InvalidError{fmt.Errorf(format, args...)} }

// check completes a spec that somebody wrote. known reports whether there is a resource.
func (s *Spec) check(k Kind, known func(string) bool) error {
	if err := k.Check(s); err != nil {
		return err
	}
	if s.Name == "" {
		if u, err := url.Parse(s.URL); err == nil {
			s.Name = strings.ToLower(u.Hostname())
		}
	}
	if !names.MatchString(s.Name) {
		return Invalid("name %q: want lower case letters, digits, \"-\" and \".\", 63 at most", s.Name)
	}
	for _, r := range s.Resources {
		if !known(r) {
			return Invalid("resource %q: there is no such resource in the change feed; want its plural, as \"services\" or \"dataplanes.mesh.proxima.dev\"", r)
		}
	}
	slices.Sort(s.Resources)
	slices.Sort(s.Namespaces)
	return nil
}

// Shown is the URL without credentials.
func (s *Spec) Shown() string {
	u, err := url.Parse(s.URL)
	if err != nil {
		return ""
	}
	return u.Redacted()
}

// Status of a sink.
type Status struct {
	Name       string    `json:"name"`
	Kind       string    `json:"kind"`
	URL        string    `json:"url"`
	Resources  []string  `json:"resources,omitempty"`
	Namespaces []string  `json:"namespaces,omitempty"`
	Created    time.Time `json:"created"`
	By         string    `json:"by,omitempty"`
	// Position up to which all is delivered, and Behind: the newest of the feed minus that.
	Position int64 `json:"position"`
	Behind   int64 `json:"behind"`
	// Delivered events and Failures of deliveries since this instance leads.
	Delivered uint64 `json:"delivered"`
	Failures  uint64 `json:"failures"`
	// Problem is why the last delivery failed, since Since; empty: it did not.
	Problem string     `json:"problem,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
	// Here: this instance delivers.
	Here bool `json:"here"`
}

// Records keeps specs, encrypted; a *sealed.Records is one, and documents the methods.
type Records interface {
	Names(ctx context.Context, prefix string) ([]string, error)
	Load(ctx context.Context, name string) ([]byte, error)
	Create(ctx context.Context, name string, data []byte) error
	Delete(ctx context.Context, name string) error
	Watch(ctx context.Context, changed func()) error
}
