package kvstorage

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/proxima-mesh/proxima/internal/store"
)

// storageError turns an error of the store into one that the generic registry
// maps to a status. The result is never wrapped: upstream recognises its errors
// by type assertion. Context errors pass as they are.
func storageError(op, key string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, store.ErrClosed):
		// The client should retry: another instance may serve it.
		return storage.NewUnreachableError(key, 0)
	default:
		return internalError(fmt.Errorf("%s %s: %w", op, key, public(err)))
	}
}

// internalError is 500; for damage with the reason that Kubernetes has for it.
func internalError(err error) error {
	if !errors.Is(err, store.ErrDamaged) {
		return storage.NewInternalError(err)
	}
	return &unreadableError{err}
}

// unreadableError is how clients see damage. It is an error of its own, as storage errors are
// recognised by their type.
type unreadableError struct{ error }

// Status implements apierrors.APIStatus.
func (e *unreadableError) Status() metav1.Status {
	return metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
		Reason: metav1.StatusReasonStoreReadError, Message: e.Error(),
	}
}

func (e *unreadableError) Unwrap() error { return e.error }

// errStore is what clients are told of a store on another machine that fails.
var errStore = errors.New("the store of the control plane fails: /readyz and its log have the reason")

// public is an error of the store without what is for operators alone: where its files and
// servers are.
func public(err error) error {
	var medium *store.MediumError
	if !errors.As(err, &medium) {
		return err
	}
	if medium.Private && !errors.Is(err, store.ErrDamaged) {
		return errStore
	}
	return medium.Err
}

// undecodable is the error for a stored value that does not decode.
func undecodable(key string, err error) error {
	return &unreadableError{fmt.Errorf("%w: %q does not decode (%w); restore a backup", store.ErrDamaged, key, err)}
}

const (
	listExpired     = "The resourceVersion for the provided list is too old."
	continueExpired = "The provided continue parameter is too old to display a consistent list result. " +
		"Start a new list without it, or go on with the token in this response, which reads the rest as it is now: " +
		"objects created, changed or deleted since the first page may show up, twice or not at all."
	watchExpired = "The resourceVersion for the provided watch is too old."
	watchFuture  = "The resourceVersion for the provided watch was never reached here: the store was replaced or restored from a backup."
)

// expiredPage is the 410 for a page whose revision is gone. Its token leads on at
// the newest revision: -1 means that, as 0 is taken for a broken token.
func expiredPage(from, prefix string) error {
	expired := apierrors.NewResourceExpired(continueExpired)
	if token, err := storage.EncodeContinue(from, prefix, -1); err == nil {
		expired.ErrStatus.Continue = token
	}
	return expired
}
