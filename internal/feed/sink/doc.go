// Package sink sends the changes of a change feed to webhooks, as CloudEvents.
//
// It owns what a sink is, its deliveries, their signatures and their repetition. Enter at New and Sinks.Run. It never loses a
// change that is in the feed: one that is not accepted is sent again, with all that follow behind it.
//
// The format is CloudEvents 1.0 over HTTP, in batches (application/cloudevents-batch+json). Deliveries are signed as Standard
// Webhooks 1.0 says (standardwebhooks.com): headers webhook-id, webhook-timestamp and webhook-signature, HMAC-SHA256.
package sink

import (
	"context"
	"crypto/rand"
	"encoding/base64"
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
	// maxEvents and maxBytes of a delivery; one event may be larger.
	maxEvents = 100
	maxBytes  = 1 << 20
	// answerTimeout is how long the receiver of a delivery may take to answer.
	answerTimeout = 30 * time.Second
	// idleEvery is how often a sink that selects nothing of what happens moves on.
	idleEvery = 30 * time.Second
)

// Spec is what a sink is to do.
type Spec struct {
	// Name: lower case letters, digits, "-" and ".".
	Name string `json:"name"`
	// URL of http or https that deliveries are posted to. Credentials in it are not shown.
	URL string `json:"url"`
	// Resources by their plurals, as "services" or "dataplanes.mesh.proxima.dev"; none: all.
	Resources []string `json:"resources,omitempty"`
	// Namespaces; none: all, and what is in none.
	Namespaces []string `json:"namespaces,omitempty"`
	// Secret of the signature, as "whsec_" and base64 of 24 to 64 bytes; empty in requests: one is made.
	Secret string `json:"secret,omitempty"`
	// Authorities (PEM) that certificates of the receiver are checked by; empty: the system's.
	Authorities string    `json:"authorities,omitempty"`
	Created     time.Time `json:"created"`
	// By is the user who added it.
	By string `json:"by,omitempty"`
}

const secretPrefix = "whsec_"

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

func invalidf(format string, args ...any) error { return &InvalidError{fmt.Errorf(format, args...)} }

// check completes a spec that somebody wrote. known reports whether there is a resource.
func (s *Spec) check(known func(string) bool) error {
	u, err := url.Parse(s.URL)
	switch {
	case err != nil:
		return invalidf("url: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return invalidf("url %q: want http://HOST/PATH or https://HOST/PATH", u.Redacted())
	}
	if s.Name == "" {
		s.Name = strings.ToLower(u.Hostname())
	}
	if !names.MatchString(s.Name) {
		return invalidf("name %q: want lower case letters, digits, \"-\" and \".\", 63 at most", s.Name)
	}
	for _, r := range s.Resources {
		if !known(r) {
			return invalidf("resource %q: there is no such resource in the change feed; want its plural, as \"services\" or \"dataplanes.mesh.proxima.dev\"", r)
		}
	}
	slices.Sort(s.Resources)
	slices.Sort(s.Namespaces)
	if s.Secret == "" {
		key := make([]byte, 32)
		_, _ = rand.Read(key) // it never fails
		s.Secret = secretPrefix + base64.StdEncoding.EncodeToString(key)
	}
	if _, err := s.key(); err != nil {
		return err
	}
	if s.Authorities != "" {
		if _, err := roots(s.Authorities); err != nil {
			return err
		}
	}
	return nil
}

// key of the signature.
func (s *Spec) key() ([]byte, error) {
	text, ok := strings.CutPrefix(s.Secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return nil, invalidf("secret: want \"whsec_\" and base64 of 24 to 64 bytes")
	}
	return key, nil
}

// shown is the URL without credentials.
func (s *Spec) shown() string {
	u, err := url.Parse(s.URL)
	if err != nil {
		return ""
	}
	return u.Redacted()
}

// Status of a sink.
type Status struct {
	Name       string    `json:"name"`
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
