//go:build !linux && !darwin

package doctor

func freeBytes(string) (uint64, bool) { return 0, false }
func openFileLimit() (uint64, bool)   { return 0, false }
func firstFreePort() (uint64, bool)   { return 0, false }
