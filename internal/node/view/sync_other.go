//go:build !unix

package view

// syncDirectory does nothing: directories cannot be synced here, and NTFS
// journals renames.
func syncDirectory(string) error { return nil }
