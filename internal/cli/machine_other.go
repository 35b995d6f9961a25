//go:build !linux && !darwin

package cli

func freeBytes(string) (uint64, bool) { return 0, false }
func openFileLimit() (uint64, bool)   { return 0, false }
func firstFreePort() (uint64, bool)   { return 0, false }
