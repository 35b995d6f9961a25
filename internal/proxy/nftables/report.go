package nftables

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Dump is what the mode wants the kernel to have and what it has, as sorted
// lines. It is made for people and for tests, and marshals to JSON.
type Dump struct {
	Mode     string   `json:"mode"`
	Services []string `json:"services"` // number and name of every service port
	Kernel   []string `json:"kernel"`
	// Missing should be in the kernel and is not, Foreign is and should not be.
	Missing []string `json:"missing,omitempty"`
	Foreign []string `json:"foreign,omitempty"`
}

// WriteTo writes the dump as text.
func (d *Dump) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	for _, part := range []struct {
		title string
		lines []string
	}{
		{"service ports", d.Services}, {"kernel", d.Kernel},
		{"missing in the kernel", d.Missing}, {"foreign in the kernel", d.Foreign},
	} {
		fmt.Fprintf(&b, "# %s: %d\n", part.title, len(part.lines))
		for _, line := range part.lines {
			b.WriteString(line)
			b.WriteByte('\n')
		}
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// Step is one thing that happens to a packet.
type Step struct {
	// Object of the kernel that decides, such as "map vip 10.96.0.1 . tcp . 80".
	Object string `json:"object"`
	Does   string `json:"does"`
}

// Share is an endpoint that a packet can get to.
type Share struct {
	Endpoint netip.AddrPort `json:"endpoint"`
	Slots    int            `json:"slots"`
	Of       int            `json:"of"`
	Local    bool           `json:"local,omitempty"`
}

// Path is the way of a connection's first packet.
type Path struct {
	// Service port that has the address; nil: none.
	Service *proxy.PortName `json:"service,omitempty"`
	Role    string          `json:"role,omitempty"` // of the address: cluster IP, node port, …
	// Outcome is "endpoint", "reject", "drop" or "pass" (not ours).
	Outcome    string        `json:"outcome"`
	List       string        `json:"list,omitempty"` // "cluster" or "local"
	Masquerade bool          `json:"masquerade"`
	Affinity   time.Duration `json:"affinity,omitempty"`
	Shares     []Share       `json:"shares,omitempty"`
	Steps      []Step        `json:"steps"`
}
