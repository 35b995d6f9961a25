package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
)

// state is what a lab's folder remembers of it. Down works without.
type state struct {
	Name       string `json:"name"`
	Zones      int    `json:"zones"`
	Nodes      int    `json:"nodes"`
	Mode       string `json:"mode"`
	Global     bool   `json:"global,omitempty"`
	Egress     bool   `json:"egress,omitempty"`
	IPv4Only   bool   `json:"ipv4Only,omitempty"`
	IPv6Only   bool   `json:"ipv6Only,omitempty"`
	DNSCapture bool   `json:"dnsCapture,omitempty"`
	Executable string `json:"executable"`
	// Sidecars, and the path of their Envoy.
	Sidecars bool `json:"sidecars,omitempty"`
	// EnvoyGateways use it, too.
	EnvoyGateways bool   `json:"envoyGateways,omitempty"`
	Envoy         string `json:"envoy,omitempty"`
	// LeaseSeconds of nodes and workloads; 0: the default.
	LeaseSeconds int `json:"leaseSeconds,omitempty"`
	// Owner of a temporary lab, and when that process started: numbers of
	// processes are used again.
	Owner      int    `json:"owner,omitempty"`
	OwnerSince string `json:"ownerSince,omitempty"`
	// VIPs (address:port) of the sample service, IPv4 first; none while the lab
	// starts.
	VIPs []string `json:"vips,omitempty"`
	// SiteVIPs are those of each zone, where zones have control planes.
	SiteVIPs map[string][]string `json:"siteVIPs,omitempty"`
	// Cuts are the paths that are cut where an end is a machine of a zone.
	Cuts [][2]string `json:"cuts,omitempty"`
	// Links are the paths with a delay or a loss.
	Links []linkState `json:"links,omitempty"`
	// Processes by what they are.
	Processes map[string]int `json:"processes"`
}

func (s *state) spec() Spec {
	return Spec{
		Name: s.Name, Zones: s.Zones, Nodes: s.Nodes, Mode: s.Mode, Global: s.Global, Egress: s.Egress, IPv4Only: s.IPv4Only, IPv6Only: s.IPv6Only, DNSCapture: s.DNSCapture,
		Executable: s.Executable, Sidecars: s.Sidecars, EnvoyGateways: s.EnvoyGateways, Envoy: s.Envoy, Lease: time.Duration(s.LeaseSeconds) * time.Second, Progress: func(string) {},
	}
}

// kept is a state that is written with every change.
type kept struct {
	mu   sync.Mutex
	path string
	state
}

func (k *kept) change(f func(*state)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(&k.state)
	data, err := json.MarshalIndent(k.state, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(k.path, data, 0o600)
}

func (k *kept) process(what string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Processes[what]
}

func (k *kept) cuts() [][2]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.Cuts)
}

func (k *kept) links() []linkState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.Links)
}

// link between two places, named in either order.
func (k *kept) link(a, b string) (linkState, bool) {
	for _, l := range k.links() {
		if samePath(l.ends(), [2]string{a, b}) {
			return l, true
		}
	}
	return linkState{}, false
}

// freeLink is the lowest index that no link has.
func (k *kept) freeLink() int {
	i := 0
	for slices.ContainsFunc(k.links(), func(l linkState) bool { return l.Index == i }) {
		i++
	}
	return i
}

// vips of the sample service, for the client of a zone, or for all; empty: there are none
// yet.
func (k *kept) vips(zone string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if own := k.SiteVIPs[zone]; own != nil {
		return own
	}
	return k.VIPs
}

func statePath(name string) string { return filepath.Join(dirOf(name), "lab.json") }

func readState(name string) (*kept, error) {
	k := &kept{path: statePath(name)}
	data, err := os.ReadFile(k.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &NotUpError{Name: name}
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &k.state); err != nil {
		return nil, fmt.Errorf("state of lab %s in %s: %w", name, k.path, err)
	}
	return k, nil
}

// since is when a process started, in a form that is good for comparison only:
// field 22 of /proc/PID/stat, behind the name in brackets (proc_pid_stat(5)).
// Empty: there is no such process.
func since(pid int) string {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	if fields := strings.Fields(rest); len(fields) > 19 {
		return fields[19]
	}
	return ""
}

// orphaned: the lab was some process's own, and that is gone.
func (s *state) orphaned() bool { return s.Owner != 0 && since(s.Owner) != s.OwnerSince }
