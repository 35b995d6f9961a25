package modes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/kernelspace"
	"github.com/proxima-mesh/proxima/internal/proxy/kernelspace/hns"
)

const kernelspaceName = kernelspace.Name

// Windows are settings of the mode kernelspace; other modes ignore them.
type Windows struct {
	// Network is the name of the HNS network of Pods; empty: that of the variable KUBE_NETWORK.
	Network string
	// SourceVIP of translated connections; an overlay needs it. Zero: none.
	SourceVIP netip.Addr
	EnableDSR bool
	// ForwardHealthChecks of ingress addresses to the endpoint with the name Gateway. HealthPort is
	// that of Services without a health check node port.
	ForwardHealthChecks bool
	Gateway             string
	HealthPort          uint16
	// AllowOpen: what HNS cannot restrict is open in place of closed.
	AllowOpen bool
	// NodeAddresses of this machine, at most one per family; it must be safe to call at any time.
	NodeAddresses func() []netip.Addr
}

// Limited is a Mode that cannot do all that Services ask for.
type Limited interface {
	// Limits of service ports in place, each in words; none for the others.
	Limits() map[proxy.PortName][]string
	// Problem of the mode as a whole; empty: none.
	Problem() string
}

type kernelspaceMode struct {
	*kernelspace.Mode
	lock *lock
}

func newKernelspace(ctx context.Context, cfg Config) (Mode, error) {
	service, err := hns.Open()
	if err != nil {
		return nil, fmt.Errorf("--mode %s: %w", kernelspaceName, err)
	}
	w := cfg.Windows
	opts := kernelspace.Options{
		HNS: service, StateFile: kernelspaceState(), Network: cmp.Or(w.Network, os.Getenv("KUBE_NETWORK")), SourceVIP: w.SourceVIP,
		EnableDSR: w.EnableDSR, ForwardHealthChecks: w.ForwardHealthChecks, Gateway: w.Gateway, HealthPort: w.HealthPort, AllowOpen: w.AllowOpen,
		NodeAddresses: w.NodeAddresses, HostMAC: linkAddress,
		Logger: cfg.Logger.With("component", kernelspaceName), Registerer: cfg.Registerer,
	}
	m, err := kernelspace.New(opts)
	if err != nil {
		return nil, err
	}
	l, err := exclusive(ctx, m, cfg)
	if err != nil {
		return nil, err
	}
	return kernelspaceMode{m, l}, nil
}

// kernelspaceState is one file of the machine, whatever the data directory: there is one HNS.
func kernelspaceState() string {
	return filepath.Join(cmp.Or(os.Getenv("ProgramData"), os.TempDir()), "proxima", "hns.json")
}

// linkAddress of the interface that has an address, as HNS writes it.
func linkAddress(addr netip.Addr) (string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			continue // it is gone
		}
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == addr {
				return strings.ReplaceAll(i.HardwareAddr.String(), ":", "-"), nil
			}
		}
	}
	return "", errors.New("no interface has the address")
}

func cleanKernelspace(_ context.Context, next string) error {
	if next == kernelspaceName {
		return nil
	}
	service, err := hns.Open()
	if errors.Is(err, hns.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	return kernelspace.Cleanup(kernelspace.Options{HNS: service, StateFile: kernelspaceState()})
}

// Close releases HNS for another agent, too.
func (m kernelspaceMode) Close(ctx context.Context) error {
	defer m.lock.release()
	return m.Mode.Close(ctx)
}

// Limits implements Limited.
func (m kernelspaceMode) Limits() map[proxy.PortName][]string {
	out := map[proxy.PortName][]string{}
	for name, limits := range m.Mode.Limits() {
		for _, l := range limits {
			out[name] = append(out[name], string(l))
		}
	}
	return out
}

// Problem implements Limited.
func (m kernelspaceMode) Problem() string { return m.State().Problem }

// Trace names the load balancer of HNS, and what it does not do.
func (m kernelspaceMode) Trace(t *diag.Trace, c diag.Connection, state *proxy.PortState, _ []*proxy.PortState) {
	t.Spare = nil // a packet is sent to one endpoint only
	if state == nil {
		t.Outcome = "pass" // HNS knows nothing of ranges
		return
	}
	line, outcome := m.Front(c.To.Addr(), state.Name)
	if line == "" && t.Outcome == "endpoint" {
		t.Outcome, t.Endpoints = outcome, []diag.TraceEndpoint{}
	}
	if line != "" {
		t.Steps = append(t.Steps, diag.TraceStep{Object: line, Does: t.Outcome})
	}
	for _, l := range m.Limits()[state.Name] {
		t.Steps = append(t.Steps, diag.TraceStep{Object: "HNS", Does: "does not do " + l})
	}
}

// Dump compares HNS with what the mode made there.
func (m kernelspaceMode) Dump(context.Context) (Kernel, error) {
	d, err := m.Mode.Dump()
	if err != nil {
		return Kernel{}, err
	}
	return Kernel{Objects: d.Objects, Compared: true, Missing: d.Missing}, nil
}
