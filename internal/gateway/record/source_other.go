//go:build !unix

package record

// canRead: sockets of other systems cannot be read without blocking.
const canRead = false

func (s *source) attempt(uintptr) bool { return true }
