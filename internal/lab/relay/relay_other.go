//go:build !linux

package relay

import (
	"context"
	"errors"
)

// Run fails: there are TUN devices of this kind on Linux only.
func Run(context.Context, Config) error {
	return errors.New("a relay needs Linux")
}
