//go:build !linux

package modes

import "context"

// BlockingForward lists nothing: kernel modes of this version are on Linux alone.
func BlockingForward(context.Context) ([]string, error) { return nil, nil }
