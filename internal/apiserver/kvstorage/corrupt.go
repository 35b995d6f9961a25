package kvstorage

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/proxima-mesh/proxima/internal/store"
)

// maxCorruptObjects caps how many broken objects one list reports; upstream's
// registries and its conformance suite expect 100 (KEP-3926).
const maxCorruptObjects = 100

// CorruptError reports that a stored value can never be read again. Values that do
// not decode are corrupt. A value that does not transform is corrupt only if the
// transformer returns this error: while a key server is unreachable, intact data must
// not be treated as deletable.
//
// It matters only while the feature gate AllowUnsafeMalformedObjectDeletion is
// on: administrators may then delete such objects.
type CorruptError struct{ Err error }

func (e *CorruptError) Error() string { return fmt.Sprintf("stored object is corrupt: %v", e.Err) }

func (e *CorruptError) Unwrap() error { return e.Err }

// Is makes it match [store.ErrDamaged].
func (e *CorruptError) Is(target error) bool { return target == store.ErrDamaged }

// corruptList collects the broken objects of one list, so that an administrator
// sees all of them at once.
type corruptList struct {
	causes []metav1.StatusCause
	first  error
}

// add takes an error of one object. It reports false if the list must stop.
func (l *corruptList) add(key string, err error) bool {
	var corrupt *CorruptError
	if !errors.As(err, &corrupt) {
		if len(l.causes) > 0 {
			l.causes = append(l.causes, metav1.StatusCause{
				Type:    metav1.CauseTypeUnexpectedServerResponse,
				Message: err.Error(),
			})
		} else {
			l.first = err
		}
		return false
	}
	problem := storage.NewCorruptObjError(key, corrupt)
	if l.first == nil {
		l.first = problem
	}
	l.causes = append(l.causes, metav1.StatusCause{
		Type:    metav1.CauseTypeUnexpectedServerResponse,
		Field:   key,
		Message: problem.Error(),
	})
	if len(l.causes) < maxCorruptObjects {
		return true
	}
	l.causes = append(l.causes, metav1.StatusCause{
		Type:    metav1.CauseTypeTooMany,
		Message: "too many errors, the list is truncated",
	})
	return false
}

// err is nil if all objects were readable.
func (l *corruptList) err(group schema.GroupResource) error {
	if len(l.causes) == 0 {
		return l.first
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Message: fmt.Sprintf("some %s could not be read, the first because of: %v", group, l.first),
		Details: &metav1.StatusDetails{Group: group.Group, Kind: group.Resource, Name: "list", Causes: l.causes},
	}}
}
