package resolvconf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/miekg/dns"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
)

// Marks of what is ours. The server is repeated in the first one, so that it can
// be read without knowing the manner.
const (
	markBegin = "# Set by proxima: names of Services are asked of "
	markEnd   = "# End of what proxima set."
	// markHidden is put before lines that must not count meanwhile.
	markHidden = "# proxima: "
)

func isMarked(text string) bool { return strings.HasPrefix(text, markBegin) }

func markedServer(text string) (netip.AddrPort, bool) {
	rest, ok := strings.CutPrefix(text, markBegin)
	if !ok {
		return netip.AddrPort{}, false
	}
	word, _, _ := strings.Cut(rest, " ")
	server, err := netip.ParseAddrPort(word)
	return server, err == nil
}

func header(server netip.AddrPort) string {
	return markBegin + server.String() + " first.\n" +
		"# Undone when the agent ends, and by \"proxima doctor --undo\".\n"
}

// setResolved adds a route by domain. A server with routing domains only is not
// asked for anything else (resolved.conf(5)).
func (s System) setResolved(ctx context.Context, to Setting) error {
	var domains []string
	for _, d := range to.Domains {
		domains = append(domains, "~"+d)
	}
	for _, p := range to.Ranges {
		for _, d := range reverseDomains(p) {
			domains = append(domains, "~"+d)
		}
	}
	server := to.Server.String()
	if to.Server.Port() == 53 {
		server = to.Server.Addr().String()
	}
	text := header(to.Server) + "[Resolve]\nDNS=" + server + "\nDomains=" + strings.Join(domains, " ") + "\n" + markEnd + "\n"
	path := s.path(dropIn)
	if have, err := os.ReadFile(path); err == nil && string(have) == text {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("systemd-resolved: %w", err)
	}
	if err := replace(path, []byte(text)); err != nil {
		return err
	}
	return s.reload(ctx)
}

// maxReverse is how many domains a range is divided into, at most.
const maxReverse = 16

// reverseDomains hold the names of a range's addresses. A range that ends within a label is
// divided into a domain for each; if these were too many, there is one domain, that may hold
// the names of others too, which the agent passes on.
func reverseDomains(p netip.Prefix) []string {
	name, _ := dns.ReverseAddr(p.Masked().Addr().String()) // an address always has one
	labels := dns.SplitDomainName(name)
	perLabel, base := 4, 16
	if p.Addr().Is4() {
		perLabel, base = 8, 10
	}
	host := p.Addr().BitLen() - p.Bits()
	hidden := (host + perLabel - 1) / perLabel
	rest := strings.Join(labels[hidden:], ".")
	within := hidden*perLabel - host // bits of the prefix in the first hidden label
	count := 1 << (perLabel - within)
	if within == 0 || count > maxReverse {
		return []string{rest}
	}
	first, _ := strconv.ParseUint(labels[hidden-1], base, 8)
	var out []string
	for n := range count {
		out = append(out, strconv.FormatUint(first+uint64(n), base)+"."+rest)
	}
	return out
}

func (s System) undoResolved(ctx context.Context) (bool, error) {
	path := s.path(dropIn)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !isMarked(string(data)) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("systemd-resolved: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return false, fmt.Errorf("systemd-resolved: %w", err)
	}
	_ = os.Remove(filepath.Dir(path)) // if it is empty now
	return true, s.reload(ctx)
}

// setResolvConf puts the server before the machine's own. Those stay in the
// file: should the agent die, its port refuses at once and the next is asked.
// Programs of musl ask all servers together and take the first answer, a no for
// a name of ours too, so where they are the others are hidden.
func (s System) setResolvConf(to Setting) error {
	path := s.path(resolvConf)
	was, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("resolv.conf: %w", err)
	}
	if isMarked(string(was)) {
		return nil // of the same server: another one was undone before
	}
	if err := s.keepBackup(path, was, err == nil); err != nil {
		return err
	}
	text := header(to.Server) + "# The original file is in the same directory, as " + filepath.Base(backup) + ".\n" +
		"nameserver " + to.Server.Addr().String() + "\n" + markEnd + "\n"
	hide := s.hasMusl()
	for line := range strings.Lines(string(was)) {
		if hide && strings.HasPrefix(strings.TrimSpace(line), "nameserver") {
			line = markHidden + line
		}
		text += line
	}
	return replace(path, []byte(text))
}

func (s System) hasMusl() bool {
	found, err := filepath.Glob(s.path(muslLoader))
	return err == nil && len(found) > 0
}

// keepBackup copies the file, or the link, within its directory.
func (s System) keepBackup(path string, text []byte, exists bool) error {
	to := s.path(backup)
	target, err := os.Readlink(path) // also of a link that leads nowhere now
	switch {
	case err != nil && exists:
		return replace(to, text)
	case err != nil:
		return nil
	}
	_ = os.Remove(to) // one that a crash left
	if err := os.Symlink(target, to); err != nil {
		return fmt.Errorf("backup of resolv.conf: %w", err)
	}
	return nil
}

// undoResolvConf restores the original file, unless another program has written
// the file since: then theirs stays, and the backup is old.
func (s System) undoResolvConf() (bool, error) {
	path, kept := s.path(resolvConf), s.path(backup)
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("resolv.conf: %w", err)
	}
	if !isMarked(string(data)) {
		_ = os.Remove(kept) // what a crash left
		return false, nil
	}
	err = os.Rename(kept, path)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist) && unmarked(string(data)) == "":
		return true, removeOrEmpty(path)
	}
	// The backup is gone, or the file is a mount and cannot be replaced.
	text := []byte(unmarked(string(data)))
	if content, readErr := os.ReadFile(kept); readErr == nil {
		text = content
	}
	if err := replace(path, text); err != nil {
		return false, err
	}
	_ = os.Remove(kept)
	return true, nil
}

func removeOrEmpty(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("resolv.conf: %w", err)
	}
	return nil
}

// unmarked is a resolv.conf as it was before it was marked.
func unmarked(text string) string {
	if !isMarked(text) {
		return text
	}
	_, rest, _ := strings.Cut(text, markEnd+"\n")
	var out strings.Builder
	for line := range strings.Lines(rest) {
		out.WriteString(strings.TrimPrefix(line, markHidden))
	}
	return out.String()
}

// original is the resolv.conf that the machine has without us.
func (s System) original() (string, error) {
	data, err := os.ReadFile(s.path(resolvConf))
	return unmarked(string(data)), err
}

// replace writes a file as a whole, readable by all unless its mode is another. One
// that cannot be replaced, as it is mounted by itself (in a container), is written
// in place.
func replace(path string, text []byte) error {
	err := atomicfile.Write(path, text, 0o644)
	if errors.Is(err, syscall.EBUSY) {
		err = os.WriteFile(path, text, 0o644)
	}
	return err
}
