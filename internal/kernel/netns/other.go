//go:build !linux

package netns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"syscall"
)

// errSystem is what everything returns here.
var errSystem = errors.New("network namespaces need Linux")

// NS can't be had on this system.
type NS struct{}

// Available reports why namespaces can't be made here.
func Available() error { return errSystem }

// New fails.
func New(string) (*NS, error) { return nil, errSystem }

// Current fails.
func Current() (*NS, error) { return nil, errSystem }

// Create fails.
func Create(string) (*NS, error) { return nil, errSystem }

// Open fails.
func Open(string) (*NS, error) { return nil, errSystem }

// OpenPath is not possible here.
func OpenPath(string) (*NS, error) { return nil, errSystem }

// Remove fails.
func Remove(string) error { return errSystem }

// List fails.
func List(string) ([]string, error) { return nil, errSystem }

// Connect fails.
func Connect(_, _ End) error { return errSystem }

// Close does nothing.
func (*NS) Close() error { return nil }

// Name is empty.
func (*NS) Name() string { return "" }

// Fd is none.
func (*NS) Fd() int { return -1 }

// Do fails.
func (*NS) Do(func() error) error { return errSystem }

// DialContext fails.
func (*NS) DialContext(context.Context, string, string) (net.Conn, error) { return nil, errSystem }

// Listen fails.
func (*NS) Listen(string, string) (net.Listener, error) { return nil, errSystem }

// ListenPacket fails.
func (*NS) ListenPacket(string, string) (net.PacketConn, error) { return nil, errSystem }

// Start fails.
func (*NS) Start(*exec.Cmd) error { return errSystem }

// Output fails.
func (*NS) Output(context.Context, string, ...string) ([]byte, error) { return nil, errSystem }

// SetSysctl fails.
func (*NS) SetSysctl(string, string) error { return errSystem }

// Sysctl fails.
func (*NS) Sysctl(string) (string, error) { return "", errSystem }

// Processes fails.
func (*NS) Processes() ([]int, error) { return nil, errSystem }

// BlockNeighbour fails.
func (*NS) BlockNeighbour(string, netip.Addr) error { return errSystem }

// UnblockNeighbour fails.
func (*NS) UnblockNeighbour(string, netip.Addr) error { return errSystem }

// Divert fails.
func (*NS) Divert(_, _ netip.Prefix, _ string, _ int) error { return errSystem }

// EndDivert fails.
func (*NS) EndDivert(_, _ netip.Prefix, _ string, _ int) error { return errSystem }

// Block fails.
func (*NS) Block(_, _ netip.Prefix) error { return errSystem }

// Unblock fails.
func (*NS) Unblock(_, _ netip.Prefix) error { return errSystem }

// Blocked fails.
func (*NS) Blocked(_, _ netip.Prefix) (bool, error) { return false, errSystem }

// Kill fails.
func (*NS) Kill(context.Context) error { return errSystem }

// KillProcess fails.
func (*NS) KillProcess(context.Context, int) error { return errSystem }

// Signal fails.
func (*NS) Signal(syscall.Signal) error { return errSystem }

// Holds is false.
func (*NS) Holds(int) bool { return false }

// AddBridge fails.
func (*NS) AddBridge(string, ...netip.Prefix) error { return errSystem }

// AddAddr fails.
func (*NS) AddAddr(string, netip.Prefix) error { return errSystem }

// DeleteAddr fails.
func (*NS) DeleteAddr(string, netip.Prefix) error { return errSystem }

// AddRoute fails.
func (*NS) AddRoute(netip.Prefix, netip.Addr) error { return errSystem }

// SetLinkUp fails.
func (*NS) SetLinkUp(string, bool) error { return errSystem }

// LinkUp fails.
func (*NS) LinkUp(string) (bool, error) { return false, errSystem }

// DeleteLink fails.
func (*NS) DeleteLink(string) error { return errSystem }

// Links fails.
func (*NS) Links() ([]string, error) { return nil, errSystem }
