package dns

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// schemaVersion of the records (Kubernetes DNS-based service discovery).
const schemaVersion = "1.1.0"

// Seconds that others may keep our answers, yes and no alike. Endpoints of a
// headless Service come and go, and CoreDNS has taught clients to expect 5.
const ttl = 5

// answer is what the local state says to a question.
type answer struct {
	rcode  int
	answer []dns.RR
	extra  []dns.RR
	// alias is a name outside of the zone that the answer ends at.
	alias string
	// varies: the order is drawn again for every answer, or who asks matters.
	varies bool
	// origin of the domain that the name is in; empty: the cluster domain.
	origin string
}

// domain is one of the domains that the server is authoritative for.
type domain struct {
	*Server
	// origin is absolute, in lower case.
	origin string
	// imports: the names are those of imported services, and there are no others.
	imports bool
	// mesh: the names are those of the client's mesh.
	mesh bool
	caller
}

// caller is who asks.
type caller struct {
	// client is its address; invalid: nobody asks, what is answered to all is looked for.
	client netip.Addr
	// viewer is the mesh whose Services it sees; empty: all.
	viewer string
}

func (s *Server) caller(from netip.Addr) caller {
	c := caller{client: from.Unmap()}
	if s.config.Viewer != nil {
		c.viewer = s.config.Viewer(c.client)
	}
	return c
}

// key of the Service that a name below "svc" stands for.
func (d domain) key(namespace, name string) proxy.ServiceName {
	if d.imports {
		name = mcs.DerivedServiceName(namespace, name)
	}
	return proxy.ServiceName{Namespace: namespace, Name: name}
}

// domains are the cluster domain, that of imported services and that of meshes.
func (s *Server) domains(c caller) [3]domain {
	return [3]domain{
		{Server: s, origin: s.origin, caller: c},
		{Server: s, origin: clusterSet, imports: true, caller: c},
		{Server: s, origin: meshOrigin, mesh: true, caller: c},
	}
}

// meshOrigin is the domain of names of meshes.
const meshOrigin = meshname.Domain + "."

// clusterSet is the domain of imported services (KEP-1645 and KEP-2577).
const clusterSet = "clusterset.local."

// ClusterSetDomain is the domain of imported services, without a dot at its end.
const ClusterSetDomain = "clusterset.local"

// local answers a question from the local state. ok is false for names of
// others. name is the question's in lower case.
func (s *Server) local(q dns.Question, name string, c caller) (a answer, ok bool) {
	if d, labels, ours := s.domainOf(name, c); ours {
		if len(labels) == 0 {
			a = d.apex(q)
		} else {
			a = d.below(q, labels)
		}
		a.origin = d.origin
		return a, true
	}
	if strings.HasSuffix(name, ".arpa.") {
		return s.reverse(q, name, c)
	}
	return s.outside(q, name, c.client)
}

// domainOf is the domain that a name is in, and the labels of the name below it.
func (s *Server) domainOf(name string, c caller) (in domain, labels []string, ok bool) {
	for _, d := range s.domains(c) {
		if name == d.origin {
			return d, nil, true
		}
		if rest, below := strings.CutSuffix(name, "."+d.origin); below {
			return d, strings.Split(rest, "."), true
		}
	}
	return domain{}, nil, false
}

func (d domain) apex(q dns.Question) (a answer) {
	switch q.Qtype {
	case dns.TypeSOA:
		soa := d.soa(d.origin)
		soa.Hdr.Name = q.Name
		a.answer = []dns.RR{soa}
	case dns.TypeNS:
		a.answer = []dns.RR{&dns.NS{Hdr: header(q.Name, dns.TypeNS), Ns: "ns.dns." + d.origin}}
	}
	return a
}

// below answers for a name under the cluster domain; labels are its own.
func (d domain) below(q dns.Question, labels []string) answer {
	n := len(labels)
	switch {
	case d.mesh:
		return d.meshName(q, labels)
	case n == 1 && labels[0] == "dns-version" && !d.imports:
		if q.Qtype != dns.TypeTXT {
			return answer{}
		}
		return answer{answer: []dns.RR{&dns.TXT{Hdr: header(q.Name, dns.TypeTXT), Txt: []string{schemaVersion}}}}
	case labels[n-1] == "svc":
		return d.services(q, labels[:n-1])
	case labels[n-1] == "pod" && !d.imports:
		return d.pods(q, labels[:n-1])
	case labels[n-1] == "dns":
		return d.nameserver(q, labels[:n-1])
	}
	return answer{rcode: dns.RcodeNameError}
}

// nameserver answers for the name in SOA and NS records.
func (d domain) nameserver(q dns.Question, labels []string) answer {
	switch {
	case len(labels) == 0:
		return answer{}
	case len(labels) > 1 || labels[0] != "ns":
		return answer{rcode: dns.RcodeNameError}
	}
	var h records.Host
	for _, a := range d.config.Addresses {
		if a.Is4() {
			h.V4 = append(h.V4, a)
		} else {
			h.V6 = append(h.V6, a)
		}
	}
	return addresses(q, &h)
}

// pods answers for "a-b-c-d.namespace.pod", which is an address in disguise. The
// specification wants it of any address.
func (d domain) pods(q dns.Question, labels []string) answer {
	switch len(labels) {
	case 0, 1:
		return answer{}
	case 2:
		if a, ok := undash(labels[0]); ok {
			var h records.Host
			if a.Is4() {
				h.V4 = []netip.Addr{a}
			} else {
				h.V6 = []netip.Addr{a}
			}
			return addresses(q, &h)
		}
	}
	return answer{rcode: dns.RcodeNameError}
}

func undash(label string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", ".")); err == nil {
		return a, true
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", ":"))
	return a, err == nil
}

// services answers for [_port._protocol. | hostname. | hostname.cluster.] service.namespace, or for
// the names above it, which exist without saying anything.
func (d domain) services(q dns.Question, labels []string) answer {
	n := len(labels)
	if n == 0 || n == 1 && d.config.Zone.HasNamespace(labels[0], d.viewer) {
		return answer{}
	}
	if n == 1 || n > 4 {
		return answer{rcode: dns.RcodeNameError}
	}
	e := d.config.Zone.Service(d.key(labels[n-1], labels[n-2]))
	if e == nil || e.Empty() || !e.Scope.Allows(d.viewer) {
		// A headless Service without ready endpoints does not exist, says the
		// specification.
		return answer{rcode: dns.RcodeNameError}
	}
	service := labels[n-2:]
	switch n {
	case 2:
		return d.service(q, service, e)
	case 3:
		if h := e.Hosts[labels[0]]; h != nil {
			return addresses(q, h)
		}
		if !d.imports {
			if h := d.config.Zone.Endpoint(e.Name, labels[0]); h != nil {
				return addresses(q, h)
			}
		}
		for label := range e.Ports { // "_tcp", where "_http._tcp" is
			if strings.HasSuffix(label, "."+labels[0]) {
				return answer{}
			}
		}
		for name := range e.Hosts { // "east", where "web-0.east" is
			if strings.HasSuffix(name, "."+labels[0]) {
				return answer{}
			}
		}
	case 4:
		if h := e.Hosts[labels[0]+"."+labels[1]]; h != nil {
			return addresses(q, h)
		}
		if ports := e.Ports[labels[0]+"."+labels[1]]; len(ports) > 0 {
			return d.ports(q, service, e, ports)
		}
	}
	return answer{rcode: dns.RcodeNameError}
}

// service answers for a Service's own name, of which labels are the first two.
func (d domain) service(q dns.Question, labels []string, e *records.Entry) answer {
	if e.Alias != "" {
		return d.alias(q, e.Alias)
	}
	if q.Qtype != dns.TypeSRV {
		return addresses(q, &e.Host)
	}
	// Not in the specification, but known of CoreDNS: all ports at once. A number that is
	// served by several protocols, or under several names, is one record, as a record
	// has neither.
	all := map[records.Port]struct{}{}
	for _, ports := range e.Ports {
		for _, p := range ports {
			all[p] = struct{}{}
		}
	}
	a := d.ports(q, labels, e, slices.Collect(maps.Keys(all)))
	a.varies = true
	return a
}

// maxAliases bounds how many names may lead to each other.
const maxAliases = 8

// alias answers that the name is another one for target, and with what that
// stands for if it is known here.
func (d domain) alias(q dns.Question, target string) answer {
	a := answer{answer: []dns.RR{&dns.CNAME{Hdr: header(q.Name, dns.TypeCNAME), Target: dns.Fqdn(target)}}}
	if q.Qtype == dns.TypeCNAME || q.Qtype == dns.TypeANY {
		return a
	}
	for range maxAliases {
		name := dns.Fqdn(strings.ToLower(target))
		in, labels, ours := d.domainOf(name, d.caller)
		if !ours || len(labels) == 0 {
			if end, known := d.outside(dns.Question{Name: name, Qtype: q.Qtype, Qclass: q.Qclass}, name, d.client); known {
				return a.then(end)
			}
			a.alias = name
			return a
		}
		var e *records.Entry
		if len(labels) == 3 && labels[2] == "svc" && !in.mesh {
			e = in.config.Zone.Service(in.key(labels[1], labels[0]))
		}
		if e == nil || e.Alias == "" || !e.Scope.Allows(d.viewer) {
			end := in.below(dns.Question{Name: name, Qtype: q.Qtype, Qclass: q.Qclass}, labels)
			return a.then(end)
		}
		a.answer = append(a.answer, &dns.CNAME{Hdr: header(name, dns.TypeCNAME), Target: dns.Fqdn(e.Alias)})
		target = e.Alias
	}
	return answer{rcode: dns.RcodeServerFailure} // they lead in a circle
}

// then is an answer of aliases that lead to a name with the answer end. Where that does not exist
// the aliases still do: CoreDNS answers NOERROR with them, where RFC 6604 would have NXDOMAIN.
func (a answer) then(end answer) answer {
	if end.rcode == dns.RcodeNameError {
		end.rcode = dns.RcodeSuccess
	}
	end.answer = append(a.answer, end.answer...)
	return end
}

// addresses answers with those of the family that is asked for.
func addresses(q dns.Question, h *records.Host) (a answer) {
	a.answer = addressRecords(q.Name, q.Qtype, h)
	if len(a.answer) > 1 {
		a.varies = true
		rand.Shuffle(len(a.answer), func(i, j int) { a.answer[i], a.answer[j] = a.answer[j], a.answer[i] })
	}
	return a
}

func addressRecords(name string, qtype uint16, h *records.Host) (out []dns.RR) {
	if qtype == dns.TypeA || qtype == dns.TypeANY {
		for _, ip := range h.V4 {
			out = append(out, &dns.A{Hdr: header(name, dns.TypeA), A: ip.AsSlice()})
		}
	}
	if qtype == dns.TypeAAAA || qtype == dns.TypeANY {
		for _, ip := range h.V6 {
			out = append(out, &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: ip.AsSlice()})
		}
	}
	return out
}

// ports answers where a named port is served, with the addresses of there. labels are the
// first two of the name of the Service.
func (d domain) ports(q dns.Question, labels []string, e *records.Entry, ports []records.Port) (a answer) {
	if q.Qtype != dns.TypeSRV {
		return a
	}
	base := labels[0] + "." + labels[1] + ".svc." + d.origin
	sent := make(map[string]struct{}, len(ports))
	for _, p := range ports {
		target, h := base, &e.Host
		if p.Hostname != "" {
			target, h = p.Hostname+"."+base, e.Hosts[p.Hostname]
		}
		a.answer = append(a.answer, &dns.SRV{Hdr: header(q.Name, dns.TypeSRV), Weight: 100, Port: p.Number, Target: target})
		if _, twice := sent[target]; twice || h == nil {
			continue
		}
		sent[target] = struct{}{}
		a.extra = append(a.extra, addressRecords(target, dns.TypeA, h)...)
		a.extra = append(a.extra, addressRecords(target, dns.TypeAAAA, h)...)
	}
	return a
}

// reverse answers for addresses that are known here. Those that are not are
// others' business, unless they lie in a range that is ours alone.
func (s *Server) reverse(q dns.Question, name string, c caller) (a answer, ok bool) {
	addr, whole := arpa(name)
	if !whole {
		return a, false
	}
	if virtual, there := s.config.Zone.VirtualAt(addr); there {
		return s.reverseMesh(q, virtual, c.client), true
	}
	names, known := s.config.Zone.Reverse(addr, c.viewer)
	if known && len(names) == 0 {
		return answer{rcode: dns.RcodeNameError}, true // those of others
	}
	if !known {
		for _, p := range s.ranges.Load().prefixes {
			if p.Contains(addr) {
				return answer{rcode: dns.RcodeNameError}, true
			}
		}
		return a, false
	}
	if q.Qtype == dns.TypePTR {
		for _, n := range names {
			a.answer = append(a.answer, &dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: n + "." + s.origin})
		}
	}
	return a, true
}

// arpa reads the address out of a reverse name (RFC 1035, 3.5; RFC 3596, 2.5).
func arpa(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		labels := strings.Split(rest, ".")
		if len(labels) != 4 {
			return netip.Addr{}, false
		}
		var b [4]byte
		for i, l := range labels {
			n, err := strconv.ParseUint(l, 10, 8)
			if err != nil || len(l) > 1 && l[0] == '0' {
				return netip.Addr{}, false
			}
			b[3-i] = byte(n)
		}
		return netip.AddrFrom4(b), true
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa.")
	if !ok || len(rest) != 63 {
		return netip.Addr{}, false
	}
	var b [16]byte
	for i := range 32 {
		n, err := strconv.ParseUint(rest[2*i:2*i+1], 16, 8)
		if err != nil || i < 31 && rest[2*i+1] != '.' {
			return netip.Addr{}, false
		}
		b[15-i/2] |= byte(n) << (4 * (i % 2))
	}
	return netip.AddrFrom16(b), true
}

func header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}

// soa says in negative answers how long they may be kept (RFC 2308).
func (s *Server) soa(origin string) *dns.SOA {
	return &dns.SOA{
		Hdr: header(origin, dns.TypeSOA), Ns: "ns.dns." + origin, Mbox: "hostmaster." + origin,
		Serial: uint32(s.config.Zone.Generation()), Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl,
	}
}
