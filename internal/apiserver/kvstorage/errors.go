package kvstorage

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
		return storage.NewInternalError(fmt.Errorf("%s %s: %w", op, key, err))
	}
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
