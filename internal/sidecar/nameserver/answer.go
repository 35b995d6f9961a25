package nameserver

import (
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

const (
	// ttl of answers, in seconds, as of the agent's.
	ttl = 5
	// maxAliases bounds how many names lead to each other.
	maxAliases = 8
	// typeHTTPS and typeSVCB (RFC 9460).
	typeHTTPS, typeSVCB dnsmessage.Type = 65, 64
)

// record is of an answer.
type record struct {
	name string // without a dot at its end
	body dnsmessage.ResourceBody
}

// reply is what the names that are here say to a question.
type reply struct {
	code    dnsmessage.RCode
	answers []record
	extra   []record
	// alias is a name of others that the answer ends at; "": none.
	alias string
	// zone of the name, whose SOA a no has.
	zone string
}

// local answers a question of the class IN by the names that are here; false: it is for others.
func (t *Table) local(name string, qtype dnsmessage.Type) (reply, bool) {
	if a, ok := arpa(name); ok {
		names := t.names(a)
		r := reply{zone: name}
		for _, n := range names {
			if qtype == dnsmessage.TypePTR || qtype == dnsmessage.TypeALL {
				r.answers = append(r.answers, record{name, &dnsmessage.PTRResource{PTR: fqdn(n)}})
			}
		}
		return r, len(names) > 0
	}
	zone, ready := t.zone(name)
	h, below := t.find(name)
	switch {
	case h == nil && zone == "":
		return reply{}, false
	case !ready:
		return reply{code: dnsmessage.RCodeServerFailure}, true
	case h == nil:
		return t.unknown(name, zone)
	case zone == "": // of a service outside every mesh
		switch qtype {
		case dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeALL:
		case dnsmessage.TypeCNAME, typeHTTPS, typeSVCB: // they would lead past the virtual addresses
		default:
			return reply{}, false
		}
		return reply{zone: name, answers: addresses(name, qtype, h.Addresses)}, true
	}
	r := t.known(name, qtype, h, below)
	r.zone = zone
	return r, true
}

// unknown name in a zone. What the specification of names has beside Services is known to others.
func (t *Table) unknown(name, zone string) (reply, bool) {
	rest := strings.TrimSuffix(strings.TrimSuffix(name, zone), ".")
	labels := strings.Split(rest, ".")
	n := len(labels)
	if rest == "" || zone != meshname.Domain && labels[n-1] != "svc" {
		return reply{}, false
	}
	// The names above Services exist without saying anything.
	if zone != meshname.Domain && n <= 2 || zone == meshname.Domain && n < 4 && aboveService(labels) {
		return reply{zone: zone}, true
	}
	return reply{code: dnsmessage.RCodeNameError, zone: zone}, true
}

// aboveService reports whether labels end as names of Services below "mesh" that are written with dots.
func aboveService(labels []string) bool {
	n := len(labels)
	_, err := strconv.ParseUint(labels[n-1], 10, 16)
	return err == nil && (n == 1 || labels[n-2] == "svc")
}

func (t *Table) known(name string, qtype dnsmessage.Type, h *wire.HostName, below string) reply {
	switch {
	case h.Headless && len(h.Addresses) == 0:
		return reply{code: dnsmessage.RCodeNameError}
	case h.Alias != "" && below == "":
		return t.alias(name, qtype, h)
	case below == "":
		if qtype == dnsmessage.TypeSRV {
			return services(name, name, h, func(wire.PortBelow) bool { return true })
		}
		return reply{answers: addresses(name, qtype, h.Addresses)}
	}
	for _, host := range h.Hosts {
		if host.Name == below {
			return reply{answers: addresses(name, qtype, host.Addresses)}
		}
	}
	exists := false
	for _, p := range h.Ports {
		if p.Label == below {
			base := name[len(below)+1:]
			if qtype != dnsmessage.TypeSRV {
				return reply{}
			}
			return services(name, base, h, func(p wire.PortBelow) bool { return p.Label == below })
		}
		exists = exists || strings.HasSuffix(p.Label, "."+below) // "_tcp" of "_http._tcp"
	}
	for _, host := range h.Hosts {
		exists = exists || strings.HasSuffix(host.Name, "."+below) // "east" of "web-0.east"
	}
	if exists {
		return reply{}
	}
	return reply{code: dnsmessage.RCodeNameError}
}

// alias answers that a name is another one for a second one, and what that stands for.
func (t *Table) alias(name string, qtype dnsmessage.Type, h *wire.HostName) reply {
	var r reply
	for range maxAliases {
		target := strings.TrimSuffix(h.Alias, ".")
		r.answers = append(r.answers, record{name, &dnsmessage.CNAMEResource{CNAME: fqdn(target)}})
		if qtype == dnsmessage.TypeCNAME {
			return r
		}
		next, below := t.find(target)
		if next == nil || below != "" || next.Alias == "" {
			end, ours := t.local(target, qtype)
			if !ours {
				r.alias = target
				return r
			}
			r.answers, r.extra = append(r.answers, end.answers...), end.extra
			return r
		}
		name, h = target, next
	}
	return reply{code: dnsmessage.RCodeServerFailure} // they lead in a circle
}

// addresses of the family that is asked for, in another order each time.
func addresses(name string, qtype dnsmessage.Type, all []netip.Addr) []record {
	var out []record
	for _, a := range all {
		switch {
		case a.Is4() && (qtype == dnsmessage.TypeA || qtype == dnsmessage.TypeALL):
			out = append(out, record{name, &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && (qtype == dnsmessage.TypeAAAA || qtype == dnsmessage.TypeALL):
			out = append(out, record{name, &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// services says where ports are served, with the addresses of there. base is the name of the Service.
func services(name, base string, h *wire.HostName, wanted func(wire.PortBelow) bool) reply {
	var r reply
	done := map[string]bool{}
	type place struct {
		number uint16
		host   string
	}
	served := map[place]bool{}
	for _, p := range h.Ports {
		if !wanted(p) || served[place{p.Number, p.Host}] {
			continue
		}
		served[place{p.Number, p.Host}] = true
		target, at := base, h.Addresses
		if p.Host != "" {
			target, at = p.Host+"."+base, nil
			for _, host := range h.Hosts {
				if host.Name == p.Host {
					at = host.Addresses
				}
			}
		}
		r.answers = append(r.answers, record{name, &dnsmessage.SRVResource{Weight: 100, Port: p.Number, Target: fqdn(target)}})
		if !done[target] {
			done[target] = true
			r.extra = append(r.extra, addresses(target, dnsmessage.TypeALL, at)...)
		}
	}
	return r
}

// fqdn of a name that is short enough; names here were names of objects, or came in a question.
func fqdn(name string) dnsmessage.Name {
	n, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return dnsmessage.MustNewName(".")
	}
	return n
}

// arpa is the address of a reverse name (RFC 1035, 3.5; RFC 3596, 2.5).
func arpa(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		labels := strings.Split(rest, ".")
		if len(labels) != 4 {
			return netip.Addr{}, false
		}
		labels[0], labels[1], labels[2], labels[3] = labels[3], labels[2], labels[1], labels[0]
		a, err := netip.ParseAddr(strings.Join(labels, "."))
		return a, err == nil && a.Is4()
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa")
	if !ok || len(rest) != 63 {
		return netip.Addr{}, false
	}
	var b [16]byte
	for i := range 32 {
		digit, err := strconv.ParseUint(rest[2*i:2*i+1], 16, 4)
		if err != nil || i < 31 && rest[2*i+1] != '.' {
			return netip.Addr{}, false
		}
		b[15-i/2] |= byte(digit) << (4 * (i % 2))
	}
	return netip.AddrFrom16(b), true
}
