//go:build !linux && !darwin && !windows

package machine

func hostID() (string, error) { return "", nil }

func networkNamespace() (string, error) { return "", nil }
