package znode

import "testing"

// TestAllowedAddress: an address, a range of which the last bits do not matter, and what ZooKeeper takes for neither.
func TestAllowedAddress(t *testing.T) {
	for _, c := range []struct {
		acl, from      string
		valid, allowed bool
	}{
		{"10.0.0.1", "10.0.0.1", true, true},
		{"10.0.0.1", "10.0.0.2", true, false},
		{"10.1.2.3/8", "10.9.9.9", true, true},
		{"10.1.2.3/8", "11.1.2.3", true, false},
		{"10.0.0.8/29", "10.0.0.15", true, true},
		{"10.0.0.8/29", "10.0.0.16", true, false},
		{"010.000.0.1", "10.0.0.1", true, true},
		{"0.0.0.0/0", "192.0.2.1", true, true},
		{"0.0.0.0/0", "2001:db8::1", true, false},
		{"10.0.0.1/33", "10.0.0.1", false, false},
		{"10.0.0.1/-1", "10.0.0.1", false, false},
		{"10.0.0.1/", "10.0.0.1", false, false},
		{"10.0.0", "10.0.0.1", false, false},
		{"10.0.0.256", "10.0.1.0", false, false},
		{"10.0.0.1/8/8", "10.0.0.1", false, false},
		{"2001:db8::1", "2001:db8::1", false, false},
	} {
		if _, valid := ParseRange(c.acl); valid != c.valid {
			t.Errorf("%s is valid: %t", c.acl, valid)
		}
		list := []ACL{{PermRead, Identity{SchemeIP, c.acl}}}
		who := []Identity{{SchemeDigest, "alice:x"}, {SchemeIP, c.from}}
		if got := Allowed(list, PermRead, who); got != c.allowed {
			t.Errorf("%s for %s: %t", c.acl, c.from, got)
		}
		if Allowed(list, PermWrite, who) || Allowed(list, PermRead, who[:1]) || Allowed(list, PermRead, []Identity{{SchemeDigest, c.from}}) {
			t.Errorf("%s for %s: allowed with another permission, or without an address", c.acl, c.from)
		}
	}
}
