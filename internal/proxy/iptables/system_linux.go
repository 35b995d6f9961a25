package iptables

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
)

const (
	// lockWait is how long a command waits for others that change rules.
	lockWait = "10"
	// commandTimeout ends a command that hangs all the same.
	commandTimeout = time.Minute

	// GET_INFO of linux/netfilter_ipv4/ip_tables.h and …_ipv6/ip6_tables.h.
	soGetInfo = 64
	// NFT_MSG_GETGEN and NFTA_GEN_ID of linux/netfilter/nf_tables.h.
	nftMsgGetGen = 16
	nftaGenID    = 1

	// A set that is filled by packets can't grow its table: a client whose bucket is
	// full (12 entries) is not remembered. 4,096 buckets (32 KiB) keep some 12,000
	// clients of an endpoint with a chance below 1 in 1,000 of losing any; beyond,
	// a growing part is served without affinity. setMaxClients bounds it.
	setHashSize   = 4096
	setMaxClients = 1 << 20
)

// system is the kernel of this machine, by the commands of one variant.
type system struct {
	variant Variant
	inside  func(func() error) error
	command [2]struct{ save, restore string } // by family

	mu   sync.Mutex       // guards what follows
	nft  *nfnl.Conn       // for prints, of the variant nft alone
	info [2]int           // sockets for GET_INFO, by family; -1: none
	nl   *nl.SocketHandle // it numbers the requests, so there is one for all
}

// openSystem finds the commands of a variant and opens sockets in the namespace.
func openSystem(v Variant, inside func(func() error) error) (kernel, error) {
	s := &system{variant: v, inside: inside, info: [2]int{-1, -1}}
	for _, f := range families {
		base := [...]string{"iptables-", "ip6tables-"}[f]
		var err error
		if s.command[f].restore, err = findCommand(v, base, "restore"); err != nil {
			return nil, err
		}
		if s.command[f].save, err = findCommand(v, base, "save"); err != nil {
			return nil, err
		}
	}
	err := inside(func() error {
		socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
		if err != nil {
			return fmt.Errorf("opening a netlink socket: %w", err)
		}
		s.nl = &nl.SocketHandle{Socket: socket}
		if v != Legacy {
			s.nft, err = nfnl.Open(0)
			return err
		}
		for _, f := range families {
			fd, err := unix.Socket([...]int{unix.AF_INET, unix.AF_INET6}[f], unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			if err != nil {
				continue // no such family; stamp says so if it is asked
			}
			s.info[f] = fd
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// findCommand prefers the name that says the variant, and asks the plain one
// which it is.
func findCommand(v Variant, base, verb string) (string, error) {
	if path, err := exec.LookPath(base + string(v) + "-" + verb); err == nil {
		return path, nil
	}
	plain, err := exec.LookPath(base + verb)
	if err != nil {
		return "", fmt.Errorf("neither %s%s-%s nor %[1]s%[3]s is installed (Debian package iptables)", base, v, verb)
	}
	if is := variantOf(plain); is != v {
		return "", fmt.Errorf("%s%s-%s is not installed, and %s is of the variant %s", base, v, verb, plain, is)
	}
	return plain, nil
}

// variantOf a command. Before there were two, versions said nothing.
func variantOf(command string) Variant {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, command, "--version").Output()
	if err == nil && bytes.Contains(out, []byte("nf_tables")) {
		return NFT
	}
	return Legacy
}

// systemVariant is what the administrator made the command of this system.
func systemVariant() Variant {
	path, err := exec.LookPath("iptables-restore")
	if err != nil {
		return NFT
	}
	return variantOf(path)
}

// hasFamily reports whether the kernel speaks it.
func hasFamily(f family) bool {
	if f == v4 {
		return true
	}
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

func (s *system) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nl != nil {
		s.nl.Close()
		s.nl = nil
	}
	if s.nft != nil {
		_ = s.nft.Close()
		s.nft = nil
	}
	for f, fd := range s.info {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		s.info[f] = -1
	}
	return nil
}

func (s *system) save(ctx context.Context, f family, table string, counters bool) ([]byte, error) {
	args := []string{"-t", table}
	if counters {
		args = append(args, "-c")
	}
	return s.run(ctx, nil, s.command[f].save, args...)
}

func (s *system) restore(ctx context.Context, f family, input []byte) error {
	_, err := s.run(ctx, input, s.command[f].restore, "--noflush", "-w", lockWait)
	return err
}

// run a command in the namespace. What it says on failure is the error.
func (s *system) run(ctx context.Context, input []byte, path string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	// A command that is ended in the middle of its write leaves the lock behind it
	// (the kernel frees it) and a table that is old or new, never half.
	cmd.Stdin = bytes.NewReader(input)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := s.inside(cmd.Start); err != nil {
		return nil, fmt.Errorf("starting %s: %w", path, err)
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("%s %s: %w: %s", path, strings.Join(args, " "), err, brief(diag.String()))
	}
	return out.Bytes(), nil
}

// brief is the message of a command without its advice.
func brief(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return s[:min(len(s), 300)]
}

func (s *system) holds(_ context.Context, f family, table string) (yes bool, err error) {
	if s.variant == NFT {
		return true, nil // saving a table that is not there makes none
	}
	err = s.inside(func() error {
		names, err := os.ReadFile("/proc/thread-self/net/" + [...]string{"ip_tables_names", "ip6_tables_names"}[f])
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		yes = slices.Contains(strings.Fields(string(names)), table)
		return err
	})
	return yes, err
}

func (s *system) stamp(f family) (stamp, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.variant == NFT {
		return s.nftStamp()
	}
	var st stamp
	for i, table := range tables {
		entries, size, err := s.legacyInfo(f, table)
		if err != nil {
			return stamp{}, fmt.Errorf("asking for the size of table %s of %s: %w", table, f, err)
		}
		st[2*i], st[2*i+1] = uint64(entries), uint64(size)
	}
	return st, nil
}

// legacyInfo is struct ipt_getinfo of linux/netfilter_ipv4/ip_tables.h; the one of
// IPv6 is the same.
func (s *system) legacyInfo(f family, table string) (entries, size uint32, err error) {
	var info struct {
		name       [32]byte
		validHooks uint32
		hookEntry  [5]uint32
		underflow  [5]uint32
		entries    uint32
		size       uint32
	}
	copy(info.name[:], table)
	length := uint32(unsafe.Sizeof(info))
	level := [...]int{unix.SOL_IP, unix.SOL_IPV6}[f]
	if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.info[f]), uintptr(level), soGetInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&length)), 0); errno != 0 {
		return 0, 0, errno
	}
	return info.entries, info.size, nil
}

// nftStamp is the generation of the namespace's nftables, which every change increments.
func (s *system) nftStamp() (stamp, error) {
	req := s.request(unix.NFNL_SUBSYS_NFTABLES<<8|nftMsgGetGen, 0, unix.AF_UNSPEC)
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return stamp{}, fmt.Errorf("asking for the generation of nftables: %w", err)
	}
	for _, m := range msgs {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return stamp{}, fmt.Errorf("reading the generation of nftables: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == nftaGenID && len(a.Value) == 4 {
				return stamp{uint64(binary.BigEndian.Uint32(a.Value))}, nil
			}
		}
	}
	return stamp{}, errors.New("the kernel did not return the generation of nftables")
}

func (s *system) follows(f family, before, after stamp, done []transaction) bool {
	if s.variant == NFT { // one generation for each transaction of the namespace
		return after[0]-before[0] == uint64(len(done))
	}
	want := before
	for _, tx := range done {
		if tx.family == f {
			want[2*slices.Index(tables[:], tx.table)] += uint64(tx.entries)
		}
	}
	for i := range tables {
		// Sizes can't be foretold, but without a change they stay.
		if after[2*i] != want[2*i] || len(done) == 0 && after[2*i+1] != before[2*i+1] {
			return false
		}
	}
	return true
}

// printSeed makes prints of this process comparable.
var printSeed = maphash.MakeSeed()

func (s *system) fingerprints(f family, table string, names []string) (map[string]fingerprint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.variant != NFT {
		return nil, errors.ErrUnsupported
	}
	t := nfnl.Table{Family: [...]uint8{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6}[f], Name: table}
	out := map[string]fingerprint{}
	asked := names != nil
	if !asked {
		chains, err := s.nft.Chains(t)
		if err != nil {
			return nil, err
		}
		for _, c := range chains {
			names = append(names, c.Name)
		}
	}
	// One by one: to go on with the rules of a whole table, the kernel counts from
	// the first one with every 32 KiB.
	for _, name := range names {
		p, rules, err := s.fingerprint(t, name)
		if err != nil {
			return nil, err
		}
		if asked || rules > 0 || strings.HasPrefix(name, prefix) {
			out[name] = p
		}
	}
	return out, nil
}

// fingerprint of a chain and of how many rules it is made. Of another program's chain of
// the nat table these are also the rules that decide before ours are reached.
func (s *system) fingerprint(t nfnl.Table, chain string) (fingerprint, int, error) {
	var h maphash.Hash
	h.SetSeed(printSeed)
	ours, rules := strings.HasPrefix(chain, prefix), 0
	sum := h.Sum64()
	err := s.nft.EachRule(t, chain, func(r nfnl.RawRule) {
		leads := ours || r.LeadsTo(prefix)
		if !leads && (t.Name != tableNAT || !r.Decides()) {
			return
		}
		r.Hash(&h)
		_ = h.WriteByte(2) // here a rule ends
		if leads {
			sum = h.Sum64()
			rules++
		}
	})
	return fingerprint(sum), rules, err
}

// request is a netlink request on our socket.
func (s *system) request(kind, flags int, family uint8) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: s.nl}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return req
}

// ipset is a request to the kernel's sets.
func (s *system) ipset(command, flags int, family uint8, name string) *nl.NetlinkRequest {
	req := s.request(unix.NFNL_SUBSYS_IPSET<<8|command, flags, family)
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	if name != "" {
		req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(name)))
	}
	return req
}

func (s *system) addSet(f family, name string) error {
	const hashIPRevision = 1 // with timeouts, known to every kernel since 2.6.39
	af := [...]uint8{unix.AF_INET, unix.AF_INET6}[f]
	s.mu.Lock()
	defer s.mu.Unlock()
	req := s.ipset(nl.IPSET_CMD_CREATE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, af, name)
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_TYPENAME, nl.ZeroTerminated("hash:ip")))
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_REVISION, nl.Uint8Attr(hashIPRevision)))
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_FAMILY, nl.Uint8Attr(af)))
	data := nl.NewRtAttr(nl.IPSET_ATTR_DATA|int(nl.NLA_F_NESTED), nil)
	for _, a := range []nl.Uint32Attribute{
		{Type: nl.IPSET_ATTR_HASHSIZE | nl.NLA_F_NET_BYTEORDER, Value: setHashSize},
		{Type: nl.IPSET_ATTR_MAXELEM | nl.NLA_F_NET_BYTEORDER, Value: setMaxClients},
		{Type: nl.IPSET_ATTR_TIMEOUT | nl.NLA_F_NET_BYTEORDER, Value: maxSetTimeoutSeconds},
	} {
		data.AddChild(&a)
	}
	req.AddData(data)
	err := execute(req)
	switch {
	case err == nil, errors.Is(err, unix.EEXIST):
		return nil
	case errors.Is(err, nl.IPSetError(nl.IPSET_ERR_MAX_SETS)):
		return fmt.Errorf("making set %s: the kernel takes no further sets (65,534 at most)", name)
	}
	return fmt.Errorf("making set %s: %w", name, err)
}

func (s *system) removeSet(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := execute(s.ipset(nl.IPSET_CMD_DESTROY, 0, unix.AF_UNSPEC, name)); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing set %s: %w", name, err)
	}
	return nil
}

func execute(req *nl.NetlinkRequest) error {
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	var no unix.Errno
	if errors.As(err, &no) && no >= nl.IPSET_ERR_PRIVATE {
		return nl.IPSetError(uintptr(no))
	}
	return err
}

// sets asks for names only: a dump of the clients could be long.
func (s *system) sets() ([]string, error) {
	const flagListSetName = 1 << 1 // IPSET_FLAG_LIST_SETNAME of linux/netfilter/ipset/ip_set.h
	s.mu.Lock()
	defer s.mu.Unlock()
	req := s.ipset(nl.IPSET_CMD_LIST, unix.NLM_F_DUMP, unix.AF_UNSPEC, "")
	req.AddData(&nl.Uint32Attribute{Type: nl.IPSET_ATTR_FLAGS | nl.NLA_F_NET_BYTEORDER, Value: flagListSetName})
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("listing sets: %w", err)
	}
	var out []string
	for _, m := range msgs {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return nil, fmt.Errorf("listing sets: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == nl.IPSET_ATTR_SETNAME && strings.HasPrefix(nl.BytesToString(a.Value), prefix) {
				out = append(out, nl.BytesToString(a.Value))
			}
		}
	}
	return out, nil
}
