package machine

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// initCookie is the cookie of the network namespace that the kernel makes at boot
// (include/linux/cookie.h, net/core/net_namespace.c).
const initCookie = 1

// hostID is what systemd or D-Bus set at installation (machine-id(5)).
func hostID() (string, error) {
	for _, path := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if id, err := readID(path); err != nil || id != "" {
			return id, err
		}
	}
	return "", nil
}

// networkNamespace is "" in the host's first network namespace; elsewhere it is
// unique for this boot.
func networkNamespace() (string, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	// Linux 5.14 and later.
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		// The inode number distinguishes namespaces too, but does not identify the
		// initial one, so such an ID would change at a reboot.
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
			return "", err
		}
		cookie = st.Ino
	}
	if cookie == initCookie {
		return "", nil
	}
	boot, err := readID("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %d", strings.ToLower(boot), cookie), nil
}
