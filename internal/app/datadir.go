package app

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/proxima-mesh/proxima/internal/problem"
)

// sharedDirs are for temporary files of all users, beside that of os.TempDir.
var sharedDirs = []string{"/tmp", "/var/tmp", "/dev/shm", "/run/lock"}

// makeDataDir makes the data directory, which has keys in it, and refuses one that is not this
// user's own: whoever else can write to it can replace what is in it. Permissions of others to
// write, as a volume or a tmpfs has that nobody else can reach, are taken away.
func makeDataDir(dir string, log *slog.Logger) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &problem.Error{
			Code: problem.DataDirectoryInvalid,
			Err:  fmt.Errorf("data directory: %w", err),
			Hint: "name one that this user can make with --data-dir",
		}
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	owner, known := ownerOf(info)
	if known && owner != 0 && owner != os.Geteuid() && os.Geteuid() != 0 {
		return &problem.Error{
			Code: problem.DataDirectoryInvalid,
			Err:  fmt.Errorf("data directory %s belongs to user %d, who can replace what is in it", dir, owner),
			Hint: "choose another --data-dir, or run the command as its owner",
		}
	}
	const othersWrite = 0o002 // a group is chosen by who made the directory, as that of the packages
	mode := info.Mode()
	switch {
	case mode.Perm()&othersWrite == 0:
	case isShared(info):
		return &problem.Error{
			Code: problem.DataDirectoryInvalid,
			Err:  fmt.Errorf("data directory %s is a directory for files of all users", dir),
			Hint: "choose a directory of this user's own with --data-dir",
		}
	default:
		// A volume of a container is root's, and nobody else's who could reach it.
		if err := os.Chmod(dir, mode&^othersWrite); err != nil && owner != 0 {
			log.Warn("other users can write to the data directory, and replace what is in it", "path", dir, "error", err)
		}
	}
	return nil
}

// isShared reports whether a directory is one for temporary files of all users.
func isShared(info os.FileInfo) bool {
	for _, dir := range append([]string{os.TempDir()}, sharedDirs...) {
		if shared, err := os.Stat(dir); err == nil && os.SameFile(info, shared) {
			return true
		}
	}
	return false
}
