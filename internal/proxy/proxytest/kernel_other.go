//go:build !linux

package proxytest

import "testing"

// RunKernel skips: it needs Linux's network namespaces.
func RunKernel(t *testing.T, _ KernelEnv) {
	t.Helper()
	t.Skip("needs network namespaces of Linux")
}
