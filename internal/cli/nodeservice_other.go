//go:build !windows

package cli

import (
	"context"
	"errors"
)

var errNoServiceManager = errors.New("this system has no service manager of Windows")

// underServiceManager runs a role: no service manager has to be told of it here.
func underServiceManager(ctx context.Context, _ *settings, run func(context.Context) error) error {
	return run(ctx)
}

func installService(*settings, []string) error { return errNoServiceManager }

func uninstallService(*settings) error { return errNoServiceManager }
