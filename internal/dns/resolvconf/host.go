// Package resolvconf makes a machine's own programs find the names of Services: it
// points the machine's resolver at an agent's DNS server, and back.
//
// It owns one drop-in of systemd-resolved, or a marked /etc/resolv.conf with the
// original file in the same directory; it changes nothing else, and nothing that is not marked
// as its own. Enter at System: Set, Undo, Current, Lookup. It is idempotent, and a
// crash between any two steps leaves a file that a resolver can use and that Undo
// understands.
package resolvconf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/problem"
)

// Manner is how a machine resolves names.
type Manner string

const (
	// Resolved: programs ask systemd-resolved, which knows routes by domain.
	Resolved Manner = "systemd-resolved"
	// ResolvConf: programs ask the servers of /etc/resolv.conf, in their order.
	ResolvConf Manner = "resolv.conf"
)

// Paths below System.Root.
const (
	resolvConf = "etc/resolv.conf"
	// backup of the file, or of the link, that was in its place.
	backup     = "etc/resolv.conf.proxima-backup"
	dropIn     = "etc/systemd/resolved.conf.d/proxima.conf"
	stubConf   = "run/systemd/resolve/stub-resolv.conf"
	uplinkConf = "run/systemd/resolve/resolv.conf"
	muslLoader = "lib/ld-musl-*.so.1"
)

// Backup is the path of the machine's own resolv.conf while another one, of an agent, is in its place.
const Backup = "/" + backup

// stub is where systemd-resolved listens for programs that know no better
// (systemd-resolved.service(8)).
var stub = netip.MustParseAddr("127.0.0.53")

// System is the machine. The zero value is this one.
type System struct {
	// Root of the file system; empty: /.
	Root string
	// Reload makes systemd-resolved read its configuration; nil: by systemctl.
	Reload func(context.Context) error
	// Port that the servers of /etc/resolv.conf answer on; 0: 53. The file has no
	// word for it.
	Port uint16
}

// Setting is the configuration of a machine's resolver.
type Setting struct {
	// Server is the agent's DNS server.
	Server netip.AddrPort
	// Domains that it answers for, without dots at their ends. Only systemd-resolved needs
	// them.
	Domains []string
	// Ranges of virtual addresses, for the names of addresses. Only
	// systemd-resolved needs them.
	Ranges []netip.Prefix
}

// PortError: the machine resolves by /etc/resolv.conf, which can name addresses
// but no ports.
type PortError struct{ Server netip.AddrPort }

func (e *PortError) Error() string {
	return fmt.Sprintf("/etc/resolv.conf cannot name port %d of %s: resolvers ask port 53", e.Server.Port(), e.Server.Addr())
}

// Code implements problem.Coded.
func (e *PortError) Code() problem.Code { return problem.ResolverPort }

// Hint says what to do.
func (e *PortError) Hint() string {
	return fmt.Sprintf("run the agent with --dns-port 53 (as root, with CAP_NET_BIND_SERVICE, or after sysctl net.ipv4.ip_unprivileged_port_start=53), "+
		"or lead port 53 of a loopback address there: nft add table ip proxima-dns; "+
		"nft 'add chain ip proxima-dns output { type nat hook output priority -100; }'; "+
		"nft add rule ip proxima-dns output ip daddr %s meta l4proto { tcp, udp } th dport 53 redirect to :%d, and try again with --dns-address %s:53",
		e.Server.Addr(), e.Server.Port(), e.Server.Addr())
}

func (s System) path(name string) string {
	return filepath.Join(cmp.Or(s.Root, "/"), name)
}

// Manner reports how this machine resolves names, whether set by us or not.
func (s System) Manner() Manner {
	if _, err := os.Stat(s.path(stubConf)); err != nil {
		return ResolvConf // it does not run
	}
	if data, err := os.ReadFile(s.path(dropIn)); err == nil && isMarked(string(data)) {
		return Resolved
	}
	if text, err := s.original(); err == nil && slices.Contains(nameservers(text), stub) {
		return Resolved
	}
	return ResolvConf
}

// Current is the server that an earlier Set pointed the machine at; ok is false
// if there was none, or it was undone.
func (s System) Current() (server netip.AddrPort, ok bool) {
	for _, name := range []string{dropIn, resolvConf} {
		data, err := os.ReadFile(s.path(name))
		if err != nil {
			continue
		}
		if server, ok = markedServer(string(data)); ok {
			return server, true
		}
	}
	return netip.AddrPort{}, false
}

// Set points the machine's resolver at a server, and returns in which manner. An
// earlier Set is replaced. It fails with *PortError if the manner has no way to
// say the port.
func (s System) Set(ctx context.Context, to Setting) (Manner, error) {
	to.Server = Reachable(to.Server)
	manner := s.Manner()
	if manner == ResolvConf && to.Server.Port() != 53 {
		return manner, &PortError{Server: to.Server}
	}
	if now, ok := s.Current(); ok && now != to.Server {
		if _, err := s.Undo(ctx); err != nil {
			return manner, err
		}
	}
	if manner == Resolved {
		return manner, s.setResolved(ctx, to)
	}
	return manner, s.setResolvConf(to)
}

// Reachable is how this machine's programs reach a server that listens at an
// address.
func Reachable(server netip.AddrPort) netip.AddrPort {
	if !server.Addr().IsUnspecified() {
		return server
	}
	return netip.AddrPortFrom(loopback(server.Addr()), server.Port())
}

func loopback(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// Undo reverts what Set did, also in another process. Files that
// another program has written since are left alone.
func (s System) Undo(ctx context.Context) (undone bool, err error) {
	first, err := s.undoResolved(ctx)
	if err != nil {
		return first, err
	}
	second, err := s.undoResolvConf()
	return first || second, err
}

// Upstreams are the resolvers that the machine had before, or has in addition to the
// server at self, as ADDRESS:PORT.
func (s System) Upstreams(self netip.AddrPort) ([]string, error) {
	text, err := s.original()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("resolvers of this machine: %w", err)
	}
	servers := nameservers(text)
	if slices.Contains(servers, stub) {
		// What is behind systemd-resolved, so that it and we do not ask each other.
		if data, err := os.ReadFile(s.path(uplinkConf)); err == nil {
			if behind := nameservers(string(data)); len(behind) > 0 {
				servers = behind
			}
		}
	}
	var out []string
	for _, a := range servers {
		if at := netip.AddrPortFrom(a, s.port()); at != self && !slices.Contains(out, at.String()) {
			out = append(out, at.String())
		}
	}
	return out, nil
}

// Nameservers are those that the machine's programs ask.
func (s System) Nameservers() ([]netip.Addr, error) {
	data, err := os.ReadFile(s.path(resolvConf))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("resolvers of this machine: %w", err)
	}
	servers := nameservers(string(data))
	if len(servers) == 0 {
		servers = []netip.Addr{loopback(netip.IPv4Unspecified())} // resolv.conf(5)
	}
	return servers[:min(len(servers), maxServers)], nil
}

func (s System) port() uint16 {
	if s.Port != 0 {
		return s.Port
	}
	return 53
}

// reload has systemd-resolved take its configuration.
func (s System) reload(ctx context.Context) error {
	if s.Reload != nil {
		return s.Reload(ctx)
	}
	out, err := exec.CommandContext(ctx, "systemctl", "reload-or-restart", "systemd-resolved.service").CombinedOutput()
	if err != nil {
		return fmt.Errorf("reload systemd-resolved: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// nameservers of a resolv.conf, with their order (resolv.conf(5)).
func nameservers(text string) []netip.Addr {
	var out []netip.Addr
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(words[1]); err == nil {
			out = append(out, a)
		}
	}
	return out
}
