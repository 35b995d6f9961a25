//go:build unix

package listener

import "syscall"

// maxDescriptors that this process may open; false: not known.
func maxDescriptors() (uint64, bool) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, false
	}
	return uint64(limit.Cur), true //nolint:unconvert // int64 on FreeBSD
}
