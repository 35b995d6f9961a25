//go:build linux || darwin

package doctor

import "syscall"

func freeBytes(dir string) (uint64, bool) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, false
	}
	return fs.Bavail * uint64(fs.Bsize), true
}

func openFileLimit() (uint64, bool) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, false
	}
	return limit.Cur, true
}

// firstFreePort is the lowest port that needs no privilege (ip-sysctl).
func firstFreePort() (uint64, bool) { return procUint("/proc/sys/net/ipv4/ip_unprivileged_port_start") }
