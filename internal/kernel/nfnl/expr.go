//go:build linux

package nfnl

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Reg is one of the sixteen 32-bit registers of a rule, 0 to 15.
type Reg int

// verdictReg stands for the verdict register (NFT_REG_VERDICT).
const verdictReg Reg = -1

// wire is the number of a register as the kernel gives it back: those at a
// multiple of 16 bytes have their older names (nft_dump_register).
func (r Reg) wire() uint32 {
	switch {
	case r == verdictReg:
		return unix.NFT_REG_VERDICT
	case r%4 == 0:
		return unix.NFT_REG_1 + uint32(r)/4
	}
	return unix.NFT_REG32_00 + uint32(r)
}

// Rule builds the expressions of a rule, in the order in which the kernel
// evaluates them. The zero value is an empty rule; methods return their
// receiver.
type Rule struct {
	a       Attrs
	Comment string
}

// Expressions are the attributes that hold the rule, valid until its next change.
func (r *Rule) Expressions() []byte { return r.a.b }

func (r *Rule) expr(name string, fill func(a *Attrs)) *Rule {
	a := &r.a
	elem := a.open(unix.NFTA_LIST_ELEM)
	a.String(unix.NFTA_EXPR_NAME, name)
	data := a.open(unix.NFTA_EXPR_DATA)
	fill(a)
	a.close(data)
	a.close(elem)
	return r
}

// Meta loads a property of the packet (NFT_META_…).
func (r *Rule) Meta(key uint32, to Reg) *Rule {
	return r.expr("meta", func(a *Attrs) {
		a.U32(unix.NFTA_META_KEY, key)
		a.U32(unix.NFTA_META_DREG, to.wire())
	})
}

// SetMeta sets a property of the packet.
func (r *Rule) SetMeta(key uint32, from Reg) *Rule {
	return r.expr("meta", func(a *Attrs) {
		a.U32(unix.NFTA_META_KEY, key)
		a.U32(unix.NFTA_META_SREG, from.wire())
	})
}

// Network loads bytes of the network header.
func (r *Rule) Network(offset, length uint32, to Reg) *Rule {
	return r.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, length, to)
}

// Transport loads bytes of the transport header.
func (r *Rule) Transport(offset, length uint32, to Reg) *Rule {
	return r.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, length, to)
}

// SourceIn matches packets whose source address is in a prefix, of its family alone. It uses
// register 0.
func (r *Rule) SourceIn(p netip.Prefix) *Rule { return r.addressIn(p, 12, 8) }

// DestinationIn is SourceIn of the destination address.
func (r *Rule) DestinationIn(p netip.Prefix) *Rule { return r.addressIn(p, 16, 24) }

// addressIn takes the offsets of an address in headers of IPv4 (RFC 791) and IPv6 (RFC 8200).
func (r *Rule) addressIn(p netip.Prefix, offset4, offset6 uint32) *Rule {
	family, offset, length := byte(unix.NFPROTO_IPV4), offset4, uint32(4)
	if p.Addr().Is6() {
		family, offset, length = unix.NFPROTO_IPV6, offset6, 16
	}
	mask := make([]byte, length)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return r.Meta(unix.NFT_META_NFPROTO, 0).Equal(0, string([]byte{family})).
		Network(offset, length, 0).Mask(0, string(mask), string(make([]byte, length))).
		Equal(0, string(p.Masked().Addr().AsSlice()))
}

func (r *Rule) payload(base, offset, length uint32, to Reg) *Rule {
	return r.expr("payload", func(a *Attrs) {
		a.U32(unix.NFTA_PAYLOAD_DREG, to.wire())
		a.U32(unix.NFTA_PAYLOAD_BASE, base)
		a.U32(unix.NFTA_PAYLOAD_OFFSET, offset)
		a.U32(unix.NFTA_PAYLOAD_LEN, length)
	})
}

// None in place of a checksum's offset.
const None = ^uint32(0)

// SetNetwork replaces an address of the network header, and what checksums have of it. sum is the offset of the
// header's own checksum; None: IPv6 has none.
func (r *Rule) SetNetwork(offset, length, sum uint32, from Reg) *Rule {
	return r.setPayload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, length, sum, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR, from)
}

// SetTransport replaces bytes of the transport header. sum is the offset of its checksum; None: the packet has none.
func (r *Rule) SetTransport(offset, length, sum uint32, from Reg) *Rule {
	return r.setPayload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, length, sum, 0, from)
}

func (r *Rule) setPayload(base, offset, length, sum, flags uint32, from Reg) *Rule {
	return r.expr("payload", func(a *Attrs) {
		a.U32(unix.NFTA_PAYLOAD_SREG, from.wire())
		a.U32(unix.NFTA_PAYLOAD_BASE, base)
		a.U32(unix.NFTA_PAYLOAD_OFFSET, offset)
		a.U32(unix.NFTA_PAYLOAD_LEN, length)
		if sum != None {
			a.U32(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_INET)
			a.U32(unix.NFTA_PAYLOAD_CSUM_OFFSET, sum)
		}
		if flags != 0 {
			a.U32(unix.NFTA_PAYLOAD_CSUM_FLAGS, flags)
		}
	})
}

// Mask makes a register (reg & mask) ^ xor; the strings are of one length.
func (r *Rule) Mask(reg Reg, mask, xor string) *Rule {
	return r.expr("bitwise", func(a *Attrs) {
		a.U32(unix.NFTA_BITWISE_SREG, reg.wire())
		a.U32(unix.NFTA_BITWISE_DREG, reg.wire())
		a.U32(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		data(a, unix.NFTA_BITWISE_MASK, mask)
		data(a, unix.NFTA_BITWISE_XOR, xor)
	})
}

// Attributes of the expression "bitwise" for a shift, and the operation (enum nft_bitwise_attributes and nft_bitwise_ops of
// linux/netfilter/nf_tables.h), which x/sys does not name.
const (
	bitwiseOp     = 6
	bitwiseData   = 7
	bitwiseRShift = 2
)

// ShiftRight makes a register of 4 bytes, a number in the host's order, reg >> bits. Linux 5.7.
func (r *Rule) ShiftRight(reg Reg, bits uint32) *Rule {
	return r.expr("bitwise", func(a *Attrs) {
		a.U32(unix.NFTA_BITWISE_SREG, reg.wire())
		a.U32(unix.NFTA_BITWISE_DREG, reg.wire())
		a.U32(unix.NFTA_BITWISE_LEN, 4)
		a.U32(bitwiseOp, bitwiseRShift)
		data(a, bitwiseData, Host(bits))
	})
}

func data(a *Attrs, typ uint16, value string) {
	at := a.open(typ)
	a.Data(unix.NFTA_DATA_VALUE, value)
	a.close(at)
}

// Equal ends the rule unless a register holds value.
func (r *Rule) Equal(reg Reg, value string) *Rule { return r.compare(unix.NFT_CMP_EQ, reg, value) }

// NotEqual ends the rule if a register holds value.
func (r *Rule) NotEqual(reg Reg, value string) *Rule { return r.compare(unix.NFT_CMP_NEQ, reg, value) }

func (r *Rule) compare(op uint32, reg Reg, value string) *Rule {
	return r.expr("cmp", func(a *Attrs) {
		a.U32(unix.NFTA_CMP_SREG, reg.wire())
		a.U32(unix.NFTA_CMP_OP, op)
		data(a, unix.NFTA_CMP_DATA, value)
	})
}

// In ends the rule unless the key in a register is in a set. Counters of the
// element count.
func (r *Rule) In(set string, key Reg) *Rule {
	return r.expr("lookup", func(a *Attrs) {
		a.String(unix.NFTA_LOOKUP_SET, set)
		a.U32(unix.NFTA_LOOKUP_SREG, key.wire())
	})
}

// Lookup loads what a map has for a key, or ends the rule.
func (r *Rule) Lookup(set string, key, to Reg) *Rule {
	return r.expr("lookup", func(a *Attrs) {
		a.String(unix.NFTA_LOOKUP_SET, set)
		a.U32(unix.NFTA_LOOKUP_SREG, key.wire())
		a.U32(unix.NFTA_LOOKUP_DREG, to.wire())
	})
}

// VerdictOf does what a verdict map has for a key, or ends the rule.
func (r *Rule) VerdictOf(set string, key Reg) *Rule {
	return r.expr("lookup", func(a *Attrs) {
		a.String(unix.NFTA_LOOKUP_SET, set)
		a.U32(unix.NFTA_LOOKUP_SREG, key.wire())
		a.U32(unix.NFTA_LOOKUP_DREG, unix.NFT_REG_VERDICT)
	})
}

// Load puts a constant into a register.
func (r *Rule) Load(to Reg, value string) *Rule {
	return r.expr("immediate", func(a *Attrs) {
		a.U32(unix.NFTA_IMMEDIATE_DREG, to.wire())
		data(a, unix.NFTA_IMMEDIATE_DATA, value)
	})
}

// Do ends the rule with a verdict.
func (r *Rule) Do(v Verdict) *Rule {
	return r.expr("immediate", func(a *Attrs) {
		a.U32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		at := a.open(unix.NFTA_IMMEDIATE_DATA)
		v.append(a)
		a.close(at)
	})
}

// Random loads a random number in [offset, offset+n).
func (r *Rule) Random(n, offset uint32, to Reg) *Rule {
	return r.expr("numgen", func(a *Attrs) {
		a.U32(unix.NFTA_NG_DREG, to.wire())
		a.U32(unix.NFTA_NG_MODULUS, n)
		a.U32(unix.NFTA_NG_TYPE, unix.NFT_NG_RANDOM)
		a.U32(unix.NFTA_NG_OFFSET, offset)
	})
}

// Hash loads a number in [offset, offset+n) that is a hash (jhash) of length bytes in registers.
func (r *Rule) Hash(from Reg, length, n, offset, seed uint32, to Reg) *Rule {
	return r.expr("hash", func(a *Attrs) {
		a.U32(unix.NFTA_HASH_SREG, from.wire())
		a.U32(unix.NFTA_HASH_DREG, to.wire())
		a.U32(unix.NFTA_HASH_LEN, length)
		a.U32(unix.NFTA_HASH_MODULUS, n)
		a.U32(unix.NFTA_HASH_SEED, seed)
		a.U32(unix.NFTA_HASH_OFFSET, offset)
		a.U32(unix.NFTA_HASH_TYPE, unix.NFT_HASH_JENKINS)
	})
}

// SourceType loads the type of the source address (RTN_…, linux/rtnetlink.h).
func (r *Rule) SourceType(to Reg) *Rule { return r.addressType(unix.NFTA_FIB_F_SADDR, to) }

// DestinationType loads the type of the destination address.
func (r *Rule) DestinationType(to Reg) *Rule { return r.addressType(unix.NFTA_FIB_F_DADDR, to) }

func (r *Rule) addressType(of uint32, to Reg) *Rule {
	return r.expr("fib", func(a *Attrs) {
		a.U32(unix.NFTA_FIB_DREG, to.wire())
		a.U32(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE)
		a.U32(unix.NFTA_FIB_FLAGS, of)
	})
}

// Attributes of the expression "socket" (enum nft_socket_attributes of
// linux/netfilter/nf_tables.h), and the key for a cgroup of version 2.
const (
	socketKey       = 1
	socketDreg      = 2
	socketLevel     = 3
	socketCgroupKey = 3
)

// Cgroup loads the number, 8 bytes, of the cgroup (version 2) that is this many levels below
// the root, and that the packet's socket was made in or below. It ends the rule if there is
// none. Linux 5.13.
func (r *Rule) Cgroup(level uint8, to Reg) *Rule {
	return r.expr("socket", func(a *Attrs) {
		a.U32(socketKey, socketCgroupKey)
		a.U32(socketDreg, to.wire())
		a.U32(socketLevel, uint32(level))
	})
}

// Host64 is a number of 8 bytes as registers hold it.
func Host64(v uint64) string { return string(binary.NativeEndian.AppendUint64(nil, v)) }

// Conntrack loads a property of the connection (NFT_CT_…).
func (r *Rule) Conntrack(key uint32, to Reg) *Rule {
	return r.expr("ct", func(a *Attrs) {
		a.U32(unix.NFTA_CT_KEY, key)
		a.U32(unix.NFTA_CT_DREG, to.wire())
	})
}

// Directions of a connection (enum ip_conntrack_dir of linux/netfilter/nf_conntrack_tuple_common.h).
const (
	Original uint8 = iota
	Reply
)

// ConntrackOf loads what the packets of one direction have (NFT_CT_DST_IP, NFT_CT_PROTO_DST, …), as conntrack has
// it: that of Reply is translated.
func (r *Rule) ConntrackOf(direction uint8, key uint32, to Reg) *Rule {
	return r.expr("ct", func(a *Attrs) {
		a.U32(unix.NFTA_CT_KEY, key)
		a.U32(unix.NFTA_CT_DREG, to.wire())
		a.U8(unix.NFTA_CT_DIRECTION, direction)
	})
}

// Update adds an element to a dynamic map or renews it, for timeout
// milliseconds. With a full map it ends the rule.
func (r *Rule) Update(set string, key, value Reg, timeoutMillis uint64) *Rule {
	return r.dynset(unix.NFT_DYNSET_OP_UPDATE, set, key, value, timeoutMillis)
}

// dynsetDelete is NFT_DYNSET_OP_DELETE, which x/sys does not name.
const dynsetDelete = 2

// Delete deletes an element of a dynamic map. The kernel wants a value here too.
func (r *Rule) Delete(set string, key, value Reg) *Rule {
	return r.dynset(dynsetDelete, set, key, value, 0)
}

func (r *Rule) dynset(op uint32, set string, key, value Reg, timeoutMillis uint64) *Rule {
	return r.expr("dynset", func(a *Attrs) {
		a.String(unix.NFTA_DYNSET_SET_NAME, set)
		a.U32(unix.NFTA_DYNSET_OP, op)
		a.U32(unix.NFTA_DYNSET_SREG_KEY, key.wire())
		a.U32(unix.NFTA_DYNSET_SREG_DATA, value.wire())
		if timeoutMillis != 0 {
			a.U64(unix.NFTA_DYNSET_TIMEOUT, timeoutMillis)
		}
	})
}

// natFlags is NF_NAT_RANGE_MAP_IPS | NF_NAT_RANGE_PROTO_SPECIFIED of
// linux/netfilter/nf_nat.h: the kernel adds them by itself and reports them.
const natFlags = 1 | 2

// DNAT sends the connection to the address and port in registers.
func (r *Rule) DNAT(family uint8, addr, port Reg) *Rule {
	return r.expr("nat", func(a *Attrs) {
		a.U32(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
		a.U32(unix.NFTA_NAT_FAMILY, uint32(family))
		a.U32(unix.NFTA_NAT_REG_ADDR_MIN, addr.wire())
		a.U32(unix.NFTA_NAT_REG_ADDR_MAX, addr.wire())
		a.U32(unix.NFTA_NAT_REG_PROTO_MIN, port.wire())
		a.U32(unix.NFTA_NAT_REG_PROTO_MAX, port.wire())
		a.U32(unix.NFTA_NAT_FLAGS, natFlags)
	})
}

// Redirect sends the connection to this machine, to the port in a register: to a loopback
// address if it begins here, else to the address of the interface that it came by.
func (r *Rule) Redirect(port Reg) *Rule {
	return r.expr("redir", func(a *Attrs) {
		a.U32(unix.NFTA_REDIR_REG_PROTO_MIN, port.wire())
		a.U32(unix.NFTA_REDIR_REG_PROTO_MAX, port.wire())
		a.U32(unix.NFTA_REDIR_FLAGS, natProto)
	})
}

// natProto is NF_NAT_RANGE_PROTO_SPECIFIED of linux/netfilter/nf_nat.h.
const natProto = 1 << 1

// fullyRandom is NF_NAT_RANGE_PROTO_RANDOM_FULLY of linux/netfilter/nf_nat.h.
const fullyRandom = 1 << 4

// Masquerade sends the connection from the address of the outgoing interface.
func (r *Rule) Masquerade() *Rule {
	return r.expr("masq", func(a *Attrs) { a.U32(unix.NFTA_MASQ_FLAGS, fullyRandom) })
}

// ResetTCP answers with a TCP reset.
func (r *Rule) ResetTCP() *Rule { return r.reject(unix.NFT_REJECT_TCP_RST, 0) }

// Unreachable answers with an ICMP error of this code.
func (r *Rule) Unreachable(code uint8) *Rule { return r.reject(unix.NFT_REJECT_ICMP_UNREACH, code) }

func (r *Rule) reject(typ uint32, code uint8) *Rule {
	return r.expr("reject", func(a *Attrs) {
		a.U32(unix.NFTA_REJECT_TYPE, typ)
		a.U8(unix.NFTA_REJECT_ICMP_CODE, code)
	})
}

// Host is a number as registers hold it: in the host's order.
func Host(v uint32) string { return string(binary.NativeEndian.AppendUint32(nil, v)) }

// Verdict is the outcome of a rule or of an element of a verdict map.
type Verdict struct {
	// Code is unix.NF_DROP, NF_ACCEPT, NFT_JUMP, NFT_GOTO, …
	Code  int32
	Chain string // of NFT_JUMP and NFT_GOTO
}

// Verdicts.
func Goto(chain string) Verdict { return Verdict{Code: unix.NFT_GOTO, Chain: chain} }
func Jump(chain string) Verdict { return Verdict{Code: unix.NFT_JUMP, Chain: chain} }
func Drop() Verdict             { return Verdict{Code: 0} } // NF_DROP, linux/netfilter.h

// Return goes on behind the rule that jumped here.
func Return() Verdict { return Verdict{Code: unix.NFT_RETURN} }

func (v Verdict) append(a *Attrs) {
	at := a.open(unix.NFTA_DATA_VERDICT)
	a.U32(unix.NFTA_VERDICT_CODE, uint32(v.Code))
	if v.Chain != "" {
		a.String(unix.NFTA_VERDICT_CHAIN, v.Chain)
	}
	a.close(at)
}

// VerdictText is a verdict in the form in which [Elem.Value] holds it.
func (v Verdict) text() string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(v.Code))) + v.Chain
}

// Value is the verdict as [Elem.Value] has it.
func (v Verdict) Value() string { return v.text() }

// ParseVerdict reads an [Elem.Value] of a verdict map.
func ParseVerdict(value string) Verdict {
	if len(value) < 4 {
		return Verdict{}
	}
	return Verdict{Code: int32(binary.BigEndian.Uint32([]byte(value[:4]))), Chain: value[4:]}
}

// Port as packets and registers hold it.
func Port(v uint16) string { return string(binary.BigEndian.AppendUint16(nil, v)) }
