//go:build !linux

package permit

import (
	"context"
	"errors"
)

type kernel struct{}

func openKernel(int) (*kernel, error) {
	return nil, errors.New("permissions by address need nftables, which this system does not have")
}

func (*kernel) program(*desired) error { return nil }
func (*kernel) close() error           { return nil }

func (*kernel) count(func(guarded, uint64, uint64)) error { return nil }

// Cleanup removes what a keeper left, in the network namespace of the calling thread. Nothing there is no
// error.
func Cleanup(context.Context) error { return nil }
