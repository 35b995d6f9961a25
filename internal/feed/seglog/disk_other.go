//go:build !linux && !darwin

package seglog

// Space implements Disk.
func (OS) Space(string) (free, total uint64, err error) { return 0, 0, ErrNoSpaceInfo }
