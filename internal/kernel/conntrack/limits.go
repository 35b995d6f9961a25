package conntrack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Settings is the folder of the kernel's settings of the table; those of flows are of the
// calling thread's network namespace, its size is that of the machine.
const Settings = "/proc/sys/net/netfilter"

// Limits are settings of the connection tracking table, as kube-proxy makes them
// (KubeProxyConfiguration.conntrack). A zero value leaves what the machine has.
type Limits struct {
	// Max flows that are tracked, at least: a larger limit stays.
	Max int
	// TCPEstablished, TCPCloseWait, UDP and UDPStream are how long a flow is kept without a
	// packet, in whole seconds.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	// TCPBeLiberal: packets out of window are not invalid.
	TCPBeLiberal bool
}

// Apply writes the settings that differ, below a folder (Settings), and returns them. What
// cannot be written is an error, after all others were.
func (l Limits) Apply(dir string) (changed []string, err error) {
	var errs []error
	set := func(name string, value int, keepsMore bool) {
		if value == 0 {
			return
		}
		path := filepath.Join(dir, name)
		now, err := readSetting(path)
		if err == nil && (now == value || keepsMore && now > value) {
			return
		}
		if err == nil {
			err = os.WriteFile(path, []byte(strconv.Itoa(value)), 0o644)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("net.netfilter.%s = %d: %w", name, value, err))
			return
		}
		changed = append(changed, fmt.Sprintf("net.netfilter.%s = %d (it was %d)", name, value, now))
	}
	seconds := func(d time.Duration) int { return int(d / time.Second) }
	set("nf_conntrack_max", l.Max, true)
	set("nf_conntrack_tcp_timeout_established", seconds(l.TCPEstablished), false)
	set("nf_conntrack_tcp_timeout_close_wait", seconds(l.TCPCloseWait), false)
	set("nf_conntrack_udp_timeout", seconds(l.UDP), false)
	set("nf_conntrack_udp_timeout_stream", seconds(l.UDPStream), false)
	if l.TCPBeLiberal {
		set("nf_conntrack_tcp_be_liberal", 1, false)
	}
	return changed, errors.Join(errs...)
}

// Use is how many flows the table has, and may have, by the settings below a folder.
func Use(dir string) (flows, limit int, err error) {
	flows, err = readSetting(filepath.Join(dir, "nf_conntrack_count"))
	if err == nil {
		limit, err = readSetting(filepath.Join(dir, "nf_conntrack_max"))
	}
	return flows, limit, err
}

func readSetting(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
