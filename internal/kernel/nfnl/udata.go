//go:build linux

package nfnl

import (
	"strings"

	"golang.org/x/sys/unix"
)

// User data, which the kernel stores and nft reads, is a list of type, length (a byte each) and value.
func udata(typ byte, value string) string { return string([]byte{typ, byte(len(value))}) + value }

// commentType is NFTNL_UDATA_RULE_COMMENT and NFTNL_UDATA_SET_ELEM_COMMENT.
const commentType = 0

// MaxComment is the longest comment that nft reads back (NFTNL_UDATA_COMMENT_MAXLEN less its zero).
const MaxComment = 127

func comment(s string) string { return udata(commentType, s+"\x00") }

func decodeComment(b []byte) string {
	for len(b) >= 2 {
		n := int(b[1])
		if 2+n > len(b) {
			return ""
		}
		if b[0] == commentType {
			return strings.TrimRight(string(b[2:2+n]), "\x00")
		}
		b = b[2+n:]
	}
	return ""
}

// Types of nft's values (enum datatypes of nftables' datatype.h).
const (
	TypeInteger = 4
	TypeIPAddr  = 7
	TypeIP6Addr = 8
	TypeProto   = 12 // inet_proto
	TypePort    = 13 // inet_service
	TypeClass   = 23 // classid
	TypeCgroup  = 46 // cgroupsv2
	typeBits    = 6  // of each part of a concatenated type
)

// TypeOf is the type of a concatenation.
func TypeOf(parts ...uint32) uint32 {
	var t uint32
	for _, p := range parts {
		t = t<<typeBits | p
	}
	return t
}

// Order is the order of bytes in keys or values (enum byteorder of datatype.h);
// concatenations have none.
type Order uint32

// The orders.
const (
	NoOrder      Order = 0
	HostOrder    Order = 1
	NetworkOrder Order = 2
)

// Typeof describes an expression to nft, whose type a set's keys or values
// have. nft needs it for integers, whose length is not in a type.
type Typeof string

// Expressions (enum expr_types of nftables' expression.h) and what they store
// of themselves (enum nftnl_udata_set_… of each).
const (
	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23
)

// TypeofMeta is a property of a packet (NFT_META_…).
func TypeofMeta(key uint32) Typeof { return typeof(exprMeta, number(0, key)) }

// TypeofRandom is a random number below n.
func TypeofRandom(n uint32) Typeof {
	return typeof(exprNumgen, number(0, 0)+number(1, n)+number(2, 0))
}

// Headers of packets (enum proto_desc_id of nftables' proto.h) and their fields.
const (
	headerTH, fieldDport   = 11, 2
	headerIP, fieldDaddr   = 12, 12
	headerIP6, fieldDaddr6 = 13, 9
)

// TypeofDaddr is the destination address of a family.
func TypeofDaddr(family uint8) Typeof {
	if family == unix.NFPROTO_IPV6 {
		return typeof(exprPayload, number(0, headerIP6)+number(1, fieldDaddr6))
	}
	return typeof(exprPayload, number(0, headerIP)+number(1, fieldDaddr))
}

// TypeofPort is the destination port of any transport.
func TypeofPort() Typeof { return typeof(exprPayload, number(0, headerTH)+number(1, fieldDport)) }

// TypeofConcat is a concatenation.
func TypeofConcat(parts ...Typeof) Typeof {
	var all string
	for i, p := range parts {
		all += udata(byte(i), string(p))
	}
	return typeof(exprConcat, all)
}

func typeof(expr uint32, body string) Typeof { return Typeof(number(0, expr) + udata(1, body)) }

func number(typ byte, v uint32) string { return udata(typ, Host(v)) }

// User data of sets (enum nftnl_udata_set_types).
const (
	setKeyOrder    = 0
	setValueOrder  = 1
	setKeyTypeof   = 3
	setValueTypeof = 4
)

// SetUserData makes the user data by which nft prints keys and values; empty typeofs are left out.
func SetUserData(key Order, keyTypeof Typeof, value Order, valueTypeof Typeof) string {
	s := number(setKeyOrder, uint32(key)) + number(setValueOrder, uint32(value))
	if keyTypeof != "" {
		s += udata(setKeyTypeof, string(keyTypeof))
	}
	if valueTypeof != "" {
		s += udata(setValueTypeof, string(valueTypeof))
	}
	return s
}
