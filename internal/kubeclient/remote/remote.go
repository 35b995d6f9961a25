// Package remote is another Proxima's state, through its API.
//
// It owns what that API can do and a Kubernetes API can't: all kinds share one
// revision, which a list can be asked for, so several kinds can be read as they
// were at one moment. Enter at Open. Writes take the other control plane's one
// write path; it is no store.Store, and no control plane keeps its own state
// there (docs/adr/0006).
//
// A Store is a resource.Client. To follow the state over cuts of the connection
// put package resource/cached over it.
package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

// StatusPath answers with the epoch of the state, to users who may read it.
const StatusPath = "/proxima/v1/status"

// Store implements resource.Client. Safe for concurrent use.
type Store struct {
	*kubeclient.Client
	raw   rest.Interface
	probe *resource.Descriptor
	epoch string
}

var _ resource.Client = (*Store)(nil)

// NotProximaError reports an API that has no revision over all kinds.
type NotProximaError struct {
	Host string
	Err  error
}

func (e *NotProximaError) Error() string {
	return fmt.Sprintf("%s is not the API of a Proxima control plane: %v", e.Host, e.Err)
}

func (e *NotProximaError) Unwrap() error { return e.Err }

// ReplacedError reports that the other control plane has another history now, say
// as it was restored from a backup. What was read before must not be compared
// with what is read from now on. Open it again.
type ReplacedError struct {
	Epoch, Was string
}

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("the state was replaced: its epoch is %s, it was %s", e.Epoch, e.Was)
}

// Open connects to an API, for the given kinds. Errors: *NotProximaError, those of
// the connection, and those of k8s.io/apimachinery/pkg/api/errors.
func Open(ctx context.Context, cfg *rest.Config, kinds []*resource.Descriptor) (*Store, error) {
	if len(kinds) == 0 {
		return nil, errors.New("remote: at least one kind is needed")
	}
	client, err := kubeclient.New(cfg, kinds)
	if err != nil {
		return nil, fmt.Errorf("remote: %w", err)
	}
	s := &Store{Client: client, raw: client.REST(kinds[0]), probe: kinds[0]}
	if s.epoch, err = s.readEpoch(ctx); apierrors.IsNotFound(err) || (err == nil && s.epoch == "") {
		return nil, &NotProximaError{Host: cfg.Host, Err: fmt.Errorf("%s has no epoch", StatusPath)}
	} else if err != nil {
		return nil, fmt.Errorf("remote: %w", err)
	}
	return s, nil
}

func (s *Store) readEpoch(ctx context.Context) (string, error) {
	data, err := s.raw.Get().AbsPath(StatusPath).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return "", err
	}
	var status struct {
		Store struct {
			Epoch string `json:"epoch"`
		} `json:"store"`
	}
	if err := json.Unmarshal(data, &status); err != nil {
		return "", fmt.Errorf("%s: %w", StatusPath, err)
	}
	return status.Store.Epoch, nil
}

// Epoch of the state, as it was when the store was opened. Revisions of different
// epochs must never be compared.
func (s *Store) Epoch() string { return s.epoch }

// Check fails with *ReplacedError if the state has another epoch by now.
func (s *Store) Check(ctx context.Context) error {
	now, err := s.readEpoch(ctx)
	if err == nil && now != s.epoch {
		err = &ReplacedError{Epoch: now, Was: s.epoch}
	}
	return err
}

// Revision is the newest of the whole state, at the moment of the call or after.
func (s *Store) Revision(ctx context.Context) (store.Revision, error) {
	page, err := s.Page(ctx, s.probe, kubeclient.PageOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	return parse(page.ResourceVersion)
}

// ListAt lists a kind as it was at a revision; 0: the newest. Errors: IsGone and
// IsResourceExpired if that is compacted. A revision that has not been reached is
// waited for, some 40 s at the longest.
func (s *Store) ListAt(ctx context.Context, kind *resource.Descriptor, opts resource.ListOptions, at store.Revision) ([]resource.Object, store.Revision, error) {
	page := kubeclient.PageOptions{ListOptions: opts, Limit: pageSize}
	if at > 0 {
		page.Exact = strconv.FormatInt(int64(at), 10)
	}
	var objects []resource.Object
	for {
		got, err := s.Page(ctx, kind, page)
		if err != nil {
			return nil, 0, fmt.Errorf("list %s at revision %d: %w", kind.Resource, at, err)
		}
		objects = append(objects, got.Objects...)
		if got.Continue == "" {
			read, err := parse(got.ResourceVersion)
			return objects, read, err
		}
		// The token knows the revision.
		page.Continue, page.Exact = got.Continue, ""
	}
}

const pageSize = 500

// snapshotTries bounds how often a snapshot starts again because its revision was
// compacted meanwhile.
const snapshotTries = 3

// Snapshot reads kinds as they all were at one revision.
func (s *Store) Snapshot(ctx context.Context, kinds ...*resource.Descriptor) (objects [][]resource.Object, at store.Revision, err error) {
	for range snapshotTries {
		if objects, at, err = s.snapshot(ctx, kinds); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			break
		}
	}
	return objects, at, err
}

func (s *Store) snapshot(ctx context.Context, kinds []*resource.Descriptor) (objects [][]resource.Object, at store.Revision, err error) {
	for _, kind := range kinds {
		var list []resource.Object
		if list, at, err = s.ListAt(ctx, kind, resource.ListOptions{}, at); err != nil {
			return nil, 0, err
		}
		objects = append(objects, list)
	}
	return objects, at, nil
}

func parse(version string) (store.Revision, error) {
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resource version %q is no revision", version)
	}
	return store.Revision(n), nil
}
