package translate

import (
	"fmt"
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/policy"
)

// Access is a permission as filters: refusals are before what is let through. A nil part is not
// needed.
type Access struct{ Deny, Allow *rbacv3.RBAC }

// Permission as rules of connections (http false: what requests are like does not count, and rules
// that describe requests describe nothing) or of requests. Shadows are what is counted alone.
func Permission(p *policy.Permission, http bool) (enforced, shadow Access) {
	if len(p.Deny) > 0 {
		enforced.Deny = rules(p.Deny, rbacv3.RBAC_DENY, http)
	}
	if p.Refuse {
		enforced.Allow = rules(p.Allow, rbacv3.RBAC_ALLOW, http)
	}
	if len(p.ShadowDeny) > 0 {
		shadow.Deny = rules(p.ShadowDeny, rbacv3.RBAC_DENY, http)
	}
	if len(p.ShadowAllow) > 0 {
		shadow.Allow = rules(append(append([]policy.Rule{}, p.Allow...), p.ShadowAllow...), rbacv3.RBAC_ALLOW, http)
	}
	return enforced, shadow
}

// NetworkAccess are the network filters of a permission for a port that is not HTTP, in their order.
func NetworkAccess(p *policy.Permission) []*networkrbacv3.RBAC {
	enforced, shadow := Permission(p, false)
	var out []*networkrbacv3.RBAC
	for _, r := range []struct {
		stat             string
		enforced, shadow *rbacv3.RBAC
	}{{"deny.", enforced.Deny, shadow.Deny}, {"allow.", enforced.Allow, shadow.Allow}} {
		if r.enforced != nil || r.shadow != nil {
			out = append(out, &networkrbacv3.RBAC{
				StatPrefix: "permission." + r.stat, Rules: r.enforced, ShadowRules: r.shadow, ShadowRulesStatPrefix: "shadow_",
			})
		}
	}
	return out
}

// HTTPAccess are the HTTP filters of a permission for a port that is HTTP, in their order.
func HTTPAccess(p *policy.Permission) []*httprbacv3.RBAC {
	enforced, shadow := Permission(p, true)
	var out []*httprbacv3.RBAC
	for _, r := range []struct {
		stat             string
		enforced, shadow *rbacv3.RBAC
	}{{"deny.", enforced.Deny, shadow.Deny}, {"allow.", enforced.Allow, shadow.Allow}} {
		if r.enforced != nil || r.shadow != nil {
			out = append(out, &httprbacv3.RBAC{
				Rules: r.enforced, ShadowRules: r.shadow, RulesStatPrefix: "permission_" + r.stat, ShadowRulesStatPrefix: "shadow_" + r.stat,
			})
		}
	}
	return out
}

// NormalizePaths lets a permission that judges paths see what the application will: dot segments,
// repeated slashes and escaped letters are resolved before, and forwarded so. A path with an
// escaped slash is refused (400), since some applications take it for a slash and others do not.
// Other permissions change no path. Shadows change none either.
func NormalizePaths(m *hcmv3.HttpConnectionManager, p *policy.Permission) {
	judged := func(r policy.Rule) bool {
		return slices.ContainsFunc(r.To, func(to mesh.PermissionRequest) bool { return len(to.Paths) > 0 })
	}
	if !slices.ContainsFunc(p.Deny, judged) && !slices.ContainsFunc(p.Allow, judged) {
		return
	}
	m.NormalizePath, m.MergeSlashes = wrapperspb.Bool(true), true
	m.PathWithEscapedSlashesAction = hcmv3.HttpConnectionManager_REJECT_REQUEST
}

func rules(all []policy.Rule, action rbacv3.RBAC_Action, http bool) *rbacv3.RBAC {
	out := &rbacv3.RBAC{Action: action, Policies: map[string]*rbacv3.Policy{}}
	for i := range all {
		r := &all[i]
		if r.Nobody || !http && len(r.To) > 0 {
			continue
		}
		out.Policies[fmt.Sprintf("%s/%d", r.Source.Key, i)] = &rbacv3.Policy{Principals: principals(r.Callers), Permissions: requests(r.To)}
	}
	return out
}

func principals(callers []policy.Caller) []*rbacv3.Principal {
	if len(callers) == 0 {
		return []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Any{Any: true}}}
	}
	var out []*rbacv3.Principal
	for _, c := range callers {
		var all []*rbacv3.Principal
		for _, names := range c.Names {
			var one []*rbacv3.Principal
			for _, n := range names {
				one = append(one, &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{
					Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: text(n)},
				}})
			}
			all = append(all, oneOf(one))
		}
		for _, addresses := range c.Addresses {
			var one []*rbacv3.Principal
			for _, a := range addresses {
				if r := cidr(a); r != nil {
					one = append(one, &rbacv3.Principal{Identifier: &rbacv3.Principal_DirectRemoteIp{DirectRemoteIp: r}})
				}
			}
			all = append(all, oneOf(one))
		}
		switch len(all) {
		case 0:
			out = append(out, &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}})
		case 1:
			out = append(out, all[0])
		default:
			out = append(out, &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: all}}})
		}
	}
	return out
}

// oneOf several principals; none of them is nobody.
func oneOf(all []*rbacv3.Principal) *rbacv3.Principal {
	switch len(all) {
	case 0:
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}}}}
	case 1:
		return all[0]
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: all}}}
}

// cidr of an address or a range; nil: it is neither.
func cidr(text string) *corev3.CidrRange {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	return &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))} //nolint:gosec // at most 128
}

func requests(to []mesh.PermissionRequest) []*rbacv3.Permission {
	if len(to) == 0 {
		return []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}}
	}
	var out []*rbacv3.Permission
	for _, r := range to {
		var all []*rbacv3.Permission
		var methods, hosts, paths []*rbacv3.Permission
		for _, m := range r.Methods {
			methods = append(methods, headerIs(":method", exact(m)))
		}
		for _, h := range r.Hosts {
			hosts = append(hosts, headerIs(":authority", expression("(?i)"+quote(h)+"(:[0-9]+)?")))
		}
		for _, p := range r.Paths {
			paths = append(paths, &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{
				UrlPath: &matcherv3.PathMatcher{Rule: &matcherv3.PathMatcher_Path{Path: text(p)}},
			}})
		}
		for _, list := range [][]*rbacv3.Permission{methods, paths, hosts} {
			switch len(list) {
			case 0:
			case 1:
				all = append(all, list[0])
			default:
				all = append(all, &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: list}}})
			}
		}
		if len(all) == 1 {
			out = append(out, all[0])
			continue
		}
		out = append(out, &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: all}}})
	}
	return out
}

func headerIs(name string, value *matcherv3.StringMatcher) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: &routev3.HeaderMatcher{
		Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: value},
	}}}
}
