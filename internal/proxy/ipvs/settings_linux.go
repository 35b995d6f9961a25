package ipvs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Settings are the kernel parameters that the mode needs, below /proc/sys. A parameter that the kernel lacks is left out.
func Settings(strictARP bool) map[string]string {
	out := map[string]string{
		"net/ipv4/vs/conntrack":                 "1", // masquerading, and the bytes of connections
		"net/ipv4/vs/expire_nodest_conn":        "1", // UDP flows leave a destination that is gone
		"net/ipv4/vs/expire_quiescent_template": "1",
	}
	if before(5, 9) { // from 5.9 on, a reused connection of ours does not wait for a second
		out["net/ipv4/vs/conn_reuse_mode"] = "0"
	}
	if strictARP {
		out["net/ipv4/conf/all/arp_ignore"] = "1"
		out["net/ipv4/conf/all/arp_announce"] = "2"
	}
	return out
}

// applySettings writes those that differ, and returns their names.
func applySettings(root string, settings map[string]string) (changed []string, err error) {
	var errs []error
	for name, value := range settings {
		path := root + "/" + name
		have, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && string(bytes.TrimSpace(have)) == value {
			continue
		}
		if err == nil {
			err = os.WriteFile(path, []byte(value), 0o644)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("kernel parameter %s: %w", strings.ReplaceAll(name, "/", "."), err))
			continue
		}
		changed = append(changed, name)
	}
	return changed, errors.Join(errs...)
}

// before reports whether this kernel is older than a version.
func before(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	parts := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, _ := strconv.Atoi(parts[0])
	b, _ := strconv.Atoi(strings.TrimRight(parts[1], "-abcdefghijklmnopqrstuvwxyz"))
	return a < major || a == major && b < minor
}
