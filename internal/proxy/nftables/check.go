//go:build linux

package nftables

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// CheckError is why the mode cannot work here, and what to do about it.
type CheckError struct {
	Err  error
	hint string
}

func (e *CheckError) Error() string { return "nftables mode cannot work here: " + e.Err.Error() }
func (e *CheckError) Unwrap() error { return e.Err }

// Code implements problem.Coded.
func (e *CheckError) Code() problem.Code { return problem.ModeUnavailable }

// Hint names a remedy.
func (e *CheckError) Hint() string { return e.hint }

// Check finds out whether the mode can work here: it has the kernel judge a
// table with everything that the mode ever uses, and takes none of it into
// effect. An error is a *CheckError.
func Check(opts Options) error {
	if err := opts.complete(); err != nil {
		return err
	}
	conn, err := nfnl.Open(opts.Namespace)
	if err != nil {
		return checkError(err)
	}
	var errs error
	for _, d := range []dims{ipv4, ipv6} {
		var b nfnl.Batch
		t := transaction{b: &b}
		f := newFamily(d, opts.Table+"-check", opts.writer(d), opts.AffinityClients)
		f.addRange(24)
		for _, def := range d.meshSets() {
			f.wantSet(def)
		}
		for name, rules := range f.rules.meshes(1) {
			f.wantChain(nfnl.Chain{Name: name}, rules)
		}
		f.wantHooks(hooked{apart: true, closed: true})
		k := classKey{mark: markAlways, slots: 3, affinitySeconds: int(3 * time.Hour / time.Second)}
		if _, err := f.acquire(k); err != nil {
			return err
		}
		if errs = f.probe(conn); errs != nil || f.off {
			break
		}
		if errs = f.write(&t); errs == nil {
			errs = conn.Check(&b)
		}
		if errs != nil {
			break
		}
	}
	if err := errors.Join(errs, conn.Close()); err != nil {
		return checkError(err)
	}
	return nil
}

func checkError(err error) error {
	if checkErr := new(CheckError); errors.As(err, &checkErr) {
		return checkErr
	}
	e := &CheckError{Err: err}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		e.hint = "run as root or grant CAP_NET_ADMIN, or use --mode userspace"
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		e.hint = "the kernel has no nf_tables: load the module nf_tables, or use another --mode"
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		e.hint = "the kernel lacks a part of nf_tables: Linux 5.13 or newer with CONFIG_NF_TABLES, CONFIG_NFT_NAT, NFT_MASQ, NFT_NUMGEN, NFT_FIB_INET and NFT_REJECT is needed; or use another --mode"
	}
	return e
}

// probe finds out whether the kernel takes tables of this family at all. One
// that has IPv4 alone is fine.
func (f *family) probe(k kernel) error {
	var b nfnl.Batch
	b.AddTable(f.table)
	err := k.Check(&b)
	if f.words > 1 && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)) {
		f.off = true
		return nil
	}
	if err != nil {
		return checkError(err)
	}
	return nil
}

// probeHash finds out whether the kernel hashes addresses. One that does not (without
// CONFIG_NFT_HASH) chooses at random.
func (f *family) probeHash(k kernel) bool {
	var b nfnl.Batch
	table := f.table
	table.Name += "-check"
	b.AddTable(table)
	b.AddChain(table, nfnl.Chain{Name: chainDispatch})
	b.AddRule(table, chainDispatch, f.rules.slot(rule(""), classKey{slots: hashSlots[0], hash: true}, localSlots, 2))
	return k.Check(&b) == nil
}

// probeCgroups finds out whether the kernel tells sockets apart by their cgroup. One that does
// not (before Linux 5.13, or without CONFIG_NFT_SOCKET) does everything else.
func (f *family) probeCgroups(k kernel) bool {
	var b nfnl.Batch
	table := f.table
	table.Name += "-check"
	b.AddTable(table)
	for _, name := range []string{setMeshGroup, setMeshInside} {
		def, _ := f.meshSet(name)
		b.AddSet(table, &def)
	}
	b.AddChain(table, nfnl.Chain{Name: chainMember})
	chain := nfnl.Chain{Name: chainOut, Type: "nat", Hook: unix.NF_INET_LOCAL_OUT, Priority: priorityDNAT}
	b.AddChain(table, chain)
	for _, r := range f.rules.output([]uint8{1}, setMeshGroup, chainMember, "") {
		b.AddRule(table, chain.Name, r)
	}
	return k.Check(&b) == nil
}
