package zookeeper

import (
	"crypto/sha1" //nolint:gosec // the hash of ZooKeeper's scheme digest
	"encoding/base64"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/registry/znode"
)

// schemeAuth of an ACL stands for all identities that its client has shown.
const schemeAuth = "auth"

// digestOf credentials of scheme digest, USER:PASSWORD, as an identity (DigestAuthenticationProvider.generateDigest).
func digestOf(credentials string) znode.Identity {
	user, _, _ := strings.Cut(credentials, ":")
	sum := sha1.Sum([]byte(credentials)) //nolint:gosec // as above
	return znode.Identity{Scheme: znode.SchemeDigest, ID: user + ":" + base64.StdEncoding.EncodeToString(sum[:])}
}

// fixed is an ACL as it is kept: with the identities of the client in place of scheme auth, and nil if it gives everybody all
// (PrepRequestProcessor.fixupACL).
func (c *conn) fixedACL(list []znode.ACL) ([]znode.ACL, error) {
	var out []znode.ACL
	add := func(a znode.ACL) {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	for _, a := range list {
		_, isRange := znode.ParseRange(a.ID)
		switch {
		case a.Scheme == znode.SchemeIP && isRange, a.Scheme == znode.SchemeWorld && a.ID == znode.Anyone, a.Scheme == znode.SchemeDigest && strings.Count(a.ID, ":") == 1:
			add(a)
		case a.Scheme == schemeAuth && len(c.identities) > 0:
			for _, id := range c.identities {
				add(znode.ACL{Perms: a.Perms, Identity: id})
			}
		default:
			return nil, failed(codeInvalidACL, "an ACL for %.40q of scheme %.40q: there are world:anyone, digest:USER:HASH, ip:IPV4[/BITS] and, after credentials, auth", a.ID, a.Scheme)
		}
	}
	if len(out) == 0 {
		return nil, failed(codeInvalidACL, "an ACL without entries")
	}
	if len(out) == 1 && out[0].Scheme == znode.SchemeWorld && out[0].Perms&znode.PermAll == znode.PermAll {
		return nil, nil
	}
	return out, nil
}

// by is who the client is to ACLs: what it has shown, and where it comes from. The latter is no identity that scheme auth stands for, as in
// ZooKeeper (IPAuthenticationProvider.isAuthenticated).
func (c *conn) by() []znode.Identity {
	return append(slices.Clip(c.identities), znode.Identity{Scheme: znode.SchemeIP, ID: c.from.String()})
}

// allows reports whether the ACL of a node gives the client one of the permissions. It is called under the lock of the tree.
func (c *conn) allows(n *node, perms int32) error {
	if !znode.Allowed(n.acl, perms, c.by()) {
		return failed(codeNoAuth, "the ACL of the node does not allow it")
	}
	return nil
}

// getACL of a node. Who may not change it does not see hashes of passwords (FinalRequestProcessor).
func (c *conn) getACL(e *encoder, n *node) error {
	if err := c.allows(n, znode.PermRead|znode.PermAdmin); err != nil {
		return err
	}
	if n.acl == nil {
		e.openACL()
		return nil
	}
	list := slices.Clone(n.acl)
	if c.allows(n, znode.PermAdmin) != nil {
		for i := range list {
			if user, _, ok := strings.Cut(list[i].ID, ":"); ok && list[i].Scheme == znode.SchemeDigest {
				list[i].ID = user + ":x"
			}
		}
	}
	e.acl(list)
	return nil
}
