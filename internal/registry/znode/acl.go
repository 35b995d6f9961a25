package znode

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Permissions of an ACL (org.apache.zookeeper.ZooDefs.Perms).
const (
	PermRead int32 = 1 << iota
	PermWrite
	PermCreate
	PermDelete
	PermAdmin
	PermAll = PermRead | PermWrite | PermCreate | PermDelete | PermAdmin
)

// Schemes of identities.
const (
	SchemeWorld  = "world"
	SchemeDigest = "digest"
	SchemeIP     = "ip"
	// Anyone is the only identity of SchemeWorld.
	Anyone = "anyone"
)

// Identity of a client: of SchemeDigest a user with a hash of the password, as USER:BASE64(SHA1(USER:PASSWORD)), of SchemeIP the address
// that it comes from, as 10.0.0.1; in an ACL that may be a range, as 10.0.0.0/8.
type Identity struct{ Scheme, ID string }

// ACL gives permissions to an identity.
type ACL struct {
	Perms int32
	Identity
}

// Allowed reports whether one of the permissions is given to somebody who has the identities. An ACL without entries gives all to
// everybody.
func Allowed(list []ACL, perms int32, who []Identity) bool {
	if len(list) == 0 {
		return true
	}
	return slices.ContainsFunc(list, func(a ACL) bool {
		if a.Perms&perms == 0 {
			return false
		}
		switch a.Scheme {
		case SchemeWorld:
			return a.ID == Anyone
		case SchemeIP:
			from, ok := ParseRange(a.ID)
			return ok && slices.ContainsFunc(who, func(i Identity) bool {
				address, err := netip.ParseAddr(i.ID)
				return i.Scheme == SchemeIP && err == nil && from.Contains(address)
			})
		}
		return slices.Contains(who, a.Identity)
	})
}

// ParseRange reads the identity of SchemeIP in an ACL, as ZooKeeper does (IPAuthenticationProvider.isValid): an IPv4 address, or one
// with a number of bits of which the others do not matter. There are none of IPv6.
func ParseRange(text string) (netip.Prefix, bool) {
	address, size, sized := strings.Cut(text, "/")
	parts := strings.Split(address, ".")
	if len(parts) != 4 {
		return netip.Prefix{}, false
	}
	var octets [4]byte
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 || n > 255 {
			return netip.Prefix{}, false
		}
		octets[i] = byte(n)
	}
	bits := 32
	if sized {
		n, err := strconv.Atoi(size)
		if err != nil || n < 0 || n > 32 {
			return netip.Prefix{}, false
		}
		bits = n
	}
	return netip.PrefixFrom(netip.AddrFrom4(octets), bits).Masked(), true
}

func appendACL(out []byte, list []ACL) []byte {
	out = binary.AppendUvarint(out, uint64(len(list)))
	for _, a := range list {
		out = binary.AppendVarint(out, int64(a.Perms))
		for _, text := range []string{a.Scheme, a.ID} {
			out = append(binary.AppendUvarint(out, uint64(len(text))), text...)
		}
	}
	return out
}

// decodeACL returns what follows it, too.
func decodeACL(b []byte) (list []ACL, rest []byte, err error) {
	count, n := binary.Uvarint(b)
	if n <= 0 || count > uint64(len(b)) {
		return nil, nil, errRecord
	}
	b = b[n:]
	for range count {
		perms, n := binary.Varint(b)
		if n <= 0 {
			return nil, nil, errRecord
		}
		b = b[n:]
		a := ACL{Perms: int32(perms)}
		for _, text := range []*string{&a.Scheme, &a.ID} {
			length, n := binary.Uvarint(b)
			if n <= 0 || length > uint64(len(b)-n) {
				return nil, nil, errRecord
			}
			*text, b = string(b[n:n+int(length)]), b[n+int(length):]
		}
		list = append(list, a)
	}
	return list, b, nil
}
