package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/store"
)

// URLError reports a URL that cannot be used.
type URLError struct {
	Reason string
}

func (e *URLError) Error() string { return "etcd URL: " + e.Reason }

// FormatError reports a state that was written by a newer version.
type FormatError struct {
	Format int
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("the state in etcd has format %d, this program reads format %d; use a newer program", e.Format, layoutFormat)
}

// DamagedError reports a key below the prefix of the state that this package did
// not write.
type DamagedError struct {
	// Key is etcd's.
	Key, Detail string
}

// Is makes it match [store.ErrDamaged].
func (e *DamagedError) Is(target error) bool { return target == store.ErrDamaged }

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the key %q in etcd is damaged (%s); delete it with etcdctl del, or restore a backup", e.Key, e.Detail)
}

// ReplacedError reports that etcd does not hold the history that the store was
// opened on, or that this instance has seen before: it was restored, or the
// prefix was deleted.
type ReplacedError struct {
	Detail string
	// Hint names the fix.
	Hint string
}

func (e *ReplacedError) Error() string {
	return "the history in etcd was replaced: " + e.Detail + "; " + e.Hint
}

// InUseError reports that another instance has the state exclusively.
type InUseError struct {
	// Holder describes that instance.
	Holder string
}

func (e *InUseError) Error() string {
	return "the state in etcd is in use by another control plane (" + e.Holder + "); stop that one, or set another prefix=NAME in the URL"
}

// LimitError reports a transaction that is larger than etcd accepts. Nothing was
// changed.
type LimitError struct {
	// Limit names the bound and, where there is one, the option of etcd's server.
	Limit string
	// Err is etcd's answer; nil if the transaction was not sent.
	Err error
}

func (e *LimitError) Error() string {
	if e.Err == nil {
		return "the transaction is too large for etcd: " + e.Limit
	}
	return "the transaction is too large for etcd: " + e.Limit + ": " + e.Err.Error()
}

func (e *LimitError) Unwrap() error { return e.Err }

// UnknownError reports a commit that may have happened or not: the connection
// was lost while it was under way, and etcd could not be read since, or its
// history does not show it. Read before the next try.
type UnknownError struct {
	Err error
}

func (e *UnknownError) Error() string {
	return "the outcome of the commit is unknown: " + e.Err.Error()
}

func (e *UnknownError) Unwrap() error { return e.Err }

// tooLarge turns the three errors for exceeded limits into one.
func tooLarge(err error) *LimitError {
	switch {
	case errors.Is(err, rpctypes.ErrTooManyOps):
		return &LimitError{Limit: fmt.Sprintf("%d keys and operations (--max-txn-ops, 128 by default)", maxKeys), Err: err}
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return &LimitError{Limit: "1.5 MiB with keys (--max-request-bytes)", Err: err}
	case code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max"):
		// The client's own limit; etcd's errors of this code are an EtcdError each.
		return &LimitError{Limit: "1.5 MiB with keys (--max-request-bytes)", Err: err}
	}
	return nil
}

// code is the gRPC code of an error of the client.
func code(err error) codes.Code {
	var server rpctypes.EtcdError
	if errors.As(err, &server) {
		return server.Code()
	}
	return status.Code(err)
}

// refused reports that etcd answered, and did not apply the request. Any other
// error of a write leaves its outcome open.
func refused(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.ResourceExhausted:
		return true
	}
	return false
}

// unavailable reports that the same request may pass a moment later.
func unavailable(err error) bool {
	if errors.Is(err, context.Canceled) || permanent(err) {
		return false
	}
	if errors.Is(err, rpctypes.ErrTooManyRequests) {
		return true
	}
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Internal, codes.Unknown, codes.Aborted, codes.Canceled:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// permanent finds this package's errors, which no retry mends.
func permanent(err error) bool {
	if errors.Is(err, store.ErrCompacted) || errors.Is(err, store.ErrFuture) || errors.Is(err, store.ErrClosed) {
		return true
	}
	for _, kind := range []any{
		new(*store.ConflictError), new(*store.InvalidError), new(*URLError), new(*FormatError), new(*DamagedError),
		new(*ReplacedError), new(*InUseError), new(*LimitError), new(*UnknownError),
	} {
		if errors.As(err, kind) {
			return true
		}
	}
	return false
}

// contract turns etcd's answers to a read at a revision into those of the
// contract.
func contract(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return store.ErrCompacted
	case errors.Is(err, rpctypes.ErrFutureRev):
		return store.ErrFuture
	}
	return err
}

// explain adds to an error of etcd what an operator can do.
func explain(err error) error {
	hint := ""
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		hint = "etcd's database is full; compact and defragment it, then etcdctl alarm disarm (deletes still work)"
	case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, rpctypes.ErrUserEmpty):
		hint = "grant the user of the client certificate read and write on the prefix"
	case strings.Contains(err.Error(), "certificate signed by unknown authority"):
		hint = "cacert=FILE in the URL must be the authority of etcd's server certificates"
	case strings.Contains(err.Error(), "tls: certificate required"), strings.Contains(err.Error(), "bad certificate"):
		hint = "etcd requires a client certificate: set cert=FILE and key=FILE in the URL"
	default:
		return err
	}
	return fmt.Errorf("%s: %w", hint, err)
}
