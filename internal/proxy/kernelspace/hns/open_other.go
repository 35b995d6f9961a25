//go:build !windows

package hns

// Open fails: HNS is a service of Windows.
func Open() (Service, error) { return nil, ErrUnsupported }
