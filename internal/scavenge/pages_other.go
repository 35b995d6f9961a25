//go:build !linux

package scavenge

// dropFilePages does nothing here.
func dropFilePages() (int, error) { return 0, nil }

// filePages that are resident are not known.
func filePages() uint64 { return 0 }
