//go:build linux

package nftables

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
)

// Dump reads the kernel's state and compares. Affinity is left out: packets
// write it, and reading it takes long where clients are many.
func (m *Mode) Dump(context.Context) (*Dump, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	d := &Dump{Mode: m.Name()}
	for _, p := range m.ports {
		d.Services = append(d.Services, fmt.Sprintf("%x %s", p.number, p.name))
	}
	for _, f := range m.families {
		if err := f.read(m.k); err != nil {
			m.needsResync = true
			return nil, err
		}
		want, have := f.lines()
		d.Kernel = append(d.Kernel, slices.Sorted(maps.Keys(have))...)
		d.Missing = append(d.Missing, without(want, have)...)
		d.Foreign = append(d.Foreign, without(have, want)...)
	}
	slices.Sort(d.Services)
	return d, nil
}

func without(a, b map[string]bool) []string {
	var out []string
	for line := range a {
		if !b[line] {
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return out
}

// lines describes everything wanted and had.
func (f *family) lines() (want, have map[string]bool) {
	want, have = map[string]bool{}, map[string]bool{}
	note := func(to map[string]bool, is bool, line string) {
		if is {
			to[f.String()+" "+line] = true
		}
	}
	if f.hasTable {
		note(have, true, "table "+f.table.Name)
	}
	note(want, true, "table "+f.table.Name)
	for _, s := range f.order {
		line := "set " + s.def.Name
		if s.def.IsMap() {
			line = "map " + s.def.Name
		}
		note(want, s.want, line)
		note(have, s.has, line)
		s.each(func(key, wanted, had string) {
			note(want, wanted != "", f.elemLine(s, key, wanted))
			note(have, had != "", f.elemLine(s, key, had))
		})
	}
	for name, c := range f.chains {
		note(want, c.want, fmt.Sprintf("chain %s: %d rules", name, len(c.rules)))
		note(have, c.has, fmt.Sprintf("chain %s: %d rules", name, len(c.have)))
		for i, r := range c.rules {
			if c.has && i < len(c.have) && c.have[i] != r.Canonical() {
				note(have, true, fmt.Sprintf("chain %s: rule %d is not ours", name, i+1))
			}
		}
	}
	return want, have
}

func (f *family) elemLine(s *set, key, packed string) string {
	if packed == "" {
		return ""
	}
	value, comment := unpack(packed)
	line := s.def.Name + " " + f.keyText(s.def.Name, key)
	switch {
	case s.def.ValueType == nfnl.VerdictType:
		line += " : " + verdictText(value)
	case s.def.ValueType == nfnl.TypeClass:
		line += " : " + classText(value)
	case s.def.IsMap():
		line += " : " + readEndpoint(value).String()
	}
	if comment != "" {
		line += " " + comment
	}
	return line
}

// keyText prints a key by the parts that the set's keys have.
func (f *family) keyText(set, key string) string {
	addr := func(at int) string {
		a, _ := netip.AddrFromSlice([]byte(key[at : at+int(f.addrLen)]))
		return a.String()
	}
	proto := func(at int) string {
		switch key[at] {
		case unix.IPPROTO_TCP:
			return "tcp"
		case unix.IPPROTO_UDP:
			return "udp"
		case unix.IPPROTO_SCTP:
			return "sctp"
		}
		return fmt.Sprint(key[at])
	}
	n := int(f.addrLen)
	bits, isRange := sourceBits(set)
	switch {
	case strings.HasPrefix(set, setVIP) && len(key) == n+8:
		return fmt.Sprintf("%s . %s . %d", addr(0), proto(n), uint16(key[n+4])<<8|uint16(key[n+5]))
	case set == setEP && len(key) == 12:
		return fmt.Sprintf("%s . %s . %d", classText(key), proto(4), hostNumber(key[8:]))
	case (set == setIDCluster || set == setIDLocal) && len(key) == 8:
		return classText(key) + " . " + proto(4)
	case set == setEPID && len(key) == 8:
		return fmt.Sprintf("%s . %d", classText(key), hostNumber(key[4:]))
	case (set == setClusterIPs || set == setMeshShared || set == setMeshOf || set == setMeshClosed) && len(key) == n:
		return addr(0)
	case (set == setMeshGroup || set == setMeshInside) && len(key) == 8:
		return fmt.Sprintf("cgroup %d", binary.NativeEndian.Uint64([]byte(key)))
	case (set == setMeshVIP || set == setMeshReach) && len(key) == n+4:
		return classText(key) + " . " + addr(4)
	case set == setHairpin && len(key) == 2*n:
		return addr(0) + " . " + addr(n)
	case isRange && len(key) == n+4:
		return fmt.Sprintf("%s . %s/%d", classText(key), addr(4), bits)
	case len(key) == 4:
		return classText(key)
	}
	return fmt.Sprintf("%x", key)
}

// classText prints a service's number and class as nft does.
func classText(s string) string {
	service, class := unmix(s)
	return fmt.Sprintf("%x:%x", service, class)
}

func verdictText(value string) string {
	switch v := nfnl.ParseVerdict(value); v.Code {
	case unix.NFT_GOTO:
		return "goto " + v.Chain
	case unix.NFT_JUMP:
		return "jump " + v.Chain
	case 0:
		return "drop"
	default:
		return fmt.Sprintf("verdict %d %s", v.Code, v.Chain)
	}
}
