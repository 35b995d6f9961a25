//go:build !linux

package podproxy

import (
	"errors"

	"github.com/proxima-mesh/proxima/internal/sidecar/redirect"
)

var errSystem = errors.New("network namespaces are a feature of Linux")

func system(string) kernel {
	return kernel{
		names:  func() ([]string, error) { return nil, errSystem },
		open:   func(string) (namespace, error) { return nil, errSystem },
		stands: func(redirect.Rules) (bool, error) { return false, errSystem },
		put:    func(redirect.Rules) error { return errSystem },
	}
}
