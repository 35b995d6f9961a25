package policy

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// Call is who calls a port.
type Call struct {
	// Identity is the SPIFFE ID of the client's certificate; empty: it shows none.
	Identity string
	// Address that the connection comes from; the zero value: it is not known, and no rule with addresses is
	// for the call.
	Address netip.Addr
	// HTTP: the port's requests are read, so that rules about requests count.
	HTTP bool
}

// Verdict on a call.
type Verdict struct {
	Allowed bool
	// By is the policy whose rule decides. Without one the Mesh does (Default).
	By Source
	// Denied: a rule of deny of By describes the call. Otherwise, where it is refused, none of Allowing does.
	Denied bool
	// Allowing are the policies with rules of allow for the port.
	Allowing []Source
	// Requests are rules that decide otherwise about some requests: those of deny where the call is allowed,
	// those of allow where it is refused.
	Requests []Rule
}

// Default reports that no policy decides, but Mesh.spec.defaultAccess.
func (v *Verdict) Default() bool { return v.By == Source{} && len(v.Allowing) == 0 }

// Judge a call as proxies do: deny before allow. Shadows do not count.
func (p *Permission) Judge(c Call) Verdict {
	var v Verdict
	for i := range p.Allow {
		if !slices.Contains(v.Allowing, p.Allow[i].Source) {
			v.Allowing = append(v.Allowing, p.Allow[i].Source)
		}
	}
	var some []Rule
	for _, r := range p.Deny {
		switch {
		case !r.describes(c):
		case len(r.To) > 0:
			some = append(some, r)
		default:
			v.Denied, v.By = true, r.Source
			return v
		}
	}
	if !p.Refuse {
		v.Allowed, v.Requests = true, some
		return v
	}
	for _, r := range p.Allow {
		switch {
		case !r.describes(c):
		case len(r.To) > 0:
			v.Requests = append(v.Requests, r)
		default:
			v.Allowed, v.By, v.Requests = true, r.Source, some
			return v
		}
	}
	return v
}

// describes reports whether a rule is for a call, whatever its requests are like. A rule about requests is
// for nothing on a port that is not HTTP.
func (r *Rule) describes(c Call) bool {
	if r.Nobody || len(r.To) > 0 && !c.HTTP {
		return false
	}
	return len(r.Callers) == 0 || slices.ContainsFunc(r.Callers, func(k Caller) bool { return k.is(c) })
}

func (k *Caller) is(c Call) bool {
	for _, names := range k.Names {
		if c.Identity == "" || !slices.ContainsFunc(names, func(m mesh.ValueMatch) bool { return matches(m, c.Identity) }) {
			return false
		}
	}
	for _, addresses := range k.Addresses {
		if !slices.ContainsFunc(addresses, func(text string) bool { return contains(text, c.Address) }) {
			return false
		}
	}
	return true
}

func matches(m mesh.ValueMatch, text string) bool {
	switch m.Type {
	case mesh.MatchPrefix:
		return strings.HasPrefix(text, m.Value)
	case mesh.MatchRegularExpression:
		e, err := regexp.Compile("^(?:" + m.Value + ")$")
		return err == nil && e.MatchString(text)
	}
	return text == m.Value
}

// contains reports whether an address, or a range of addresses, has one.
func contains(text string, a netip.Addr) bool {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Contains(a)
	}
	one, err := netip.ParseAddr(text)
	return err == nil && one == a
}
